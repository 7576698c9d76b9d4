"""`bert-embed` from end to end: search and scores are learned, and flags do together what each does alone."""

import dataclasses
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import run_tasks
import torch
import toy_words
from bfloat16 import needs_bfloat16

from keras_bert import BertBackbone, BertPreprocessor, BertTextClassifier, BertTextEmbedder, BertTokenizer
from keras_bert.answers.rules import search_prompts
from keras_bert.errors import InputError
from tasks import flags
from tasks.convert.run import ConversionSettings, convert
from tasks.embed import data, retrieval, task
from tasks.fine_tuning import session
from tasks.fine_tuning.command import run_stages, run_task
from tasks.fine_tuning.inputs import read_inputs
from tasks.fine_tuning.model_files import save_model


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_words.write_preset(tmp_path_factory.mktemp("preset"))


def rows_of(count, seed):
    """A text and its match share their words, in another order."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        words = generator.choice(toy_words.WORDS, 4, replace=False)
        yield " ".join(words), " ".join(generator.permutation(words))


def write_pairs(path, count, seed, header="question\tpassage"):
    path.write_text("\n".join([header, *("\t".join(row) for row in rows_of(count, seed))]) + "\n")
    return str(path)


def as_retrieval(rows):
    """Questions, passages, and the match of each, by number."""
    questions, passages = (dict(enumerate(column)) for column in zip(*rows, strict=True))
    by_text = {text: number for number, text in passages.items()}
    return questions, passages, {number: {by_text[passages[number]]} for number in questions}


def evaluated(model, target, name, *data, change=lambda target: None, **settings):
    """The figures of sentence-transformers' evaluator on a model that `bert-embed` wrote, after a change of it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import evaluation

    convert(ConversionSettings(source=str(model), target=str(target), to_format="hugging_face"))
    change(target)
    return getattr(evaluation, name)(*data, write_csv=False, **settings)(SentenceTransformer(str(target), device="cpu"))


@pytest.fixture(scope="module", name="searched")
def _searched(preset, tmp_path_factory):
    """A run that learned search: its directory and its results."""
    place = tmp_path_factory.mktemp("search")
    files = {"train_file": write_pairs(place / "train.tsv", 256, 1), "dev_file": write_pairs(place / "dev.tsv", 64, 2)}
    settings = {"max_seq_length": 16, "train_batch_size": 32, "learning_rate": 3e-3, "gradient_accumulation_steps": 2}
    run = place / "run"
    shared = {"preset": preset, "output_dir": str(run), "do_train": True, "do_eval": True, "num_train_epochs": 4}
    return run, run_tasks.embed(**shared, **settings, **files)


@pytest.mark.usefixtures("eagerly")
def test_search_is_learned_and_served_anew(tmp_path, preset, searched):
    run, results = searched
    raw = {"dev_file": write_pairs(tmp_path / "dev.tsv", 64, 2), "max_seq_length": 16}
    before = run_tasks.embed(preset=preset, do_eval=True, output_dir=str(tmp_path / "raw"), **raw)
    assert results["loss"] < 0.5 * before["loss"] and results["ndcg@10"] > 0.95
    assert results["questions"] == results["passages"] == 64
    low, high = results["intervals"]["ndcg@10"]
    assert low <= results["ndcg@10"] <= high
    data = as_retrieval(rows_of(64, 2))
    expected = evaluated(run / "model", tmp_path / "theirs", "InformationRetrievalEvaluator", *data)
    for name in ("recall@10", "mrr@10", "ndcg@10"):
        assert results[name] == pytest.approx(expected[f"cosine_{name}"], abs=1e-9)
    test = write_pairs(tmp_path / "test.tsv", 5, 3)
    after = run_tasks.embed(output_dir=str(run), test_file=test, do_predict=True)
    vectors = np.load(run / "predictions.npy")
    assert vectors.shape == (5, 2, 32) and after["test_rows"] == 5
    embedder = keras.saving.load_model(run / "model" / "model.keras")
    assert type(embedder) is BertTextEmbedder
    texts = [text for row in rows_of(5, 3) for text in row]
    preprocessor = BertPreprocessor(BertTokenizer.from_preset(str(run / "model")), 16)
    np.testing.assert_allclose(embedder(preprocessor(texts)), vectors.reshape(10, 32), atol=1e-5)


