"""Tables of labelled texts: reading them, turning them into token ids once, and batching them.

Shapes: N rows of a table, B rows of a batch, S tokens of the batch's longest row, T tokens of a whole table.
TensorFlow is imported where it is first needed, so that a wrong file is reported within a second.
"""

import csv
import os
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import expand_files, read_lines
from tasks.glue.tasks import Task

# Rows are sorted by length within pools of this many batches. Measured share of padding at batch size 32, padded to
# the batch's longest, SST-2 | RTE: unsorted 67% | 48%, 10 batches 18% | 8%, 50 batches 5% | 2%, whole epoch 0% | 1%.
POOL_BATCHES = 50
# Rows tokenized by one call of the preprocessor: some megabytes of intermediate tensors, and a moving progress bar.
ENCODE_ROWS = 1024
LABELS_SHOWN = 20


class Table(NamedTuple):
    """The rows of one file, in the file's order.

    Attributes:
        path: the file.
        lines: N line numbers, counted from 1: where each row starts.
        texts: N texts.
        text_pairs: N second texts, or None.
        labels: N labels, or None for a file without labels.
    """

    path: str
    lines: list[int]
    texts: list[str]
    text_pairs: list[str] | None
    labels: list[str] | None


class EncodedTable(NamedTuple):
    """The token ids of a table without any padding, row after row.

    Attributes:
        token_ids: int32, shape (T,).
        segment_ids: int32, shape (T,).
        row_splits: int64, shape (N + 1,): row i is `[row_splits[i], row_splits[i + 1])`.
        labels: int32 class numbers, shape (N,), or None.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    row_splits: np.ndarray
    labels: np.ndarray | None

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, int64, shape (N,)."""
        return np.diff(self.row_splits)


# === Files ===


def find_split(task: Task, data_dir: str | None, split: str, file: str | None) -> str:
    """Finds the file of a split.

    Args:
        task: the task, which knows its file formats.
        data_dir: the directory that holds `train.tsv`, `dev.tsv`, `test.tsv` (or `.csv`), or None.
        split: "train", "dev" or "test".
        file: the path that `--<split>_file` gave, or None; it goes before `data_dir`.

    Raises:
        InputError: there is no such file, or two of them, or its format is unknown.
    """
    if file:
        paths = expand_files([file])
        if len(paths) != 1:
            raise InputError(f"--{split}_file={file}: expected one file, found {len(paths)}: {', '.join(paths)}.")
        if task.headerless_columns is None and _extension(paths[0]) not in task.extensions:
            raise InputError(f"{paths[0]}: expected a file name that ends in {' or '.join(task.extensions)}.")
        return paths[0]
    if not data_dir:
        raise InputError(f"No {split} file was named. Give --{split}_file, or --data_dir with a {split}.tsv.")
    candidates = [os.path.join(data_dir, split + extension) for extension in task.extensions]
    found = [path for path in candidates if os.path.exists(path)]
    if len(found) != 1:
        state = "both are there" if found else "no such file"
        raise InputError(f"{' or '.join(candidates)}: {state}. Name the right one with --{split}_file.")
    return found[0]


def _extension(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def read_table(path: str, task: Task, with_labels: bool = True) -> Table:
    """Reads a table; a file whose name ends in `.csv` is CSV (RFC 4180 quoting), every other one TSV without quoting.

    Args:
        path: the file, UTF-8.
        task: which columns hold the texts and the label.
        with_labels: whether the label column is needed. Without it the label column may be missing and is not
            read, and the first row is always a header (as in GLUE's test files).

    Raises:
        InputError: no rows; a missing or ambiguous column; a row with too many or too few fields; an empty text
            or label; invalid CSV or UTF-8. The message names file and line.
    """
    is_csv = _extension(path) == ".csv"
    rows = _skip_blank_end(path, _csv_rows(path) if is_csv else _tsv_rows(path))
    columns, first_line = task.headerless_columns if with_labels else None, 1
    if columns is None:
        first_line, columns = next(rows, (1, None))
        if columns is None:
            raise InputError(f"{path}: the file is empty. Expected a header with column names, then rows.")
    names = [task.text_column, task.text_pair_column, task.label_column if with_labels else None]
    places = [_find_column(path, first_line, columns, name) for name in names]
    table = Table(path, [], [], None if places[1] is None else [], None if places[2] is None else [])
    for line, row in rows:
        if len(row) != len(columns):
            raise InputError(_field_count_message(path, line, row, columns, is_csv))
        table.lines.append(line)
        for values, place in zip(table[2:], places, strict=True):
            if values is None:
                continue
            if not row[place].strip():
                raise InputError(f"{path}:{line}: column {columns[place]!r} is empty. Fill it or remove the row.")
            values.append(row[place])
    if not table.texts:
        raise InputError(f"{path}: the file holds no rows. Expected one text a row.")
    return table


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(sys.maxsize)  # A text may be longer than Python's default of 131,072 characters.
    reader = csv.reader((text + "\n" for _, text in read_lines(path)), strict=True)
    while True:
        line = reader.line_num + 1  # where the row starts: a quoted field may span lines
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"{path}:{line}: not valid CSV in the row that starts here ({error}). Close every quote, and "
                'double a quote inside a quoted field ("").'
            ) from error
        if row is None:
            return
        yield line, row


