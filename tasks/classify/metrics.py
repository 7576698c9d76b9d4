"""Computes the scores of a classifier or a regressor exactly, on the host, from the answers to all rows.

These are GLUE's figures: accuracy, F1 of class 1, and the correlations of Matthews, Pearson and Spearman. For several
labels per row they are scikit-learn's, which are 0 where undefined.

Shapes: N rows, C classes.
"""

import functools
from collections.abc import Sequence

import numpy as np

from tasks.fine_tuning import doubt
from tasks.fine_tuning.metrics import accuracy, class_scores, pearson

# === Figures of classes: true and predicted classes, int, shape (N,) ===


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns F1 of class 1, as GLUE scores MRPC and QQP, or 0 if that class neither occurs nor is predicted."""
    return micro_f1(labels == 1, predictions == 1)


def accuracy_f1_mean(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the mean of accuracy and F1, GLUE's main figure for MRPC and QQP."""
    return (accuracy(labels, predictions) + f1(labels, predictions)) / 2


def matthews_correlation(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns Matthews's correlation, GLUE's figure for CoLA, or 0 for constant labels or predictions.

    Of two classes, numbered 0 and 1, it is Pearson's.
    """
    return pearson(labels, predictions)


CLASS_METRICS = {metric.__name__: metric for metric in (accuracy, f1, accuracy_f1_mean, matthews_correlation)}


# === Several labels per row: true and given labels, bool, shape (N, C) ===


def choose(logits: np.ndarray, thresholds: Sequence[float] | np.ndarray | None = None) -> np.ndarray:
    """Returns which labels are given: bool, shape (N, C). A probability has to reach its threshold, or one half."""
    return logits >= 0 if thresholds is None else probabilities(logits) >= thresholds


def best_thresholds(logits: np.ndarray, labels: np.ndarray, precision: float | None = None) -> list[float]:
    """Returns the threshold of each label, C numbers: the best for F1, or the least that reaches a precision.

    For F1, a label with too few rows to choose by gets one half.
    """
    find = _best_f1_threshold if precision is None else functools.partial(doubt.least_confidence, precision=precision)
    return [find(*columns) for columns in zip(probabilities(logits).T, labels.T > 0, strict=True)]


def unseen_thresholds(logits: np.ndarray, labels: np.ndarray, precision: float | None = None) -> np.ndarray:
    """Returns for each tenth of the rows the `best_thresholds` of the others: float64, shape (N, C)."""
    fit = functools.partial(best_thresholds, precision=precision)
    return doubt.cross_fit(fit, logits, labels, (labels > 0).sum(axis=1))


def _best_f1_threshold(shares: np.ndarray, is_true: np.ndarray) -> float:
    if is_true.sum() < doubt.LEAST_MISTAKES:
        return 0.5
    shares, hits, is_last = doubt.ranked(shares, is_true)
    scores = np.where(is_last, _f1_of_counts(hits, np.arange(1, len(hits) + 1) + hits[-1]), -1.0)
    return doubt.threshold_after(shares, int(scores.argmax()))


def label_scores(
    labels: np.ndarray, logits: np.ndarray, names: Sequence[str], thresholds: np.ndarray | None = None
) -> dict[str, dict[str, float]]:
    """Scores each label separately: the scores of `class_scores`, and the average precision."""
    true, given = labels > 0, choose(logits, thresholds)
    scores = class_scores(true.sum(0), given.sum(0), (true & given).sum(0), names)
    for name, precision in zip(names, average_precisions(labels, logits), strict=True):
        scores[name]["average_precision"] = float(precision)
    return scores


def average_precisions(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Returns the average precision of each label: float64, shape (C,); 0 for a label that no row has."""
    return np.array([_average_precision(*columns) for columns in zip(labels.T > 0, logits.T, strict=True)])


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Returns the probability of each label: float64, of the shape of `logits`."""
    from scipy import special  # It takes 0.2 seconds to import.

    return special.expit(logits.astype(np.float64))


def _average_precision(is_true: np.ndarray, scores: np.ndarray) -> float:
    _, hits, is_last = doubt.ranked(scores, is_true)  # Equal scores share a threshold.
    hits, given = hits[is_last], np.flatnonzero(is_last) + 1
    return float(np.sum(np.diff(hits, prepend=0) * hits / given) / max(1, hits[-1]))


def _f1_of_counts(correct: np.ndarray, total: np.ndarray) -> np.ndarray:
    return 2.0 * correct / np.maximum(1, total)


def micro_f1(true: np.ndarray, given: np.ndarray) -> float:
    """Returns the F1 of all labels of all rows together."""
    return float(_f1_of_counts(np.sum(true & given), np.sum(true) + np.sum(given)))


def macro_f1(true: np.ndarray, given: np.ndarray) -> float:
    """Returns the mean of the labels' F1."""
    return float(np.mean(_f1_of_counts((true & given).sum(0), true.sum(0) + given.sum(0))))


def exact_match(true: np.ndarray, given: np.ndarray) -> float:
    """Returns the share of rows whose labels are all right."""
    return float(np.mean((true == given).all(axis=1)))


LABEL_SET_METRICS = {metric.__name__: metric for metric in (micro_f1, macro_f1, exact_match)}