def test_scores_are_learned(tmp_path, preset):
    generator = np.random.default_rng(4)
    # No two texts are equal: a cosine of 1 is one up to rounding, by which Spearman would rank them.
    rows = [(*generator.choice(toy_words.WORDS, 2, replace=False), generator.integers(0, 2)) for _ in range(64)]
    rows = [(str(a), f"{a} {b}" if same else str(b), 5 * same) for a, b, same in rows]
    content = "\n".join(["a,b,score", *(",".join(map(str, row)) for row in rows)]) + "\n"
    (tmp_path / "all.csv").write_text(content)
    results = run_tasks.embed(
        preset=preset,
        output_dir=str(tmp_path / "run"),
        train_file=str(tmp_path / "all.csv"),
        dev_file=str(tmp_path / "all.csv"),
        do_train=True,
        do_eval=True,
        max_seq_length=8,
        train_batch_size=16,
        learning_rate=3e-3,
        num_train_epochs=4,
        loss="cosine_similarity",
        matryoshka_dims=[32, 8],
    )
    data = zip(*rows, strict=True)
    expected = evaluated(tmp_path / "run" / "model", tmp_path / "theirs", "EmbeddingSimilarityEvaluator", *data)
    assert results["spearman"] == pytest.approx(expected["spearman_cosine"], abs=1e-3)
    assert results["pearson"] == pytest.approx(expected["pearson_cosine"], abs=1e-6)
    assert results["pearson"] > 0.8 and list(results)[0] == "train_seconds"
    assert json.loads((tmp_path / "run" / "model" / "task.json").read_text())["score_scale"] == 5.0


def write_reranker(directory, num_outputs: int) -> str:
    """Writes a cross-encoder of random weights, as bert-classify saves it; returns the path."""
    keras.utils.set_random_seed(3)
    backbone = BertBackbone(len(toy_words.VOCABULARY), 1, 2, 16, 32, max_sequence_length=32, initializer_range=0.5)
    preprocessor = BertPreprocessor(BertTokenizer(toy_words.VOCABULARY), 16)
    model = BertTextClassifier(backbone, num_outputs, preprocessor, compile=False)
    settings = {"task": "classification", "sequence_length": 16, "num_texts": 2}
    save_model(str(directory), model, preprocessor.tokenizer, settings)
    return str(directory)


@pytest.mark.oracle
def test_a_reranker_is_a_cross_encoder(tmp_path, preset):
    """It has a score, or two labels; the second kind then reranks."""
    from sentence_transformers import CrossEncoder

    rows = list(rows_of(24, 5))
    pairs = [(question, passage) for question, _ in rows for _, passage in rows]
    for num_outputs in (1, 2):
        reranker, theirs = (str(tmp_path / f"{whose}{num_outputs}") for whose in ("ours", "theirs"))
        write_reranker(reranker, num_outputs)
        convert(ConversionSettings(source=f"{reranker}/model.keras", target=theirs, to_format="hugging_face"))
        cross = CrossEncoder(theirs, device="cpu", max_length=16)
        logits = cross.predict(pairs, activation_fn=torch.nn.Identity()).reshape(len(pairs), -1)
        scores = logits[:, -1] - (logits[:, 0] if num_outputs == 2 else 0)
        few = slice(None, None if num_outputs == 2 else 48)
        np.testing.assert_allclose(task.load_scorer(reranker, 32)(pairs[few]), scores[few], atol=1e-4)
    settings = {"dev_file": write_pairs(tmp_path / "dev.tsv", 24, 5), "max_seq_length": 16, "do_eval": True}
    results = run_tasks.embed(
        preset=preset, output_dir=str(tmp_path / "run"), reranker_dir=reranker, rerank_top_k=24, **settings
    )
    scores = scores.reshape(24, 24)
    ranks = 1 + np.sum(scores > np.diag(scores)[:, np.newaxis], axis=1)
    assert results["reranked_recall@10"] == pytest.approx(np.mean(ranks <= 10))
    assert results["reranked_ndcg@10"] == pytest.approx(np.mean(np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0)))
    assert results["reranked_ndcg@10"] != results["ndcg@10"]
    assert list(results["intervals"])[4:] == [f"reranked_{name}" for name in list(results["intervals"])[:4]]


def test_the_first_passages_alone_are_reranked():
    texts = [[f"q{number}", f"p{number}"] for number in range(5)]
    vectors = np.stack([np.eye(5) + 0.1 * np.arange(5), np.eye(5)], axis=1)
    plain = retrieval.rank(texts, vectors)
    turned = retrieval.rank(texts, vectors, lambda pairs: -np.arange(len(pairs))[::-1].astype(float), 2)
    np.testing.assert_array_equal(turned.best[:, :2], plain.best[:, 1::-1])
    np.testing.assert_array_equal(turned.best[:, 2:], plain.best[:, 2:])
    np.testing.assert_array_equal(turned.ranks, 2)


