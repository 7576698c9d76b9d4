"""Scores of a classifier, computed exactly on the host from all rows' logits, and the picture of its confusions.

Shapes: N rows, C classes.
"""

import numpy as np

from keras_bert.files import atomic_path

CELLS_WITH_TEXT = 40  # above this many classes a confusion matrix shows colours only: cells get too small to write in


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the class probabilities, float64, shape (N, C)."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def cross_entropy(labels: np.ndarray, logits: np.ndarray) -> float:
    """Mean negative log probability of the true classes.

    Args:
        labels: int, class numbers, shape (N,).
        logits: float, shape (N, C).
    """
    return float(-log_softmax(logits)[np.arange(len(labels)), labels].mean())


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of rows whose class was predicted; both int, shape (N,)."""
    return float(np.mean(np.asarray(labels) == np.asarray(predictions)))


def majority_accuracy(train_counts: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of always answering the most frequent training class (the first of equals).

    Args:
        train_counts: int, rows of each class in training, shape (C,).
        labels: int, true classes to be scored on, shape (N,).
    """
    return accuracy(labels, np.full(len(labels), np.argmax(train_counts)))


def matthews_correlation(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews' correlation, GLUE's score for CoLA: 1 perfect, 0 no better than chance or a constant answer."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
    """Counts rows by true class (first axis) and predicted class (second axis): int64, shape (C, C)."""
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (labels, predictions), 1)
    return counts


METRICS = {"accuracy": accuracy, "matthews_correlation": matthews_correlation}


def plot_confusion_matrix(path: str, counts: np.ndarray, labels: list[str]) -> None:
    """Draws a confusion matrix as a PNG: counts and shares of the true class; the colour is the share.

    Args:
        path: the file to write, whole or not at all.
        counts: int, true class by predicted class, shape (C, C).
        labels: C names; long ones are shortened.
    """
    from matplotlib.figure import Figure

    size = len(labels)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
    names = [label if len(label) <= 18 else f"{label[:17]}…" for label in labels]
    names = [name.replace("$", r"\$") for name in names]  # matplotlib reads "$...$" as a formula
    side = 3.2 + 0.62 * min(size, CELLS_WITH_TEXT)  # inches: room for "1234\n100%" in a cell, and for the names
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    for true, predicted in np.argwhere(counts):
        if size <= CELLS_WITH_TEXT:
            _write_cell(axes, true, predicted, counts[true, predicted], shares[true, predicted])
    axes.set_xticks(range(size), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(size), [f"{name} ({total})" for name, total in zip(names, totals[:, 0], strict=True)])
    axes.set_xlabel("predicted")
    axes.set_ylabel("true (rows)")
    axes.set_title(f"accuracy {np.trace(counts) / max(counts.sum(), 1):.1%} of {counts.sum()} rows", fontsize="medium")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def _write_cell(axes, true: int, predicted: int, count: int, share: float) -> None:
    color = "white" if share > 0.5 else "black"
    axes.text(predicted, true, f"{count}\n{share:.0%}", ha="center", va="center", color=color, fontsize=8)
