"""Tables of questions with several choices: reading them, and turning them into token ids once.

N rows of a table, K choices a row. TensorFlow is imported where it is first needed, so that a wrong file is reported
within a second.
"""

import csv
import dataclasses
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import expand_file, read_lines
from tasks.bad_rows import BadRows

EXTENSIONS = (".csv", ".jsonl")
# SWAG's own files are train.csv, val.csv and test.csv; the other tasks' held-out files are named dev.
SPLIT_NAMES = {"train": ("train",), "dev": ("val", "dev"), "test": ("test",)}
# Rows tokenized by one call of the preprocessor: some megabytes of intermediate tensors, and a moving progress bar.
ENCODE_ROWS = 256


@dataclasses.dataclass(frozen=True)
class Columns:
    """Which columns (of JSON Lines: keys) hold what; the defaults are SWAG's.

    Attributes:
        context: the text that comes first.
        start: the beginning that all choices of a row share, put before each; None: choices stand alone.
        choices: K names; or of JSON Lines the one key with a list of K texts; None: `ending0`, `ending1`, ... as far
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
        """A number that other rows do not have."""
        return zlib.crc32(repr(self[2:]).encode())

    def texts_of(self, sequence: int) -> tuple[str, str]:
        """The texts of a sequence, which are counted row by row, choice by choice."""
        row, choice = divmod(sequence, self.num_choices)
        return self.contexts[row], self.choices[row][choice]


class _BadRowError(Exception):
    """A row that cannot be used; the message says why."""


# === Files ===


def find_split(data_dir: str | None, split: str, file: str | None) -> str:
    """Finds the file of a split.

    Args:
        data_dir: the directory that holds `train.csv`, `val.csv` (or `dev.csv`), `test.csv` (or `.jsonl`), or None.
        split: "train", "dev" or "test".
        file: the path that `--<split>_file` gave, or None; it goes before `data_dir`.

    Raises:
        InputError: there is no such file, or two of them, or its format is unknown.
    """
    if file:
        path = expand_file(f"--{split}_file", file)
        if _extension(path) not in EXTENSIONS:
            raise InputError(f"{path}: expected a file name that ends in {' or '.join(EXTENSIONS)}.")
        return path
    names = [name + extension for name in SPLIT_NAMES[split] for extension in EXTENSIONS]
    if not data_dir:
        raise InputError(f"No {split} file was named. Give --{split}_file, or --data_dir with a {names[0]}.")
    found = [name for name in names if os.path.exists(os.path.join(data_dir, name))]
    if len(found) != 1:
        state = f"{' and '.join(found)} are there" if found else f"none of {', '.join(names)} is there"
        raise InputError(f"{data_dir}: {state}. Name the right file with --{split}_file.")
    return os.path.join(data_dir, found[0])


def _extension(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def read_table(path: str, columns: Columns, bad_rows: BadRows, with_labels: bool = True) -> Table:
    """Reads a table; a file whose name ends in `.jsonl` holds one JSON object a line, every other one is CSV.

    A row is bad that is no row of the format, lacks a column, has another number of choices than the first good one, an
    empty context or choice, or a label that is not the number of a choice.

    Args:
        path: the file, UTF-8; CSV with a header and RFC 4180 quoting.
        columns: which columns hold what.
        bad_rows: takes the bad rows.
        with_labels: whether the label is needed; without it the label column is not read.

    Raises:
        InputError: a missing column of a CSV file; no good row; invalid UTF-8; bad rows that are to be refused.
    """
    records = _json_records(path) if _extension(path) == ".jsonl" else _csv_records(path, columns, with_labels)
    table = Table(path, [], [], [], [] if with_labels else None)
    for line, record in records:
        try:
            context, choices, label = _read_record(record, columns, with_labels)
            if table.lines and len(choices) != table.num_choices:
                expected = f"{table.num_choices} choices as in line {table.lines[0]}"
                raise _BadRowError(f"expected {expected}, found {len(choices)}.")
        except _BadRowError as error:
            bad_rows.add(f"{path}:{line}", str(error))
            continue
        table.lines.append(line)
        table.contexts.append(context)
        table.choices.append(choices)
        if with_labels:
            table.labels.append(label)
    bad_rows.finish()
    if not table.lines:
        raise InputError(f"{path}: the file holds no rows that can be used. Expected one question a row.")
    return table


# A record is a dict of what a row holds by column, or the `_BadRowError` that says why it is none.
_Record = dict | _BadRowError


def _csv_records(path: str, columns: Columns, with_labels: bool) -> Iterator[tuple[int, _Record]]:
    rows = _without_blank_end(_csv_rows(path))
    first_line, header = next(rows, (1, None))
    if header is None:
        raise InputError(f"{path}: the file is empty. Expected a header with column names, then rows.")
    _check_header(f"{path}:{first_line}", header, columns, with_labels)
    for line, row in rows:
        if len(row) == len(header):
            yield line, dict(zip(header, row, strict=True))
        else:
            cure = "A comma inside a text needs quotes around the text." if row else "Remove the blank line."
            yield line, _BadRowError(f"expected {len(header)} fields, found {len(row)}. {cure}")


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # A text may be longer than Python's default of 131,072 characters.
    reader = csv.reader((text + "\n" for _, text in read_lines(path)), strict=True)
    while True:
        line = reader.line_num + 1  # where the row starts: a quoted field may span lines
        try:
            row = next(reader, None)
        except csv.Error as error:
            # Not one bad row: an open quote may have swallowed any number of them.
            raise InputError(
                f"{path}:{line}: not valid CSV in the row that starts here ({error}). Close every quote, and double "
                'a quote inside a quoted field ("").'
            ) from error
        if row is None:
            return
        yield line, row


def _without_blank_end(rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Passes over blank lines at the end of a file; one between rows may be a lost row."""
    blank = []
    for line, row in rows:
        if not row:
            blank.append((line, row))
            continue
        yield from blank
        blank.clear()
        yield line, row


