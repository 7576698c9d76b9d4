"""Reads the rows of TSV, CSV, JSON Lines, Parquet and Excel files by column name.

A row that cannot be parsed is returned as `Broken`, so that the caller can refuse the file or skip the row.
"""

import ast
import contextlib
import csv
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any, BinaryIO, NamedTuple

from keras_bert.errors import InputError, first_line
from keras_bert.files import open_file, read_lines
from tasks.settings import require_extra
from tasks.text.bad_rows import BadRows

EXTENSIONS = (".tsv", ".csv", ".jsonl", ".parquet", ".xlsx")
_DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}  # Of CSV. Of equally good ones, the first is chosen.
_LINES_OF_A_ROW = 100  # Lines to read at most for the first row of a CSV file, which determines the delimiter.
NUMBER_CURE = "Write it in the digits 0 to 9, such as -1.5 or 2e-3, up to 3.4e38, or remove the row."
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST = 3.4028234663852886e38  # The largest float32.
_PANDAS_INDEX = re.compile(r"__index_level_\d+__").fullmatch  # A column that `to_parquet` writes unasked.
_has_half_pair = re.compile("[\ud800-\udfff]").search


class Broken(Exception):  # noqa: N818  (describes a row)
    """The reason why a row cannot be used, and the cure."""


class FormulaError(NamedTuple):
    """The error that a cell of a workbook shows if its formula has no value, such as #N/A."""

    code: str

    def __repr__(self):
        return self.code


Rows = Iterator[tuple[int, dict | Broken]]


class RowFile(NamedTuple):
    """An open table.

    Attributes:
        path: the file.
        header_line: line of the header, counted from 1, or None if the columns were given.
        columns: names of all columns, or None for JSON Lines, where each row has its own, and Parquet.
        rows: yields `(line, values by column)` for each row, or `(line, Broken)`. The line, counted from 1, is where
            the row starts; in Parquet it is the number of the row. Values are strings; in JSON Lines and Parquet they
            have any type, and in Excel they may be a `FormulaError`.
    """

    path: str
    header_line: int | None
    columns: list[str] | None
    rows: Rows

    def require(self, names: Sequence[str], cure: str) -> None:
        """Checks that each column occurs exactly once. JSON Lines and Parquet are checked row by row instead.

        Args:
            names: names of the columns.
            cure: a sentence about the flags that name columns.

        Raises:
            InputError: a column is missing, or occurs several times.
        """
        for name in names if self.columns is not None else ():
            count = self.columns.count(name)
            if count != 1:
                state = "no column" if count == 0 else f"{count} columns named"
                cure = cure if count == 0 else "Rename all but one."
                where, columns = f"{self.path}:{self.header_line or 1}", ", ".join(map(repr, self.columns))
                raise InputError(f"{where}: {state} {name!r} in the header. Columns there: {columns}. {cure}")


def open_rows(path: str, columns: Sequence[str] | None = None) -> RowFile:
    """Opens a table. The extension of the file name decides the format; other extensions mean TSV.

    The first row of a CSV file determines its delimiter: comma, semicolon (which spreadsheets write in many countries),
    or tab.

    Args:
        path: the file, UTF-8.
        columns: names of all columns of a file without a header. None takes them from the first row. JSON Lines and
            Parquet name the values of each row.

    Raises:
        InputError: the file cannot be read, or is empty, or the package that reads it is not installed.
    """
    extension = os.path.splitext(path)[1].lower()
    if extension in (".jsonl", ".parquet"):
        rows = _parquet_rows(path) if extension == ".parquet" else _skip_blank_end(_json_rows(path))
        return RowFile(path=path, header_line=None, columns=None, rows=rows)
    if extension == ".csv":
        delimiter = _find_delimiter(path, columns)
        cure = f"A {_DELIMITERS[delimiter]} inside a text needs quotes around the text."
        rows = _csv_rows(path, delimiter)
    elif extension == ".xlsx":
        rows, cure = _excel_rows(path, len(columns or ())), "Name every column in the first row."
    else:
        rows, cure = _tsv_rows(path), "A text must not contain a tab."
    rows, line = _skip_blank_end(rows), None
    if columns is None:
        line, columns = next(rows, (1, None))
        if columns is None:
            raise InputError(f"{path}: the file is empty. Expected a header with column names, then rows.")
        if isinstance(columns, Broken):
            raise InputError(f"{path}:{line}: {columns}")
    columns = list(map(str, columns))
    return RowFile(path=path, header_line=line, columns=columns, rows=_named(rows, columns, cure))


