"""`bert-swag` from files to files: it memorizes 16 rows, leaves what a run leaves, and refuses what is wrong."""

import csv
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import toy_choices
import toy_hugging_face
from repository import ROOT
from run_tasks import choose

from keras_bert.errors import InputError
from tasks.fine_tuning.inputs import read_inputs
from tasks.report.page import NUM_MISTAKES
from tasks.swag import task
from tasks.swag.data import Table

# A high rate, since the toy begins with random weights.
TRAINING = {
    "train_batch_size": 16,
    "learning_rate": 2e-3,
    "optimizer": "bert-2018",  # It learns these rows in the fewest steps.
    "num_train_epochs": 2,
    "max_seq_length": 24,
    "random_seed": 3,
}
COPIES = 30  # of each row to train on, since an epoch ends with an evaluation.


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_choices.save_preset(tmp_path_factory.mktemp("preset"))


@pytest.fixture(scope="module", name="rows")
def _rows():
    return toy_choices.make_rows(16)


@pytest.fixture(scope="module", name="run")
def _run(preset, rows, tmp_path_factory):
    """One whole run: (output directory, what `choose` returned)."""
    folder = tmp_path_factory.mktemp("swag")
    toy_choices.write_csv(folder / "train.csv", rows * COPIES)
    toy_choices.write_csv(folder / "val.csv", rows)
    test = [{name: value for name, value in row.items() if name != "label"} for row in rows[:9]]
    toy_choices.write_csv(folder / "test.csv", test)
    output_dir = folder / "run"
    results = choose(
        output_dir=str(output_dir),
        preset=preset,
        data_dir=str(folder),
        do_train=True,
        do_eval=True,
        do_predict=True,
        **TRAINING,
    )
    return output_dir, results


def test_16_rows_of_random_words_are_memorized(run):
    """Nothing but memory tells the right choice: an axis turned, or a label of another row, would show."""
    output_dir, results = run
    assert results == json.loads((output_dir / "metrics.json").read_text())
    assert results["accuracy"] == 1.0 and results["intervals"]["accuracy"] == [1.0, 1.0] and results["loss"] < 0.1


def test_metrics_tell_rows_steps_and_baselines(run, rows):
    results = run[1]
    counts = np.bincount([row["label"] for row in rows], minlength=4)
    assert results["train_label_counts"] == (COPIES * counts).tolist()
    assert results["majority_accuracy"] == counts.max() / 16 and results["chance_accuracy"] == 0.25
    assert (results["train_rows"], results["rows"], results["train_steps"]) == (16 * COPIES, 16, 2 * COPIES)
    assert results["num_choices"] == 4 and results["skipped_rows"] == 0 and results["train_seconds"] > 0


def test_the_output_directory_is_complete(run):
    names = {path.name for path in run[0].iterdir()}
    assert {"metrics.json", "model", "report.html", "history.json", "events", "checkpoints"} <= names
    task = json.loads((run[0] / "model" / "task.json").read_text())
    assert task == {"task": "multiple_choice", "sequence_length": 24, "num_choices": 4}


def test_predictions_are_the_model_s_choices(run, rows):
    with open(run[0] / "predictions.csv", encoding="utf-8") as file:
        predictions = list(csv.DictReader(file))
    assert list(predictions[0]) == ["index", "prediction", *(f"probability_{number}" for number in range(4))]
    assert [int(row["index"]) for row in predictions] == list(range(9))
    assert [int(row["prediction"]) for row in predictions] == [row["label"] for row in rows[:9]]
    for row in predictions:
        probabilities = [float(row[f"probability_{number}"]) for number in range(4)]
        assert abs(sum(probabilities) - 1) < 1e-5 and np.argmax(probabilities) == int(row["prediction"])


def test_report_shows_the_scores(run):
    page = (run[0] / "report.html").read_text(encoding="utf-8")
    assert "Multiple choice" in page and "accuracy of chance" in page and "choice 3" in page


@pytest.mark.slow
def test_the_same_command_again_trains_nothing_and_keeps_the_figures(run, preset):
    output_dir, results = run
    again = choose(
        output_dir=str(output_dir),
        preset=preset,
        data_dir=str(output_dir.parent),
        do_train=True,
        do_eval=True,
        **TRAINING,
    )
    again.pop("eval_seconds")
    assert again == {name: value for name, value in results.items() if name != "eval_seconds"}


def test_evaluation_alone_takes_the_trained_model(run, rows, tmp_path):
    output_dir = run[0]
    # Every label moved by one: a model that has memorized is wrong everywhere, and very sure.
    moved = [{**row, "label": (row["label"] + 1) % 4} for row in rows]
    dev = toy_choices.write_csv(tmp_path / "moved.csv", moved)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(output_dir / "model")
    wrong = choose(output_dir=str(tmp_path / "run"), dev_file=dev, do_eval=True)
    assert wrong["accuracy"] == 0.0 and wrong["loss"] > 2 and "majority_accuracy" not in wrong
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    shown = [row for row in moved if f"{row['sent2']} {row['ending0']}" in page]
    assert len(shown) == len(rows) <= NUM_MISTAKES


