"""bert-adapt: which tokens it adds, what stays as it was, what comes out, and what it refuses."""

import contextlib
import io
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from tokenizers import models
from transformers import AutoTokenizer

import keras_bert
from keras_bert.errors import InputError
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor
from keras_bert.models import BertPretrainer, BertTextEmbedder
from keras_bert.presets.weights import open_checkpoint
from keras_bert.tokenization.normalizer import split_words
from keras_bert.vocabulary import SPECIAL_TOKENS
from tasks import flags
from tasks.convert.run import ConversionSettings, convert
from tasks.pretraining.adapt import adapt
from tasks.pretraining.adaptation.new_pieces import NewPiece, choose_pieces
from tasks.pretraining.adaptation.settings import AdaptSettings
from tasks.pretraining.adaptation.stages import _split, with_rows
from tasks.text.stages import StageRun

LETTERS = "abcdefghijklmnopqrstuvwxyz"
INNER = [f"##{letter}" for letter in LETTERS]
PIECES = [*SPECIAL_TOKENS, *LETTERS, *INNER, ".", "the", "leaf", "of", "photo", "##phyll"]
WORDS = ["the", "leaf", "of", "photosynthesis", "chlorophyll", "chloroplasts", "stoma", "xylem"]
OLD_TEXTS = ["The leaf of the leaf.", "of a b"]
SIZES = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32, "max_sequence_length": 32}
FEW = ["--max_seq_length=32", "--num_train_steps=4", "--save_checkpoints_steps=2", "--train_batch_size=8"]


def document(rng, num_lines=6):
    return [" ".join(rng.choices(WORDS, k=8)).capitalize() + "." for _ in range(num_lines)]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Text with a byte order mark and carriage returns."""
    rng, path = random.Random(0), tmp_path_factory.mktemp("text") / "domain.txt"
    lines = [line for _ in range(30) for line in [*document(rng), ""]]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    return str(path)


def save(model_class, directory, **settings):
    """Saves a preset of random weights, with an output bias that is not zero."""
    tokenizer = keras_bert.BertTokenizer(PIECES)
    model = model_class(keras_bert.BertBackbone(len(PIECES), **SIZES), **settings)
    for variable in model.weights:
        if variable.path.endswith("bias"):
            variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    model.save_to_preset(str(directory))
    tokenizer.save_to_preset(str(directory))
    return str(directory)


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    return save(BertPretrainer, tmp_path_factory.mktemp("preset") / "plain")


def run(*arguments) -> dict:
    return adapt(flags.parse(AdaptSettings, list(arguments)))


@pytest.fixture(scope="module")
def adapted(preset, text, tmp_path_factory):
    """A finished run, not to be changed: its command line, its directory and its metrics."""
    output_dir = tmp_path_factory.mktemp("adapt") / "out"
    command = [f"--preset={preset}", f"--input_file={text}", "--num_new_tokens=12", f"--output_dir={output_dir}", *FEW]
    return command, output_dir, run(*command)


def pieces_of(directory):
    return (directory / "assets" / "tokenizer" / "vocabulary.txt").read_text(encoding="utf-8").splitlines()


def word_piece(pieces):
    """The tokenizers library's own WordPiece, on words."""
    model = models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    return lambda word: [token.value for token in model.tokenize(word)]


def count_words(path, lowercase=True):
    return Counter(split_words(path.read_text(encoding="utf-8"), lowercase))


# === The choice ===


def test_the_piece_that_saves_most_comes_first():
    """By hand: `abcd` saves 3 tokens six times, `xef` 2 three times; `##ef` is then left in one word alone."""
    letters = [*"abcdefx", *(f"##{letter}" for letter in "abcdefx")]
    counts = {"abcd": 5, "xef": 3, "x": 99, "abcdef": 1, "xab": 1}
    assert choose_pieces(counts, letters, 2) == [
        NewPiece("abcd", ["a", "##b", "##c", "##d"], 6),
        NewPiece("xef", ["x", "##e", "##f"], 3),
    ]
    assert [piece.piece for piece in choose_pieces(counts, letters, 99)] == ["abcd", "xef"]  # Others occur once.


