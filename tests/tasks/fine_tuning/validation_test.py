"""Validation rows: held out of the training rows of every task, and what early stopping and a search look at."""

import json

import numpy as np
import pytest
import run_tasks
import toy_words
from every_task import TASKS, TRAINING, classes, csv

from keras_bert.errors import InputError
from tasks.fine_tuning import sweep
from tasks.fine_tuning.inputs import choose_rows, read_inputs


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
    splits = {part.split: rows_of(part.rows) for part in entry(**settings).parts}
    whole = rows_of(entry(**settings | {"do_eval": False, "dev_share": 0.0}).parts[0].rows)
    assert list(splits) == ["train", "dev"] and len(splits["dev"]) == 2
    assert splits["train"] == [row for row in whole if row not in splits["dev"]]
    splits = {part.split: rows_of(part.rows) for part in entry(**settings, validation_share=0.3).parts}
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 4, "validation": 2, "dev": 2}
    with pytest.raises(InputError, match="--dev_share is about the training rows. Give --do_train, or leave it out"):
        entry(**settings | {"do_train": False})
    with pytest.raises(InputError, match="--dev_share holds out training rows to evaluate on. Give --do_eval"):
        entry(**settings | {"do_eval": False})


@pytest.mark.parametrize("share", [0.01, 0.25, 0.5, 0.9])
def test_groups_are_held_out_as_a_whole(share):
    singles = choose_rows(range(40), share)
    expected = np.random.default_rng(0).permutation(40) < max(1, round(40 * share))  # As before there were groups.
    np.testing.assert_array_equal(singles, expected)
    groups = np.random.default_rng(1).integers(0, 60, 400)
    chosen = choose_rows(groups.tolist(), share)
    assert not set(groups[chosen]) & set(groups[~chosen])
    assert abs(chosen.sum() - 400 * share) <= np.bincount(groups).max() / 2
    of_words = choose_rows([f"group {number}" for number in groups], share)
    np.testing.assert_array_equal(of_words, chosen)


def test_both_sides_have_a_group():
    assert choose_rows("aaaaaab", 0.9).sum() == 6 and choose_rows("aaaabbb", 0.1).sum() == 3
    assert choose_rows("ab", 0.9).sum() == 1 and not choose_rows("aaa", 0.5).any()


def test_each_stratum_gives_its_share():
    strata = np.random.default_rng(2).choice(["a", "b", "c"], 200, p=[0.7, 0.2, 0.1]).tolist()
    chosen = choose_rows(range(200), 0.2, strata)
    counts = {label: strata.count(label) for label in "abc"}
    held_out = {label: sum(chosen[row] for row in range(200) if strata[row] == label) for label in "abc"}
    assert chosen.sum() == 40 and all(abs(held_out[label] - 0.2 * counts[label]) <= 1 for label in "abc")
    assert (
        choose_rows(range(8), 0.5, ["a"] * 4 + ["b"] * 4).tolist()
        == choose_rows(range(8), 0.5, [0] * 4 + [1] * 4).tolist()
    )


def test_no_stratum_is_held_out_as_a_whole():
    assert not choose_rows(range(9), 0.9, ["a"] * 8 + ["b"])[8]
    assert choose_rows(range(5), 0.2, "aabbc").tolist().count(True) == 1 and not choose_rows(range(5), 0.2, "aabbc")[4]
    assert choose_rows(range(3), 0.01, "abb").tolist()[0] is False and choose_rows(range(3), 0.01, "abb").sum() == 1
    assert not choose_rows(range(2), 0.5, "ab").any()


DEPENDENT = {
    "classification": (csv(("text", "label"), *((f"w{number // 2}", number % 2) for number in range(16))), "texts"),
    "multiple_choice": (
        csv(
            ("sent1", "sent2", "ending0", "ending1", "label"),
            *((f"w{number // 2}", f"w{number}", "w3", "w4", number % 2) for number in range(16)),
        ),
        "contexts",
    ),
    "embedding": (csv(("text", "match"), *((f"w{number // 2}", f"w{number}") for number in range(16))), "texts"),
    "question_answering": (
        json.dumps(
            {
                "data": [
                    {
                        "paragraphs": [
                            {
                                "context": f"w0 w{number} w2",
                                "qas": [
                                    {
                                        "id": f"{number} {letter}",
                                        "question": "w",
                                        "answers": [{"text": "w0", "answer_start": 0}],
                                    }
                                    for letter in "ab"
                                ],
                            }
                            for number in range(8)
                        ]
                    }
                ]
            }
        ),
        "questions",
    ),
    "tagging": ("".join(f"-DOCSTART- O\n\nw{number} O\n\nw{number} B-x\n\n" for number in range(8)), "tokens"),
    "word_scores": ("".join(f"-DOCSTART- _\n\nw{number} 1\n\nw{number} 2\n\n" for number in range(8)), "tokens"),
}


