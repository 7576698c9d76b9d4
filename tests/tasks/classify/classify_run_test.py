"""`bert-classify` from files to files: a tiny model learns a separable task; wrong input exits with one line."""

import json
import os
import re
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import toy_classifier
from repository import ROOT
from run_tasks import classify, read_tables
from toy_classifier import (
    COLUMNS,
    toy_rows,
    write_preset,
    write_rows,
    write_tables,
)

from keras_bert import BertTextClassifier
from keras_bert.errors import InputError
from tasks.classify.task import Classify, ClassifySettings, ClassifySpec
from tasks.fine_tuning import session

TRAINING = {**toy_classifier.TRAINING, "learning_rate": 5e-3, "num_train_epochs": 5, "optimizer": "bert-2018"}


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return write_preset(tmp_path_factory.mktemp("preset"))


@pytest.fixture(scope="module", name="tables")
def _tables(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tables")
    write_tables(directory)
    return directory


@pytest.fixture(scope="module", name="run")
def _run(preset, tables, tmp_path_factory):
    """One whole run: (output directory, what `classify` returned)."""
    output_dir = tmp_path_factory.mktemp("run")
    results = classify(
        output_dir=str(output_dir),
        preset=preset,
        load_weights=False,
        data_dir=str(tables),
        **COLUMNS,
        do_train=True,
        do_eval=True,
        do_predict=True,
        **TRAINING,
    )
    return output_dir, results


def test_a_separable_task_is_learned(run):
    output_dir, results = run
    assert results == json.loads((output_dir / "metrics.json").read_text())
    assert results["accuracy"] == 1.0 and results["loss"] < 0.1
    assert results["majority_accuracy"] == 38 / 75  # "animal" leads in training: 102 of 203
    assert results["train_label_counts"] == {"animal": 102, "tool": 101}
    assert results["per_class"]["tool"] == dict.fromkeys(("rows", "predicted", "correct"), 37) | dict.fromkeys(
        ("precision", "recall", "f1"), 1.0
    )
    assert results["train_steps"] == 63 and results["rows"] == 75 and results["train_seconds"] > 0
    assert results["intervals"] == {"accuracy": [1.0, 1.0]} and results["skipped_rows"] == 0


def test_the_curve_s_last_evaluation_is_the_final_one(run):
    output_dir, results = run
    last = json.loads((output_dir / "history.json").read_text())["evaluations"][-1]
    assert last["step"] == 63 and last["accuracy"] == results["accuracy"]
    assert last["loss"] == pytest.approx(results["loss"], rel=1e-5)


def test_the_report_has_its_parts(run):
    page = (run[0] / "report.html").read_text()
    for name in ("scores", "curves", "confusion", "lengths", "settings"):
        assert f'<section id="{name}"' in page, name
    assert "Always answering the most frequent training class: 50.7%." in page and "skipped_rows" not in page
    assert "learning_rate" in page and "0.005" in page


def test_lengths_are_those_before_cutting_and_the_title_names_labels_and_file(run, tables, tmp_path):
    assert '<h1 dir="auto">animal or tool: train.csv</h1>' in (run[0] / "report.html").read_text()
    shutil.copytree(run[0] / "model", tmp_path / "again" / "model")
    task_file = tmp_path / "again" / "model" / "task.json"
    task_file.write_text(json.dumps({**json.loads(task_file.read_text()), "sequence_length": 12}))
    classify(output_dir=f"{tmp_path}/again/", data_dir=str(tables), **COLUMNS, do_eval=True)
    lengths = [2 * len(text.split()) + 1 for text, _ in toy_rows(75, 1)]  # Words, commas between, [CLS] and [SEP].
    over = sum(length > 12 for length in lengths)
    page = (tmp_path / "again" / "report.html").read_text()
    assert 0 < over < 75 and f"{over} of 75 rows of dev have more than 12 tokens and were cut" in page
    assert f"Longer than 12 tokens, and cut: {over} of 75" in page and f"the longest has {max(lengths)}" in page
    assert '<h1 dir="auto">animal or tool: dev.csv</h1>' in page


def test_a_title_counts_labels_beyond_five():
    settings = ClassifySettings(output_dir="out")
    spec = ClassifySpec(sequence_length=8, labels=list("abcdefg"), num_texts=1)
    assert Classify(settings).title_of(spec) == "a, b, c, d, e or 2 more"
    scores = ClassifySpec(sequence_length=8, labels=[], num_texts=1, is_regression=True)
    assert Classify(ClassifySettings(output_dir="out", label_column="stars")).title_of(scores) == "stars"


def test_predictions_are_a_row_per_text_in_order(run):
    lines = (run[0] / "predictions.tsv").read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    assert rows[0] == ["index", "prediction", "probability_animal", "probability_tool"]
    assert [row[0] for row in rows[1:]] == [str(i) for i in range(37)]
    assert [row[1] for row in rows[1:]] == [kind for _, kind in toy_rows(37, 2)]
    probabilities = np.array([row[2:] for row in rows[1:]], float)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=2e-6)
    assert [("animal", "tool")[i] for i in probabilities.argmax(axis=1)] == [row[1] for row in rows[1:]]