def test_savings_are_those_of_the_tokenizers_library():
    rng = random.Random(1)
    syllables = ["ka", "to", "mi", "rus", "tel", "an", "q"]
    counts = {"".join(rng.choices(syllables, k=rng.randint(1, 6))): rng.randint(1, 9) for _ in range(600)}
    old = ["[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS if letter != "q"), "kato", "##mirus", "##tel"]
    chosen = choose_pieces(counts, old, 80)
    before, after = word_piece(old), word_piece([*old, *(piece.piece for piece in chosen)])
    times, saved = Counter(), []
    for word, count in counts.items():
        if before(word) != ["[UNK]"]:  # With a "q" inside.
            times.update({piece: count for piece in set(after(word))})
            saved.append(count * (len(before(word)) - len(after(word))))
            assert after(word) != ["[UNK]"]
    assert sum(saved) > 0.4 * sum(count * len(before(word)) for word, count in counts.items())
    assert all(before(piece.piece.removeprefix("##")) != ["[UNK]"] for piece in chosen)
    assert {piece.piece for piece in chosen}.isdisjoint(old) and len(chosen) > 70
    for piece in chosen:
        assert "".join(part.removeprefix("##") for part in piece.parts) == piece.piece.removeprefix("##")
        assert piece.piece.startswith("##") == piece.parts[0].startswith("##")
        assert 0 < times[piece.piece] <= piece.times  # A word may hold it twice.


def test_no_piece_makes_a_word_of_the_text_unknown():
    """`abc` would leave `d`, which the vocabulary has only behind `c`."""
    vocabulary = ["[UNK]", "ab", "##c", "##cd"]
    assert word_piece([*vocabulary, "abc"])("abcd") == ["[UNK]"]
    assert choose_pieces({"abc": 9, "abcd": 2}, vocabulary, 5) == [NewPiece("abcd", ["ab", "##cd"], 2)]
    assert choose_pieces({"abc": 9}, vocabulary, 5) == [NewPiece("abc", ["ab", "##c"], 9)]


def test_words_that_cannot_be_pieces():
    letters = [*"ab", "##a", "##b"]
    assert choose_pieces({"a" * 201: 50, "z": 9, "az": 9}, letters, 5) == []  # Too long; unknown.
    longest = max(choose_pieces({"ab" * 100: 50}, letters, 500), key=lambda piece: len(piece.parts))
    assert len(longest.parts) == 10
    # Chinese characters are words of their own, so that nothing can be joined.
    counts = Counter(split_words("送餐快,味道好,送餐快", True))
    assert choose_pieces(counts, [*"送餐快味道好,"], 5) == []


def test_case_stays_that_of_the_vocabulary():
    vocabulary = ["[UNK]", *"KkRr", *(f"##{letter}" for letter in "erast")]
    counts = Counter(split_words("Keras keras Keras", False))
    assert [piece.piece for piece in choose_pieces(counts, vocabulary, 5)] == ["##eras", "Keras"]


# === What it leaves ===


def test_figures_are_those_of_the_text(adapted):
    _, output_dir, metrics = adapted
    assert json.loads((output_dir / "metrics.json").read_text()) == metrics
    pieces = pieces_of(output_dir / "preset")
    before, after = word_piece(PIECES), word_piece(pieces)
    assert pieces[: len(PIECES)] == PIECES and len(pieces) == metrics["vocabulary_size"]
    assert metrics["new_tokens"] == len(pieces) - len(PIECES) <= 12
    held_out = output_dir / "text" / "held_out.txt"
    counts, characters = count_words(held_out), len(held_out.read_text().replace("\n", ""))
    sums = [sum(count * len(matched(word)) for word, count in counts.items()) for matched in (before, after)]
    num_before, num_after = sums
    assert metrics["before_tokens_per_character"] == pytest.approx(num_before / characters)
    assert metrics["tokens_per_character"] == pytest.approx(num_after / characters)
    assert metrics["saved_token_share"] == pytest.approx(1 - num_after / num_before) and num_after < 0.5 * num_before
    assert metrics["most_saved_token_share"] == pytest.approx(1 - counts.total() / num_before)
    for when in ("before_", ""):
        per_token = metrics[f"{when}masked_lm_loss_per_character"] / metrics[f"{when}tokens_per_character"]
        assert per_token == pytest.approx(metrics[f"{when}masked_lm_loss"])
    assert metrics["train_steps"] == 4 and "next_sentence_accuracy" in metrics
    rows = [line.split("\t") for line in (output_dir / "new_tokens.tsv").read_text().splitlines()]
    assert rows[0] == ["token", "times", "stands_for"] and [row[0] for row in rows[1:]] == pieces[len(PIECES) :]
    train = count_words(output_dir / "text" / "train.txt")
    assert ["photosynthesis", str(train["photosynthesis"]), "photo ##s ##y ##n ##t ##h ##e ##s ##i ##s"] in rows
    page = (output_dir / "report.html").read_text(encoding="utf-8")
    assert "photosynthesis" in page and "Tokens a character" in page and '<section id="curves"' in page


def test_old_ids_and_vectors_stay_to_the_bit(adapted, preset):
    old, new = (keras_bert.BertTokenizer.from_preset(path) for path in (preset, adapted[1] / "start"))
    ids = old.tokenize(OLD_TEXTS).to_tensor(old.pad_token_id)
    assert np.array_equal(ids, new.tokenize(OLD_TEXTS).to_tensor(new.pad_token_id))
    features = {"token_ids": ids, "segment_ids": ids * 0, "padding_mask": ids * 0 + 1}
    outputs = [keras_bert.BertBackbone.from_preset(path)(features) for path in (preset, adapted[1] / "start")]
    for name, expected in outputs[0].items():
        assert np.array_equal(expected, outputs[1][name])


def test_new_tokens_start_as_the_mean_of_their_parts(adapted, preset):
    with open_checkpoint(preset) as before, open_checkpoint(adapted[1] / "start") as start:
        assert start.heads == before.heads == ("masked_lm", "next_sentence")
        for path, stored in before.tensors.items():
            old, new = stored.read(), start.tensors[path].read()
            assert np.array_equal(old, new[: len(PIECES)] if old.shape[0] == len(PIECES) else new)
            if old.shape[0] == len(PIECES):
                pieces = word_piece(PIECES)("photosynthesis")
                row = new[pieces_of(adapted[1] / "start").index("photosynthesis")]
                expected = np.mean([old[PIECES.index(piece)] for piece in pieces], axis=0)
                assert np.abs(expected).max() > 0 and np.allclose(row, expected, rtol=0, atol=1e-6)


def test_rows_that_pad_the_table_go():
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    config = keras_bert.BertConfig(vocabulary_size=5, num_layers=1, num_heads=1, hidden_dim=2, intermediate_dim=2)
    tensors = {"embeddings/token_embedding/embeddings": StoredTensor("table", (5, 2), lambda: table)}
    grown = with_rows(Checkpoint("model", "it", config, tensors), 3, [[0, 1], [2]])
    (stored,) = grown.tensors.values()
    assert grown.config.vocabulary_size == 5 and stored.shape == (5, 2)
    assert np.array_equal(stored.read(), [*table[:3], [1, 2], table[2]])


@pytest.mark.usefixtures("eagerly")
def test_the_preset_is_one_for_every_command(adapted, tmp_path):
    result = str(adapted[1] / "preset")
    model = BertPretrainer.from_preset(result, sequence_length=16)
    assert model.answer("The [MASK] of the leaf.")["tokens"]
    with open_checkpoint(adapted[1] / "start") as start, open_checkpoint(result) as after:
        assert after.heads == start.heads
        pairs = {path: (stored.read(), start.tensors[path].read()) for path, stored in after.tensors.items()}
        changed = [path for path, pair in pairs.items() if not np.array_equal(*pair)]
    assert len(changed) > 20 and "next_sentence/kernel" in changed
    convert(ConversionSettings(source=result, target=str(tmp_path / "hf"), to_format="hugging_face"))
    texts = ["Photosynthesis of the xylem.", "leafy chlorophylls photo [UNKNOWN]", *OLD_TEXTS]
    theirs = AutoTokenizer.from_pretrained(str(tmp_path / "hf"))(texts, add_special_tokens=False)["input_ids"]
    assert keras_bert.BertTokenizer.from_preset(result).tokenize(texts).to_list() == theirs


def test_the_same_command_goes_on(adapted, tmp_path, capsys):
    command, output_dir, metrics = adapted
    shutil.copytree(output_dir, tmp_path / "out")
    command = [*command, f"--output_dir={tmp_path / 'out'}"]
    shutil.rmtree(tmp_path / "out" / "preset")
    for file in ("stages/training.json", "stages/preset.json", "report.html", "training/checkpoints/ckpt-4.index"):
        os.remove(tmp_path / "out" / file)
    again = run(*command)  # As if it had been killed behind step 2, with which the training goes on.
    shown = capsys.readouterr()
    assert shown.out.count("done before, kept.") == 3 and "step 2:" not in shown.err
    assert again["train_steps"] == 4 and again["masked_lm_loss"] == pytest.approx(metrics["masked_lm_loss"], rel=1e-5)
    assert pieces_of(tmp_path / "out" / "preset") == pieces_of(output_dir / "preset")
    with pytest.raises(InputError, match=r"num_new_tokens was 12, is 5\. Choose another --output_dir"):
        run(*command, "--num_new_tokens=5")


def test_a_preset_is_known_by_its_tensors(adapted, preset, tmp_path, capsys):
    command, output_dir, metrics = adapted
    shutil.copytree(output_dir, tmp_path / "out")
    shutil.copytree(preset, tmp_path / "moved")
    command = [*command, f"--output_dir={tmp_path / 'out'}", f"--preset={tmp_path / 'moved'}"]
    assert run(*command)["masked_lm_loss"] == metrics["masked_lm_loss"]
    assert capsys.readouterr().out.count("done before, kept.") == 5
    model = BertPretrainer.from_preset(preset, sequence_length=16)
    model.backbone.token_embedding.embeddings.assign(model.backbone.token_embedding.embeddings * 2)
    model.save_to_preset(str(tmp_path / "moved"))
    with pytest.raises(InputError, match=r"the preset \(--preset\) has changed since it began\."):
        run(*command)


OF_EMBEDDER = {"pooling": "cls", "embedding_dim": 8, "embedding_activation": "tanh", "prompts": {"query": "the "}}


@pytest.fixture(scope="module")
def adapted_embedder(tmp_path_factory):
    """A run with an embedder and few lines: its preset, its directory, its metrics and what it printed."""
    directory, printed = tmp_path_factory.mktemp("embedder"), io.StringIO()
    preset = save(BertTextEmbedder, directory / "embedder", **OF_EMBEDDER)
    rng = random.Random(0)
    (directory / "lines.txt").write_text("\n".join(document(rng, 60)))
    arguments = [f"--preset={preset}", f"--input_file={directory / 'lines.txt'}", f"--output_dir={directory / 'out'}"]
    with contextlib.redirect_stdout(printed):
        metrics = run(*arguments, *FEW, "--num_new_tokens=4", "--num_train_steps=1")
    return preset, directory / "out", metrics, printed.getvalue()


@pytest.mark.usefixtures("eagerly")
def test_an_embedder_stays_one_and_few_lines_do(adapted_embedder):
    preset, output_dir, metrics, printed = adapted_embedder
    assert "has no masked-LM head: one was made" in printed
    assert metrics["new_tokens"] == 4 and "next_sentence_accuracy" not in metrics
    before, after = (BertTextEmbedder.from_preset(path) for path in (preset, output_dir / "preset"))
    assert {name: getattr(after, name) for name in OF_EMBEDDER} == OF_EMBEDDER
    assert np.array_equal(*(model.get_layer("embedding").kernel for model in (before, after)))
    assert after.encode("photosynthesis", prompt="query").shape == (8,)
    start = BertTextEmbedder.from_preset(output_dir / "start")
    assert np.array_equal(before.encode(OLD_TEXTS), start.encode(OLD_TEXTS))
    assert not np.array_equal(before.encode(OLD_TEXTS), after.encode(OLD_TEXTS))


@pytest.mark.parametrize(
    ("flag", "expected"),
    [("--num_train_steps=50", (50, None, 5)), ("--time_budget_minutes=3", (4, 3.0, 10))],
)
def test_what_it_gives_to_bert_pretrain(preset, text, tmp_path, monkeypatch, flag, expected):
    def stop(settings):
        calls.append(settings)
        raise InterruptedError

    calls = []
    monkeypatch.setattr("tasks.pretraining.adaptation.stages.pretrain", stop)
    arguments = [f"--preset={preset}", f"--input_file={text}", f"--output_dir={tmp_path / 'out'}", *FEW, flag]
    with pytest.raises(InterruptedError):
        run(*arguments, "--learning_rate=1e-3", "--mixed_precision=bfloat16")
    (given,) = calls
    assert (given.num_train_steps, given.time_budget_minutes, given.num_warmup_steps) == expected
    assert (given.learning_rate, given.mixed_precision, given.max_predictions_per_seq) == (1e-3, "bfloat16", 5)
    assert given.use_next_sentence and given.do_eval and not given.do_train


# === Text ===


def split(tmp_path, text, input_format="sentences"):
    (tmp_path / "in.txt").write_bytes(text.encode())
    runs = StageRun(str(tmp_path / "run"), {}, {})
    record = _split(runs, [str(tmp_path / "in.txt")], input_format)
    return record, *((tmp_path / "run" / "text" / f"{side}.txt").read_text() for side in ("train", "held_out"))


def test_a_tenth_of_the_documents_is_held_out(tmp_path):
    record, train, held_out = split(tmp_path, "\ufeff" + "\r\n \r\n".join(f"{n} one\r\n{n} two" for n in range(25)))
    assert record["has_documents"] and record["figure"].startswith("25 documents")
    assert held_out == "9 one\n9 two\n\n19 one\n19 two\n"
    assert train.startswith("0 one\n0 two\n\n1 one\n") and train.count("\n\n") == 22


def test_a_pipe_is_read_and_its_copy_removed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    lines = "".join(f"line {number}\n" for number in range(40))
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(lines))
    writer.start()
    _split(StageRun(str(tmp_path / "run"), {}, {}), [str(tmp_path / "pipe")], "sentences")
    writer.join()
    assert sorted(os.listdir(tmp_path / "run")) == ["flags.json", "stages", "text"]
    assert "line 0\n" in (tmp_path / "run" / "text" / "train.txt").read_text()