@pytest.mark.slow
def test_scores_and_predictions_are_of_the_files_that_they_name(run, rows, tmp_path):
    """What a call does not compute stays, of the same model; the file that it is of is named."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(run[0] / "model")
    some, others = (
        toy_choices.write_csv(tmp_path / f"{name}.csv", part)
        for name, part in (("some", rows[:6]), ("others", rows[6:]))
    )
    first = choose(output_dir=str(tmp_path / "run"), dev_file=some, do_eval=True)
    report = (tmp_path / "run" / "report.html").read_text()
    second = choose(output_dir=str(tmp_path / "run"), test_file=others, do_predict=True)
    assert second.items() >= first.items() and first["dev_file"] == some and first["rows"] == 6
    assert (second["test_file"], second["test_rows"]) == (others, 10)
    assert (tmp_path / "run" / "report.html").read_text() == report  # It has scores; predictions alone have none.
    toy_choices.write_csv(tmp_path / "others.csv", rows[10:])
    third = choose(output_dir=str(tmp_path / "run"), dev_file=others, test_file=others, do_eval=True, do_predict=True)
    assert third["rows"] == third["test_rows"] == 6
    assert third["test_rows_checksum"] != second["test_rows_checksum"]
    assert third["dev_rows_checksum"] != first["dev_rows_checksum"]


@pytest.mark.slow
def test_lengths_are_those_before_cutting(run, rows, tmp_path):
    shutil.copytree(run[0] / "model", tmp_path / "run" / "model")
    task_file = tmp_path / "run" / "model" / "task.json"
    task_file.write_text(json.dumps({**json.loads(task_file.read_text()), "sequence_length": 9}))
    choose(output_dir=str(tmp_path / "run"), dev_file=toy_choices.write_csv(tmp_path / "dev.csv", rows), do_eval=True)
    longest = [
        max(len(f"{row['sent1']} {row['sent2']} {row[f'ending{number}']}".split()) + 3 for number in range(4))
        for row in rows
    ]
    page = (tmp_path / "run" / "report.html").read_text()
    over = sum(length > 9 for length in longest)
    assert 0 < over < 16 and f"Longer than 9 tokens, and cut: {over} of 16" in page
    assert f"the longest has {max(longest)}" in page


def test_another_number_of_choices_is_refused(run, tmp_path):
    dev = toy_choices.write_csv(tmp_path / "three.csv", toy_choices.make_rows(4, num_choices=3))
    with pytest.raises(InputError, match=r"three.csv:2: 3 choices a row, but the model chooses among 4"):
        choose(output_dir=str(run[0]), dev_file=dev, do_eval=True)


def test_json_lines_of_three_choices_and_a_skipped_row(preset, tmp_path):
    rows = [
        {"question": row["sent1"], "options": [row[f"ending{number}"] for number in range(3)], "answer": row["label"]}
        for row in toy_choices.make_rows(20, num_choices=3)
    ]
    rows[4]["answer"] = 3
    path = toy_choices.write_jsonl(tmp_path / "quiz.jsonl", rows)
    settings = {
        "output_dir": str(tmp_path / "run"),
        "preset": preset,
        "train_file": path,
        "dev_file": path,
        "context_column": "question",
        "choice_columns": ["options"],
        "label_column": "answer",
        "do_train": True,
        "do_eval": True,
        **TRAINING,
    }
    with pytest.raises(InputError, match=r"quiz.jsonl:5: label 3: expected the number of the right choice, 0 to 2"):
        choose(**settings)
    assert not (tmp_path / "run").exists()
    inputs = read_inputs(task.Swag(task.SwagSettings(bad_rows="skip", **settings)))
    assert [len(part.rows.lines) for part in inputs.parts] == [19, 19] and inputs.spec.num_choices == 3
    (where, reason), _ = inputs.bad_rows.rows  # of two readings
    assert where == f"{path}:5" and reason.startswith("label 3")


@pytest.mark.slow
@pytest.mark.oracle
def test_a_checkpoint_fine_tuned_elsewhere_is_evaluated_without_training(tmp_path):
    import torch

    size = len(toy_choices.VOCABULARY)
    theirs = toy_hugging_face.random_model("BertForMultipleChoice", vocab_size=size, initializer_range=1.0)
    preset = tmp_path / "preset"
    theirs.save_pretrained(preset)
    (preset / "vocab.txt").write_text("\n".join(toy_choices.VOCABULARY) + "\n")
    rows = toy_choices.make_rows(12)
    dev = toy_choices.write_csv(tmp_path / "dev.csv", rows)
    results = choose(
        output_dir=str(tmp_path / "run"),
        preset=str(preset),
        dev_file=dev,
        test_file=dev,
        do_eval=True,
        do_predict=True,
        max_seq_length=24,
    )
    ids = {word: number for number, word in enumerate(toy_choices.VOCABULARY)}
    correct = 0
    for row in rows:
        logits = []
        for number in range(4):
            first = [ids[word] for word in ["[CLS]", *row["sent1"].split(), "[SEP]"]]
            second = [ids[word] for word in [*row["sent2"].split(), *row[f"ending{number}"].split(), "[SEP]"]]
            segments = [0] * len(first) + [1] * len(second)
            with torch.no_grad():
                output = theirs(input_ids=torch.tensor([[first + second]]), token_type_ids=torch.tensor([[segments]]))
            logits.append(float(output.logits))
        correct += np.argmax(logits) == row["label"]
    assert results["accuracy"] == correct / 12 and results["preset"] == str(preset)
    assert not (tmp_path / "run" / "model").exists()  # The preset stays where it is.
    shutil.copytree(preset, tmp_path / "other")
    other = choose(
        output_dir=str(tmp_path / "run"),
        preset=str(tmp_path / "other"),
        test_file=dev,
        do_predict=True,
        max_seq_length=24,
    )
    assert "accuracy" not in other and other["preset"] == str(tmp_path / "other")  # Those were another model's.
    with pytest.raises(InputError, match="--max_seq_length=25: .* has positions for 24 tokens"):
        choose(output_dir=str(tmp_path / "run"), preset=str(preset), dev_file=dev, do_eval=True, max_seq_length=25)


def test_an_encoder_without_a_head_cannot_be_evaluated(preset, rows, tmp_path):
    dev = toy_choices.write_csv(tmp_path / "dev.csv", rows)
    with pytest.raises(InputError, match="expected a fine-tuned multiple_choice head, found none"):
        choose(output_dir=str(tmp_path / "run"), preset=preset, dev_file=dev, do_eval=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_train": False}, "Nothing to do. Give --do_train, --do_eval or --do_predict"),
        ({"preset": None}, "--do_train needs --preset"),
        ({"preset": "no-such-preset"}, "no-such-preset: no such directory"),
        ({"train_batch_size": 961}, "train.csv: 480 examples and --num_train_epochs=2 do not fill one batch of 961"),
        ({"max_seq_length": 33}, "--max_seq_length=33: .* has positions for 32 tokens"),
        ({"context_column": "sent3"}, "train.csv:1: no column 'sent3' in the header"),
        ({"train_file": "none.csv"}, "none.csv: no such file"),
    ],
)
def test_wrong_settings(run, preset, tmp_path, changes, message):
    settings = {"preset": preset, "data_dir": str(run[0].parent), **TRAINING, "do_train": True}
    with pytest.raises(InputError, match=message):
        choose(output_dir=str(tmp_path), **{**settings, **changes})


def test_mistakes_are_the_wrong_rows_the_surest_first():
    table = Table("x", [2, 3, 4], [0, 1, 2], ["c0", "c1", "c2"], [["a", "b"], ["d", "e"], ["f", "g"]], [0, 1, 1])
    logits = np.array([[0.0, 1.0], [0.0, 5.0], [4.0, 0.0]])
    mistakes = task.show_answers(table, logits)["mistakes"]
    assert [dict(mistake.parts)["context"] for mistake in mistakes] == ["c2", "c0"]
    np.testing.assert_allclose([mistake.loss for mistake in mistakes], [np.log1p(np.exp(4)), np.log1p(np.exp(1))])
    assert mistakes[0].parts == [
        ("line", "4"),
        ("context", "c2"),
        ("choice 0", "f"),
        ("choice 1", "g"),
        ("expected", "1: g (2%)"),
        ("predicted", "0: f (98%)"),
    ]


def test_the_defaults_are_the_paper_s_and_a_bad_row_is_one_line_without_tensorflow(rows, tmp_path):
    path = toy_choices.write_csv(tmp_path / "train.csv", [*rows, {**rows[0], "ending2": " "}])
    command = [sys.executable, "-X", "importtime", "-m", "tasks.swag.run"]
    done = subprocess.run(
        [*command, f"--train_file={path}", "--do_train", f"--output_dir={tmp_path}/run"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 1 and len(lines) == 1
    assert lines[0].endswith(f"error: {path}:18: column 'ending2' is empty. Fill it or remove the row.")
    assert not re.search(r"\| +tensorflow$", done.stderr, re.MULTILINE)
    done = subprocess.run([*command[:1], "-m", "tasks.swag.run", "--help"], cwd=ROOT, capture_output=True, text=True)
    listing = " ".join(done.stdout.split())
    for name, value in (("learning_rate", "2e-05"), ("train_batch_size", "16")):
        assert re.search(rf"--{name}: [^-]*?\(default: '{value}'\)", listing), name
