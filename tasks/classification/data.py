"""Tables of labelled texts. Every row is checked as it is read.

This module does not import TensorFlow, so that a wrong file is reported within a second. Shapes: N rows of a table.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from keras_bert.errors import InputError
from tasks.classification.glue import TableTask
from tasks.fine_tuning.rows import Broken, Rows, check_text, open_rows, read_usable, take
from tasks.text.bad_rows import BadRows

LABELS_SHOWN = 20


class Table(NamedTuple):
    """The usable rows of one file, in the file's order.

    Attributes:
        path: the file.
        lines: N line numbers, counted from 1, of each row's first line.
        numbers: N row numbers, counted from 0 over all rows of the file, including unusable ones.
        num_rows: number of rows of the file, including unusable ones.
        texts: N texts.
        text_pairs: N second texts, or None.
        labels: N labels, or N scores (float), or None for a table without labels.
    """

    path: str
    lines: list[int]
    numbers: list[int]
    num_rows: int
    texts: list[str]
    text_pairs: list[str] | None
    labels: list[str] | list[float] | None

    @property
    def num_texts(self) -> int:
        """Number of texts per row, 1 or 2."""
        return 1 if self.text_pairs is None else 2

    def place(self, index: int) -> str:
        """Returns the place of row `index` of the N, as `path:line`."""
        return f"{self.path}:{self.lines[index]}"

    def checksum(self) -> int:
        """Returns a number that depends on the texts and labels but not on the path."""
        return zlib.crc32(repr((self.texts, self.text_pairs, self.labels)).encode())

    def texts_of(self, index: int) -> tuple[str, ...]:
        """Returns the one or two texts of row `index` of the N."""
        return (self.texts[index],) if self.text_pairs is None else (self.texts[index], self.text_pairs[index])

    def take(self, indices: Sequence[int]) -> "Table":
        """Returns the rows with these indices."""
        columns = {name: getattr(self, name) for name in ("lines", "numbers", "texts", "text_pairs", "labels")}
        taken = {name: values and [values[index] for index in indices] for name, values in columns.items()}
        return self._replace(**taken)


# === Rows ===


_CURE = (
    "Name the right one with --text_column, --text_pair_column or --label_column; without a header all: --column_names."
)


def read_table(path: str, task: TableTask, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Reads a table.

    Args:
        path: the file, UTF-8: CSV (`.csv`, RFC 4180 quoting), JSON Lines (`.jsonl`), or else TSV without quoting.
        task: columns of the texts and of the label or score.
        bad_rows: collects rows with too many or too few fields, an empty text or label, a score that is not a number,
            or invalid CSV or JSON; and blank lines between rows.
        with_labels: whether to read the label column. If not, the column may be missing, and the first row of CoLA's
            files is a header.

    Raises:
        InputError: no usable row, a missing or ambiguous column, or a bad row that `bad_rows` refuses. The message
            names file and line.
    """
    has_header = task.headerless_columns is None or (task.test_has_header and not with_labels)
    file = open_rows(path, None if has_header else task.headerless_columns)
    file.require(task.columns(with_labels), _CURE)
    return collect(path, file.rows, task, bad_rows, with_labels)


def collect(path: str, rows: Rows, task: TableTask, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Makes a table of rows from any source, `(line, values by column)` or `(line, Broken)`; see `read_table`."""
    usable, num_rows = read_usable(path, rows, lambda _, row: _read_row(row, task, with_labels), bad_rows)
    if not usable:
        state = f"none of its {num_rows} rows can be used" if num_rows else "the file holds no rows"
        raise InputError(f"{path}: {state}. Expected one text a row.")
    numbers, lines, kept = map(list, zip(*usable, strict=True))
    columns = [list(column) for column in zip(*kept, strict=True)]
    labels = columns.pop() if with_labels else None
    return Table(path, lines, numbers, num_rows, columns[0], columns[1] if len(columns) == 2 else None, labels)


def _read_row(row: dict, task: TableTask, with_labels: bool) -> list:
    """Returns the texts unchanged, then the label as a string or the score as a number."""
    values = [check_text(name, take(row, name)) for name in task.columns(with_labels=False)]
    if with_labels:
        read_label = _read_score if task.is_regression else _read_label
        values.append(read_label(task.label_column, take(row, task.label_column)))
    return values


def _read_label(name: str, value: Any) -> str:
    if isinstance(value, bool | int):  # From JSON, where 1 is as good a label as "1".
        return str(value).lower()
    return check_text(name, "" if value is None else value, "a label")


def _read_score(name: str, value: Any) -> float:
    try:
        score = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        raise Broken(f"column {name!r}: expected a number, found {value!r}. Correct it or remove the row.")
    return score


# === Labels ===


def choose_labels(table: Table, labels: Sequence[str] | None = None) -> list[str]:
    """Returns the labels in the order of their class numbers: `labels`, or those of the table, sorted.

    Raises:
        InputError: fewer than two labels, a label given twice, or an empty one.
    """
    if labels is None:
        chosen, source = sorted(set(table.labels)), f"{table.path}: the label column"
    else:
        chosen, source = list(labels), f"--labels={','.join(labels)}:"
    if len(set(chosen)) != len(chosen) or not all(chosen):
        raise InputError(f"{source} a label is empty or given twice. Expected different labels, commas between.")
    if len(chosen) < 2:
        raise InputError(
            f"{source} has the one label {format_labels(chosen)}. Expected at least two to tell apart; for numbers "
            "to come near to give --regression."
        )
    return chosen


def keep_known_labels(table: Table, labels: Sequence[str], bad_rows: BadRows) -> Table:
    """Returns the rows whose label is one of `labels`. The others are bad rows.

    Raises:
        InputError: `bad_rows` refuses a row with another label, which the message names by file and line; or no row is
            left.
    """
    known, kept = set(labels), []
    for index, label in enumerate(table.labels):
        if label in known:
            kept.append(index)
        else:
            bad_rows.add(table.place(index), f"unknown label {label!r}. Expected {format_labels(labels)}.")
    bad_rows.finish()
    if not kept:
        raise InputError(f"{table.path}: no row has one of the labels {format_labels(labels)}.")
    return table.take(kept)


def format_labels(labels: Sequence[str]) -> str:
    """Lists labels for a message: all of them, or the first twenty and the total number."""
    shown = ", ".join(repr(label) for label in labels[:LABELS_SHOWN])
    return shown if len(labels) <= LABELS_SHOWN else f"{shown}, ... ({len(labels)} in all)"