@pytest.mark.parametrize(
    ("num_texts", "message"),
    [(1, r"found one of 1 text\(s\)"), (2, r"found one of 2 text\(s\) with 2 outputs \(--multi_label\)\. Train it")],
)
def test_a_reranker_of_single_texts_or_of_any_number_of_labels_is_refused(tmp_path, num_texts, message):
    backbone = BertBackbone(len(toy_words.VOCABULARY), 1, 2, 16, 32)
    model = BertTextClassifier(backbone, 2, multi_label=num_texts == 2, compile=False)
    trained = {"task": "classification", "sequence_length": 16, "num_texts": num_texts, "labels": ["0", "1"]}
    trained["multi_label"] = num_texts == 2
    save_model(str(tmp_path / "model"), model, BertTokenizer(toy_words.VOCABULARY), trained)
    with pytest.raises(InputError, match="a model of pairs of texts with a score or two labels, " + message):
        task.load_scorer(str(tmp_path / "model"), 32)


def test_a_wrong_reranker_is_refused_before_the_training(tmp_path, files):
    words = ["--do_train", "--do_eval", f"--dev_file={files['pairs']}", f"--reranker_dir={tmp_path}/no"]
    with pytest.raises(InputError, match="no/task.json: no such file. Expected the model directory that bert-classify"):
        read_inputs(task.Embed(flags.parse(task.EmbedSettings, [*flags_of(files, tmp_path, "pairs"), *words])))
    write_reranker(tmp_path / "model", 1)
    rows = data.Table("dev.csv", [2, 3], [["a", "b"], ["c", "d"]], [0.5, 1.0])
    settings = task.EmbedSettings(output_dir="x", reranker_dir=str(tmp_path / "model"))
    with pytest.raises(InputError, match="dev.csv: has scores, so that --reranker_dir has nothing to order"):
        task.Embed(settings).groups(rows)
    with pytest.raises(InputError, match="--relative_margin=0.1 is for --num_negatives. Give both, or leave it out"):
        task.EmbedSettings(output_dir="x", relative_margin=0.1)
    with pytest.raises(InputError, match="--rerank_top_k=9 is for --reranker_dir. Give both, or leave it out"):
        task.EmbedSettings(output_dir="x", rerank_top_k=9)


def test_a_flag_replaces_each_prompt_of_passages(monkeypatch):
    prompts = {"query": "w7 ", "document": "w8 ", "corpus": "w9 "}
    monkeypatch.setattr(task, "read_settings", lambda preset: {"task": {"prompts": prompts}})

    def spec_of(**given):
        return task.Embed(task.EmbedSettings(output_dir="x", **given))._new_spec("preset", False)

    assert (spec_of().prompts, spec_of().passage_prompt) == (prompts, "w8 ")
    assert search_prompts(spec_of(passage_prompt="").prompts) == ("query", "")
    given = spec_of(query_prompt="w5 ", passage_prompt="w6 ")
    assert given.prompts == {"query": "w5 ", "document": "w6 ", "corpus": "w6 "} and given.passage_prompt == "w6 "


@pytest.mark.usefixtures("eagerly")
def test_negatives_are_mined_by_the_start(tmp_path, preset, monkeypatch, capsys):
    monkeypatch.setattr(session.Session, "_fit", lambda *given: 1.0)  # They are mined before it.
    # The margin leaves the last row none.
    seen, mined = [], [[*row, "w1"] for row in list(rows_of(16, 1))[:-1]]
    monkeypatch.setattr(retrieval, "mine", lambda *given: seen.append(given) or [*mined, given[0][-1]])
    settings = task.EmbedSettings(
        preset=preset,
        train_file=write_pairs(tmp_path / "train.tsv", 16, 1),
        output_dir=str(tmp_path / "run"),
        do_train=True,
        max_seq_length=16,
        num_train_epochs=1,
        train_batch_size=15,
        num_negatives=1,
        relative_margin=0.1,
    )
    done = run_stages(task.Embed(settings))
    told = "1 of 16 rows have fewer than 1 negatives by --relative_margin=0.1, and are left out."
    assert told in capsys.readouterr().out
    assert done.results["train_rows"] == 15
    monkeypatch.setattr(retrieval, "mine", lambda *given: given[0])
    with pytest.raises(InputError, match="16 of 16 rows .* Lower --num_negatives or --relative_margin"):
        run_stages(task.Embed(dataclasses.replace(settings, output_dir=str(tmp_path / "none"))))
    done.task.encode(done.inputs.parts[0], done.trained)  # For the lengths, as in the report of a search.
    ((texts, vectors, *others),) = seen
    assert others == [1, 0.1] and texts == [list(row) for row in rows_of(16, 1)]
    start = BertTextEmbedder.from_preset(preset)
    start.preprocessor.sequence_length = 16
    np.testing.assert_allclose(start.predict(texts[3], verbose=0), vectors[3], atol=1e-5)


