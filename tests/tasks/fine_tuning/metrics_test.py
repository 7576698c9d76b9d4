"""Scores that the tasks share: by hand, and against formulas and scikit-learn's sums."""

import numpy as np
import pytest
from sklearn import metrics as oracle

from tasks.fine_tuning import metrics
from tasks.report.bootstrap import interval

LABELS, PREDICTIONS = np.array([0, 1, 2, 1, 1]), np.array([0, 1, 1, 2, 1])


def test_cross_entropies_are_negative_log_probabilities():
    generator = np.random.default_rng(0)
    labels, logits = generator.integers(0, 4, 50), 5 * generator.normal(size=(50, 4)).astype(np.float32)
    powers = np.exp(logits.astype(np.float64))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(np.exp(metrics.log_softmax(logits)), probabilities, rtol=1e-12)
    losses = metrics.cross_entropies(labels, logits)
    np.testing.assert_allclose(losses, -np.log(probabilities[np.arange(50), labels]), rtol=1e-12)
    assert losses.mean() == pytest.approx(oracle.log_loss(labels, probabilities), rel=1e-12)


def test_log_softmax_survives_large_logits():
    values = metrics.log_softmax(np.array([[1e4, 0.0], [-1e4, -1e4]], np.float32))
    np.testing.assert_allclose(values, [[0.0, -1e4], [-np.log(2), -np.log(2)]])


def test_counts_by_hand():
    assert metrics.accuracy(LABELS, PREDICTIONS) == 0.6
    np.testing.assert_array_equal(
        metrics.confusion_matrix(LABELS, PREDICTIONS, 4), [[1, 0, 0, 0], [0, 2, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(metrics.confusion_matrix([], [], 2), np.zeros((2, 2)))


def test_majority_is_the_most_frequent_training_class_not_the_dev_one():
    assert metrics.majority_accuracy(np.array([2, 5, 1]), np.array([0, 0, 0, 1])) == 0.25
    assert metrics.majority_accuracy(np.array([5, 5]), np.array([0, 1, 1])) == pytest.approx(1 / 3)  # A tie.
    assert metrics.majority_accuracy(np.array([5, 9, 9]), LABELS) == 0.6


def test_each_class_has_scores_of_its_own():
    counts = metrics.confusion_matrix(LABELS, PREDICTIONS, 4)
    scores = metrics.class_scores(counts.sum(1), counts.sum(0), counts.diagonal(), ["a", "b", "c", "d"])
    assert list(scores) == ["a", "b", "c", "d"]
    two_thirds = pytest.approx(2 / 3)
    assert scores["b"] == {
        "rows": 3,
        "predicted": 3,
        "correct": 2,
        "precision": two_thirds,
        "recall": two_thirds,
        "f1": two_thirds,
    }
    nothing = {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    assert scores["c"] == {"rows": 1, "predicted": 1, "correct": 0, **nothing}
    assert scores["d"] == {"rows": 0, "predicted": 0, "correct": 0, **nothing}


def test_intervals_have_the_names_of_their_statistics():
    correct = LABELS == PREDICTIONS
    intervals = metrics.intervals({"accuracy": metrics.accuracy, "one": lambda *rows: 1.0}, LABELS, PREDICTIONS)
    assert intervals == {"accuracy": list(interval(lambda rows: correct[rows].mean(), 5)), "one": [1.0, 1.0]}


def test_the_worst_mistakes_and_some_rows_are_shown():
    losses = np.array([0.1, 3.0, np.nan, 2.0, 0.2, 5.0, 0.3])
    is_wrong = np.array([False, True, False, True, False, False, False])
    shown = metrics.shown_rows(losses, is_wrong, lambda row: [("row", str(row))])
    assert [(mistake.loss, mistake.parts) for mistake in shown["mistakes"]] == [
        (3.0, [("row", "1")]),
        (2.0, [("row", "3")]),
    ]
    assert [text for ((_, text),) in shown["examples"]] == ["0", "1", "3", "4", "5"]  # Of six that have a label.
    few = metrics.shown_rows(losses[:1], is_wrong[:1], lambda row: [("row", str(row))])
    assert few == {"mistakes": [], "examples": [[("row", "0")]]}
    assert metrics.shown_rows(losses[:0], is_wrong[:0], str) == {"mistakes": [], "examples": []}