def test_the_saved_model_is_a_preset_that_takes_texts(run):
    model = BertTextClassifier.from_preset(run[0] / "model")
    assert model.labels == ["animal", "tool"] and model.preprocessor.sequence_length == TRAINING["max_seq_length"]
    shares = keras.ops.softmax(model.predict([text for text, _ in toy_rows(37, 2)], verbose=0))
    rows = [line.split("\t") for line in (run[0] / "predictions.tsv").read_text().splitlines()[1:]]
    np.testing.assert_allclose(shares, np.array([row[2:] for row in rows], float), atol=2e-6)


def test_the_saved_model_alone_gives_the_same_scores_and_answers(run, tables):
    output_dir, results = run
    predictions = (output_dir / "predictions.tsv").read_text()
    (output_dir / "predictions.tsv").unlink()
    again = classify(
        output_dir=str(output_dir), data_dir=str(tables), **COLUMNS, do_eval=True, do_predict=True, eval_batch_size=7
    )
    continuous = {"loss", "calibrated_loss", "brier_score", "calibrated_brier_score"}  # Batches of another size round.
    for name in continuous:
        assert again[name] == pytest.approx(results[name], rel=1e-5)
    for name in results.keys() - continuous - {"eval_seconds"}:
        assert again[name] == results[name], name
    assert (output_dir / "predictions.tsv").read_text() == predictions


def test_a_finished_training_is_kept_and_other_settings_are_refused(run, preset, tables):
    output_dir, results = run
    settings = {
        "output_dir": str(output_dir),
        "preset": preset,
        "load_weights": False,
        "data_dir": str(tables),
        **COLUMNS,
        **TRAINING,
        "do_train": True,
        "do_eval": True,
    }
    checkpoints = sorted(os.listdir(output_dir / "checkpoints"))
    again = classify(**settings)
    assert again["accuracy"] == results["accuracy"] and again["loss"] == pytest.approx(results["loss"], rel=1e-5)
    assert sorted(os.listdir(output_dir / "checkpoints")) == checkpoints
    assert (
        again["train_seconds"]
        == results["train_seconds"]
        == json.loads((output_dir / "metrics.json").read_text())["train_seconds"]
    )
    with pytest.raises(InputError, match=re.escape("holds a training with learning_rate=0.005. It cannot continue")):
        classify(**{**settings, "learning_rate": 1e-3})
    other = write_rows(output_dir / "other.csv", [("words", "kind"), *toy_rows(60, 5)])
    with pytest.raises(InputError, match="holds a training with train_rows_checksum="):
        classify(**{**settings, "train_file": other})


