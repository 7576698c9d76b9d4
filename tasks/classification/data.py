"""Tables of labelled texts: every row is checked as it is read.

Shapes: N rows of a table. No TensorFlow here: a wrong file is reported within a second.
"""

import math
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from keras_bert.errors import InputError
from tasks.classification.glue import TableTask
from tasks.fine_tuning.rows import Broken, Rows, open_rows, take
from tasks.text.bad_rows import BadRows

LABELS_SHOWN = 20


class Table(NamedTuple):
    """The usable rows of one file, in the file's order.

    Attributes:
        path: the file.
        lines: N line numbers, counted from 1: where each row starts.
        numbers: N row numbers, counted from 0 over all rows of the file, those that cannot be used too.
        num_rows: rows of the file, those that cannot be used too.
        texts: N texts.
        text_pairs: N second texts, or None.
        labels: N labels, or N scores (float), or None for a table without.
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
        """Texts of a row: 1 or 2."""
        return 1 if self.text_pairs is None else 2

    def place(self, index: int) -> str:
        """Returns the place of row `index` of the N, as `path:line`."""
        return f"{self.path}:{self.lines[index]}"

    def checksum(self) -> int:
        """Returns a number that depends on texts and labels, not on their file."""
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
    "Name the right one with --text_column, --text_pair_column or --label_column; of a file without a header all, with "
    "--column_names."
)


def read_table(path: str, task: TableTask, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Reads a table.

    Args:
        path: the file, UTF-8: `.csv` is CSV (RFC 4180 quoting), `.jsonl` JSON Lines, every other one TSV without
            quoting.
        task: which columns hold the texts and the label or score.
        bad_rows: collects rows with too many or too few fields, an empty text or label, a score that is no number,
            invalid CSV or JSON; and blank lines between rows.
        with_labels: whether the label column is needed. Without it the label column may be missing and is not read,
            and the first row of CoLA's files is a header.

    Raises:
        InputError: no usable row; a missing or ambiguous column; a bad row that `bad_rows` refuses. The message names
            file and line.
    """
    has_header = task.headerless_columns is None or (task.test_has_header and not with_labels)
    file = open_rows(path, None if has_header else task.headerless_columns)
    file.require(task.columns(with_labels), _CURE)
    return collect(path, file.rows, task, bad_rows, with_labels)


def collect(path: str, rows: Rows, task: TableTask, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Makes a table of rows of any origin, `(line, values by column)` or `(line, Broken)`; see `read_table`."""
    lines, numbers, kept, number = [], [], [], -1
    for number, (line, row) in enumerate(rows):  # noqa: B007  Also the count of rows.
        values = row if isinstance(row, Broken) else _read_row(row, task, with_labels)
        if isinstance(values, Broken):
            bad_rows.add(f"{path}:{line}", values)
            continue
        lines.append(line)
        numbers.append(number)
        kept.append(values)
    bad_rows.finish()
    if not kept:
        state = f"none of its {number + 1} rows can be used" if number >= 0 else "the file holds no rows"
        raise InputError(f"{path}: {state}. Expected one text a row.")
    columns = [list(column) for column in zip(*kept, strict=True)]
    labels = columns.pop() if with_labels else None
    return Table(path, lines, numbers, number + 1, columns[0], columns[1] if len(columns) == 2 else None, labels)


def _read_row(row: dict, task: TableTask, with_labels: bool) -> list | Broken:
    """Returns the texts as they are, and the label as a string or the score as a number."""
    names = task.columns(with_labels)
    values = [take(row, name) for name in names]
    for name, value in zip(names[: len(names) - with_labels], values, strict=False):
        if isinstance(value, Broken):
            return value
        if not isinstance(value, str):
            return Broken(f"column {name!r}: expected a text, found {_json_kind(value)}.")
        if not value.strip():
            return Broken(f"column {name!r} is empty. Fill it or remove the row.")
    if not with_labels or isinstance(values[-1], Broken):
        return values[-1] if isinstance(values[-1], Broken) else values
    label = (_check_score if task.is_regression else _check_label)(names[-1], values[-1])
    return label if isinstance(label, Broken) else [*values[:-1], label]


def _check_label(name: str, value) -> str | Broken:
    if isinstance(value, bool | int):  # Of JSON, where 1 is as good a label as "1".
        value = str(value).lower()
    if value is None or (isinstance(value, str) and not value.strip()):
        return Broken(f"column {name!r} is empty. Fill it or remove the row.")
    if not isinstance(value, str):
        return Broken(f"column {name!r}: expected a label, found {_json_kind(value)}.")
    return str(value)


def _check_score(name: str, value) -> float | Broken:
    try:
        score = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        score = math.nan
    if not math.isfinite(score):
        return Broken(f"column {name!r}: expected a number, found {value!r}. Correct it or remove the row.")
    return score


def _json_kind(value) -> str:
    return "nothing (null)" if value is None else f"{type(value).__name__} {value!r}"


# === Labels ===


def choose_labels(table: Table, labels: Sequence[str] | None = None) -> list[str]:
    """Returns the labels in the order of their class numbers: `labels`, or the sorted set of the table's.

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
    """Returns the rows whose label is one of `labels`; the others are bad rows.

    Raises:
        InputError: the first row with another label, by file and line, with the labels expected, unless `bad_rows`
            skips; no row is left.
    """
    known = set(labels)
    kept = [index for index, label in enumerate(table.labels) if label in known]
    if len(kept) == len(table.labels):
        return table
    for index, label in enumerate(table.labels):
        if label not in known:
            reason = f"unknown label {label!r}. Expected {format_labels(labels)}."
            bad_rows.add(table.place(index), reason)
    bad_rows.finish()
    if not kept:
        raise InputError(f"{table.path}: no row has one of the labels {format_labels(labels)}.")
    return table.take(kept)


def format_labels(labels: Sequence[str]) -> str:
    """Lists labels for a message: all of them, or the first twenty and how many there are."""
    shown = ", ".join(repr(label) for label in labels[:LABELS_SHOWN])
    return shown if len(labels) <= LABELS_SHOWN else f"{shown}, ... ({len(labels)} in all)"
