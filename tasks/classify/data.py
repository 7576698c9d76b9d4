"""Reads tables of labelled texts. Every row is checked as it is read.

This module does not import TensorFlow, so that a wrong file is reported within a second. Shapes: N rows of a table.
"""

import itertools
import re
import zlib
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from keras_bert.errors import InputError
from tasks.classify.glue import TableTask
from tasks.fine_tuning.columns import SEPARATORS
from tasks.fine_tuning.encoding import format_labels
from tasks.text.bad_rows import BadRows
from tasks.text.rows import Broken, check_number, check_text, open_rows, parse_list, read_usable, take


class Table(NamedTuple):
    """The usable rows of one file, in the file's order.

    Attributes:
        path: the file.
        lines: N line numbers, counted from 1, of each row's first line.
        numbers: N row numbers, counted from 0 over all rows of the file, including unusable ones.
        num_rows: number of rows of the file, including unusable ones.
        texts: N texts.
        text_pairs: N second texts, or None.
        labels: N labels, or N tuples of labels, or N scores (float), or None for a table without labels.
    """

    path: str
    lines: list[int]
    numbers: list[int]
    num_rows: int
    texts: list[str]
    text_pairs: list[str] | None
    labels: list[str] | list[tuple[str, ...]] | list[float] | None

    @property
    def num_texts(self) -> int:
        """Number of texts per row, 1 or 2."""
        return 1 if self.text_pairs is None else 2

    def place(self, index: int) -> str:
        """Returns `path:line` of the row `index`, one of the N."""
        return f"{self.path}:{self.lines[index]}"

    def checksum(self) -> int:
        """Returns a number that depends on the texts and labels but not on the path."""
        return zlib.crc32(repr((self.texts, self.text_pairs, self.labels)).encode())

    def texts_of(self, index: int) -> tuple[str, ...]:
        """Returns the one or two texts of the row `index`, one of the N."""
        return (self.texts[index],) if self.text_pairs is None else (self.texts[index], self.text_pairs[index])


def names_table(labels: list[str]) -> Table:
    """Returns a table whose texts are the names of the labels, each labelled as itself."""
    numbers = list(range(len(labels)))
    return Table("--labels", numbers, numbers, len(labels), list(labels), None, list(labels))


# === Rows ===


_MARKS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
_LIST = re.compile(r"\[\s*[\"'\d]")  # The beginning of a list of labels.

_CURE = (
    "Name the right one with --text_column, --text_pair_column or --label_column; without a header all: --column_names."
)


