"""Scores of a classifier or a regressor, computed exactly on the host from the answers to all rows.

These are GLUE's figures: accuracy, F1 of class 1, and the correlations of Matthews, Pearson and Spearman.
Shapes: N rows, C classes, G pairs of true and predicted class, D bootstrap samples.
"""

import numpy as np

from tasks.fine_tuning.metrics import cross_entropies, mean_squared_error, pearson, pearson_spearman_mean, spearman
from tasks.fine_tuning.metrics import intervals as bootstrap_intervals
from tasks.report import bootstrap


def row_losses(labels: np.ndarray, outputs: np.ndarray, is_regression: bool) -> np.ndarray:
    """Returns each row's contribution to the loss: float64, shape (N,).

    Args:
        labels: class numbers, int, or scores, float, shape (N,).
        outputs: logits, float, shape (N, C), or scores, shape (N, 1).
        is_regression: True for squared errors, False for the negative log probability of the true class.
    """
    if is_regression:
        return np.square(outputs[:, 0].astype(np.float64) - labels)
    return cross_entropies(labels, outputs)


def predict(outputs: np.ndarray, is_regression: bool) -> np.ndarray:
    """Returns the answers, shape (N,): class numbers, int64, from logits (N, C), or scores, float64, from (N, 1)."""
    return outputs[:, 0].astype(np.float64) if is_regression else outputs.argmax(axis=-1)


def score(names: tuple[str, ...], labels: np.ndarray, outputs: np.ndarray, is_regression: bool) -> dict[str, float]:
    """Computes figures and the loss.

    Args:
        names: keys of `SCORE_METRICS` for regression, else of `CLASS_METRICS`.
        labels, outputs, is_regression: as in `row_losses`.
    """
    predictions = predict(outputs, is_regression)
    if is_regression:
        figures = {name: SCORE_METRICS[name](labels, predictions) for name in names}
    else:
        once = np.ones((1, len(labels)), np.int64)
        figures = {name: float(CLASS_METRICS[name](labels, predictions, once)[0]) for name in names}
    return {**figures, "loss": float(row_losses(labels, outputs, is_regression).mean())}


def intervals(
    names: tuple[str, ...], labels: np.ndarray, outputs: np.ndarray, is_regression: bool
) -> dict[str, list[float]]:
    """Returns 95% bootstrap intervals of the figures `names`; the arguments are those of `score`."""
    predictions = predict(outputs, is_regression)
    if is_regression:
        return bootstrap_intervals({name: SCORE_METRICS[name] for name in names}, labels, predictions)
    # These figures depend only on how often a sample has each pair of true and predicted class.
    pairs, codes = np.unique(np.stack([labels, predictions], axis=1), axis=0, return_inverse=True)
    counts = bootstrap.drawn_counts(codes.reshape(-1), len(pairs))
    return {name: list(bootstrap.middle(CLASS_METRICS[name](*pairs.T, counts))) for name in names}


# === Figures of classes ===
# They cover many samples at once, since scikit-learn takes a millisecond for each. Arguments: true and predicted
# classes, int, shape (G,), and the number of times each sample has each pair, int, shape (D, G). They return float64,
# shape (D,).


def _accuracy(labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return (counts @ (labels == predictions)) / counts.sum(axis=1)


def _f1(labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Computes F1 of class 1, as GLUE scores MRPC and QQP, or 0 if that class neither occurs nor is predicted."""
    is_true, is_predicted = labels == 1, predictions == 1
    hits, total = counts @ (is_true & is_predicted), counts @ (is_true.astype(int) + is_predicted)
    return 2.0 * hits / np.maximum(total, 1)


def _accuracy_f1_mean(labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return (_accuracy(labels, predictions, counts) + _f1(labels, predictions, counts)) / 2


def _matthews_correlation(labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Computes Gorodkin's generalization to any number of classes, as scikit-learn does, or 0 for a constant answer."""
    classes = np.union1d(labels, predictions)
    counts = counts.astype(np.float64)
    true, predicted = (counts @ (column[:, np.newaxis] == classes) for column in (labels, predictions))
    total = counts.sum(axis=1)
    covariance = total * (counts @ (labels == predictions)) - (true * predicted).sum(axis=1)
    deviations = np.sqrt(total**2 - np.square(true).sum(axis=1)) * np.sqrt(total**2 - np.square(predicted).sum(axis=1))
    return np.divide(covariance, deviations, out=np.zeros_like(total), where=deviations > 0)


CLASS_METRICS = {
    "accuracy": _accuracy,
    "f1": _f1,
    "accuracy_f1_mean": _accuracy_f1_mean,
    "matthews_correlation": _matthews_correlation,
}
SCORE_METRICS = {metric.__name__: metric for metric in (pearson, spearman, pearson_spearman_mean, mean_squared_error)}