def _tsv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    for line, text in read_lines(path):
        yield line, text.split("\t") if text else []


def _skip_blank_end(path: str, rows: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Passes over blank lines at the end of a file; one between rows may be a lost row, hence an error."""
    blank = None
    for line, row in rows:
        if row and blank is not None:
            raise InputError(f"{path}:{blank}: a blank line between rows. Remove it or fill it.")
        if row:
            yield line, row
        elif blank is None:
            blank = line


def _find_column(path: str, line: int, columns: Sequence[str], name: str | None) -> int | None:
    if name is None:
        return None
    count = list(columns).count(name)
    if count != 1:
        state = "no column" if count == 0 else f"{count} columns named"
        there = ", ".join(repr(column) for column in columns)
        raise InputError(
            f"{path}:{line}: {state} {name!r} in the header. Columns there: {there}. "
            "Name the right one with --text_column, --text_pair_column or --label_column."
        )
    return columns.index(name)


def _field_count_message(path: str, line: int, row: list[str], columns: Sequence[str], is_csv: bool) -> str:
    cure = "A comma inside a text needs quotes around the text." if is_csv else "A text must not contain a tab."
    return f"{path}:{line}: expected {len(columns)} fields ({', '.join(columns)}), found {len(row)}. {cure}"


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
        raise InputError(f"{source} has the one label {format_labels(chosen)}. Expected at least two to tell apart.")
    return chosen


def check_labels(table: Table, labels: Sequence[str]) -> None:
    """Checks that every label of the table is one of `labels`.

    Raises:
        InputError: the first row with another label, by file and line, with the labels expected.
    """
    known = set(labels)
    for line, label in zip(table.lines, table.labels, strict=True):
        if label not in known:
            raise InputError(f"{table.path}:{line}: unknown label {label!r}. Expected {format_labels(labels)}.")


def format_labels(labels: Sequence[str]) -> str:
    """Lists labels for a message: all of them, or the first twenty and how many there are."""
    shown = ", ".join(repr(label) for label in labels[:LABELS_SHOWN])
    return shown if len(labels) <= LABELS_SHOWN else f"{shown}, ... ({len(labels)} in all)"


# === Token ids ===


def encode_table(table: Table, preprocessor, labels: Sequence[str], description: str = "tokenize") -> EncodedTable:
    """Turns the texts into token ids, once, showing a progress bar.

    Args:
        table: the texts.
        preprocessor: a `BertPreprocessor` (it also truncates); padding is taken off again.
        labels: the labels in the order of their class numbers; not used for a table without labels.
        description: the name of the stage on the progress bar.

    Raises:
        InputError: a label of the table is not one of `labels`.
    """
    from tqdm import tqdm

    classes = None
    if table.labels is not None:
        check_labels(table, labels)
        numbers = {label: number for number, label in enumerate(labels)}
        classes = np.array([numbers[label] for label in table.labels], np.int32)
    pieces = []
    with tqdm(total=len(table.texts), desc=description, unit="row", mininterval=0.5) as progress:
        for start in range(0, len(table.texts), ENCODE_ROWS):
            texts = table.texts[start : start + ENCODE_ROWS]
            inputs = texts if table.text_pairs is None else (texts, table.text_pairs[start : start + ENCODE_ROWS])
            pieces.append(_encode(preprocessor, inputs))
            progress.update(len(texts))
    token_ids, segment_ids, lengths = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    row_splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return EncodedTable(token_ids, segment_ids, row_splits, classes)


def _encode(preprocessor, inputs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    outputs = {name: np.asarray(value) for name, value in preprocessor(inputs).items()}
    mask = outputs["padding_mask"].astype(bool)  # [rows, S]
    return outputs["token_ids"][mask], outputs["segment_ids"][mask], mask.sum(axis=1)


# === Batches ===


def count_steps(num_rows: int, batch_size: int, num_epochs: float) -> int:
    """Full batches in `num_epochs` passes over the rows (google-research/bert run_classifier.py: main)."""
    return int(num_rows * num_epochs / batch_size)


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Shuffles and batches the rows of one epoch: a pure function of (lengths, batch_size, seed, epoch).

    As in google-research/bert every batch is full: rows that fill no batch at the end of an epoch open the next one,
    so that E epochs give `count_steps(N, batch_size, E)` batches, and only the last epoch may leave rows over. Rows
    of similar length come together: the shuffled rows are sorted by length within pools of `POOL_BATCHES` batches,
    and the batches are shuffled again.

    Returns:
        Row numbers, int64, shape (batches, batch_size).
    """
    num_rows = len(lengths)
    start, stop = (count * num_rows // batch_size * batch_size for count in (epoch, epoch + 1))
    passes = range(start // num_rows, -(-stop // num_rows))
    stream = [np.random.default_rng([seed, number, 0]).permutation(num_rows) for number in passes]
    rows = np.concatenate([np.empty(0, np.int64), *stream])[start % num_rows :][: stop - start]
    pools = np.arange(len(rows)) // (POOL_BATCHES * batch_size)
    batches = rows[np.lexsort((lengths[rows], pools))].reshape(-1, batch_size)
    return np.random.default_rng([seed, epoch, 1]).permutation(batches)


def train_batches(lengths: np.ndarray, batch_size: int, seed: int, start_step: int, num_steps: int) -> np.ndarray:
    """Row numbers of the batches `[start_step, num_steps)`, int64, shape (batches, batch_size)."""
    epoch = start_step * batch_size // len(lengths)
    first = epoch * len(lengths) // batch_size
    batches, count = [np.empty((0, batch_size), np.int64)], first
    while count < num_steps:
        batches.append(epoch_batches(lengths, batch_size, seed, epoch))
        count += len(batches[-1])
        epoch += 1
    return np.concatenate(batches)[start_step - first : max(num_steps - first, 0)]


def make_train_dataset(
    encoded: EncodedTable, batch_size: int, seed: int, start_step: int, num_steps: int, length: int | None = None
):
    """Makes the training batches from `start_step` (batches already trained on) up to `num_steps`.

    Args:
        encoded: `EncodedTable` with labels.
        batch_size: rows of a batch, over all devices.
        seed: with the epoch it determines the order completely.
        start_step: batches to leave out, at no cost.
        num_steps: batches of the whole training.
        length: tokens to pad every row to (static shapes, for XLA); None pads to the batch's longest row.

    Returns:
        `tf.data.Dataset` of ({token_ids, segment_ids, padding_mask: int32 [B, S]}, {labels: int32 [B]}).
    """
    batches = train_batches(encoded.lengths, batch_size, seed, start_step, num_steps)
    limits = np.arange(len(batches) + 1) * batch_size
    return _make_dataset(encoded, batches.ravel(), limits, length, batch_size)


def make_eval_dataset(encoded: EncodedTable, batch_size: int):
    """Makes the batches of one pass over all rows, sorted by length, the last one as large as rows are left.

    Returns:
        (`tf.data.Dataset` as by `make_train_dataset`, without labels where the table has none, and the number of
        each row in the order of the batches: int64, shape (N,)).
    """
    order = np.argsort(encoded.lengths, kind="stable")
    limits = np.append(np.arange(0, len(order), batch_size), len(order))
    return _make_dataset(encoded, order, limits, None, batch_size), order


def _make_dataset(encoded: EncodedTable, order: np.ndarray, limits: np.ndarray, length: int | None, batch_size: int):
    """Batch i holds the rows `order[limits[i] : limits[i + 1]]`; shapes are static if `length` is given."""
    import tensorflow as tf

    token_ids = tf.RaggedTensor.from_row_splits(encoded.token_ids, encoded.row_splits)
    segment_ids = token_ids.with_values(tf.constant(encoded.segment_ids))
    labels = None if encoded.labels is None else tf.constant(encoded.labels)
    order = tf.constant(order)
    shape = [None if length is None else batch_size, length]

    def gather(start, limit):
        rows = order[start:limit]
        ids = tf.gather(token_ids, rows)
        features = {  # padding is id 0 throughout: the mask hides it
            "token_ids": ids.to_tensor(shape=shape),
            "segment_ids": tf.gather(segment_ids, rows).to_tensor(shape=shape),
            "padding_mask": tf.ones_like(ids).to_tensor(shape=shape),
        }
        return (features,) if labels is None else (features, {"labels": tf.gather(labels, rows)})

    dataset = tf.data.Dataset.from_tensor_slices((limits[:-1], limits[1:]))
    return dataset.map(gather, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
