"""bert-train-vocab: what it writes, that it writes the same twice, and what it refuses."""

import glob
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from repository import ROOT, SHARED, needs_data

from keras_bert.errors import InputError
from keras_bert.files import list_directory, read_lines, write_lines
from keras_bert.tokenization.normalizer import split_words
from keras_bert.vocabulary import SPECIAL_TOKENS, read_vocabulary
from tasks.pretraining import train_vocab as train_vocab_module
from tasks.pretraining.figures import format_figures
from tasks.pretraining.train_vocab import VocabularySettings, train_vocab

TEXT = "The low lower lowest, the new newer newest.\nWide wider widest!\n\nThe newest low widest thing: the lowest.\n"
TEXT *= 30


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def train(corpus, tmp_path, **settings):
    vocab_file = str(tmp_path / "out" / "vocab.txt")
    report = train_vocab(VocabularySettings(input_file=corpus, vocab_file=vocab_file, **settings))
    with open(vocab_file, encoding="utf-8") as file:
        return report, file.read().splitlines()


def test_vocabulary_and_report(corpus, tmp_path, capfd):
    report, pieces = train(corpus, tmp_path, vocab_size=50)
    shown = capfd.readouterr()
    assert "count words: 100%" in shown.err and "join pieces: 11 distinct words, up to 50 pieces\n" in shown.err
    assert shown.out == ""
    assert pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] == list(SPECIAL_TOKENS)
    assert len(set(pieces)) == len(pieces) == report["vocabulary_size"] == 50
    assert {",", ".", "!", ":", "t", "##e", "the"} < set(pieces) and "##," not in pieces
    assert report["words"] == 30 * (10 + 4 + 9)
    assert report["unknown_share"] == 0.0
    assert os.listdir(tmp_path / "out") == ["vocab.txt"]


def test_joins_the_most_frequent_pair_first(tmp_path):
    """By hand: `ab` 9 times, `cd` 5 times: first the characters, then ab, then cd; with room for one, only ab."""
    path = tmp_path / "text.txt"
    path.write_text("ab cd ab\n" * 4 + "ab cd e e\n")
    pieces = train(str(path), tmp_path, vocab_size=14)[1]
    assert pieces == [*SPECIAL_TOKENS, "##b", "##d", "a", "b", "c", "d", "e", "ab", "cd"]
    assert train(str(path), tmp_path, vocab_size=13)[1] == pieces[:-1]
    assert train(str(path), tmp_path, vocab_size=14, min_frequency=6)[1] == [*SPECIAL_TOKENS, "##b", "a", "b", "ab"]