@pytest.mark.slow
def test_a_stopped_training_continues_as_if_it_had_not_been_stopped(run, preset, tables, tmp_path, monkeypatch):
    settings = {
        "output_dir": str(tmp_path),
        "preset": preset,
        "load_weights": False,
        "data_dir": str(tables),
        **COLUMNS,
        **TRAINING,
        "do_train": True,
        "do_eval": True,
    }

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session.Session, "_answer", stop)  # Called after the first epoch's checkpoint.
        with pytest.raises(KeyboardInterrupt):
            classify(**settings)
    assert not (tmp_path / "model").exists() and not (tmp_path / "metrics.json").exists()
    results = classify(**settings)
    assert results["loss"] == pytest.approx(run[1]["loss"], rel=1e-4)
    evaluations = json.loads((tmp_path / "history.json").read_text())["evaluations"]
    assert [row["step"] for row in evaluations] == [*range(12, 63, 12), 63]  # 203 rows: 12 full batches an epoch.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 33}, "--max_seq_length=33: .* has positions for 32 tokens"),
        ({"preset": None}, "--do_train needs --preset"),
        ({"preset": "no-such-preset"}, "no-such-preset: no such directory"),
        ({"train_batch_size": 2000}, r"train.csv: 203 examples and --num_train_epochs=5 do not fill one batch of 2000"),
        ({"labels": ["animal", "plant"]}, r"train.csv:3: unknown label 'tool'. Expected 'animal', 'plant'."),
        ({"do_train": False}, "Nothing to do"),
        ({"text_column": "text"}, r"train.csv:1: no column 'text' in the header. Columns there: 'words', 'kind'"),
    ],
)
def test_wrong_settings(preset, tables, tmp_path, changes, message):
    settings = {"preset": preset, "data_dir": str(tables), **COLUMNS, **TRAINING, "do_train": True, **changes}
    with pytest.raises(InputError, match=message):
        classify(output_dir=str(tmp_path), **settings)


def test_a_model_of_single_texts_refuses_pairs(run, tables):
    with pytest.raises(InputError, match=r"test.csv: 2 text column\(s\) named, but .* was trained on 1"):
        classify(
            output_dir=str(run[0]), data_dir=str(tables), text_column="words", text_pair_column="id", do_predict=True
        )


def test_pairs_are_read_from_two_columns(tmp_path):
    path = write_rows(
        tmp_path / "pairs.csv", [("first", "second", "kind"), ("cat", "saw", "other"), ("a", "b", "same")]
    )
    columns = {"text_column": "first", "text_pair_column": "second", "label_column": "kind"}
    inputs = read_tables("train", train_file=path, **columns)
    assert inputs.spec.num_texts == 2 and inputs.spec.labels == ["other", "same"]
    assert (inputs.parts[0].rows.texts, inputs.parts[0].rows.text_pairs) == (["cat", "a"], ["saw", "b"])


def test_a_wrong_dev_label_is_one_line_and_exit_status_1(preset, tables, tmp_path):
    dev = write_rows(tmp_path / "dev.csv", [("words", "kind"), ("cat", "animal"), ("rose\nred", "plant")])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "flags.json").write_text("of the call before")
    command = [
        sys.executable,
        "-X",
        "importtime",
        "-m",
        "tasks.classify.run",
        f"--train_file={tables}/train.csv",
        f"--dev_file={dev}",
        "--text_column=words",
        "--label_column=kind",
        f"--preset={preset}",
        "--do_train",
        "--do_eval",
        f"--output_dir={tmp_path}/run",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    messages = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert len(messages) == 1
    assert messages[0].endswith(f"error: {dev}:3: unknown label 'plant'. Expected 'animal', 'tool'.")
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "tasks.classify.data" in imported and "tensorflow" not in imported
    assert (tmp_path / "run" / "flags.json").read_text() == "of the call before"