def test_documents_of_wikitext(tmp_path):
    text = "".join(f" = Title {n} = \n\n text {n} \n\n = = Part = = \n\n more \n\n" for n in range(20))
    record, _, held_out = split(tmp_path, text, "wikitext")
    assert record["has_documents"] and held_out == "text 9\nmore\n\ntext 19\nmore\n"


def test_lines_without_documents_are_grouped(tmp_path):
    record, train, held_out = split(tmp_path, "\n".join(map(str, range(100))))
    assert not record["has_documents"]
    assert held_out.split() == [*map(str, range(45, 50)), *map(str, range(95, 100))]
    assert len(train.split()) == 90 and train.count("\n\n") == 17


def test_little_is_held_out_of_much(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.pretraining.adaptation.stages._HELD_OUT_BYTES", 40)
    documents = ["\n".join(f"{n} {line:02d}xx" for line in range(4)) for n in range(10, 60)]
    _, train, held_out = split(tmp_path, "\n\n".join(documents))
    # A quarter of 40 bytes is reached by the second line of a document; four such documents fill it.
    assert held_out.split("\n\n") == [f"{n} 00xx\n{n} 01xx" for n in (19, 29)] + ["39 00xx\n39 01xx\n"]
    assert len(train.split("\n")) + len(held_out.split("\n")) > 200 and "19 02xx\n19 03xx\n\n20 00xx" in train


# === Refusals ===


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num_new_tokens=-1"], "num_new_tokens"),
        (["--max_seq_length=33"], r"--max_seq_length=33: must be at most the 32 of .*plain"),
        (["--input_file={tmp}/short.txt"], r"--input_file: expected at least 20 lines of text, found 3\."),
        (["--input_file={tmp}/empty.txt"], r"--input_file: expected at least 20 lines of text, found 0\."),
        (["--input_file={tmp}/old.txt"], r"--num_new_tokens=2000: no new token would shorten this text"),
        (["--preset={tmp}/bare"], r"bare: has no tokenizer\. Put the vocab\.txt"),
        (["--preset=nowhere"], "nowhere"),
        (["--distribution_strategy=multi_worker_mirrored"], "bert-adapt runs on one machine"),
        (["--do_lower_case=false"], "lower"),
    ],
)
def test_what_it_refuses(preset, tmp_path, arguments, message):
    (tmp_path / "short.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "empty.txt").touch()
    (tmp_path / "old.txt").write_text("the leaf of\n" * 40)
    shutil.copytree(preset, tmp_path / "bare", ignore=shutil.ignore_patterns("assets", "tokenizer.json"))
    others = [f"--preset={preset}", f"--input_file={tmp_path}/old.txt", f"--output_dir={tmp_path}/out", *FEW]
    with pytest.raises(Exception, match=message) as refusal:
        run(*others, *(argument.format(tmp=tmp_path) for argument in arguments))
    assert isinstance(refusal.value, InputError) or "IllegalFlagValue" in type(refusal.value).__name__
    assert "\n" not in str(refusal.value).strip()


def test_the_command_says_it_in_one_line(preset, tmp_path):
    (tmp_path / "short.txt").write_text("one\n")
    flags_of = [f"--preset={preset}", f"--input_file={tmp_path}/short.txt", f"--output_dir={tmp_path}/out", *FEW]
    done = subprocess.run([sys.executable, "-m", "tasks.pretraining.adapt", *flags_of], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].endswith("expected at least 20 lines of text, found 1.")