def read_usable(
    file: RowFile, read_row: Callable[[int, dict], Any], bad_rows: BadRows, expected: str
) -> tuple[list[int], list[int], list, int]:
    """Reads all rows of a file, and adds those that cannot be used to `bad_rows`.

    Args:
        file: the open table.
        read_row: returns the task's own values from the row's line and its values by column, or raises `Broken`.
        bad_rows: collects the other rows.
        expected: what a file should hold, for the message about one without a usable row.

    Returns:
        Index from 0, line, and values of each usable row; and the number of all rows.

    Raises:
        InputError: `bad_rows` refuses the file, or no row can be used.
    """
    usable, count = [], 0
    for count, (line, row) in enumerate(file.rows, 1):  # noqa: B007  (also the count of rows)
        try:
            if isinstance(row, Broken):
                raise row
            usable.append((count - 1, line, read_row(line, row)))
        except Broken as error:
            bad_rows.add(f"{file.path}:{line}", str(error))
    bad_rows.finish()
    if not usable:
        state = f"none of its {count} rows can be used" if count else "the file holds no rows"
        raise InputError(f"{file.path}: {state}. Expected {expected}.")
    return *map(list, zip(*usable, strict=True)), count


def take(row: dict, name: str) -> Any:
    """Returns a value of a row.

    Raises:
        Broken: a JSON object lacks the key.
    """
    if name not in row:
        raise Broken(f"no key {name!r} in the object. Keys there: {', '.join(map(repr, row)) or 'none'}.")
    return row[name]


def check_text(name: str, value: Any, expected: str = "a text", may_be_empty: bool = False) -> str:
    """Returns the value of the column `name` unchanged.

    Raises:
        Broken: the value is not a string, holds half of a surrogate pair (JSON can write one), or is only white space
            although it must not be empty.
    """
    if not isinstance(value, str):
        received = "nothing (null)" if value is None else f"{type(value).__name__} {value!r}"
        raise Broken(f"column {name!r}: expected {expected}, found {received}. Correct it or remove the row.")
    if _has_half_pair(value):
        raise Broken(f"column {name!r} has half of a surrogate pair, which is no character. Write the pair.")
    if not may_be_empty and not value.strip():
        raise Broken(f"column {name!r} is empty. Fill it or remove the row.")
    return value


def parse_number(value: Any) -> float | None:
    """Returns the number that a text spells in decimal digits, or that a typed file holds; None for any other value.

    Python's `float` also accepts `1_0`, digits of other scripts, `nan` and `inf`. Numbers beyond float32 give None.

    >>> [parse_number(value) for value in ("-1.5", " .2e3 ", 7, "1_0", "nan", "1e39", True)]
    [-1.5, 200.0, 7.0, None, None, None, None]
    """
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, str) and _NUMBER.fullmatch(value.strip())):
        return None
    try:
        number = float(value)
    except OverflowError:  # An integer of JSON may have any size.
        return None
    return number if abs(number) <= _LARGEST else None


