"""The look at the data before training, by faults planted in files of every task, and labels that are likely wrong."""

import numpy as np
import pytest
import run_tasks
from every_task import TASKS, csv
from run_tasks import read_tables

from keras_bert.errors import InputError
from tasks.fine_tuning.data_check import find_doubtful, same_text
from tasks.fine_tuning.inputs import read_inputs

NAMES = {"text_column": "text", "label_column": "label"}


@pytest.fixture(name="read")
def _read(tmp_path):
    def read(train, dev=(), **settings):
        for split, rows in (("train", train), ("dev", dev)):
            (tmp_path / f"{split}.csv").write_text(csv(("text", "label"), *rows))
        files = {"train_file": f"{tmp_path}/train.csv", "dev_file": f"{tmp_path}/dev.csv" if dev else None}
        return read_tables("train", "eval", **files, **NAMES, **settings)

    return read


def _rows(count: int) -> list[tuple[str, str]]:
    return [(f"text {number}", "ab"[number % 2]) for number in range(count)]


def test_each_kind_of_fault_is_said_with_its_first_place_and_cure(read, tmp_path, capsys):
    train = [*_rows(8), ("TEXT  1", "b"), ("text 2", "b"), ("Cafe\u0301 au lait", "a"), ("word", "a"), ("...", "b")]
    dev = [("other text", "a"), ("caf\u00e9 au lait", "b"), ("这很好", "b")]
    inputs = read(train, dev)
    at = f"{tmp_path}/"
    assert capsys.readouterr().out.splitlines() == [
        "Data: 13 training rows, 2 labels (7 b, 6 a); 2 words at the median, 3 at most",
        f"Duplicates (rows that repeat another of their file): 1, the first at {at}train.csv:10 and {at}train.csv:3. "
        "Take them out if they should not count twice.",
        f"Leaks (training rows that are also in dev or test): 1, the first at {at}train.csv:12 and {at}dev.csv:3. "
        "They inflate the scores. --drop_leaks trains without them.",
        f"Contradictions (texts with different answers): 2, the first at {at}train.csv:11 and {at}train.csv:4. "
        "Correct them, or take them out.",
        f"Short texts (rows of fewer than 2 words): 2, the first at {at}train.csv:13. Check that no text was lost.",
    ]
    counts = {"duplicates": 1, "leaks": 1, "contradictions": 2, "short_texts": 2, "rows": 13, "median_words": 2.0}
    assert inputs.look.figures == {f"data_{name}": count for name, count in counts.items()}
    assert len(inputs.parts[0].rows.texts) == 13
    dropped = read(train, dev, drop_leaks=True)
    assert dropped.parts[0].rows.texts == [text for text, _ in train if "lait" not in text]
    assert "They were left out of the training (--drop_leaks)." in capsys.readouterr().out


def test_a_line_is_all_where_nothing_is_wrong(read, capsys):
    read(_rows(8), [("other text", "a"), ("another one", "b")])
    line = "Data: 8 training rows, 2 labels (4 a, 4 b); 2 words at the median, 2 at most; no duplicates, no leaks, no "
    assert capsys.readouterr().out == f"{line}contradictions, no short texts\n"


def test_rows_to_predict_contradict_nothing(tmp_path):
    (tmp_path / "train.csv").write_text(csv(("text", "label"), *_rows(8)))
    (tmp_path / "test.csv").write_text(csv(("text",), ("text 3",), ("Text 4",)))
    files = {"train_file": f"{tmp_path}/train.csv", "test_file": f"{tmp_path}/test.csv"}
    figures = read_tables("train", "predict", **files, **NAMES).look.figures
    assert figures["data_leaks"] == 2 and figures["data_contradictions"] == 0


def test_several_labels_are_compared_in_any_order(read):
    rows = [("a text", "b a"), ("another text", "b"), ("A text", "a b"), ("another text", "a"), ("c", "a")]
    look = read(rows, multi_label=True, label_separator=" ", dev_share=0.25).look
    assert look.counts["train"] + look.counts["dev"] == {"a": 4, "b": 3}
    assert look.figures["data_duplicates"] == 1 and look.figures["data_contradictions"] == 1