def test_report_by_hand(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ab ab ab z\n" + "x" * 201 + "\n")
    report_file = str(tmp_path / "report.json")
    report, pieces = train(str(path), tmp_path, vocab_size=8, report_file=report_file)
    assert pieces == [*SPECIAL_TOKENS, "##b", "a", "b"]
    with open(report_file, encoding="utf-8") as file:
        assert json.load(file) == report
    assert report.pop("seconds") < 60
    assert report == {
        "words": 5,
        "dropped_words": 0,
        "dropped_occurrences": 0,
        "largest_dropped_count": 0,
        "distinct_words": 3,
        "vocabulary_size": 8,
        "single_characters": 2,
        "known_character_share": 6 / 7,  # Those of the long word do not count.
        "tokens_per_word": 2.0,
        "unknown_share": 2 / 5,
        "longest_piece": "b",
        "vocab_file": str(tmp_path / "out" / "vocab.txt"),
        "report_file": report_file,
    }
    shown = format_figures(report).splitlines()
    assert shown[0].split() == ["words", "5"] and shown[-1].split() == ["report_file", report_file]
    assert "tokens_per_word                        2" in shown and "unknown_share                     40.00%" in shown


def test_counted_in_parts(corpus, tmp_path):
    """By other commands, of whose text nothing is left."""
    expected, pieces = train(corpus, tmp_path, vocab_size=50)
    middle = TEXT.index("\n", len(TEXT) // 2) + 1
    assert TEXT[middle] != "\n"
    for name, text in (("a", TEXT[:middle]), ("b", TEXT[middle:])):
        (tmp_path / name).write_text(text)
        counts = VocabularySettings(input_file=str(tmp_path / name), word_counts_file=str(tmp_path / f"{name}.counts"))
        report = train_vocab(counts)
        assert list(report) == ["words", "distinct_words", "seconds", "word_counts_file"]
        os.remove(tmp_path / name)
    (tmp_path / "out" / ".vocab.txt.scratch").mkdir()
    (tmp_path / "out" / ".vocab.txt.scratch" / "of-a-killed-run").touch()
    report, merged = train(f"{tmp_path}/*.counts", tmp_path, vocab_size=50)
    assert merged == pieces and {**report, "seconds": expected["seconds"]} == expected
    assert os.listdir(tmp_path / "out") == ["vocab.txt"]


def test_a_pipe_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text(TEXT))
    writer.start()
    report = train(str(tmp_path / "pipe"), tmp_path, vocab_size=50)[0]
    writer.join()
    assert report["words"] == 30 * (10 + 4 + 9)


def test_every_path_may_be_a_url(corpus, tmp_path):
    pieces = train(corpus, tmp_path, vocab_size=50)[1]
    text, root = f"ram://{tmp_path.name}/text/1.txt", f"ram://{tmp_path.name}/out"
    write_lines(text, TEXT.splitlines())
    settings = {"vocab_file": f"{root}/vocab.txt", "word_counts_file": f"{root}/1.counts", "num_workers": 1}
    train_vocab(VocabularySettings(input_file=text, vocab_size=50, report_file=f"{root}/report.json", **settings))
    assert [piece for _, piece in read_lines(f"{root}/vocab.txt")] == pieces
    assert list_directory(root) == ["1.counts", "report.json", "vocab.txt"]
    settings["vocab_file"] = f"{root}/again.txt"
    del settings["word_counts_file"]
    train_vocab(VocabularySettings(input_file=f"{root}/*.counts", vocab_size=50, **settings))
    assert [piece for _, piece in read_lines(f"{root}/again.txt")] == pieces


def test_dropped_words_are_reported(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abc abc abc rare once\n")
    report, pieces = train(str(path), tmp_path, max_distinct_words=2)
    assert (report["words"], report["distinct_words"], report["dropped_words"]) == (5, 1, 2)
    assert (report["dropped_occurrences"], report["largest_dropped_count"]) == (2, 1)
    assert report["longest_piece"] == "abc" == pieces[-1]


def test_cased_keeps_case_and_accents(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\u00c9a \u00c9a Ea ea\n" * 3, encoding="utf-8")
    assert {"\u00c9", "E", "e"} < set(train(str(path), tmp_path, do_lower_case=False)[1])
    assert train(str(path), tmp_path, do_lower_case=True)[1] == [*SPECIAL_TOKENS, "##a", "a", "e", "ea"]


def test_fresh_processes_write_the_same_file(tmp_path):
    """Many ties; other hash seeds, threads and processes, and blocks so small that the processes do take part."""
    words = [f"{a}{b}{c}{d}" for a in "abcde" for b in "fghij" for c in "klmno" for d in "pqr"]
    (tmp_path / "text.txt").write_text("\n".join(words * 3) + "\n")
    written = set()
    for workers in (1, 2, 4, 2):
        vocab_file = tmp_path / f"{len(written)}.txt"
        script = (
            "from tasks.pretraining import train_vocab; from tasks.pretraining import word_counts; "
            "word_counts._SMALLEST_BLOCK = 1; word_counts.block_bytes = lambda _: 250; "
            "train_vocab.train_vocab(train_vocab.VocabularySettings("
            f"input_file={str(tmp_path / 'text.txt')!r}, vocab_file={str(vocab_file)!r}, vocab_size=200, "
            f"num_workers={workers}))"
        )
        environment = {**os.environ, "PYTHONHASHSEED": str(workers), "RAYON_NUM_THREADS": str(workers)}
        environment.pop("TOKENIZERS_PARALLELISM", None)
        subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, env=environment, timeout=120)
        written.add(vocab_file.read_bytes())
    assert len(written) == 1
    assert hashlib.sha256(written.pop()).hexdigest().startswith("f597270431989109")  # Since the first release.


def real_text():
    return sorted(glob.glob(os.path.join(SHARED, "corpus", "*.txt")))


@needs_data
@pytest.mark.oracle
def test_as_good_as_the_trainer_on_its_own(tmp_path):
    """The tokenizers library's own way, from text to vocabulary; it numbers ties otherwise in each run."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    files = real_text()
    _, ours = train(files, tmp_path, vocab_size=5000)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=5000, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    tokenizer.train(files, trainer)
    theirs = tokenizer.get_vocab()
    assert len(set(ours) & set(theirs)) > 0.97 * 5000

    text = "".join(open(path, encoding="utf-8").read() for path in files)
    words = split_words(text, lowercase=True)
    lengths = []
    for vocabulary in ({piece: index for index, piece in enumerate(ours)}, theirs):
        model = models.WordPiece(vocabulary, unk_token="[UNK]")
        of_word = {word: len(model.tokenize(word)) for word in set(words)}
        lengths.append(sum(of_word[word] for word in words) / len(words))
    assert lengths[0] == pytest.approx(lengths[1], rel=0.03)


@needs_data
def test_real_text(tmp_path):
    report, pieces = train(real_text(), tmp_path, vocab_size=5000)
    assert pieces[:5] == list(SPECIAL_TOKENS) and len(set(pieces)) == len(pieces) == 5000
    assert {*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")} < set(pieces)
    assert 1.0 < report["tokens_per_word"] < 1.4 and report["unknown_share"] < 0.001
    assert report["known_character_share"] > 0.9999


def _pieces(counts: dict[str, int], vocab_size: int) -> list[str]:
    """What is joined, without special tokens and characters."""
    characters = set("".join(counts))
    alphabet = sorted({*characters, *(f"##{character}" for character in characters)})
    return train_vocab_module._train(counts, alphabet, set(), vocab_size, 2)[5 + len(alphabet) :]


def test_counts_of_any_size_are_exact():
    """4.5 billion times `ab`, where int32 wraps; a trillion; and two frequencies that a double cannot tell apart."""
    assert _pieces({"ab" * 100: 22_500_000, "xyz": 5}, 20)[:3] == ["##ab", "##abab", "##abababab"]
    assert _pieces({"ab": 10**12, "cd": 3 * 10**12, "ef": 2}, 99) == ["cd", "ab", "ef"]
    assert _pieces({"ab": 2**60, "cd": 2**60 + 1}, 99) == ["cd", "ab"]


def test_memory_does_not_depend_on_the_counts():
    small, large = ({f"{word}s": 3 * times for word in ("letter", "lettering")} for times in (1, 10**12))
    assert _pieces(small, 40) == _pieces(large, 40)


@pytest.mark.oracle
def test_pieces_are_those_of_the_tokenizers_library():
    """It numbers ties by its hash table, unless it knows all pieces of one character beforehand, as special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    words = Counter(split_words("".join(open(path, encoding="utf-8").read() for path in real_text()), lowercase=True))
    counts = {word: count for word, count in words.items() if 1 < len(word) < 50}
    characters = set("".join(counts))
    alphabet = sorted({*characters, *(f"##{character}" for character in characters)})
    trainer = trainers.WordPieceTrainer(
        vocab_size=4000, min_frequency=2, special_tokens=[*SPECIAL_TOKENS, *alphabet], show_progress=False
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.train_from_iterator((f"{word} " * count for word, count in counts.items()), trainer)
    theirs = tokenizer.get_vocab()
    assert train_vocab_module._train(counts, alphabet, set(), 4000, 2) == sorted(theirs, key=theirs.get)


def test_tokenizer_takes_the_vocabulary(corpus, tmp_path):
    from keras_bert.tokenization.tokenizer import BertTokenizer

    report, pieces = train(corpus, tmp_path, vocab_size=50)
    tokenizer = BertTokenizer(str(tmp_path / "out" / "vocab.txt"))
    ids = tokenizer.tokenize(TEXT.splitlines())
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 4)
    assert tokenizer.unk_token_id not in ids.values.numpy()
    assert ids.values.shape[0] / report["words"] == pytest.approx(report["tokens_per_word"])


def test_no_piece_has_more_bytes_than_a_tokenizer_takes(tmp_path):
    """Thai has no blanks between words, and people laugh at length."""
    (tmp_path / "text.txt").write_text(f"{'กขค' * 40} {'😂' * 70}\n" * 3, encoding="utf-8")
    pieces = train(str(tmp_path / "text.txt"), tmp_path)[1]
    assert read_vocabulary(pieces) == pieces and max(map(len, pieces)) >= 48


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (b"", {}, "text.txt: no text. Expected one sentence a line"),
        (b" \n\x00\n", {}, "text.txt: no text"),
        (b"fine\ncaf\xe9\n", {}, r"text.txt:2: not valid UTF-8"),
        (b"\x1f\x8b\x08\x00", {}, r"text.txt: damaged gzip data"),
        (b"a b c d\n", {"max_distinct_words": 3}, r"--max_distinct_words=3 is too small"),
        (b"abc abc\n", {"vocab_size": 9}, r"--vocab_size=9 is too small.*need at least 10"),
    ],
)
def test_refusals(tmp_path, content, settings, message):
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(InputError, match=message):
        train(str(tmp_path / "text.txt"), tmp_path, **settings)
    assert not (tmp_path / "out").exists() or not os.listdir(tmp_path / "out")


