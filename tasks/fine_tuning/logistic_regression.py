"""Multinomial logistic regression on a few vectors, and its cross-validation.

Shapes: N rows, D components of a vector, C classes.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

_MOST_FOLDS = 8


def fit(
    vectors: np.ndarray, labels: np.ndarray, num_classes: int, strength: float, weights: np.ndarray | float = 1.0
) -> np.ndarray:
    """Minimizes `strength` times the weighted sum of cross entropies, plus half the squared norm of the kernel.

    This is scikit-learn's `LogisticRegression(C=strength)`: the bias is free.

    Args:
        vectors: float, shape (N, D).
        labels: int, shape (N,).
        num_classes: C.
        strength: weight of the rows, against the penalty.
        weights: of each row, float, shape (N,), or of all.

    Returns:
        float64, shape (D + 1, C): the kernel, and the bias as its last row.
    """
    inputs = np.concatenate([np.asarray(vectors, np.float64), np.ones((len(vectors), 1))], axis=1)
    targets, factors = np.eye(num_classes)[labels], strength * np.broadcast_to(weights, len(inputs))[:, np.newaxis]
    is_penalized = np.append(np.ones(inputs.shape[1] - 1), 0.0)[:, np.newaxis]

    def loss_and_gradient(flat):
        kernel = flat.reshape(-1, num_classes)
        logs = log_softmax(inputs @ kernel, axis=1)
        loss = -np.sum(factors * logs * targets) + 0.5 * np.sum(is_penalized * kernel**2)
        return loss, (inputs.T @ (factors * (np.exp(logs) - targets)) + is_penalized * kernel).ravel()

    start = np.zeros(inputs.shape[1] * num_classes)
    minimum = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return minimum.x.reshape(-1, num_classes)


def predict(kernel: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Returns the log-probabilities of the classes, float64 (N, C), by what `fit` returned."""
    return log_softmax(vectors @ kernel[:-1] + kernel[-1], axis=1)


def cross_validate(
    fit_rows: Callable[[np.ndarray], np.ndarray], vectors: np.ndarray, labels: np.ndarray
) -> tuple[float, float]:
    """Returns the mean cross entropy and the accuracy, in at most eight folds with equal shares of each label.

    Args:
        fit_rows: takes which rows to fit to, bool (N,), and returns what `fit` does.
        vectors, labels: as in `fit`.
    """
    folds, logs = fold_numbers(labels, _MOST_FOLDS), None
    for fold in range(folds.max() + 1):
        answers = predict(fit_rows(folds != fold), vectors[folds == fold])
        logs = np.empty((len(labels), answers.shape[1])) if logs is None else logs
        logs[folds == fold] = answers
    return float(-np.mean(logs[np.arange(len(labels)), labels])), float(np.mean(logs.argmax(1) == labels))


def fold_numbers(labels: np.ndarray, count: int) -> np.ndarray:
    """Returns the fold of each row, int (N,): the rows of a label take turns, in their order.

    There are at most `count` folds and at least two, and no more than the most frequent label has rows.
    """
    count = max(2, min(count, int(np.bincount(labels).max())))
    folds = np.empty(len(labels), int)
    folds[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % count
    return folds
