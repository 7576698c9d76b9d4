"""Reads tables of questions with several choices.

This module does not import TensorFlow, so that a wrong file is reported within a second. Shapes: N rows of a table, K
choices per row.
"""

import dataclasses
import itertools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from tasks.text.bad_rows import BadRows
from tasks.text.rows import Broken, check_text, open_rows, parse_number, read_usable, take

EXTENSIONS = (".csv", ".jsonl", ".parquet", ".xlsx")
# SWAG calls its held-out file val.csv; the other tasks call theirs dev.
SPLIT_NAMES = {"train": ("train",), "dev": ("val", "dev"), "test": ("test",)}
_CURE = "Name the right ones with --context_column, --start_column, --choice_columns and --label_column."


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns (in JSON Lines: keys) of a table; the defaults are SWAG's.

    Attributes:
        context: column of the first text.
        start: column of the start that all choices of a row share; None if there is none.
        choices: K columns; or a single one that holds a list of K texts, in JSON Lines and Parquet; or None for
            `ending0`, `ending1`, ..., as many as there are, or the list `endings`.
        label: column of the number of the right choice, counted from 0.
    """

    context: str = "sent1"
    start: str | None = "sent2"
    choices: tuple[str, ...] | None = None
    label: str = "label"


class Table(NamedTuple):
    """The usable rows of one file, in the file's order.

    Attributes:
        path: the file.
        lines: N line numbers, counted from 1, of each row's first line.
        numbers: N row numbers, counted from 0 over all rows of the file, including unusable ones.
        contexts: N texts.
        choices: N lists of K texts, including the shared start.
        labels: number of the right choice of each row, counted from 0, or None for a file without labels.
    """

    path: str
    lines: list[int]
    numbers: list[int]
    contexts: list[str]
    choices: list[list[str]]
    labels: list[int] | None

    @property
    def num_choices(self) -> int:
        """K."""
        return len(self.choices[0])

    def checksum(self) -> int:
        return zlib.crc32(repr(self[3:]).encode())


def read_table(path: str, columns: Columns, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Reads a table.

    A row is bad if it is malformed, lacks a column, has an empty context or choice, has a label that is not the number
    of a choice, or differs from the first good row in the number of choices.

    Args:
        path: the file, as `open_rows` reads it.
        columns: names of the columns.
        bad_rows: collects the bad rows.
        with_labels: whether to read the label column.

    Raises:
        InputError: a CSV or Excel file lacks a column, no row is usable, the file cannot be read, or `bad_rows` refuses
            it.
    """
    file, first = open_rows(path), None
    if file.columns is not None:
        choices = columns.choices or ["ending0", "ending1", *_default_choices(file.columns)[2:]]
        file.require([columns.context, *filter(None, [columns.start]), *choices, *[columns.label] * with_labels], _CURE)

    def read_row(line: int, row: dict) -> tuple[str, list[str], int | None]:
        nonlocal first
        values = _read_row(row, columns, with_labels)
        first = first or (line, len(values[1]))
        if len(values[1]) != first[1]:
            raise Broken(f"expected {first[1]} choices as in line {first[0]}, found {len(values[1])}.")
        return values

    numbers, lines, values, _ = read_usable(file, read_row, bad_rows, "one question a row")
    contexts, choices, labels = map(list, zip(*values, strict=True))
    labels = labels if with_labels else None
    return Table(path=path, lines=lines, numbers=numbers, contexts=contexts, choices=choices, labels=labels)


def _default_choices(names: Sequence[str]) -> list[str]:
    """Returns SWAG's columns `ending0`, `ending1`, ... up to the first number that is missing."""
    count = next(number for number in itertools.count() if f"ending{number}" not in names)
    return [f"ending{number}" for number in range(count)]


def _read_row(row: dict, columns: Columns, with_labels: bool) -> tuple[str, list[str], int | None]:
    """Returns context, choices and label of a row."""
    context = check_text(columns.context, take(row, columns.context)).strip()
    start = check_text(columns.start, take(row, columns.start), may_be_empty=True).strip() if columns.start else ""
    choices = [f"{start} {choice}".strip() for choice in _choices(row, columns)]
    return context, choices, _label(row, columns.label, len(choices)) if with_labels else None


def _choices(row: dict, columns: Columns) -> list[str]:
    names = columns.choices or (["endings"] if "endings" in row else _default_choices(list(row)))
    if len(names) == 1 and isinstance(row.get(names[0]), list):
        row = {f"{names[0]}[{number}]": text for number, text in enumerate(row[names[0]])}
        names = list(row)
    if len(names) < 2:
        named = ", ".join(columns.choices) if columns.choices else "'ending0', 'ending1', ... or a list 'endings'"
        raise Broken(f"expected at least two choices in {named}. Name them with --choice_columns.")
    return [check_text(name, take(row, name)).strip() for name in names]


def _label(row: dict, name: str, num_choices: int) -> int:
    value = take(row, name)
    number = parse_number(value)  # Pandas writes 1.0 where a label is missing.
    if number not in range(num_choices):
        raise Broken(f"label {value!r}: expected the number of the right choice, 0 to {num_choices - 1}.")
    return int(number)