def test_rows_that_are_held_out_leak_into_none(read):
    repeated = [(text.upper() if number % 3 else f" {text}", label) for number, (text, label) in enumerate(_rows(40))]
    inputs = read(_rows(40) + repeated, dev_share=0.25, validation_share=0.25)
    texts = [{same_text(text) for text in part.rows.texts} for part in inputs.parts]
    assert len(texts) == 3 and not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]
    assert inputs.look.figures["data_leaks"] == 0 and inputs.look.figures["data_duplicates"] == 40


@pytest.mark.parametrize("name", TASKS)
def test_the_rows_of_every_task_are_looked_at(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_tasks, "run_task", read_inputs)
    entry, file, good, _, _ = TASKS[name]
    for split in ("train", "dev"):
        (tmp_path / file.format(split)).write_text(good)
    settings = {"data_dir": str(tmp_path), "output_dir": "", "do_train": True}
    assert entry(**settings, do_eval=True).look.figures["data_leaks"] == 8
    printed = capsys.readouterr().out
    assert "Leaks (training" in printed and file.format("train") in printed and file.format("dev") in printed
    with pytest.raises(InputError, match="--drop_leaks leaves no row. Give other rows to train on."):
        entry(**settings, do_eval=True, drop_leaks=True)
    assert entry(**settings | {"do_eval": False}).look.figures["data_duplicates"] == 0
    assert entry(**settings, do_eval=True, dev_share=0.25).look.figures["data_leaks"] == 0


def _by_the_paper(probabilities, labels):
    """The sets of section 3.1, the joint of equation 3 and the pruning of section 3.2, by Python's loops."""
    rows, classes = range(len(labels)), range(probabilities.shape[1])
    members = {label: [row for row in rows if labels[row] == label] for label in classes}
    mean = {label: sum(probabilities[row][label] for row in of) / len(of) for label, of in members.items()}
    candidates = {}
    for given in classes:
        joint = dict.fromkeys(classes, 0)
        for row in members[given]:
            reached = [label for label in classes if probabilities[row][label] >= mean[label]]
            if reached:
                joint[max(reached, key=lambda label: probabilities[row][label])] += 1
        for true in classes:
            margin = {row: probabilities[row][true] - probabilities[row][given] for row in members[given]}
            number = round(joint[true] * len(margin) / sum(joint.values()))
            for row in sorted(margin, key=lambda row: -margin[row])[: number if true != given else 0]:
                candidates[row] = max(candidates.get(row, (0.0, given)), (margin[row], true))
    doubtful = sorted(((margin, row, true) for row, (margin, true) in candidates.items() if margin > 0), reverse=True)
    return [(row, true) for _, row, true in doubtful]


@pytest.mark.parametrize("num_classes", [2, 5])
def test_doubtful_labels_are_those_of_confident_learning(num_classes):
    generator = np.random.default_rng(num_classes)
    true = generator.integers(0, num_classes, 300)
    logits = generator.normal(size=(300, num_classes)) + 2.5 * np.eye(num_classes)[true]
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    labels = true.copy()
    labels[:30] = (true[:30] + 1) % num_classes
    doubtful = find_doubtful(logs, labels)
    assert doubtful == _by_the_paper(np.exp(logs), labels.tolist())
    assert sum(row < 30 and suggested == true[row] for row, suggested in doubtful[:30]) >= 15


def test_a_class_without_rows_is_never_suggested():
    logs = np.log([[0.1, 0.1, 0.8], [0.6, 0.3, 0.1], [0.9, 0.05, 0.05], [0.2, 0.7, 0.1]])
    assert find_doubtful(logs, np.array([0, 0, 1, 1])) == [(2, 0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"regression": True}, "--find_wrong_labels is for single texts with one label"),
        ({"text_pair_column": "label"}, "--find_wrong_labels is for single texts with one label"),
        ({"multi_label": True}, "--find_wrong_labels is for single texts with one label"),
        ({"num_restarts": 2}, "--find_wrong_labels looks at the rows of one training"),
    ],
)
def test_wrong_labels_are_looked_for_where_there_are_labels(read, settings, message):
    with pytest.raises(InputError, match=message):
        read([(f"text {number}", number) for number in range(9)], [("text", 0)], find_wrong_labels=True, **settings)


def test_leaks_are_those_of_a_training(read):
    with pytest.raises(InputError, match="--drop_leaks is about the training rows. Give --do_train"):
        read_tables("eval", dev_file="x.csv", drop_leaks=True)
