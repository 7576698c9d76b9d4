"""Scores of choices, computed exactly on the host from all rows' logits.

Shapes: N rows, K choices.
"""

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the choices' probabilities, float64, shape (N, K)."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def cross_entropies(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Negative log probability of each row's right choice, float64, shape (N,).

    Args:
        labels: int, numbers of the right choices, shape (N,).
        logits: float, shape (N, K).
    """
    return -log_softmax(logits)[np.arange(len(labels)), labels]


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of rows whose right choice was predicted; both int, shape (N,)."""
    return float(np.mean(np.asarray(labels) == np.asarray(predictions)))


def majority_accuracy(train_counts: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of always answering the place that is right most often in training (the first of equals).

    Args:
        train_counts: int, training rows by the place of the right choice, shape (K,).
        labels: int, right choices to be scored on, shape (N,).
    """
    return accuracy(labels, np.full(len(labels), np.argmax(train_counts)))


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, num_choices: int) -> np.ndarray:
    """Counts rows by place of the right choice (first axis) and of the predicted one: int64, shape (K, K).

    It shows whether a model leans to a place, which can't carry any meaning.
    """
    counts = np.zeros((num_choices, num_choices), np.int64)
    np.add.at(counts, (labels, predictions), 1)
    return counts
