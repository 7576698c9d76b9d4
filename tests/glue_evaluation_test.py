"""What is told of a model's answers: figures by name, counts of each class, the mistakes that cost most."""

import numpy as np
import pytest

from tasks.glue.evaluation import Evaluation
from tasks.glue.tables import Table
from tasks.glue.tasks import TASKS, Split

LOGITS = np.log([[0.9, 0.1], [0.98, 0.02], [0.6, 0.4], [0.2, 0.8]]).astype(np.float32)


def table(pairs: bool = False) -> Table:
    texts = ["a", "b", "c", "d"]
    return Table("dev.tsv", [2, 3, 5, 6], [0, 1, 3, 4], 5, texts, texts[::-1] if pairs else None, None)


def of_classes(split: Split = TASKS["mnli"].dev[0]) -> Evaluation:
    return Evaluation(TASKS["sst2"], split, table(), ["no", "yes"], np.array([0, 1, 1, 1]), LOGITS)


def test_figures_of_a_second_file_carry_its_name():
    expected = {"accuracy": 0.5, "loss": pytest.approx(-np.log([0.9, 0.02, 0.4, 0.8]).mean())}
    assert of_classes().figures() == expected
    mismatched = of_classes(TASKS["mnli"].dev[1])
    assert mismatched.figures() == {f"mismatched_{name}": value for name, value in expected.items()}
    assert list(mismatched.intervals()) == ["mismatched_accuracy"]
    low, high = mismatched.intervals()["mismatched_accuracy"]
    assert 0.0 <= low < 0.5 < high <= 1.0


def test_counts_of_each_class():
    assert of_classes().per_class() == {
        "no": {"rows": 1, "predicted": 3, "correct": 1},
        "yes": {"rows": 3, "predicted": 1, "correct": 1},
    }
    assert of_classes().confusions().tolist() == [[1, 0], [2, 1]]


def test_mistakes_are_the_wrong_answers_surest_first():
    mistakes = of_classes().mistakes()
    assert [mistake.loss for mistake in mistakes] == pytest.approx([-np.log(0.02), -np.log(0.4)])
    assert mistakes[0].parts == [
        ("sentence", "b"), ("expected", "yes"), ("predicted", "no 98%"), ("row", "dev.tsv:3"),
    ]  # fmt: skip


def test_mistakes_of_scores_are_those_furthest_off():
    labels, outputs = np.array([1.0, 2.0, 3.0, 4.0], np.float32), np.array([[1.0], [2.5], [1.0], [4.1]], np.float32)
    evaluation = Evaluation(TASKS["stsb"], TASKS["stsb"].dev[0], table(pairs=True), [], labels, outputs)
    mistakes = evaluation.mistakes()
    assert [mistake.loss for mistake in mistakes] == pytest.approx([4.0, 0.25, 0.01], rel=1e-4)  # Not the exact one.
    assert mistakes[0].parts == [
        ("sentence1", "c"), ("sentence2", "b"), ("expected", "3"), ("predicted", "1.00"), ("row", "dev.tsv:5"),
    ]  # fmt: skip
    assert evaluation.figures()["mean_squared_error"] == pytest.approx((0.25 + 4.0 + 0.01) / 4, rel=1e-4)


def test_a_hundred_mistakes_are_cut_to_the_worst():
    count = 100
    logits = np.stack([np.linspace(0.1, 5.0, count), np.zeros(count)], axis=1).astype(np.float32)
    rows = Table("dev.tsv", list(range(count)), list(range(count)), count, ["x"] * count, None, None)
    task = TASKS["sst2"]
    mistakes = Evaluation(task, task.dev[0], rows, ["no", "yes"], np.ones(count, int), logits).mistakes()
    assert len(mistakes) == 20 and mistakes[0].parts[-1] == ("row", "dev.tsv:99")
