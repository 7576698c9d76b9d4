"""Fits and cross-validates a multinomial logistic regression on a few vectors.

Shapes: N rows, D components of a vector, C classes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

_MOST_FOLDS = 8
_SHARPNESS = np.geomspace(0.25, 32.0, 15)


def fit(
    vectors: np.ndarray, labels: np.ndarray, num_classes: int, strength: float, weights: np.ndarray | float = 1.0
) -> np.ndarray:
    """Minimizes `strength` times the weighted sum of cross entropies, plus half the squared norm of the kernel.

    This is scikit-learn's `LogisticRegression(C=strength)`: the bias is not penalized.

    Args:
        vectors: float, shape (N, D).
        labels: class numbers, int, shape (N,).
        num_classes: C.
        strength: weight of the rows, relative to the penalty.
        weights: weight of each row, float, shape (N,), or a single weight.

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
    """Returns the log-probabilities of the classes, float64, shape (N, C), by a return value of `fit`."""
    return log_softmax(vectors @ kernel[:-1] + kernel[-1], axis=1)


class Scores(NamedTuple):
    """How well log-probabilities predict labels.

    Attributes:
        loss: mean cross entropy with smoothed labels, of the log-probabilities times `sharpness`.
        accuracy: share of right answers.
        sharpness: factor with the least cross entropy. A strong penalty leaves probabilities too even, which must not
            count against it when penalties are compared.
    """

    loss: float
    accuracy: float
    sharpness: float


def score(logs: np.ndarray, labels: np.ndarray) -> Scores:
    """Scores log-probabilities, float (N, C), by the labels, int (N,)."""

    # As if one more row had all labels equally: few right answers make no answer certain (Platt 1999, section 2.2).
    smooth = (len(labels) * np.eye(logs.shape[1])[labels] + 1 / logs.shape[1]) / (len(labels) + 1)

    def loss(sharpness):
        return float(-np.mean(np.sum(smooth * log_softmax(sharpness * logs, axis=1), axis=1)))

    sharpness = min(_SHARPNESS, key=loss)
    return Scores(loss(sharpness), float(np.mean(logs.argmax(1) == labels)), float(sharpness))


def cross_validate(
    fit_rows: Callable[[np.ndarray], np.ndarray], vectors: np.ndarray, labels: np.ndarray, num_classes: int
) -> np.ndarray:
    """Predicts rows by fits to the other rows, in at most eight folds with equal shares of each label.

    Args:
        fit_rows: takes the rows to fit to as a mask, bool, shape (N,), and returns as `fit` does.
        vectors, labels, num_classes: as in `fit`.

    Returns:
        The log-probabilities of the classes for `score`, float64, shape (N, C).
    """
    folds, logs = fold_numbers(labels, _MOST_FOLDS), np.empty((len(labels), num_classes))
    for fold in range(folds.max() + 1):
        logs[folds == fold] = predict(fit_rows(folds != fold), vectors[folds == fold])
    return logs


def fold_numbers(labels: np.ndarray, count: int) -> np.ndarray:
    """Returns the fold of each row, int, shape (N,): the rows of a label take turns, in their order.

    There are at least two folds, at most `count`, and no more than the most frequent label has rows.
    """
    count = max(2, min(count, int(np.bincount(labels).max())))
    folds = np.empty(len(labels), int)
    folds[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % count
    return folds
