"""Tables of questions with several choices.

Shapes: N rows of a table, K choices a row. No TensorFlow here: a wrong file is reported within a second.
"""

import dataclasses
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from keras_bert.errors import InputError
from tasks.fine_tuning.rows import Broken, RowFile, open_rows, take
from tasks.text.bad_rows import BadRows

EXTENSIONS = (".csv", ".jsonl")
# SWAG's own files are train.csv, val.csv and test.csv; the other tasks' held-out files are named dev.
SPLIT_NAMES = {"train": ("train",), "dev": ("val", "dev"), "test": ("test",)}
_CURE = "Name the right ones with --context_column, --start_column, --choice_columns and --label_column."


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns (in JSON Lines: keys) of a table; the defaults are SWAG's.

    Attributes:
        context: the text that comes first.
        start: the beginning that all choices of a row share, put before each; None: choices stand alone.
        choices: K names; or, in JSON Lines, the one key with a list of K texts; None: `ending0`, `ending1`, ... as far
            as they go, or the list `endings`.
        label: number of the right choice, counted from 0.
    """

    context: str = "sent1"
    start: str | None = "sent2"
    choices: tuple[str, ...] | None = None
    label: str = "label"


class Table(NamedTuple):
    """The good rows of one file, in the file's order.

    Attributes:
        path: the file.
        lines: N line numbers, counted from 1: where each row starts.
        contexts: N texts.
        choices: N lists of K texts, the shared start included.
        labels: N numbers of the right choice, or None for a file without labels.
    """

    path: str
    lines: list[int]
    contexts: list[str]
    choices: list[list[str]]
    labels: list[int] | None

    @property
    def num_choices(self) -> int:
        """K."""
        return len(self.choices[0])

    def checksum(self) -> int:
        return zlib.crc32(repr(self[2:]).encode())

    def texts_of(self, sequence: int) -> tuple[str, str]:
        """Returns the texts of a sequence, counted row by row, choice by choice."""
        row, choice = divmod(sequence, self.num_choices)
        return self.contexts[row], self.choices[row][choice]


def read_table(path: str, columns: Columns, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Reads a CSV or JSON Lines table.

    A row is bad that is no row of the format, lacks a column, has another number of choices than the first good one, an
    empty context or choice, or a label that is not the number of a choice.

    Args:
        path: the file, UTF-8; CSV with a header and RFC 4180 quoting.
        columns: which columns hold what.
        bad_rows: collects the bad rows.
        with_labels: whether the label is needed; without it the label column is not read.

    Raises:
        InputError: a missing column of a CSV file; no good row; invalid UTF-8; bad rows that are to be refused.
    """
    file = open_rows(path)
    _check_header(file, columns, with_labels)
    table = Table(path, [], [], [], [] if with_labels else None)
    for line, row in file.rows:
        values = row if isinstance(row, Broken) else _read_row(row, columns, with_labels)
        if not isinstance(values, Broken) and table.lines and len(values[1]) != table.num_choices:
            expected = f"{table.num_choices} choices as in line {table.lines[0]}"
            values = Broken(f"expected {expected}, found {len(values[1])}.")
        if isinstance(values, Broken):
            bad_rows.add(f"{path}:{line}", values)
            continue
        context, choices, label = values
        table.lines.append(line)
        table.contexts.append(context)
        table.choices.append(choices)
        if with_labels:
            table.labels.append(label)
    bad_rows.finish()
    if not table.lines:
        raise InputError(f"{path}: the file holds no rows that can be used. Expected one question a row.")
    return table


def _check_header(file: RowFile, columns: Columns, with_labels: bool) -> None:
    if file.columns is None:
        return
    choices = columns.choices or _default_choices(file.columns)
    where = f"{file.path}:{file.header_line}"
    if not columns.choices and len(choices) < 2:
        there = ", ".join(map(repr, file.columns))
        raise InputError(
            f"{where}: no columns 'ending0', 'ending1', ... Columns there: {there}. Name them with --choice_columns."
        )
    if len(choices) < 2:
        raise InputError(f"{where}: --choice_columns={choices[0]} names one choice. Expected two or more.")
    start = [columns.start] if columns.start else []
    file.require([columns.context, *start, *choices, *[columns.label] * with_labels], _CURE)


def _default_choices(names: Sequence[str]) -> list[str]:
    """Returns SWAG's `ending0`, `ending1`, ... as far as they go."""
    found = sorted(int(name[6:]) for name in set(names) if re.fullmatch("ending(0|[1-9][0-9]*)", name))
    return [f"ending{number}" for number, there in enumerate(found) if number == there]


def _read_row(row: dict, columns: Columns, with_labels: bool) -> tuple[str, list[str], int | None] | Broken:
    """Returns context, choices and label of a row."""
    context = _text(row, columns.context)
    start = _text(row, columns.start, may_be_empty=True) if columns.start else ""
    choices = _choices(row, columns)
    label = _label(row, columns.label, len(choices)) if with_labels and not isinstance(choices, Broken) else None
    broken = [value for value in (context, start, choices, label) if isinstance(value, Broken)]
    return broken[0] if broken else (context, [f"{start} {choice}".strip() for choice in choices], label)


def _choices(row: dict, columns: Columns) -> list[str] | Broken:
    names = columns.choices or (["endings"] if "endings" in row else _default_choices(list(row)))
    if len(names) == 1 and isinstance(row.get(names[0]), list):
        row = {f"{names[0]}[{number}]": text for number, text in enumerate(row[names[0]])}
        names = list(row)
    if len(names) < 2:
        named = ", ".join(columns.choices) if columns.choices else "'ending0', 'ending1', ... or a list 'endings'"
        return Broken(f"expected at least two choices in {named}. Name them with --choice_columns.")
    texts = [_text(row, name) for name in names]
    return next((text for text in texts if isinstance(text, Broken)), texts)


def _text(row: dict, name: str, may_be_empty: bool = False) -> str:
    value = take(row, name)
    if isinstance(value, Broken):
        return value
    if not isinstance(value, str):
        return Broken(f"column {name!r}: expected a text, found {value!r}.")
    if not may_be_empty and not value.strip():
        return Broken(f"column {name!r} is empty. Fill it or remove the row.")
    return value.strip()


def _label(row: dict, name: str, num_choices: int) -> int | Broken:
    value = take(row, name)
    if isinstance(value, Broken):
        return value
    text = str(value).strip()
    if isinstance(value, bool) or text not in map(str, range(num_choices)):
        return Broken(f"label {value!r}: expected the number of the right choice, 0 to {num_choices - 1}.")
    return int(text)
