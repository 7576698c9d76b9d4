"""Computes scores that several tasks share, on the host, from the outputs for all rows.

Shapes: N rows, C classes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from keras_bert.files import write_table
from tasks.report import bootstrap
from tasks.report.page import NUM_MISTAKES, Mistake, Score

NUM_EXAMPLES = 5

# `scipy.stats` takes a second to import, and `scipy.special` 0.2, so each function imports them when called.


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Returns the log probabilities of the classes: float64, of the shape of `logits`, (..., C)."""
    from scipy import special

    return special.log_softmax(logits.astype(np.float64), axis=-1)


def cross_entropies(labels: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Returns the negative log probability of each row's true class: float64, shape (N,).

    Args:
        labels: true classes, int, shape (N,).
        logits: float, shape (N, C).
    """
    return -log_softmax(logits)[np.arange(len(labels)), labels]


def accuracy(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the share of rows whose class was predicted; both int, shape (N,)."""
    return float(np.mean(labels == predictions))


def majority_accuracy(train_counts: Sequence[int], labels: np.ndarray) -> float:
    """Returns the accuracy of always predicting the most frequent training class; ties go to the first.

    Args:
        train_counts: number of training rows of each class, int, shape (C,).
        labels: true classes of the evaluated rows, int, shape (N,).
    """
    return accuracy(labels, np.argmax(train_counts))


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
    """Counts rows by true class (first axis) and predicted class (second axis): int64, shape (C, C)."""
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (labels, predictions), 1)
    return counts


def precision_recall_f1(correct, predicted, true) -> dict:
    """Returns precision, recall and F1 by name, 0.0 where undefined: floats, or lists of floats for arrays of counts.

    Args:
        correct, predicted, true: number of right answers, of all answers, and of what was to be found.
    """
    counts = {"precision": (correct, predicted), "recall": (correct, true), "f1": (2 * correct, predicted + true)}
    return {name: (part / np.maximum(1, whole)).tolist() for name, (part, whole) in counts.items()}


def class_scores(
    rows: np.ndarray, predicted: np.ndarray, correct: np.ndarray, names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Scores each class separately.

    Args:
        rows, predicted, correct: number of rows of each class, of rows predicted as the class, and of rows rightly
            predicted as the class: int, shape (C,).
        names: C class names.

    Returns:
        A dict for each name with the counts, and `precision`, `recall` and `f1`, which are 0.0 where undefined.
    """
    columns = {"rows": rows.tolist(), "predicted": predicted.tolist(), "correct": correct.tolist()}
    columns |= precision_recall_f1(correct, predicted, rows)
    values = zip(*columns.values(), strict=True)
    return {name: dict(zip(columns, row, strict=True)) for name, row in zip(names, values, strict=True)}


def macro_f1(per_class: Mapping[str, Mapping[str, float]]) -> float:
    """Returns the mean F1 of the classes in `class_scores` that occur as labels or predictions."""
    return float(np.mean([scores["f1"] for scores in per_class.values() if scores["rows"] + scores["predicted"]]))


# === Scores of true and predicted numbers, float, shape (N,) ===


def pearson(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns Pearson's correlation, or 0 where it is undefined: for one row, or constant values."""
    # SciPy's p-value would take five times as long, and an interval takes a thousand correlations.
    if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return float(np.corrcoef(labels, predictions)[0, 1])


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns Spearman's rank correlation, or 0 where it is undefined: for one row, or constant values."""
    from scipy import stats

    return pearson(stats.rankdata(labels), stats.rankdata(predictions))


def pearson_spearman_mean(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the mean of Pearson's and Spearman's correlations, GLUE's main figure for STS-B."""
    return (pearson(labels, predictions) + spearman(labels, predictions)) / 2


def mean_squared_error(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Returns the mean of (prediction - score)^2."""
    return float(np.mean((labels - predictions) ** 2))


SCORE_METRICS = {metric.__name__: metric for metric in (pearson_spearman_mean, pearson, spearman, mean_squared_error)}


# === For metrics.json and the report ===


def intervals(statistics: Mapping[str, Callable[..., float]], *columns: np.ndarray) -> dict[str, list[float]]:
    """Returns the 95% bootstrap interval of each statistic over the rows, [low, high], by name.

    Args:
        statistics: functions of the columns, each cut to the rows of one sample.
        *columns: arrays of shape (N, ...).
    """
    return {
        name: list(bootstrap.interval(lambda rows, of=of: of(*(column[rows] for column in columns)), len(columns[0])))
        for name, of in statistics.items()
    }


def headline_scores(figures: Mapping[str, float], ends: Mapping[str, list[float]], prefix: str = "") -> list[Score]:
    """Returns the report's headline figures: those with an interval in `ends`, captioned by prefix and name."""
    return [
        Score(f"{prefix} {name}".strip().replace("_", " "), figures[name], *ends[name], name != "mean_squared_error")
        for name in ends
    ]


def shown_rows(losses: np.ndarray, is_wrong: np.ndarray, show: Callable[[int], list[tuple[str, str]]]) -> dict:
    """Returns `mistakes` and `examples` of an `Evaluation`: the wrong rows with the largest losses, and some of all.

    Args:
        losses: loss of each row, float, shape (N,); NaN for a row without a label.
        is_wrong: whether each row is a mistake, bool, shape (N,).
        show: returns the captioned texts to show for the row of an index.
    """
    wrong, labelled = np.flatnonzero(is_wrong), np.flatnonzero(~np.isnan(losses))
    worst = wrong[np.argsort(-losses[wrong], kind="stable")][:NUM_MISTAKES].tolist()
    spread = np.linspace(0, len(labelled), NUM_EXAMPLES, endpoint=False).astype(int)
    examples = labelled[np.unique(spread)].tolist() if len(labelled) else []
    return {
        "mistakes": [Mistake(float(losses[row]), show(row)) for row in worst],
        "examples": [show(row) for row in examples],
    }


def write_answers(
    path: str, column: str, numbers: Iterable[int], answers: Iterable, labels: Sequence, shares: np.ndarray
) -> None:
    """Writes the columns `index`, the answer, and `probability_<label>` of each class.

    Args:
        path: file to write; commas separate the columns of `.csv`, tabs those of any other.
        column: name of the column of the answers.
        numbers: index of each of the N rows.
        answers: N answers.
        labels: names of the C classes.
        shares: probabilities of the classes, float, shape (N, C).
    """
    header = ["index", column, *(f"probability_{label}" for label in labels)]
    rows = zip(numbers, answers, shares, strict=True)
    cells = ([number, answer, *(f"{share:.6f}" for share in of_row)] for number, answer, of_row in rows)
    write_table(path, header, cells, "," if path.endswith(".csv") else "\t")