def _check_header(where: str, header: Sequence[str], columns: Columns, with_labels: bool) -> None:
    choices = columns.choices or _default_choices(header)
    there = f"Columns there: {', '.join(map(repr, header))}. "
    if not columns.choices and len(choices) < 2:
        raise InputError(f"{where}: no columns 'ending0', 'ending1', ... {there}Name them with --choice_columns.")
    if len(choices) < 2:
        raise InputError(f"{where}: --choice_columns={choices[0]} names one choice. Expected two or more.")
    wanted = [columns.context, *([columns.start] if columns.start else []), *choices]
    for name in [*wanted, *([columns.label] if with_labels else [])]:
        count = list(header).count(name)
        if count != 1:
            state = "no column" if count == 0 else f"{count} columns named"
            raise InputError(
                f"{where}: {state} {name!r} in the header. {there}Name the right ones with --context_column, "
                "--start_column, --choice_columns and --label_column."
            )


def _default_choices(names: Sequence[str]) -> list[str]:
    """SWAG's `ending0`, `ending1`, ... as far as they go."""
    found = sorted(int(name[6:]) for name in set(names) if re.fullmatch("ending(0|[1-9][0-9]*)", name))
    return [f"ending{number}" for number, there in enumerate(found) if number == there]


def _json_records(path: str) -> Iterator[tuple[int, _Record]]:
    for line, text in read_lines(path):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: of the syntax, or a number of thousands of digits.
            yield line, _BadRowError(f"not valid JSON ({getattr(error, 'msg', error)}). Expected one object a line.")
            continue
        is_object = isinstance(record, dict)
        yield line, record if is_object else _BadRowError(f"expected a JSON object, found {type(record).__name__}.")


# === Rows ===


def _read_record(record: _Record, columns: Columns, with_labels: bool) -> tuple[str, list[str], int | None]:
    """Returns context, choices and label of a row, or raises `_BadRowError`."""
    if isinstance(record, _BadRowError):
        raise record
    context = _text(record, columns.context)
    start = _text(record, columns.start, may_be_empty=True) if columns.start else ""
    choices = [f"{start} {choice}".strip() for choice in _choices(record, columns)]
    return context, choices, _label(record, columns.label, len(choices)) if with_labels else None