@pytest.mark.parametrize("header, loss", [("a,b,score", None), ("a", None), ("a,b,c", "triplet")])
def test_rows_that_take_no_negatives(tmp_path, preset, header, loss):
    row = ",".join("1" if name == "score" else f"w{number}" for number, name in enumerate(header.split(",")))
    (tmp_path / "train.csv").write_text(f"{header}\n{row}\n")
    with pytest.raises(InputError, match="train.csv: --num_negatives adds to rows of a text and its match"):
        settings = {"output_dir": str(tmp_path / "run"), "data_dir": str(tmp_path), "do_train": True, "loss": loss}
        run_tasks.embed(preset=preset, num_negatives=1, **settings)


@pytest.mark.parametrize(
    "loss, header, message",
    [("cosent", "a,b", "--loss=cosent needs a score"), ("triplet", "a,b", "--loss=triplet needs a text, its match")],
)
def test_rows_that_a_loss_cannot_use(tmp_path, preset, loss, header, message):
    (tmp_path / "train.csv").write_text(f"{header}\nw1,w2\n")
    with pytest.raises(InputError, match=message):
        run_tasks.embed(
            preset=preset, output_dir=str(tmp_path / "run"), data_dir=str(tmp_path), do_train=True, loss=loss
        )


# === Flags ===


def command(*arguments):
    """Runs the command with flags as text, and returns what `metrics.json` holds."""
    return run_task(task.Embed(flags.parse(task.EmbedSettings, arguments)))


TINY = ("--do_train", "--max_seq_length=8", "--train_batch_size=8", "--num_train_epochs=1", "--learning_rate=1e-3")


@pytest.fixture(scope="module", name="files")
def _files(tmp_path_factory, preset):
    """Tables of 16 rows: pairs, scored pairs, and single texts."""
    directory = tmp_path_factory.mktemp("files")
    rows = list(rows_of(16, 6))
    tables = {
        "pairs": ["a,b", *map(",".join, rows)],
        "scores": ["a,b,score", *(f"{a},{b},{number % 6}" for number, (a, b) in enumerate(rows))],
        "single": ["a", *(a for a, _ in rows)],
    }
    for name, lines in tables.items():
        (directory / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return {name: str(directory / f"{name}.csv") for name in tables} | {"preset": preset}


def flags_of(files, directory, train, *others):
    return (f"--train_file={files[train]}", f"--preset={files['preset']}", f"--output_dir={directory}", *TINY, *others)


@pytest.mark.slow(keep=["float16"])
@pytest.mark.parametrize(
    "others",
    [
        pytest.param(
            ("--train_file={scores}", "--mixed_precision=bfloat16", "--gradient_accumulation_steps=2"),
            marks=needs_bfloat16,
        ),
        ("--mixed_precision=float16", "--gradient_accumulation_steps=2", "--lora_rank=2", "--jit_compile"),
    ],
    ids=["bfloat16", "float16"],
)
def test_half_types_train_and_score(tmp_path, files, others):
    others = [flag.format(**files) for flag in others]
    results = command(*flags_of(files, tmp_path, "pairs", *others), "--do_eval", f"--dev_file={files['scores']}")
    assert np.isfinite([results["loss"], results["spearman"]]).all() and results["train_steps"] == 2


def test_beginnings_of_embeddings_are_named_as_text(tmp_path, files):
    line = flags_of(files, tmp_path / "run", "pairs", "--matryoshka_dims=16,8,8")
    assert command(*line)["train_command"].endswith("--matryoshka_dims=16,8,8")
    again = flags.parse(task.EmbedSettings, line)
    results = run_task(task.Embed(dataclasses.replace(again, matryoshka_dims=(16, 8, 8))))  # It is finished.
    assert results["train_steps"] == 2
    with pytest.raises(InputError, match="--matryoshka_dims=33: the embeddings of this model have 32 components"):
        command(*flags_of(files, tmp_path / "large", "pairs", "--matryoshka_dims=16,33"))
    with pytest.raises(InputError, match="--matryoshka_dims=16: the embeddings of this model have 8 components"):
        command(*flags_of(files, tmp_path / "large", "pairs", "--matryoshka_dims=16", "--embedding_dim=8"))


@pytest.fixture(scope="module", name="single")
def _single(files, tmp_path_factory):
    """A run that learned from single texts: its directory and its results."""
    directory = tmp_path_factory.mktemp("single")
    return directory, command(*flags_of(files, directory, "single"))


@pytest.mark.usefixtures("eagerly")
def test_a_file_of_single_texts_is_embedded(tmp_path, files, single):
    assert "matryoshka" not in single[1]["train_command"]
    shutil.copytree(single[0], tmp_path, dirs_exist_ok=True)
    results = command(f"--output_dir={tmp_path}", f"--test_file={files['single']}", "--do_predict")
    vectors = np.load(tmp_path / "predictions.npy")
    assert vectors.shape == (16, 1, 32) and results["test_rows"] == 16
    command(f"--output_dir={tmp_path}", f"--test_file={files['pairs']}", "--do_predict")
    np.testing.assert_allclose(np.load(tmp_path / "predictions.npy")[:, 0], vectors[:, 0], atol=1e-5)

    assert "- Encoder: 1 layers of 32 units" in (tmp_path / "README.md").read_text()
    path = tmp_path / "model" / "task.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sequence_length": 33}))
    with pytest.raises(InputError, match="--max_seq_length=33: .*model has positions for 32 tokens"):
        command(f"--output_dir={tmp_path}", f"--test_file={files['single']}", "--do_predict")


