"""Validation rows: held out of the training rows of every task, and what early stopping and a search look at."""

import json

import pytest
import run_tasks
import toy_words
from every_task import TASKS, TRAINING, classes

from keras_bert.errors import InputError
from tasks.fine_tuning import sweep
from tasks.fine_tuning.inputs import read_inputs


def rows_of(rows) -> list[str]:
    """Returns what each row holds, whatever its type."""
    if hasattr(rows, "sentence_splits"):
        return [repr(row) for row in zip(rows.split(rows.tokens), rows.split(rows.tags), strict=True)]
    return [repr(row) for row in zip(*(column for column in rows if isinstance(column, list)), strict=True)]


@pytest.mark.parametrize("name", TASKS)
def test_training_rows_are_split_whatever_the_seed(name, tmp_path, monkeypatch):
    monkeypatch.setattr(run_tasks, "run_task", read_inputs)
    entry, file, good, _, _ = TASKS[name]
    for split in ("train", "dev"):
        (tmp_path / file.format(split)).write_text(good)
    settings = {"data_dir": str(tmp_path), "output_dir": "", "do_train": True, "do_eval": True}
    whole, *splits = (
        {part.split: rows_of(part.rows) for part in entry(**settings, random_seed=seed, validation_share=share).parts}
        for seed, share in ((0, 0.0), (0, 0.25), (1, 0.25))
    )
    assert list(whole) == ["train", "dev"]
    assert splits[0] == splits[1] and splits[0]["dev"] == whole["dev"]
    held_out = splits[0]["validation"]
    assert len(held_out) == 2 and set(held_out) < set(whole["train"])
    assert splits[0]["train"] == [row for row in whole["train"] if row not in held_out]


@pytest.mark.parametrize("name", TASKS)
def test_a_share_of_the_training_rows_takes_the_place_of_a_dev_file(name, tmp_path, monkeypatch):
    monkeypatch.setattr(run_tasks, "run_task", read_inputs)
    entry, file, good, _, _ = TASKS[name]
    (tmp_path / file.format("train")).write_text(good)
    settings = {"data_dir": str(tmp_path), "output_dir": "", "do_train": True, "do_eval": True, "dev_share": 0.25}
    parts = {part.split: rows_of(part.rows) for part in entry(**settings).parts}
    whole = rows_of(entry(**settings | {"do_eval": False, "dev_share": 0.0}).parts[0].rows)
    assert list(parts) == ["train", "dev"] and len(parts["dev"]) == 2
    assert parts["train"] == [row for row in whole if row not in parts["dev"]]
    parts = {part.split: rows_of(part.rows) for part in entry(**settings, validation_share=0.5).parts}
    assert {split: len(rows) for split, rows in parts.items()} == {"train": 3, "validation": 3, "dev": 2}
    with pytest.raises(InputError, match="--dev_share=0.25 holds out training rows .* Give --do_train and --do_eval"):
        entry(**settings | {"do_train": False})


def test_they_choose_the_weights_and_the_run(tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text(classes())
    (tmp_path / "dev.csv").write_text("text,label\n" + "".join(f"w{number},{1 - number % 2}\n" for number in range(8)))
    preset = toy_words.write_preset(tmp_path / "preset")
    settings = {**TRAINING, "num_train_epochs": 30, "validation_share": 0.5, "early_stopping_patience": 30}
    settings |= {"preset": preset, "data_dir": str(tmp_path), "output_dir": str(tmp_path / "run"), "do_train": True}
    results = run_tasks.classify(**settings, do_eval=True)
    evaluations = json.loads((tmp_path / "run" / "history.json").read_text())["evaluations"]
    best = max(evaluations, key=lambda row: row["accuracy"])
    assert results["best_step"] == best["step"]
    assert results["validation_accuracy"] == best["accuracy"]
    assert results["train_rows"] == 4

    found = iter([0.25, 0.75])
    monkeypatch.setattr(sweep.Session, "train", lambda self, _: self.results.update(validation_accuracy=next(found)))
    for name in ("evaluate", "report"):
        monkeypatch.setattr(sweep.Session, name, lambda *_: None)
    monkeypatch.setattr(sweep, "_KEPT", ())
    searched = {**settings, "output_dir": str(tmp_path / "search"), "num_restarts": 2}
    with pytest.raises(Exception, match="model"):  # The faked trainings left none.
        run_tasks.classify(**searched)
    found = json.loads((tmp_path / "search" / "metrics.json").read_text())["sweep"]
    assert found["metric"] == "validation_accuracy" and found["best"]["random_seed"] == 12346