def test_the_stated_minimum_is_enough(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"abc abc\n")
    assert train(str(tmp_path / "text.txt"), tmp_path, vocab_size=10)[0]["vocabulary_size"] == 10


def test_outputs_that_cannot_be_written(corpus, tmp_path):
    """Told at once, not after hours."""
    vocab_file = str(tmp_path / "vocab.txt")
    for settings, message in (
        ({"vocab_file": str(tmp_path)}, "--vocab_file is a directory. Name a file in it"),
        ({"report_file": str(tmp_path)}, "--report_file is a directory. Name a file in it"),
        ({"vocab_file": corpus}, "is given both as --vocab_file and as --input_file"),
        ({"report_file": vocab_file}, "is given both as --report_file and as --vocab_file"),
        ({"vocab_file": None}, "Give --vocab_file, --word_counts_file or both"),
        ({"vocab_file": f"{corpus}/new/vocab.txt"}, "text.txt/new: cannot be created"),
    ):
        with pytest.raises(InputError, match=message):
            train_vocab(VocabularySettings(**{"input_file": corpus, "vocab_file": vocab_file, **settings}))
    assert os.listdir(tmp_path) == ["text.txt"]


def test_an_existing_vocabulary_is_replaced_only_by_a_whole_one(corpus, tmp_path):
    vocab_file = tmp_path / "out" / "vocab.txt"
    vocab_file.parent.mkdir()
    vocab_file.write_text("old\n")
    with pytest.raises(InputError):
        train(corpus, tmp_path, vocab_size=9)
    assert vocab_file.read_text() == "old\n"
    assert train(corpus, tmp_path, vocab_size=50)[1][:5] == list(SPECIAL_TOKENS)
    assert os.listdir(vocab_file.parent) == ["vocab.txt"]