PROMPTS = ("--query_prompt=w1 w2 w3 w4 w5 ", "--passage_prompt=w6 ")


@pytest.fixture(scope="module", name="prompted")
def _prompted(files, tmp_path_factory):
    """A run with prompts: its directory and its results."""
    directory = tmp_path_factory.mktemp("prompted")
    wanted = ("--do_eval", f"--dev_file={files['pairs']}")
    return directory, command(*flags_of(files, directory, "pairs", *PROMPTS), *wanted)


def leave_prompts_out(target):
    path = pathlib.Path(target) / "1_Pooling" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "include_prompt": False}))


@pytest.mark.usefixtures("eagerly")
def test_prompts_stand_before_questions_and_passages(tmp_path, files, prompted):
    wanted, run = ("--do_eval", f"--dev_file={files['pairs']}"), shutil.copytree(prompted[0], tmp_path / "run")
    ours = [prompted[1], command(f"--output_dir={run}", *wanted, "--query_prompt=")]
    model = keras.saving.load_model(run / "model" / "model.keras")
    assert model.prompts == {"query": "w1 w2 w3 w4 w5 ", "passage": "w6 "}
    data = ("InformationRetrievalEvaluator", *as_retrieval(rows_of(16, 6)))
    names = {"query_prompt_name": "query", "corpus_prompt_name": "passage"}
    theirs = [evaluated(prompted[0] / "model", tmp_path / "plain", *data, **names)]
    of_passages = {"query_prompt": "", "corpus_prompt_name": "passage"}
    theirs.append(evaluated(run / "model", tmp_path / "passages", *data, **of_passages))
    theirs.append(evaluated(run / "model", tmp_path / "theirs", *data, change=leave_prompts_out, **names))
    preset = f"--preset={tmp_path / 'theirs'}"
    ours.append(command(preset, f"--output_dir={tmp_path / 'again'}", *wanted, "--max_seq_length=8"))
    for results, expected in zip(ours, theirs, strict=True):
        for name in ("recall@1", "mrr@10", "ndcg@10"):
            reference = expected["cosine_accuracy@1" if name == "recall@1" else f"cosine_{name}"]
            assert results[name] == pytest.approx(reference, abs=1e-9)
    assert len({results["loss"] for results in ours}) == 3
    with pytest.raises(InputError, match="--long_text=mean: the pooling of this model leaves prompts out"):
        command(preset, f"--output_dir={tmp_path / 'windows'}", *wanted, "--long_text=mean")


