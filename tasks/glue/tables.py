"""Tables of labelled texts: finding their files, reading them, and checking every row.

Shapes: N rows of a table. No TensorFlow here: a wrong file is reported within a second.
"""

import math
import os
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import expand_file
from tasks.bad_rows import BadRows
from tasks.glue.rows import EXTENSIONS, Broken, Rows, extension_of, read_rows
from tasks.glue.tasks import Split, Task

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
        """Where row `index` of the N stands, as `path:line`."""
        return f"{self.path}:{self.lines[index]}"

    def checksum(self) -> int:
        """A number that follows from the rows, wherever they stand."""
        return zlib.crc32(repr((self.texts, self.text_pairs, self.labels)).encode())

    def texts_of(self, index: int) -> tuple[str, ...]:
        """The one or two texts of row `index` of the N."""
        return (self.texts[index],) if self.text_pairs is None else (self.texts[index], self.text_pairs[index])

    def take(self, indices: Sequence[int]) -> "Table":
        """The rows with these indices."""
        columns = {name: getattr(self, name) for name in ("lines", "numbers", "texts", "text_pairs", "labels")}
        taken = {name: values and [values[index] for index in indices] for name, values in columns.items()}
        return self._replace(**taken)


# === Files ===


def find_split(task: Task, data_dir: str | None, kind: str, split: Split, file: str | None = None) -> str:
    """Finds the file of a split.

    Args:
        task: the task, which knows its file formats.
        data_dir: the directory that holds `train.tsv`, `dev.tsv`, `test.tsv` (or the names the task has), or None.
        kind: "train", "dev" or "test".
        split: one of `task.splits(kind)`.
        file: the path that `--<kind>_file` gave, in any format, or None; it goes before `data_dir`.

    Raises:
        InputError: there is no such file, or several of them, or its format is unknown.
    """
    if file:
        path = expand_file(f"--{kind}_file", file)
        if task.headerless_columns is None and extension_of(path) not in EXTENSIONS:
            raise InputError(f"{path}: expected a file name that ends in {_either(EXTENSIONS)}.")
        return path
    if not data_dir:
        raise InputError(f"No {kind} file was named. Give --{kind}_file, or --data_dir with a {split.files[0]}.tsv.")
    candidates = [os.path.join(data_dir, name + extension) for name in split.files for extension in task.extensions]
    found = [path for path in candidates if os.path.exists(path)]
    if len(found) != 1:
        state = f"{len(found)} of them are there" if found else "no such file"
        raise InputError(f"{_either(candidates)}: {state}. Name the right one with --{kind}_file.")
    return found[0]


def _either(names: Sequence[str]) -> str:
    return " or ".join(names)


def read_table(path: str, task: Task, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Reads a table.

    Args:
        path: the file, UTF-8: `.csv` is CSV (RFC 4180 quoting), `.jsonl` JSON Lines, every other one TSV without
            quoting.
        task: which columns hold the texts and the label or score.
        bad_rows: what becomes of a row with too many or too few fields, an empty text or label, a score that is no
            number, invalid CSV or JSON; and of a blank line between rows.
        with_labels: whether the label column is needed. Without it the label column may be missing and is not read,
            and the first row of CoLA's files is a header.

    Raises:
        InputError: no usable row; a missing or ambiguous column; a bad row that `bad_rows` refuses. The message names
            file and line.
    """
    has_header = task.headerless_columns is None or (task.test_has_header and not with_labels)
    wanted = wanted_columns(task, with_labels)
    return collect(path, read_rows(path, wanted, None if has_header else task.headerless_columns), task, bad_rows,
                   with_labels)  # fmt: skip


def wanted_columns(task: Task, with_labels: bool) -> list[str]:
    """The columns that a table of the task is made of: first text, second text, label, as far as there are."""
    return [
        task.text_column,
        *[task.text_pair_column] * bool(task.text_pair_column),
        *[task.label_column] * with_labels,
    ]


def collect(path: str, rows: Rows, task: Task, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Makes a table of rows, of whatever origin; the arguments and errors are those of `read_table`.

    Args:
        rows: yields `(line, values of wanted_columns)`, or `(line, Broken)`.
    """
    wanted = wanted_columns(task, with_labels)
    num_texts = len(wanted) - with_labels
    lines, numbers, kept, number = [], [], [], -1
    for number, (line, values) in enumerate(rows):  # noqa: B007  Also the count of rows.
        values = values if isinstance(values, Broken) else _check_values(values, wanted, num_texts, task.is_regression)
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
    labels = columns[-1] if with_labels else None
    return Table(path, lines, numbers, number + 1, columns[0], columns[1] if num_texts == 2 else None, labels)


def _check_values(values: list, wanted: list[str], num_texts: int, is_regression: bool) -> list | Broken:
    """Gives the texts as they are, the label as a string, or the score as a number; or what is wrong with them."""
    for name, text in zip(wanted[:num_texts], values, strict=False):
        if not isinstance(text, str):
            return Broken(f"column {name!r}: expected a text, found {_json_kind(text)}.")
        if not text.strip():
            return Broken(f"column {name!r} is empty. Fill it or remove the row.")
    if len(wanted) == num_texts:
        return values
    check = _check_score if is_regression else _check_label
    label = check(wanted[-1], values[-1])
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
    """Gives the labels in the order of their class numbers: `labels`, or the sorted set of the table's.

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
    """Gives the rows whose label is one of `labels`; the others are bad rows.

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