def group_of(row) -> str:
    """What two rows of a file above have in common."""
    return row[0] if isinstance(row, list) else getattr(row, "context", row)


@pytest.mark.parametrize("share", ["validation", "dev"])
@pytest.mark.parametrize("name", DEPENDENT)
def test_dependent_rows_stay_together(name, share, tmp_path, monkeypatch):
    monkeypatch.setattr(run_tasks, "run_task", read_inputs)
    content, column = DEPENDENT[name]
    entry, file, *_ = TASKS[name]
    for split in ("train", "dev"):
        (tmp_path / file.format(split)).write_text(content)
    settings = {"data_dir": str(tmp_path), "output_dir": "", "do_train": True, "do_eval": True, f"{share}_share": 0.25}
    if name == "word_scores":
        settings["document_context"] = "document"
    groups = {part.split: list(map(group_of, getattr(part.rows, column))) for part in entry(**settings).parts}
    assert (len(groups["train"]), len(groups[share])) == (12, 4)
    assert not set(groups["train"]) & set(groups[share]) and len(set(groups[share])) == 2


def test_a_single_group_cannot_be_split(tmp_path, monkeypatch):
    monkeypatch.setattr(run_tasks, "run_task", read_inputs)
    (tmp_path / "train.conll").write_text("w1 O\n\nw2 B-x\n")
    settings = {"data_dir": str(tmp_path), "output_dir": "", "do_train": True, "do_eval": True, "dev_share": 0.5}
    assert len(run_tasks.tag(**settings).parts) == 2
    with pytest.raises(InputError, match="--dev_share=0.5 holds out no row: rows of one text, context or document"):
        run_tasks.tag(**settings, document_context="document")


def test_the_last_row_of_a_label_is_not_held_out(tmp_path, monkeypatch):
    """The message was that the file had the one label that stayed in the training."""
    monkeypatch.setattr(run_tasks, "run_task", read_inputs)
    (tmp_path / "train.csv").write_text("text,label\nw1,a\nw2,b\n")
    settings = {"train_file": str(tmp_path / "train.csv"), "output_dir": "", "text_column": "text"}
    told = "train.csv: --dev_share=0.2 holds out no row: .* every label keeps some for training .2 labels in 2 rows."
    with pytest.raises(InputError, match=told):
        run_tasks.classify(**settings)


def test_they_choose_the_weights_and_the_run(tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text(classes())
    (tmp_path / "dev.csv").write_text("text,label\n" + "".join(f"w{number},{1 - number % 2}\n" for number in range(8)))
    preset = toy_words.write_preset(tmp_path / "preset")
    settings = {
        **TRAINING,
        "num_train_epochs": 10,
        "validation_share": 0.5,
        "early_stopping_patience": 10,
        "learning_rate": 3e-2,
    }
    settings |= {"preset": preset, "data_dir": str(tmp_path), "output_dir": str(tmp_path / "run"), "do_train": True}
    results = run_tasks.classify(**settings, do_eval=True)
    evaluations = json.loads((tmp_path / "run" / "history.json").read_text())["evaluations"]
    best = max(evaluations, key=lambda row: row["accuracy"])
    assert results["best_step"] == best["step"]
    assert results["validation_accuracy"] == best["accuracy"]
    assert results["train_rows"] == 4

    scores = iter([0.25, 0.75])
    monkeypatch.setattr(sweep.Session, "train", lambda self: self.results.update(validation_accuracy=next(scores)))
    for name in ("evaluate", "report"):
        monkeypatch.setattr(sweep.Session, name, lambda *_: None)
    monkeypatch.setattr(sweep, "_KEPT", ())
    searched = {**settings, "output_dir": str(tmp_path / "search"), "num_restarts": 2}
    with pytest.raises(Exception, match="model"):  # The faked trainings left none.
        run_tasks.classify(**searched)
    summary = json.loads((tmp_path / "search" / "metrics.json").read_text())["sweep"]
    assert summary["metric"] == "validation_accuracy" and summary["best"]["random_seed"] == 12346
