"""The rows of TSV, CSV and JSON Lines files, column by column name.

A row that cannot be taken apart comes as `Broken`, which says why: the caller refuses the file, or leaves the row out.
"""

import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence

from keras_bert.errors import InputError
from keras_bert.files import read_lines

EXTENSIONS = (".tsv", ".csv", ".jsonl")


class Broken(str):
    """Why a row cannot be used, and the cure."""


Rows = Iterator[tuple[int, list | Broken]]


def extension_of(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def read_rows(path: str, wanted: Sequence[str], columns: Sequence[str] | None = None) -> Rows:
    """Reads some columns of a table; the format follows from the name's extension, TSV if it has no known one.

    Args:
        path: the file, UTF-8.
        wanted: names of the columns to read.
        columns: names of all columns of a file without a header; None: its first row names them. JSON Lines has none.

    Yields:
        `(line from 1 where the row starts, values of the wanted columns in their order)`, strings, or whatever a JSON
        object holds; or `(line, Broken)`.

    Raises:
        InputError: the file cannot be read, is empty, or lacks a wanted column.
    """
    extension = extension_of(path)
    if extension == ".jsonl":
        return _skip_blank_end(_json_rows(path, wanted))
    return _columns_of(path, wanted, columns, is_csv=extension == ".csv")


def _columns_of(path: str, wanted: Sequence[str], columns: Sequence[str] | None, is_csv: bool) -> Rows:
    rows = _skip_blank_end(_csv_rows(path) if is_csv else _tsv_rows(path))
    first_line = 1
    if columns is None:
        first_line, columns = next(rows, (1, None))
        if columns is None:
            raise InputError(f"{path}: the file is empty. Expected a header with column names, then rows.")
        if isinstance(columns, Broken):
            raise InputError(f"{path}:{first_line}: {columns}")
    places = [_find_column(path, first_line, columns, name) for name in wanted]
    for line, row in rows:
        if isinstance(row, Broken):
            yield line, row
        elif len(row) != len(columns):
            yield line, _field_count(row, columns, is_csv)
        else:
            yield line, [row[place] for place in places]


def _csv_rows(path: str) -> Rows:
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


def _tsv_rows(path: str) -> Rows:
    for line, text in read_lines(path):
        yield line, text.split("\t") if text else []


def _skip_blank_end(rows: Rows) -> Rows:
    """Passes over blank lines (rows without values) at the end of a file; one between rows may be a lost row."""
    blank = []
    for line, row in rows:
        if not row:
            blank.append(line)
            continue
        for blank_line in blank:
            yield blank_line, Broken("a blank line between rows. Remove it or fill it.")
        blank.clear()
        yield line, row


def _find_column(path: str, line: int, columns: Sequence[str], name: str) -> int:
    count = list(columns).count(name)
    if count != 1:
        state = "no column" if count == 0 else f"{count} columns named"
        there = ", ".join(repr(column) for column in columns)
        raise InputError(
            f"{path}:{line}: {state} {name!r} in the header. Columns there: {there}. Name the right one with "
            "--text_column, --text_pair_column or --label_column; of a file without a header all, with --column_names."
        )
    return list(columns).index(name)


def _field_count(row: list[str], columns: Sequence[str], is_csv: bool) -> Broken:
    cure = "A comma inside a text needs quotes around the text." if is_csv else "A text must not contain a tab."
    return Broken(f"expected {len(columns)} fields ({', '.join(columns)}), found {len(row)}. {cure}")


def _json_rows(path: str, wanted: Sequence[str]) -> Rows:
    empty = True
    for line, text in read_lines(path):
        empty = False
        yield line, _json_row(text, wanted) if text.strip() else []
    if empty:
        raise InputError(f"{path}: the file is empty. Expected a JSON object a line.")


def _json_row(text: str, wanted: Sequence[str]) -> list | Broken:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits, too.
        return Broken(f"not valid JSON ({error}). Expected an object, on one line.")
    if not isinstance(row, dict):
        return Broken(f"expected a JSON object, found {type(row).__name__}.")
    missing = [name for name in wanted if name not in row]
    if missing:
        there = ", ".join(repr(name) for name in row) or "none"
        return Broken(f"no key {missing[0]!r} in the object. Keys there: {there}.")
    return [row[name] for name in wanted]
