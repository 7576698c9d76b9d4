"""Scores of a classifier or a regressor, computed exactly on the host from the answers to all rows.

GLUE's own figures, by scikit-learn and scipy: accuracy, F1 of class 1, Matthews' correlation, Pearson's and Spearman's.
Shapes: N rows, C classes.
"""

import numpy as np

from keras_bert.files import atomic_path
from tasks import bootstrap

CELLS_WITH_TEXT = 40  # above this many classes a confusion matrix shows colours only: cells get too small to write in


# === Losses ===


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the class probabilities, float64, shape (N, C)."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def row_losses(labels: np.ndarray, outputs: np.ndarray, is_regression: bool) -> np.ndarray:
    """What each row adds to the loss: float64, shape (N,).

    Args:
        labels: class numbers, int, or scores, float, shape (N,).
        outputs: logits, float, shape (N, C), or scores, shape (N, 1).
        is_regression: squared error; else the negative log probability of the true class.
    """
    if is_regression:
        return np.square(outputs[:, 0].astype(np.float64) - labels)
    return -log_softmax(outputs)[np.arange(len(labels)), labels]


# === Scores ===
# Each takes the true and the predicted classes (int) or scores (float), shape (N,).


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Share of rows whose class was predicted."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, predictions))


def f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of class 1, as GLUE scores MRPC and QQP; 0 if that class neither occurs nor is predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, predictions, labels=[1], average="micro", zero_division=0.0))


def accuracy_f1_mean(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The mean of both, GLUE's one figure for MRPC and QQP."""
    return (accuracy(labels, predictions) + f1(labels, predictions)) / 2


def matthews_correlation(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews' correlation, GLUE's figure for CoLA: 1 perfect, 0 no better than chance or a constant answer."""
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Pearson's correlation; 0 where it is not defined: one row, or a constant answer."""
    return _correlation("pearsonr", labels, predictions)


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Spearman's rank correlation; 0 where it is not defined: one row, or a constant answer."""
    return _correlation("spearmanr", labels, predictions)


def pearson_spearman_mean(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The mean of both, GLUE's one figure for STS-B."""
    return (pearson(labels, predictions) + spearman(labels, predictions)) / 2


def mean_squared_error(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The mean of (prediction - score)^2."""
    from sklearn.metrics import mean_squared_error as scikit_learn

    return float(scikit_learn(labels, predictions))


def _correlation(name: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    from scipy import stats

    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return float(getattr(stats, name)(labels.astype(np.float64), predictions.astype(np.float64)).statistic)


METRICS = {
    score.__name__: score
    for score in (
        accuracy, f1, accuracy_f1_mean, matthews_correlation,
        pearson, spearman, pearson_spearman_mean, mean_squared_error,
    )
}  # fmt: skip


def majority_accuracy(train_counts: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of always answering the most frequent training class (the first of equals).

    Args:
        train_counts: int, rows of each class in training, shape (C,).
        labels: int, true classes to be scored on, shape (N,).
    """
    return accuracy(labels, np.full(len(labels), np.argmax(train_counts)))


def predict(outputs: np.ndarray, is_regression: bool) -> np.ndarray:
    """The answers, shape (N,): class numbers, int64, of logits (N, C); or scores, float64, of outputs (N, 1)."""
    return outputs[:, 0].astype(np.float64) if is_regression else outputs.argmax(axis=-1)


def score(names: tuple[str, ...], labels: np.ndarray, outputs: np.ndarray, is_regression: bool) -> dict[str, float]:
    """Computes figures of `METRICS`, and the loss.

    Args:
        names: keys of `METRICS`.
        labels, outputs, is_regression: as in `row_losses`.
    """
    predictions = predict(outputs, is_regression)
    figures = {name: METRICS[name](labels, predictions) for name in names}
    return {**figures, "loss": float(row_losses(labels, outputs, is_regression).mean())}


def intervals(
    names: tuple[str, ...], labels: np.ndarray, outputs: np.ndarray, is_regression: bool
) -> dict[str, tuple[float, float]]:
    """95% bootstrap intervals of the figures `names`; the arguments are those of `score`."""
    predictions = predict(outputs, is_regression)
    if is_regression:
        return {
            name: bootstrap.interval(
                lambda rows, name=name: METRICS[name](labels[rows], predictions[rows]), len(labels)
            )
            for name in names
        }
    # A sample of rows is to these figures how often it has each pair of true and predicted class.
    pairs, codes = np.unique(np.stack([labels, predictions], axis=1), axis=0, return_inverse=True)
    counts = bootstrap.drawn_counts(codes.reshape(-1), len(pairs))
    return {name: bootstrap.middle(_OF_SAMPLES[name](*pairs.T, counts)) for name in names}


# The figures of classes again, of many samples of rows at once (scikit-learn takes a millisecond for each). Each takes
# true and predicted class of each kind of row, int, shape (G,), and how often each sample has that kind, int, shape
# (samples, G); gives float64, shape (samples,).


def _accuracies(labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return (counts @ (labels == predictions)) / counts.sum(axis=1)


def _f1s(labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    is_true, is_predicted = labels == 1, predictions == 1
    hits, total = counts @ (is_true & is_predicted), counts @ (is_true.astype(int) + is_predicted)
    return 2.0 * hits / np.maximum(total, 1)


def _means(labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    return (_accuracies(labels, predictions, counts) + _f1s(labels, predictions, counts)) / 2


def _matthews_correlations(labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Gorodkin's form for any number of classes, as scikit-learn's: covariance over both deviations."""
    classes = np.union1d(labels, predictions)
    counts = counts.astype(np.float64)
    true, predicted = (counts @ (column[:, np.newaxis] == classes) for column in (labels, predictions))
    total = counts.sum(axis=1)
    covariance = total * (counts @ (labels == predictions)) - (true * predicted).sum(axis=1)
    deviations = np.sqrt(total**2 - np.square(true).sum(axis=1)) * np.sqrt(total**2 - np.square(predicted).sum(axis=1))
    return np.divide(covariance, deviations, out=np.zeros_like(total), where=deviations > 0)


_OF_SAMPLES = {
    "accuracy": _accuracies,
    "f1": _f1s,
    "accuracy_f1_mean": _means,
    "matthews_correlation": _matthews_correlations,
}


# === Confusions ===


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
    """Counts rows by true class (first axis) and predicted class (second axis): int64, shape (C, C)."""
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (labels, predictions), 1)
    return counts


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