def parse_list(value: Any) -> list | None:
    """Returns the labels of a list, or of a text that spells one as JSON or Python does; None for any other value.

    >>> [parse_list(value) for value in (["a"], '["a", 1]', "['a', 'b']", "[]", "a", "[a]", "['a' 'b']", [1.5])]
    [['a'], ['a', 1], ['a', 'b'], [], None, None, None, None]
    """
    if isinstance(value, str) and (text := value.strip()).startswith("["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                value = ast.literal_eval(text)
                # NumPy prints ['a' 'b'] without a comma, which Python would join to one string.
                value = value if repr(value) == text else None
    is_list = isinstance(value, list) and all(isinstance(label, str | int) for label in value)
    return value if is_list else None


def check_number(name: str, value: Any) -> float:
    """Returns the value of the column `name` as a number in the range of float32.

    Raises:
        Broken: the value is not such a number.
    """
    number = parse_number(value)
    if number is None:
        raise Broken(f"column {name!r}: expected a number, found {value!r}. {NUMBER_CURE}")
    return number


# === Formats ===


def _named(rows: Iterator[tuple[int, list | Broken]], columns: list[str], cure: str) -> Rows:
    expected = f"expected {len(columns)} fields ({', '.join(columns)})"
    for line, row in rows:
        if isinstance(row, Broken):
            yield line, row
        elif len(row) != len(columns):
            yield line, Broken(f"{expected}, found {len(row)}. {cure}")
        else:
            yield line, dict(zip(columns, row, strict=True))


def _find_delimiter(path: str, columns: Sequence[str] | None) -> str:
    """Returns the delimiter that splits the first row into as many fields as there are `columns`, or else the most."""
    csv.field_size_limit(sys.maxsize)  # A text may be longer than Python's default of 131,072 characters.
    lines = [text + "\n" for _, text in itertools.islice(read_lines(path), _LINES_OF_A_ROW)]

    def count(mark: str) -> int:
        try:
            return len(next(csv.reader(lines, delimiter=mark), []))
        except csv.Error:  # Reported when the row is read.
            return 0

    counts = {mark: count(mark) for mark in _DELIMITERS}
    return max(counts, key=lambda mark: (counts[mark] == len(columns or ()), counts[mark]))


def _csv_rows(path: str, delimiter: str) -> Iterator[tuple[int, list | Broken]]:
    lines = (text for _, text in read_lines(path, keep_ends=True))  # Line ends inside a quoted text belong to it.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1  # Where the row starts, since a quoted field may span lines.
        try:
            row = next(reader, None)
        except csv.Error as error:
            cure = 'Close every quote, and double a quote inside a quoted field ("").'
            if "new-line character" in str(error):
                cure = "A line must not end in a carriage return alone. Convert such a file first, e.g. tr '\\r' '\\n'."
            reason = f"not valid CSV in the row that starts here ({first_line(error)}). {cure}"
            if "end of data" in str(error):  # Skipping this row would lose the rest of the file, which it includes.
                raise InputError(f"{path}:{line}: {reason}") from error
            row = Broken(reason)
        if row is None:
            return
        yield line, row


def _tsv_rows(path: str) -> Iterator[tuple[int, list]]:
    for line, text in read_lines(path):
        yield line, text.split("\t") if text else []


@contextlib.contextmanager
def _read_by_package(path: str, extra: str, kind: str) -> Iterator[BinaryIO]:
    """Opens a file for a package that may raise any exception if the file is damaged."""
    require_extra(extra, path)
    try:
        with open_file(path) as file:
            yield file
    except InputError:
        raise
    except Exception as error:
        reason = first_line(error)
        raise InputError(f"{path}: cannot be read as {kind} ({reason}). Save it again, or as CSV.") from error


def _excel_rows(path: str, width: int) -> Iterator[tuple[int, list]]:
    """Yields the rows of a workbook's first sheet, with cells as text and padded to `width` columns.

    A width of 0 stands for that of the first row.
    """
    with _read_by_package(path, "excel", "an Excel workbook") as file:
        import openpyxl
        from openpyxl.cell.cell import ERROR_CODES

        sheet = openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets[0]
        sheet.reset_dimensions()  # Those in the file may be smaller than the sheet, which would lose rows.
        for line, cells in enumerate(sheet.iter_rows(values_only=True), 1):
            row = ["" if cell is None else str(cell) for cell in cells]
            row = [FormulaError(cell) if cell in ERROR_CODES else cell for cell in row]
            while row and not str(row[-1]).strip():  # A sheet may be wider than its table.
                row.pop()
            width = width or len(row)
            yield line, row and row + [""] * (width - len(row))


def _parquet_rows(path: str) -> Rows:
    """Yields the rows. Class numbers become the names that Hugging Face's `datasets` records in the file."""
    with _read_by_package(path, "parquet", "Parquet") as file:
        from pyarrow import parquet

        table = parquet.ParquetFile(file)
        columns, features = table.schema_arrow.names, _features_of(table.schema_arrow.metadata)
        if repeated := next((name for name, count in Counter(columns).items() if count > 1), None):
            names = ", ".join(map(repr, columns))
            raise InputError(f"{path}: several columns named {repeated!r}. Columns there: {names}. Rename all but one.")
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in table.iter_batches())
        for line, row in enumerate(rows, 1):
            named = {name: _named_classes(value, features.get(name)) for name, value in row.items()}
            yield line, {name: value for name, value in named.items() if not _PANDAS_INDEX(name)}


def _features_of(metadata: dict | None) -> dict:
    """Returns the features that Hugging Face's `datasets` recorded by column; {} if there are none in a known form."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}
    return features if isinstance(features, dict) else {}


def _named_classes(value: Any, feature: Any) -> Any:
    if isinstance(value, list) and isinstance(feature, dict | list):  # A list holds the feature in older versions.
        of_items = feature.get("feature") if isinstance(feature, dict) else next(iter(feature), None)
        return [_named_classes(item, of_items) for item in value]
    if not isinstance(value, int) or not isinstance(feature, dict) or feature.get("_type") != "ClassLabel":
        return value
    return feature["names"][value] if value >= 0 else None  # -1 is no label.


def _json_rows(path: str) -> Iterator[tuple[int, dict | list | Broken]]:
    for line, text in read_lines(path):
        yield line, _json_row(text) if text.strip() else []


def _json_row(text: str) -> dict | Broken:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number of thousands of digits.
        return Broken(f"not valid JSON ({error}). Expected an object, on one line.")
    return row if isinstance(row, dict) else Broken(f"expected a JSON object, found {type(row).__name__}.")


def _skip_blank_end(rows: Iterator[tuple[int, list | dict | Broken]]) -> Iterator:
    """Skips blank lines (empty lists) at the end of a file. Between rows they are `Broken`: each may be a lost row."""
    blank = []
    for line, row in rows:
        if row == []:
            blank.append(line)
            continue
        for blank_line in blank:
            yield blank_line, Broken("a blank line between rows. Remove it or fill it.")
        blank.clear()
        yield line, row
