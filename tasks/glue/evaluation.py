"""What the answers to labelled rows come to: figures, intervals, confusions, and the worst mistakes.

Shapes: N rows of a table, C classes.
"""

from typing import NamedTuple

import numpy as np

from tasks.glue import metrics
from tasks.glue.tables import Table
from tasks.glue.tasks import Split, Task
from tasks.report import NUM_MISTAKES, Mistake


class Evaluation(NamedTuple):
    """A model's answers to one labelled table.

    Attributes:
        task: how they are scored.
        split: which of the task's files the table is.
        table: the rows.
        classes: the labels in the order of their class numbers; empty for scores.
        labels: class numbers, int, or scores, float, shape (N,).
        outputs: logits, float32, shape (N, C), or scores, shape (N, 1).
    """

    task: Task
    split: Split
    table: Table
    classes: list[str]
    labels: np.ndarray
    outputs: np.ndarray

    def figures(self) -> dict[str, float]:
        """The task's metrics and the loss, by the names that they have in `metrics.json`."""
        figures = metrics.score(self.task.metrics, self.labels, self.outputs, self.task.is_regression)
        return {self.split.figure(name): value for name, value in figures.items()}

    def intervals(self) -> dict[str, list[float]]:
        """95% bootstrap intervals of the task's metrics, by the same names."""
        ends = metrics.intervals(self.task.metrics, self.labels, self.outputs, self.task.is_regression)
        return {self.split.figure(name): list(pair) for name, pair in ends.items()}

    def confusions(self) -> np.ndarray:
        """Rows by true and predicted class: int64, shape (C, C)."""
        predictions = metrics.predict(self.outputs, is_regression=False)
        return metrics.confusion_matrix(self.labels, predictions, len(self.classes))

    def per_class(self) -> dict[str, dict[str, int]]:
        """How often each class occurs, is predicted, and is predicted rightly."""
        counts = self.confusions()
        return {
            label: {"rows": int(row.sum()), "predicted": int(column.sum()), "correct": int(row[number])}
            for number, (label, row, column) in enumerate(zip(self.classes, counts, counts.T, strict=True))
        }

    def mistakes(self) -> list[Mistake]:
        """The rows with the largest loss among those answered wrongly; of scores, those furthest off."""
        losses = metrics.row_losses(self.labels, self.outputs, self.task.is_regression)
        if not self.task.is_regression:
            wrong = metrics.predict(self.outputs, is_regression=False) != self.labels
            losses = np.where(wrong, losses, -1.0)
        worst = np.argsort(-losses, kind="stable")[:NUM_MISTAKES]
        return [Mistake(float(losses[row]), self._parts(row)) for row in worst if losses[row] > 0]

    def _parts(self, row: int) -> list[tuple[str, str]]:
        parts = [(self.task.text_column, self.table.texts[row])]
        if self.table.text_pairs is not None:
            parts.append((self.task.text_pair_column, self.table.text_pairs[row]))
        if self.task.is_regression:
            expected, predicted = f"{self.labels[row]:g}", f"{self.outputs[row, 0]:.2f}"
        else:
            number = self.outputs[row].argmax()
            share = np.exp(metrics.log_softmax(self.outputs[row])[number])
            expected, predicted = self.classes[self.labels[row]], f"{self.classes[number]} {share:.0%}"
        return [*parts, ("expected", expected), ("predicted", predicted), ("row", self.table.place(row))]
