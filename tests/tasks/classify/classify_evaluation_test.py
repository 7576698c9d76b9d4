"""What is told of a model's answers: figures by name, counts of each class, the mistakes that cost most."""

import numpy as np
import pytest

from tasks.classify.data import Table
from tasks.classify.task import Classify, ClassifySettings, ClassifySpec
from tasks.fine_tuning.examples import Examples
from tasks.fine_tuning.task import Answers, Encoded, Evaluation, Part, Trained

LOGITS = np.log([[0.9, 0.1], [0.98, 0.02], [0.6, 0.4], [0.2, 0.8]]).astype(np.float32)


def table(pairs: bool = False) -> Table:
    texts = ["a", "b", "c", "d"]
    return Table("dev.tsv", [2, 3, 5, 6], [0, 1, 3, 4], 5, texts, texts[::-1] if pairs else None, None)


def evaluate(directory, rows: Table, labels, outputs, name: str = "", task_name: str = "sst2") -> Evaluation:
    task = Classify(ClassifySettings(output_dir=str(directory), task_name=task_name))
    is_regression = task.table_task.is_regression
    spec = ClassifySpec(
        sequence_length=8,
        labels=[] if is_regression else ["no", "yes"],
        num_texts=rows.num_texts,
        is_regression=is_regression,
    )
    examples = Examples(np.empty(0), np.empty(0), np.zeros(1), {"labels": np.asarray(labels)})
    encoded = Encoded(examples, np.empty(0))
    return task.evaluate(Answers(Trained(None, None, spec), Part("dev", rows, name), encoded, outputs), {})


def of_classes(directory, name: str = "") -> Evaluation:
    return evaluate(directory, table(), [0, 1, 1, 1], LOGITS, name)


def test_figures_and_captions_of_a_second_file_carry_its_name(tmp_path):
    evaluation = of_classes(tmp_path, "mismatched")
    assert evaluation.figures == {"accuracy": 0.5, "loss": pytest.approx(-np.log([0.9, 0.02, 0.4, 0.8]).mean())}
    assert Part("dev", table(), "mismatched").figure("accuracy") == "mismatched_accuracy"
    assert evaluation.scores[0].name == "mismatched accuracy" and evaluation.confusion is None
    low, high = evaluation.intervals["accuracy"]
    assert 0.0 <= low < 0.5 < high <= 1.0


def test_counts_of_each_class(tmp_path):
    evaluation = of_classes(tmp_path)
    assert evaluation.details["per_class"] == {
        "no": {"rows": 1, "predicted": 3, "correct": 1, "precision": 1 / 3, "recall": 1.0, "f1": 0.5},
        "yes": {"rows": 3, "predicted": 1, "correct": 1, "precision": 1.0, "recall": 1 / 3, "f1": 0.5},
    }
    assert evaluation.confusion[0] == ["no", "yes"] and evaluation.confusion[1].tolist() == [[1, 0], [2, 1]]


def test_mistakes_are_the_wrong_answers_surest_first(tmp_path):
    mistakes = of_classes(tmp_path).mistakes
    assert [mistake.loss for mistake in mistakes] == pytest.approx([-np.log(0.02), -np.log(0.4)])
    assert mistakes[0].parts == [
        ("sentence", "b"),
        ("expected", "yes"),
        ("predicted", "no 98%"),
        ("row", "dev.tsv:3"),
    ]


def test_mistakes_of_scores_are_those_furthest_off(tmp_path):
    labels, outputs = np.array([1.0, 2.0, 3.0, 4.0], np.float32), np.array([[1.0], [2.5], [1.0], [4.1]], np.float32)
    evaluation = evaluate(tmp_path, table(pairs=True), labels, outputs, task_name="stsb")
    assert [mistake.loss for mistake in evaluation.mistakes] == pytest.approx(
        [4.0, 0.25, 0.01], rel=1e-4
    )  # Not the exact one.
    assert evaluation.mistakes[0].parts == [
        ("sentence1", "c"),
        ("sentence2", "b"),
        ("expected", "3"),
        ("predicted", "1.00"),
        ("row", "dev.tsv:5"),
    ]
    assert evaluation.figures["mean_squared_error"] == pytest.approx((0.25 + 4.0 + 0.01) / 4, rel=1e-4)


def test_a_hundred_mistakes_are_cut_to_the_worst(tmp_path):
    count = 100
    logits = np.stack([np.linspace(0.1, 5.0, count), np.zeros(count)], axis=1).astype(np.float32)
    rows = Table("dev.tsv", list(range(count)), list(range(count)), count, ["x"] * count, None, None)
    mistakes = evaluate(tmp_path, rows, np.ones(count, int), logits).mistakes
    assert len(mistakes) == 20 and mistakes[0].parts[-1] == ("row", "dev.tsv:99")
