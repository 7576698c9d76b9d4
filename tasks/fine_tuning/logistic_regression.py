"""Multinomial logistic regression on a few vectors, and its cross-validation.

Shapes: N rows, D components of a vector, C classes.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax

STRENGTHS = (1.0, 10.0, 100.0)  # Of the fit to the rows, against the L2 penalty: scikit-learn's `C`.
_MOST_FOLDS = 8


def fit(vectors: np.ndarray, labels: np.ndarray, num_classes: int, strength: float = 1.0) -> np.ndarray:
    """Minimizes `strength` times the sum of cross entropies, plus half the squared norm of the kernel.

    This is scikit-learn's `LogisticRegression(C=strength)`: the bias is free.

    Args:
        vectors: float, shape (N, D).
        labels: int, shape (N,).
        num_classes: C.
        strength: weight of the rows, against the penalty.

    Returns:
        float64, shape (D + 1, C): the kernel, and the bias as its last row.
    """
    inputs = np.concatenate([np.asarray(vectors, np.float64), np.ones((len(vectors), 1))], axis=1)
    targets = np.eye(num_classes)[labels]
    is_penalized = np.append(np.ones(inputs.shape[1] - 1), 0.0)[:, np.newaxis]

    def loss_and_gradient(flat):
        weights = flat.reshape(-1, num_classes)
        logs = log_softmax(inputs @ weights, axis=1)
        loss = -strength * np.sum(logs * targets) + 0.5 * np.sum(is_penalized * weights**2)
        return loss, (strength * inputs.T @ (np.exp(logs) - targets) + is_penalized * weights).ravel()

    start = np.zeros(inputs.shape[1] * num_classes)
    minimum = minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000})
    return minimum.x.reshape(-1, num_classes)


def predict(weights: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Returns the log-probabilities of the classes, float64 (N, C), by what `fit` returned."""
    return log_softmax(vectors @ weights[:-1] + weights[-1], axis=1)


def choose_strength(vectors: np.ndarray, labels: np.ndarray, num_classes: int) -> tuple[float, float]:
    """Cross-validates `STRENGTHS`, in at most eight folds with as equal shares of each label as there can be.

    Returns:
        The strength with the least cross entropy, and the accuracy with it. The arguments are those of `fit`.
    """
    folds = fold_numbers(labels, _MOST_FOLDS)
    best = None
    for strength in STRENGTHS:
        logs = np.empty((len(labels), num_classes))
        for fold in range(folds.max() + 1):
            is_held = folds == fold
            logs[is_held] = predict(fit(vectors[~is_held], labels[~is_held], num_classes, strength), vectors[is_held])
        loss, accuracy = -np.mean(logs[np.arange(len(labels)), labels]), np.mean(logs.argmax(1) == labels)
        if best is None or loss < best[0]:
            best = loss, strength, float(accuracy)
    return best[1:]


def fold_numbers(labels: np.ndarray, count: int) -> np.ndarray:
    """Returns the fold of each row, int (N,): the rows of a label take turns, in their order.

    There are at most `count` folds and at least two, and no more than the most frequent label has rows.
    """
    count = max(2, min(count, int(np.bincount(labels).max())))
    order = np.argsort(labels, kind="stable")
    folds = np.empty(len(labels), int)
    folds[order] = np.arange(len(labels)) % count
    return folds
