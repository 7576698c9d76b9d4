"""Recognizes the columns of a table that no flag names. This module does not import TensorFlow."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number

from keras_bert.errors import InputError
from tasks.text.rows import Broken, open_rows, parse_list, parse_number

# Names of label columns, in lower case. The first is the default of every task.
LABEL_NAMES = ("label", "labels", "class", "category", "intent", "score", "sentiment", "topic", "target", "rating")
LABEL_NAMES += ("stars", "emotion", "polarity")
SEPARATORS = ("|", ";", ",")  # Marks between several labels in a cell.
_MOST_ROWS = 100_000  # Rows to look at. A table that is sorted by its labels may need many.
_DATE = re.compile(r"\d{1,4}([-/.])\d{1,2}\1\d{1,4}\b.*", re.DOTALL)
_LONGEST_LABEL = 40  # Largest mean length of a column's labels, in characters.
_CLEARLY_FEWER, _CLEARLY_LONGER = 10, 3  # Factors between the best candidate and the next.


class Column:
    """Statistics of a column.

    Args:
        values: number of rows with each value, as text (a list as JSON). Empty values are left out.
    """

    def __init__(self, values: Counter[str]):
        self.values, self.total = values, values.total()
        numbers = list(map(parse_number, values))
        # Most values decide. The reader reports the row of any other value.
        self.is_list = 2 * sum(parse_list(value) is not None for value in values) > len(values)
        self.is_date = all(map(_DATE.fullmatch, values))
        self.is_number = bool(values) and None not in numbers
        self.is_fractional = self.is_number and not all(number.is_integer() for number in numbers)
        self.mean_length = sum(map(len, values)) / max(1, len(values))
        # Codes, addresses and names of files are ASCII without spaces, which texts of some length are not.
        is_code = self.is_date and self.mean_length <= _LONGEST_LABEL  # With the time of day, after a space.
        self.is_prose = not is_code and 2 * sum(" " in value or not value.isascii() for value in values) > len(values)

    @property
    def is_score(self) -> bool:
        """Whether the values are numbers to predict, rather than labels."""
        return self.is_fractional or (self.is_number and len(self.values) > 1 and not self.has_few_values)

    @property
    def has_few_values(self) -> bool:
        """Whether the values may be labels, each shared by some rows."""
        if self.is_list:
            return True
        are_few = 2 <= len(self.values) <= max(2, self.total / 2)
        return are_few and self.mean_length <= _LONGEST_LABEL and not self.is_date


Columns = Mapping[str, Column]


def read_columns(path: str, names: Sequence[str] | None = None) -> Columns:
    """Returns the columns of a table by name, in the file's order; rows that cannot be parsed are skipped.

    Args:
        path, names: the file and names of all its columns, as in `open_rows`.
    """
    file = open_rows(path, names)
    values = {name: Counter() for name in file.columns or ()}
    for _, row in itertools.islice(file.rows, _MOST_ROWS):
        for name, value in () if isinstance(row, Broken) else row.items():
            counts = values.get(name) if value is None else values.setdefault(name, Counter())
            is_list = isinstance(value, list)
            text = json.dumps(value, default=lambda item: [str(item)]) if is_list else str(value)  # A date is no label.
            if isinstance(value, str | Number | list) and text.strip():
                counts[text] += 1
    return {name: Column(counts) for name, counts in values.items()}


def choose_label(path: str, columns: Columns, is_number: bool = False, has_names: bool = False) -> str:
    """Returns the label column: one named as in `LABEL_NAMES`, else one of lists, else one with few different values.

    Args:
        path: the file, for messages.
        columns: the columns to choose from.
        is_number: whether the labels are numbers to predict, however few different ones there are.
        has_names: whether the file is known to have no header.

    Raises:
        InputError: no column or several columns qualify, or the first row is not a header.
    """
    usable = {name: column for name, column in columns.items() if column.is_number or column.has_few_values}
    if is_number:
        usable = {name: column for name, column in usable.items() if column.is_number}
    named = [name for name in columns if _plain(name) == LABEL_NAMES[0]]
    named = named or [name for name in usable if _plain(name) in LABEL_NAMES]
    lists = [name for name in usable if usable[name].is_list]
    few = [name for name in usable if is_number or (usable[name].has_few_values and not usable[name].is_fractional)]
    fewest = min((len(usable[name].values) for name in few), default=0)
    candidates = named or lists or [name for name in few if len(usable[name].values) <= _CLEARLY_FEWER * fewest]
    name = _single(path, "labels", {name: f"{len(columns[name].values)} different" for name in columns}, candidates)
    if not has_names:
        _check_header(path, columns, [name], f"this column: --label_column={name}")
    return name


def find_separator(path: str, name: str, column: Column) -> str | None:
    """Returns the mark that separates labels in the cells of a column; None if no cell has one of `SEPARATORS`.

    Raises:
        InputError: several of the marks occur.
    """
    marks = [mark for mark in SEPARATORS if any(mark in value for value in column.values)]
    if len(marks) > 1:
        listed = " and ".join(map(repr, marks))
        raise InputError(
            f"{path}: column {name!r} holds {listed}, and each of them may separate two labels. Name the one "
            f"between labels: --label_separator='{marks[0]}'."
        )
    return marks[0] if marks else None


def choose_text(path: str, columns: Columns, has_names: bool = False) -> str:
    """Returns the text column: the one named text, or else the one with the longest distinct values.

    Args, Raises: as in `choose_label`. The first row is no header if any column has its name as a value.
    """
    strings = {name: column for name, column in columns.items() if column.values and not column.is_number}
    strings = {name: column for name, column in strings.items() if not column.has_few_values} or strings
    strings = {name: column for name, column in strings.items() if column.is_prose} or strings
    lengths = {name: column.mean_length for name, column in strings.items()}
    longest = max(lengths, key=lengths.get, default="")
    candidates = [
        name
        for name in lengths
        # A hypothesis, sentence2, may be much shorter than its premise, sentence1.
        if _CLEARLY_LONGER * lengths[name] > lengths[longest] or _unnumbered(name) == _unnumbered(longest)
    ]
    candidates = [name for name in columns if _plain(name) == "text"] or candidates
    name = _single(path, "texts", {name: f"{columns[name].mean_length:.0f} characters" for name in columns}, candidates)
    if not has_names:
        _check_header(path, columns, columns, f"the texts' column: --text_column={name}")
    return name


def _check_header(path: str, columns: Columns, names: Iterable[str], cure: str) -> None:
    for name in names:
        if name in columns[name].values:
            raise InputError(
                f"{path}:1: expected the names of the columns, found {name!r}, which is also a value of its column. If "
                f"the file has no header, name its columns: --column_names=text,label. If it has one, name {cure}."
            )


def _plain(name: str) -> str:
    return name.strip().casefold()


def _unnumbered(name: str) -> str:
    return re.sub(r"\d", "", _plain(name))


def _single(path: str, kind: str, shown: Mapping[str, str], candidates: Sequence[str]) -> str:
    """Returns the single candidate.

    Args:
        path: the file.
        kind: "texts" or "labels".
        shown: description of each column, for the message.
        candidates: names of the columns that may be meant.

    Raises:
        InputError: there is no candidate, or there are several.
    """
    if len(candidates) == 1:
        return candidates[0]
    state = f"found {len(candidates)} that may be meant" if candidates else "found none among"
    listed = ", ".join(f"{name!r} ({shown[name]})" for name in candidates or shown)
    cure = {
        "texts": "--text_column. For pairs of texts name both, the second by --text_pair_column.",
        "labels": "--label_column; without a header all columns: --column_names.",
    }
    marks = " A table's columns are separated by commas, semicolons or tabs." if len(shown) == 1 else ""
    raise InputError(f"{path}: expected a column of {kind}, {state}: {listed}. Name it: {cure[kind]}{marks}")
