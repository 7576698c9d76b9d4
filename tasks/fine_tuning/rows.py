"""The rows of TSV, CSV and JSON Lines files, by column name.

A row that cannot be taken apart comes as `Broken`, which says why: the caller refuses the file, or leaves the row out.
"""

import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import read_lines

EXTENSIONS = (".tsv", ".csv", ".jsonl")


class Broken(str):
    """Why a row cannot be used, and the cure."""


Rows = Iterator[tuple[int, dict | Broken]]


class RowFile(NamedTuple):
    """An open table.

    Attributes:
        path: the file.
        header_line: line of the header, from 1; None where the columns were given.
        columns: names of all columns; None for JSON Lines, where each row has its own.
        rows: `(line from 1 where the row starts, values by column)`, strings, or whatever a JSON object holds; or
            `(line, Broken)`.
    """

    path: str
    header_line: int | None
    columns: list[str] | None
    rows: Rows

    def require(self, names: Sequence[str], cure: str) -> None:
        """Checks that each column is there, once; JSON Lines are checked row by row instead.

        Args:
            names: of the columns.
            cure: a sentence on the flags that name columns.

        Raises:
            InputError: a column is missing, or there are several of its name.
        """
        for name in names if self.columns is not None else ():
            count = self.columns.count(name)
            if count != 1:
                state = "no column" if count == 0 else f"{count} columns named"
                where, there = f"{self.path}:{self.header_line or 1}", ", ".join(map(repr, self.columns))
                raise InputError(f"{where}: {state} {name!r} in the header. Columns there: {there}. {cure}")


def extension_of(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def open_rows(path: str, columns: Sequence[str] | None = None) -> RowFile:
    """Opens a table; the format follows from the name's extension, TSV if it has no known one.

    Args:
        path: the file, UTF-8.
        columns: names of all columns of a file without a header; None: its first row names them. JSON Lines has none.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    extension = extension_of(path)
    if extension == ".jsonl":
        return RowFile(path, None, None, _skip_blank_end(_json_rows(path)))
    is_csv = extension == ".csv"
    rows, line = _skip_blank_end(_csv_rows(path) if is_csv else _tsv_rows(path)), None
    if columns is None:
        line, columns = next(rows, (1, None))
        if columns is None:
            raise InputError(f"{path}: the file is empty. Expected a header with column names, then rows.")
        if isinstance(columns, Broken):
            raise InputError(f"{path}:{line}: {columns}")
    columns = list(columns)
    return RowFile(path, line, columns, _named(rows, columns, is_csv))


def take(row: dict, name: str):
    """Returns a row's value, or `Broken` where a JSON object lacks the key."""
    if name in row:
        return row[name]
    return Broken(f"no key {name!r} in the object. Keys there: {', '.join(map(repr, row)) or 'none'}.")


def _named(rows: Iterator[tuple[int, list | Broken]], columns: list[str], is_csv: bool) -> Rows:
    for line, row in rows:
        if not isinstance(row, Broken):
            row = (
                dict(zip(columns, row, strict=True)) if len(row) == len(columns) else _field_count(row, columns, is_csv)
            )
        yield line, row


def _csv_rows(path: str) -> Iterator[tuple[int, list | Broken]]:
    csv.field_size_limit(sys.maxsize)  # A text may be longer than Python's default of 131,072 characters.
    reader = csv.reader((text + "\n" for _, text in read_lines(path)), strict=True)
    while True:
        line = reader.line_num + 1  # Where the row starts: a quoted field may span lines.
        try:
            row = next(reader, None)
        except csv.Error as error:
            reason = (
                f"not valid CSV in the row that starts here ({error}). Close every quote, and double a quote inside a "
                'quoted field ("").'
            )
            if "end of data" in str(error):  # All that follows is inside this row: to leave it out is to lose that.
                raise InputError(f"{path}:{line}: {reason}") from error
            row = Broken(reason)
        if row is None:
            return
        yield line, row


def _tsv_rows(path: str) -> Iterator[tuple[int, list]]:
    for line, text in read_lines(path):
        yield line, text.split("\t") if text else []


def _skip_blank_end(rows: Iterator[tuple[int, list | dict | Broken]]) -> Iterator:
    """Passes over blank lines (rows without values) at the end of a file; one between rows may be a lost row."""
    blank = []
    for line, row in rows:
        if not row and not isinstance(row, dict):
            blank.append(line)
            continue
        for blank_line in blank:
            yield blank_line, Broken("a blank line between rows. Remove it or fill it.")
        blank.clear()
        yield line, row


def _field_count(row: list[str], columns: Sequence[str], is_csv: bool) -> Broken:
    cure = "A comma inside a text needs quotes around the text." if is_csv else "A text must not contain a tab."
    return Broken(f"expected {len(columns)} fields ({', '.join(columns)}), found {len(row)}. {cure}")


def _json_rows(path: str) -> Iterator[tuple[int, dict | list | Broken]]:
    empty = True
    for line, text in read_lines(path):
        empty = False
        yield line, _json_row(text) if text.strip() else []
    if empty:
        raise InputError(f"{path}: the file is empty. Expected a JSON object a line.")


def _json_row(text: str) -> dict | Broken:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits, too.
        return Broken(f"not valid JSON ({error}). Expected an object, on one line.")
    return row if isinstance(row, dict) else Broken(f"expected a JSON object, found {type(row).__name__}.")
