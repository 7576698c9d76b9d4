"""Scores against scikit-learn and hand-computed values; the picture is a well-formed PNG."""

import numpy as np
import pytest
from sklearn import metrics as oracle

from tasks.glue import metrics


@pytest.fixture(name="answers")
def _answers():
    generator = np.random.default_rng(7)
    return generator.integers(0, 4, 500), generator.normal(size=(500, 4)).astype(np.float32) * 5


def test_accuracy_loss_and_confusions_equal_sklearn(answers):
    labels, logits = answers
    predictions = logits.argmax(-1)
    probabilities = np.exp(metrics.log_softmax(logits))
    assert metrics.accuracy(labels, predictions) == oracle.accuracy_score(labels, predictions)
    assert metrics.cross_entropy(labels, logits) == pytest.approx(oracle.log_loss(labels, probabilities), rel=1e-9)
    np.testing.assert_array_equal(
        metrics.confusion_matrix(labels, predictions, 4), oracle.confusion_matrix(labels, predictions)
    )


def test_log_softmax_survives_large_logits():
    values = metrics.log_softmax(np.array([[1e4, 0.0], [-1e4, -1e4]], np.float32))
    np.testing.assert_allclose(values, [[0.0, -1e4], [-np.log(2), -np.log(2)]])


def test_matthews_correlation_by_hand():
    # tp 3, tn 1, fp 1, fn 1: (3*1 - 1*1) / sqrt(4 * 4 * 2 * 2) = 2 / 8
    labels, predictions = np.array([1, 1, 1, 1, 0, 0]), np.array([1, 1, 1, 0, 0, 1])
    assert metrics.matthews_correlation(labels, predictions) == pytest.approx(0.25)
    assert metrics.matthews_correlation(labels, np.ones(6, int)) == 0.0


def test_majority_is_the_most_frequent_training_class_not_the_dev_one():
    assert metrics.majority_accuracy(np.array([2, 5, 1]), np.array([0, 0, 0, 1])) == 0.25
    assert metrics.majority_accuracy(np.array([5, 5]), np.array([0, 1, 1])) == pytest.approx(1 / 3)


@pytest.mark.parametrize("size", [2, 12, 45])
def test_confusion_matrix_is_drawn(tmp_path, size):
    path = tmp_path / "confusion_matrix.png"
    counts = np.random.default_rng(0).integers(0, 900, (size, size))
    counts[1] = 0  # a class without rows
    metrics.plot_confusion_matrix(str(path), counts, [f"package_$_{i}_$_long_name" for i in range(size)])
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