def test_a_training_goes_on_with_prompts_and_one_begins_that_leaves_them_out(tmp_path, files, prompted, monkeypatch):
    target = str(tmp_path / "theirs")
    convert(ConversionSettings(source=str(prompted[0] / "model"), target=target, to_format="hugging_face"))
    leave_prompts_out(target)
    trained = flags_of({**files, "preset": target}, tmp_path / "more", "pairs")
    assert command(*trained)["train_steps"] == 2
    monkeypatch.setattr(session.Session, "_fit", lambda *given: 1.0)
    continued = (f"--train_file={files['pairs']}", f"--init_checkpoint={prompted[0]}", *TINY)
    command(*continued, f"--output_dir={tmp_path / 'continued'}")
    spec = json.loads((tmp_path / "continued" / "model" / "task.json").read_text())
    assert (spec["query_prompt"], spec["passage_prompt"]) == ("w1 w2 w3 w4 w5 ", "w6 ")


@pytest.mark.parametrize("share", ["--dev_share=0.2", "--validation_share=0.2"])
def test_single_texts_cannot_be_held_out(tmp_path, files, share):
    with pytest.raises(InputError, match="single.csv: a row has one text. Expected a text and its match, to evaluate"):
        command(*flags_of(files, tmp_path, "single", share, "--do_eval", f"--dev_file={files['pairs']}"))


@pytest.mark.slow(keep=["validation", "pairs"])
@pytest.mark.parametrize(
    "train, metric, others",
    [
        ("scores", "validation_spearman", ["--validation_share=0.25", "--early_stopping_patience=2"]),
        ("scores", "spearman", ["--do_eval", "--dev_share=0.25", "--early_stopping_patience=2"]),
        ("scores", "spearman", ["--do_eval", "--dev_share=0.25", "--learning_rate=1e-4,1e-3"]),
        (
            "pairs",
            "validation_ndcg@10",
            ["--do_eval", "--dev_file={scores}", "--validation_share=0.25", "--early_stopping_patience=2"],
        ),
    ],
    ids=["validation", "dev", "search", "pairs"],
)
def test_rows_that_are_held_out_say_what_is_watched(tmp_path, files, train, metric, others):
    results = command(*flags_of(files, tmp_path, train, *(flag.format(**files) for flag in others)))
    history = json.loads((tmp_path / "history.json").read_text())["evaluations"]
    watched = [row[metric.removeprefix("validation_")] for row in history]
    assert results[metric] == pytest.approx(max(watched), abs=1e-6)
    assert results.get("sweep", {}).get("metric", metric) == metric


@pytest.mark.usefixtures("eagerly")
def test_a_search_chooses_by_what_is_watched(tmp_path, files, monkeypatch):
    def leave_as_it_is(run, *_):
        pathlib.Path(run.output_dir, "history.json").write_text('{"training": [], "evaluations": []}')
        return 1.0

    monkeypatch.setattr(session.Session, "_fit", leave_as_it_is)
    line = flags_of(files, tmp_path, "scores", "--do_eval", "--dev_share=0.25", "--learning_rate=1e-4,1e-3")
    results = command(*line)
    runs = json.loads((tmp_path / "sweep" / "sweep.json").read_text())["runs"]
    assert results["sweep"]["metric"] == "spearman" and len(runs) == 2
    assert [run["score"] for run in runs] == pytest.approx([results["spearman"]] * 2)  # Neither was trained.


@pytest.mark.usefixtures("eagerly")
def test_scores_of_a_file_set_the_scale_of_a_model_that_saw_none(tmp_path, files, monkeypatch):
    reports = []
    monkeypatch.setattr(session, "write_report", lambda path, report: reports.append(report))
    places = (f"--preset={files['preset']}", f"--dev_file={files['scores']}", f"--output_dir={tmp_path}")
    results = command(*places, "--do_eval", "--max_seq_length=8")
    embedder = BertTextEmbedder.from_preset(files["preset"])
    rows, scores = list(rows_of(16, 6)), np.arange(16) % 6
    first, second = (embedder.predict(list(column), verbose=0) for column in zip(*rows, strict=True))
    similarities = (first * second).sum(axis=1)
    losses = np.square(scores / 5 - similarities)
    assert results["loss"] == pytest.approx(losses.mean(), rel=1e-4)
    worst = reports[0].mistakes
    assert [mistake.loss for mistake in worst] == pytest.approx(sorted(losses, reverse=True)[: len(worst)], abs=1e-5)
    assert dict(worst[0].parts)["score"] == f"{scores[losses.argmax()]}"
    np.testing.assert_allclose(reports[0].predictions, [scores, 5 * similarities], rtol=1e-4)
