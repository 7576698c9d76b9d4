"""One behaviour for all tasks: bad rows, metrics.json, predictions alone, and the report."""

import dataclasses
import json
import re

import keras
import numpy as np
import pytest
import run_tasks
import tensorflow as tf
import toy_words
from every_task import TASKS, TRAINING
from model_cards import check_card

from keras_bert.errors import InputError
from tasks.fine_tuning.command import run_task
from tasks.fine_tuning.task import Part
from tasks.squad.data import Questions

# Choices are read as classification's rows are, and numbers as tags are; squad_run_test skips bad questions.
pytestmark = pytest.mark.slow(keep=["classification", "tagging"])


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_words.write_preset(tmp_path_factory.mktemp("preset"))


@pytest.fixture(scope="module", name="trained", params=TASKS)
def _trained(request, preset, tmp_path_factory):
    """A run of every task that skips one bad training row: (entry, directory, what it returned, the task)."""
    entry, name, good, bad, where = TASKS[request.param]
    directory = tmp_path_factory.mktemp(request.param)
    for split in ("train", "dev", "test"):
        (directory / name.format(split)).write_text(bad if split == "train" else good)
    settings = {"output_dir": str(directory / "run"), "preset": preset, "data_dir": str(directory), **TRAINING}
    with pytest.raises(InputError) as error:
        entry(do_train=True, do_eval=True, bad_rows="refuse", **settings)
    assert where in str(error.value) and not (directory / "run").exists()
    with pytest.MonkeyPatch.context() as patch:
        tasks = []
        patch.setattr(run_tasks, "run_task", lambda task: run_task(tasks.append(task) or task))
        results = entry(do_train=True, do_eval=True, bad_rows="skip", **settings)
    return entry, directory, results, tasks[0]


def test_a_task_is_a_value(trained):
    """What a run finds out stands in the spec, the model or the answers: the task has its settings, and keeps them."""
    task = trained[3]
    assert vars(task) == {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    for name in ("settings", "metric", "another"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(task, name, None)


def test_a_part_is_a_key():
    """Rows are lists, and two splits may have equal ones."""
    parts = [Part("dev", Questions("dev.json", [])), Part("dev", Questions("dev.json", []))]
    assert len(dict.fromkeys(parts)) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        parts[0].rows = None


def test_bad_rows_are_left_out_counted_listed_and_reported(trained):
    _, directory, results, _ = trained
    assert results["skipped_rows"] == 1
    listed = (directory / "run" / "skipped_rows.tsv").read_text().splitlines()
    assert listed[0] == "where\treason" and len(listed) == 2
    page = (directory / "run" / "report.html").read_text()
    assert "1 bad " in page and "(skipped_rows.tsv lists them)" in page


def test_metrics_have_one_shape(trained):
    _, directory, results, _ = trained
    assert results == json.loads((directory / "run" / "metrics.json").read_text())
    assert results["intervals"] and not [name for name in results if name.endswith("_interval")]
    for name, (low, high) in results["intervals"].items():
        assert low <= results[name] <= high or results[name] != results[name], name
    assert {"loss", "train_steps", "train_seconds", "eval_seconds", "dev_file", "dev_rows_checksum"} <= results.keys()
    # Another training removes what is listed here, whether it evaluates or not.
    written = [path.name for path in (directory / "run").glob("dev_predictions.*")]
    assert results.get("test_predictions", []) == written


def test_the_card_says_what_the_run_knows(trained):
    _, directory, results, _ = trained
    rows = _files_of_card(directory, results, bad="1 bad ")
    assert "--do_train" in results["train_command"] and "--output_dir" not in results["train_command"]
    assert [row[0] for row in rows] == ["train", "dev"] and all(int(row[2]) >= int(row[4]) for row in rows)


def _files_of_card(directory, results, **expected):
    card = check_card(directory / "run", command=results["train_command"], **expected)
    return re.findall(r"^\| (train|dev) \| `(.+)` \| (\d+) \| (\d+) \| (\d+) \|$", card.text, re.MULTILINE)


def test_the_saved_model_is_a_preset(trained):
    directory = trained[1] / "run" / "model"
    spec, saved = json.loads((directory / "task.json").read_text()), keras.saving.load_model(directory / "model.keras")
    model = type(saved).from_preset(directory)
    assert model.preprocessor.sequence_length == spec["sequence_length"] and model.labels == (
        spec.get("labels") or None
    )
    np.testing.assert_equal(model.get_weights(), saved.get_weights())
    questions, words = (["w1"], ["w0 w2"]), tf.ragged.constant([["w1", "w2"]])
    taken = {
        **{"question_answering": questions, "multiple_choice": (["w1"], [["w0", "w2", "w3"]])},
        **{"token_classification": words, "token_regression": words},
    }.get(spec["task"], ["w1 w2"])
    np.testing.assert_equal(model.predict(taken, verbose=0), saved.predict(taken, verbose=0))


def test_predictions_alone_keep_scores_and_report(trained):
    entry, directory, results, _ = trained
    before = (directory / "run" / "report.html").read_bytes()
    after = entry(output_dir=str(directory / "run"), data_dir=str(directory), do_predict=True)
    assert (directory / "run" / "report.html").read_bytes() == before
    written = after["test_predictions"]
    assert {**results, "skipped_rows": 0, "test_predictions": written}.items() <= after.items()
    assert set(results.get("test_predictions", ())) < set(written)
    assert after["test_file"].endswith(("test.csv", "test.conll", "test.json")) and "test_rows_checksum" in after
    assert list((directory / "run").glob("predictions.*"))
    assert not (directory / "run" / "skipped_rows.tsv").exists()  # This call has left out nothing.


@pytest.mark.slow(keep=["tagging"])
def test_an_evaluation_anew_replaces_its_scores_only(trained):
    entry, directory, results, _ = trained
    files = _files_of_card(directory, results)
    again = entry(output_dir=str(directory / "run"), data_dir=str(directory), do_eval=True)
    same = {name for name in results if name not in ("eval_seconds", "skipped_rows", "loss", "test_predictions")}
    assert {name: again[name] for name in same} == {name: results[name] for name in same}
    assert again["loss"] == pytest.approx(results["loss"], rel=1e-4)
    assert _files_of_card(directory, results) == files


def test_without_a_model_or_a_preset_the_command_is_named(trained, tmp_path):
    entry, directory, *_ = trained
    with pytest.raises(InputError, match="model/task.json: no such file. Expected the model directory that bert-"):
        entry(output_dir=str(tmp_path), data_dir=str(directory), do_eval=True)
    with pytest.raises(InputError, match="Nothing to do. Give --do_train, --do_eval or --do_predict"):
        entry(output_dir=str(tmp_path), data_dir=str(directory))