def _choices(record: dict, columns: Columns) -> list[str]:
    names = columns.choices or (["endings"] if "endings" in record else _default_choices(list(record)))
    if len(names) == 1 and isinstance(record.get(names[0]), list):
        record = {f"{names[0]}[{number}]": text for number, text in enumerate(record[names[0]])}
        names = list(record)
    if len(names) < 2:
        named = ", ".join(columns.choices) if columns.choices else "'ending0', 'ending1', ... or a list 'endings'"
        raise _BadRowError(f"expected at least two choices in {named}. Name them with --choice_columns.")
    return [_text(record, name) for name in names]


def _text(record: dict, name: str, may_be_empty: bool = False) -> str:
    if name not in record:
        raise _BadRowError(f"no key {name!r}. Keys there: {', '.join(map(repr, record))}.")
    value = record[name]
    if not isinstance(value, str):
        raise _BadRowError(f"{name!r}: expected a text, found {value!r}.")
    if not may_be_empty and not value.strip():
        raise _BadRowError(f"{name!r} is empty. Fill it or remove the row.")
    return value.strip()


def _label(record: dict, name: str, num_choices: int) -> int:
    if name not in record:
        raise _BadRowError(f"no key {name!r}. Keys there: {', '.join(map(repr, record))}.")
    value = record[name]
    text = str(value).strip()
    if isinstance(value, bool) or text not in map(str, range(num_choices)):
        raise _BadRowError(f"label {value!r}: expected the number of the right choice, 0 to {num_choices - 1}.")
    return int(text)


def check_num_choices(tables: Sequence[Table], num_choices: int | None = None, source: str | None = None) -> int:
    """Checks that all tables have the same number of choices, and returns it.

    Args:
        tables: at least one.
        num_choices: what they must have; None: what the first one has.
        source: where `num_choices` comes from, for the message.

    Raises:
        InputError: a table has another number.
    """
    if num_choices is None:
        num_choices, source = tables[0].num_choices, tables[0].path
    for table in tables:
        if table.num_choices != num_choices:
            raise InputError(
                f"{table.path}:{table.lines[0]}: {table.num_choices} choices a row, but {source} has {num_choices}. "
                "Expected the same number everywhere."
            )
    return num_choices


# === Token ids ===


def encode_table(table: Table, tokenizer, sequence_length: int, description: str = "tokenize"):
    """Turns a table into token ids, once, showing a progress bar.

    Each row becomes K sequences `[CLS] context [SEP] start choice_k [SEP]` (paper, section 4.4). Of one that does not
    fit, the longer text loses its last token first (google-research/bert run_classifier.py:557).

    Args:
        table: the texts.
        tokenizer: `BertTokenizer`.
        sequence_length: tokens of a sequence at most.
        description: the name of the stage on the progress bar.

    Returns:
        `tasks.examples.Examples` of N examples, K sequences each; labels: `{"labels": int32 (N,)}` or none.
    """
    from tqdm import tqdm

    from keras_bert.preprocessor import BertPreprocessor
    from tasks.examples import Examples

    preprocessor = BertPreprocessor(tokenizer, sequence_length, pad_to_longest=True)
    num_choices, pieces = table.num_choices, []
    with tqdm(total=len(table.lines), desc=description, unit="row", mininterval=0.5) as progress:
        for start in range(0, len(table.lines), ENCODE_ROWS):
            rows = table.choices[start : start + ENCODE_ROWS]
            contexts = [text for text in table.contexts[start : start + ENCODE_ROWS] for _ in range(num_choices)]
            pieces.append(_encode(preprocessor, (contexts, [choice for choices in rows for choice in choices])))
            progress.update(len(rows))
    token_ids, segment_ids, lengths = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    row_splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    labels = {} if table.labels is None else {"labels": np.array(table.labels, np.int32)}
    return Examples(token_ids, segment_ids, row_splits, labels, {}, num_choices)


def _encode(preprocessor, pairs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    outputs = {name: np.asarray(value) for name, value in preprocessor(pairs).items()}
    mask = outputs["padding_mask"].astype(bool)  # [rows * K, S]
    return outputs["token_ids"][mask], outputs["segment_ids"][mask], mask.sum(axis=1)