def read_table(path: str, task: TableTask, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Reads a table.

    Args:
        path: the file, as `open_rows` reads it.
        task: columns of the texts and of the label or score.
        bad_rows: collects rows with too many or too few fields, an empty text or label, a score that is not a number,
            a mark that is neither 0 nor 1, or invalid CSV or JSON; and blank lines between rows.
        with_labels: whether to read the label column. If not, the column may be missing, and the first row of CoLA's
            files is a header.

    Raises:
        InputError: there is no usable row, a column is missing or ambiguous, or `bad_rows` refuses a bad row. The
            message names file and line.
    """
    has_header = task.headerless_columns is None or (task.test_has_header and not with_labels)
    file = open_rows(path, None if has_header else task.headerless_columns)
    file.require(task.columns(with_labels), _CURE)
    numbers, lines, values, num_rows = read_usable(
        file, lambda _, row: _read_row(row, task, with_labels), bad_rows, "one text a row"
    )
    columns = [list(column) for column in zip(*values, strict=True)]
    return Table(
        path=path,
        lines=lines,
        numbers=numbers,
        num_rows=num_rows,
        labels=columns.pop() if with_labels else None,
        texts=columns[0],
        text_pairs=columns[1] if len(columns) == 2 else None,
    )


def _read_row(row: dict, task: TableTask, with_labels: bool) -> list:
    """Returns the texts unchanged, then the label as a string or the score as a number."""
    values = [check_text(name, take(row, name)) for name in task.columns(with_labels=False)]
    if with_labels:
        cells = [(name, take(row, name)) for name in task.label_columns]
        read_label = check_number if task.is_regression else _read_label
        label = _read_labels(cells, task) if task.is_multi_label else read_label(*cells[0])
        values.append(task.own_label(label))
    return values


def _read_labels(cells: list[tuple[str, Any]], task: TableTask) -> tuple[str, ...]:
    """Returns the labels of a row, from several cells of 0 and 1 or from one: a list, or text with separators."""
    if len(cells) > 1:
        return tuple(name for name, value in cells if _read_mark(name, value))
    ((name, value),) = cells
    values = parse_list(value)
    if values is None:
        text = check_text(name, "" if value is None else value, "labels", may_be_empty=True).strip()
        marks = [mark for mark in SEPARATORS if mark in text]
        if marks and not task.label_separator and not _LIST.match(text):
            raise Broken(f"column {name!r}: {text!r} may be several labels. Say so: --label_separator='{marks[0]}'.")
        parts = text.split(task.label_separator) if task.label_separator else [text]
        values = [part.strip() for part in parts] if text else []
    return tuple(dict.fromkeys(_read_label(name, label) for label in values))


def _read_mark(name: str, value: Any) -> bool:
    mark = _MARKS.get(str(value).strip().lower())
    if mark is None:
        raise Broken(f"column {name!r}: expected 0 or 1, or false or true, found {value!r}. Correct it.")
    return mark


def _read_label(name: str, value: Any) -> str:
    if isinstance(value, float | Decimal) and value % 1 == 0:  # Pandas writes 1.0 where a label is missing.
        value = int(value)
    if isinstance(value, bool | int):  # JSON may have 1 or "1" as a label.
        return str(value).lower()
    label = check_text(name, "" if value is None else value, "a label").strip()
    if _LIST.match(label):
        raise Broken(f"column {name!r}: expected a label, or a list of them in JSON, found {label!r}. Correct it.")
    if re.search(r"[\t\r\n]", label):
        raise Broken(f"column {name!r}: expected a label without tabs, on one line, found {label!r}. Correct it.")
    return label


# === Labels ===


def choose_labels(table: Table, labels: Sequence[str] | None = None) -> list[str]:
    """Returns the labels in the order of their class numbers: `labels`, or those of the table, sorted.

    Raises:
        InputError: fewer than two labels, a label given twice, or an empty one.
    """
    if labels is None:
        chosen, source = sorted(set(each_label(table.labels))), f"{table.path}: the label column"
    else:
        chosen, source = list(labels), f"--labels={','.join(labels)}:"
    if len(set(chosen)) != len(chosen) or not all(chosen):
        raise InputError(f"{source} a label is empty or given twice. Expected different labels, commas between.")
    if len(chosen) < 2:
        raise InputError(
            f"{source} has only the label {format_labels(chosen)}. Expected at least two. To predict numbers, give "
            "--regression."
        )
    return chosen


def each_label(labels: Sequence[str] | Sequence[tuple[str, ...]]) -> list[str]:
    """Returns the labels of all rows one after the other."""
    return list(itertools.chain.from_iterable(of_row if isinstance(of_row, tuple) else [of_row] for of_row in labels))


def find_known(table: Table, labels: Sequence[str], bad_rows: BadRows) -> list[bool]:
    """Returns for each row whether all of its labels are among `labels`. The others are bad rows.

    Raises:
        InputError: `bad_rows` refuses a row with another label (the message names file and line), or no row is left.
    """
    known, kept = set(labels), []
    for index, of_row in enumerate(table.labels):
        label = next((name for name in each_label([of_row]) if name not in known), None)
        kept.append(label is None)
        if label is not None:
            bad_rows.add(table.place(index), f"unknown label {label!r}. Expected {format_labels(labels)}.")
    bad_rows.finish()
    if not any(kept):
        raise InputError(f"{table.path}: no row has one of the labels {format_labels(labels)}. Correct them.")
    return kept