def running(group):
    """Numbers of the processes of a process group that have not ended."""
    pids = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                state, _, process_group = file.read().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(process_group) == group and state != "Z":
            pids.append(int(path.split("/")[2]))
    return pids


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_leaves_no_process(tmp_path, sent):
    """Ctrl-C reaches all processes, kill the first alone."""
    (tmp_path / "text.txt").write_bytes(b"Some words of text.\n\n" * 2_000_000)
    command = [sys.executable, "-m", "tasks.pretraining.train_vocab", f"--input_file={tmp_path}/text.txt"]
    command += [f"--vocab_file={tmp_path}/vocab.txt", "--num_workers=2"]
    scratch = tmp_path / ".vocab.txt.scratch"
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        deadline = time.monotonic() + 60
        while not list(scratch.glob("*/counts-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        num_processes = len(running(process.pid))
        (os.killpg if sent == signal.SIGINT else os.kill)(process.pid, sent)
        try:
            error = process.communicate(timeout=60)[1]
        finally:
            while (left := running(process.pid)) and time.monotonic() < deadline:
                time.sleep(0.05)
            if left:
                os.killpg(process.pid, signal.SIGKILL)
    assert num_processes >= 3 and not left
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[sent]
    assert "Traceback" not in error and ("interrupted." in error) == (sent == signal.SIGINT)
    assert sorted(os.listdir(tmp_path)) == [".vocab.txt.scratch", "text.txt"]
