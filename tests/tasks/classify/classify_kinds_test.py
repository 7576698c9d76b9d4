"""`bert-classify` on every kind of task: scores, two dev files, bad rows, checkpoints that others have fine-tuned."""

import json
import re

import numpy as np
import pytest
from run_tasks import classify, read_tables
from toy_classifier import (
    ANIMALS,
    COLUMNS,
    KINDS,
    TOOLS,
    TRAINING,
    WORDS,
    toy_rows,
    write_preset,
    write_rows,
    write_tables,
)

from keras_bert import BertPreprocessor, BertTokenizer
from keras_bert.errors import InputError
from tasks.classify.task import Classify, ClassifySettings
from tasks.fine_tuning.inputs import read_spec
from tasks.fine_tuning.session import Session, remove_stale


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return write_preset(tmp_path_factory.mktemp("preset"))


# === Scores ===


def scored_rows(count: int, seed: int) -> list[tuple[str, str, float]]:
    """Pairs of texts; how many of the two name an animal, times 2.5: 0 to 5, as in STS-B."""
    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        pair = [generator.choice(ANIMALS + TOOLS) for _ in range(2)]
        rows.append((*pair, 2.5 * sum(word in ANIMALS for word in pair)))
    return rows


@pytest.fixture(scope="module", name="scored")
def _scored(preset, tmp_path_factory):
    """One run of STS-B's format: (directory, results)."""
    directory = tmp_path_factory.mktemp("stsb")
    middle = "index genre filename year old_index source1 source2".split()
    for split, count in (("train", 1600), ("dev", 64), ("test", 20)):
        header = [*middle, "sentence1", "sentence2", *["score"] * (split != "test")]
        rows = [[*"1234567", *row[: len(header) - 7]] for row in scored_rows(count, count)]
        lines = ["\t".join(map(str, row)) for row in [header, *rows]]
        (directory / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    results = classify(
        output_dir=str(directory / "run"),
        preset=preset,
        task_name="stsb",
        data_dir=str(directory),
        do_train=True,
        do_eval=True,
        do_predict=True,
        **{**TRAINING, "learning_rate": 4e-3, "num_train_epochs": 1},
    )
    return directory, results


def test_scores_are_learned(scored):
    directory, results = scored
    assert results["pearson"] > 0.75 and results["spearman"] > 0.75 and results["loss"] < 1.5  # Their variance: 3.1.
    assert results["pearson_spearman_mean"] == pytest.approx((results["pearson"] + results["spearman"]) / 2)
    assert results["loss"] == pytest.approx(results["mean_squared_error"])
    assert "accuracy" not in results and "majority_accuracy" not in results
    low, high = results["intervals"]["pearson"]
    assert low < results["pearson"] < high
    history = json.loads((directory / "run" / "history.json").read_text())
    assert history["evaluations"][-1]["pearson"] == pytest.approx(results["pearson"], abs=1e-5)


def test_scores_are_predicted_and_submitted(scored):
    run = scored[0] / "run"
    lines = [line.split("\t") for line in (run / "predictions.tsv").read_text().splitlines()]
    submission = [line.split("\t") for line in (run / "STS-B.tsv").read_text().splitlines()]
    assert lines[0] == submission[0] == ["index", "prediction"] and len(lines) == len(submission) == 21
    predictions = np.array([float(score) for _, score in lines[1:]])
    assert np.corrcoef(predictions, [row[2] for row in scored_rows(20, 20)])[0, 1] > 0.7
    np.testing.assert_allclose([float(s) for _, s in submission[1:]], np.clip(predictions, 0, 5), atol=6e-5)
    page = (run / "report.html").read_text()
    sections = re.findall(r'<section id="(\w+)"', page)
    assert (
        "pearson spearman mean" in page and {"mistakes", "predictions"} <= set(sections) and "confusion" not in sections
    )


def test_a_model_of_scores_says_what_it_is(scored, tmp_path):
    task = Classify(ClassifySettings(output_dir=""))
    spec = read_spec(task, str(scored[0] / "run" / "model"))
    assert spec.is_regression and spec.labels == [] and spec.num_texts == 2
    path = write_rows(tmp_path / "dev.csv", [("text", "other", "label"), ("cat", "saw", "yes"), ("cat", "dog", "no")])
    with pytest.raises(
        InputError, match="a model of scores, but the task has classes. Give --regression for scores only."
    ):
        classify(output_dir=str(scored[0] / "run"), dev_file=path, text_pair_column="other", do_eval=True)


# === Two dev files, two test files, and AX ===


@pytest.fixture(name="inference")
def _inference(preset, tmp_path, eagerly, monkeypatch):
    """A run of MNLI that leaves the weights as they are: (settings, directory, results)."""
    monkeypatch.setattr(Session, "_fit", lambda *given: 1.0)
    directory = tmp_path
    labels = ("neutral", "contradiction", "entailment")
    for name, seed in (("train", 0), ("dev_matched", 1), ("dev_mismatched", 2)):
        words = np.random.default_rng(seed).choice(ANIMALS + TOOLS, (60 if name == "train" else 9 + seed, 2))
        rows = [f"{a}\t{b}\t{labels[i % 3]}" for i, (a, b) in enumerate(words)]
        (directory / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n")
    for name, count in (("test_matched", 3), ("test_mismatched", 4), ("AX", 5)):
        (directory / f"{name}.tsv").write_text("index\tsentence1\tsentence2\n" + "0\tcat\tdog\n" * count)
    settings = {"output_dir": str(directory / "run"), "data_dir": str(directory)}
    results = classify(
        preset=preset,
        task_name="mnli",
        do_train=True,
        do_eval=True,
        do_predict=True,
        **settings,
        **{**TRAINING, "num_train_epochs": 1},
    )
    return settings, directory / "run", results


def test_mnli_is_scored_on_both_dev_files_and_predicted_into_its_own(inference):
    settings, run, results = inference
    assert (results["rows"], results["mismatched_rows"]) == (10, 11)
    assert set(results["intervals"]) == {"accuracy", "mismatched_accuracy"}
    assert 0 <= results["mismatched_accuracy"] <= 1 and results["mismatched_loss"] > 0
    page = (run / "report.html").read_text()
    assert "mismatched accuracy" in page and "dev mismatched" in page
    results, files = classify(**settings, task_name="ax", do_predict=True), []
    assert results["ax_test_rows"] == 5 and not any("mismatched_test" in name for name in results)
    for names, count in (
        (("MNLI-m.tsv", "predictions.tsv"), 3),
        (("MNLI-mm.tsv", "predictions_mismatched.tsv"), 4),
        (("AX.tsv", "predictions_ax.tsv"), 5),
    ):
        files += names
        for name in names:
            lines = [line.split("\t") for line in (run / name).read_text().splitlines()]
            assert lines[0][:2] == ["index", "prediction"] and [row[0] for row in lines[1:]] == list("01234"[:count])
            assert {row[1] for row in lines[1:]} <= {"entailment", "neutral", "contradiction"}
    with pytest.raises(InputError, match="--task_name=ax: GLUE has no dev file of it"):
        classify(**settings, task_name="ax", do_eval=True)
    assert results["test_predictions"] == sorted(files)
    remove_stale(str(run))  # As another training does.
    assert not any((run / name).exists() for name in files)


# === Bad rows, early stopping ===


def test_bad_rows_of_all_files_are_counted_and_shown(preset, tmp_path, capsys):
    write_tables(tmp_path, train=64, dev=20, test=5)
    with open(tmp_path / "train.csv", "a") as file:
        file.write("cat, animal, animal\n,tool\n")
    with open(tmp_path / "dev.csv", "a") as file:
        file.write("rose,plant\n")
    settings = {"preset": preset, "data_dir": str(tmp_path), **COLUMNS, **TRAINING, "labels": list(KINDS)}
    with pytest.raises(InputError, match=r"train.csv:66: expected 2 fields .* \(2 bad rows in all"):
        classify(output_dir=str(tmp_path / "run"), do_train=True, do_eval=True, **settings)
    inputs = read_tables("train", "eval", bad_rows="skip", **settings)
    assert [len(part.rows.texts) for part in inputs.parts] == [64, 20] and inputs.bad_rows.count == 3
    places = [where.rpartition("/")[2] for where, _ in inputs.bad_rows.rows]
    assert places == ["train.csv:66", "train.csv:67", "dev.csv:22"]
    assert "unknown label 'plant'" in capsys.readouterr().err


@pytest.mark.slow
def test_early_stopping_keeps_the_best_by_the_main_metric(preset, tmp_path):
    write_tables(tmp_path, train=96, dev=20, test=5)
    settings = {
        "preset": preset,
        "data_dir": str(tmp_path),
        **COLUMNS,
        **TRAINING,
        "num_train_epochs": 30,
        "save_checkpoints_steps": 6,
    }
    results = classify(
        output_dir=str(tmp_path / "run"), early_stopping_patience=2, do_train=True, do_eval=True, **settings
    )
    evaluations = json.loads((tmp_path / "run" / "history.json").read_text())["evaluations"]
    best = max(evaluations, key=lambda row: row["accuracy"])  # The first of equals.
    assert results["best_step"] == best["step"] and results["accuracy"] == best["accuracy"]
    assert evaluations[-1]["step"] == best["step"] + 2 * 6 < results["train_steps"] == 180


# === Checkpoints of others ===


@pytest.fixture(scope="module", name="foreign")
def _foreign(tmp_path_factory):
    """A directory of transformers' `BertForSequenceClassification` with our toy words, and the model."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(1)
    directory = tmp_path_factory.mktemp("foreign")
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        initializer_range=0.5,
        id2label={0: "Tool", 1: "Animal"},
        label2id={"Tool": 0, "Animal": 1},
    )
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return directory, model


@pytest.mark.oracle
@pytest.mark.usefixtures("eagerly")
def test_a_checkpoint_of_transformers_is_applied_without_training(foreign, tmp_path):
    import torch

    directory, model = foreign
    write_tables(tmp_path, train=1, dev=30, test=30)
    dev = write_rows(tmp_path / "dev.csv", [("words", "kind"), *[(t, k.title()) for t, k in toy_rows(30, 2)]])
    results = classify(
        output_dir=str(tmp_path / "run"),
        preset=str(directory),
        dev_file=dev,
        test_file=str(tmp_path / "test.csv"),
        **COLUMNS,
        max_seq_length=24,
        do_eval=True,
        do_predict=True,
    )
    encoded = BertPreprocessor(BertTokenizer(WORDS), 24)([text for text, _ in toy_rows(30, 2)])
    ids, mask = (torch.tensor(np.asarray(encoded[name]).astype("int64")) for name in ("token_ids", "padding_mask"))
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits.softmax(-1).numpy()
    lines = [line.split("\t") for line in (tmp_path / "run" / "predictions.tsv").read_text().splitlines()]
    assert lines[0] == ["index", "prediction", "probability_Tool", "probability_Animal"]
    np.testing.assert_allclose(np.array([row[2:] for row in lines[1:]], float), expected, atol=2e-5)
    right = [
        ("Tool", "Animal")[i] == kind.title() for i, (_, kind) in zip(expected.argmax(-1), toy_rows(30, 2), strict=True)
    ]
    assert results["accuracy"] == pytest.approx(np.mean(right))


@pytest.mark.oracle
@pytest.mark.usefixtures("eagerly")
def test_its_classes_must_be_the_task_s_or_be_named(foreign, tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ncat\t1\nsaw\t0\n")
    settings = {
        "output_dir": str(tmp_path / "run"),
        "preset": str(foreign[0]),
        "task_name": "sst2",
        "data_dir": str(tmp_path),
        "max_seq_length": 24,
        "do_eval": True,
    }
    with pytest.raises(InputError, match="its class 'Tool' is none of the task's .0, 1.*in the order Tool, Animal"):
        classify(**settings)
    assert 0.0 <= classify(**settings, labels=["0", "1"])["accuracy"] <= 1.0
    with pytest.raises(InputError, match="has 2 classes, but there are 3 labels"):
        classify(**settings, labels=["0", "1", "2"])
    with pytest.raises(InputError, match="--max_seq_length=25: .* has positions for 24 tokens"):
        classify(**{**settings, "max_seq_length": 25}, labels=["0", "1"])


def test_a_preset_without_a_head_is_to_be_trained_first(preset, tmp_path):
    write_tables(tmp_path, train=4, dev=4, test=4)
    with pytest.raises(InputError, match="expected a fine-tuned classification head, found none.*--do_train"):
        classify(output_dir=str(tmp_path / "run"), preset=preset, data_dir=str(tmp_path), **COLUMNS, do_eval=True)
    with pytest.raises(InputError, match="task.json: no such file. Expected the model directory"):
        classify(output_dir=str(tmp_path / "run"), data_dir=str(tmp_path), **COLUMNS, do_eval=True)
