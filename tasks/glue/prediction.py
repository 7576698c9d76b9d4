"""The files that --do_predict writes: all answers with their probabilities, and GLUE's submission.

Shapes: N rows of a table, C classes.
"""

import csv
import os
from collections.abc import Iterable, Sequence

import numpy as np

from keras_bert.files import atomic_path
from tasks.glue import metrics
from tasks.glue.tables import Table
from tasks.glue.tasks import Split, Task


def predictions_file(split: Split) -> str:
    """The name of the file with all answers to a split: `predictions.tsv`, `predictions_mismatched.tsv`."""
    return f"predictions_{split.name}.tsv" if split.name else "predictions.tsv"


def write_predictions(path: str, table: Table, classes: Sequence[str], outputs: np.ndarray) -> None:
    """Writes index (of the row, from 0), prediction, and a column of probabilities a class.

    Args:
        path: the file to write, whole or not at all.
        table: the rows; those that could not be used have no line.
        classes: the labels in the order of their class numbers; empty for scores, which have no probabilities.
        outputs: logits, float32, shape (N, C), or scores, shape (N, 1).
    """
    header = ["index", "prediction", *(f"probability_{label}" for label in classes)]
    if classes:
        shares = np.exp(metrics.log_softmax(outputs))
        rows = ([classes[row.argmax()], *(f"{share:.6f}" for share in row)] for row in shares)
    else:
        rows = ([f"{value:.6f}"] for value in outputs[:, 0])
    _write(path, header, ([number, *row] for number, row in zip(table.numbers, rows, strict=True)))


def write_submission(
    output_dir: str, task: Task, split: Split, table: Table, classes: Sequence[str], outputs: np.ndarray
) -> str | None:
    """Writes the file that GLUE takes for a split: its official name, `index`, tab, `prediction`.

    GLUE refuses a file that lacks a row. A row that `--bad_rows=skip` left out gets the most frequent answer, or the
    mean score.

    Returns:
        The path, or None if the task is not GLUE's.
    """
    if split.submission is None:
        return None
    path = os.path.join(output_dir, split.submission)
    predictions = metrics.predict(outputs, task.is_regression)
    if task.is_regression:
        predictions = np.clip(predictions, *task.score_range)
        answers, other = [f"{value:.4f}" for value in predictions], f"{predictions.mean():.4f}"
    else:
        answers = [classes[number] for number in predictions]
        other = classes[np.bincount(predictions, minlength=len(classes)).argmax()]
    by_number = dict(zip(table.numbers, answers, strict=True))
    rows = ([number, by_number.get(number, other)] for number in range(table.num_rows))
    _write(path, ["index", "prediction"], rows)
    return path


def _write(path: str, header: Sequence[str], rows: Iterable[Sequence]) -> None:
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
