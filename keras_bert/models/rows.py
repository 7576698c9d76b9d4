"""The rows that `fit`, `evaluate` and `predict` of a task take: texts, labels and weights, in columns of any kind."""

import inspect
import math

import keras
import numpy as np
import tensorflow as tf


def read_rows(name: str, rows):
    """Converts rows to a tensor; lists of different lengths become a ragged one.

    Args:
        name: name of the argument that has the rows, for messages.
        rows: list, pandas Series or DataFrame of one column, or array of objects or floats; a tuple or dict of them;
            anything else is returned unchanged.

    Raises:
        ValueError: there are no rows, a value is missing (None, NaN, infinity or an empty cell of pandas), or a
            generator gives the rows.
    """
    if isinstance(rows, tuple):
        return tuple(read_rows(name, column) for column in rows)
    if isinstance(rows, dict):
        return {key: read_rows(name, column) for key, column in rows.items()}
    if inspect.isgenerator(rows) or isinstance(rows, keras.utils.PyDataset):
        cure = "`from_generator` with an `output_signature` makes one"
        raise ValueError(f"`{name}` must be rows or a tf.data.Dataset ({cure}). Received: {rows!r}")
    if hasattr(rows, "iloc") and rows.shape[1:] == (1,):  # A DataFrame.
        return read_rows(name, rows.iloc[:, 0])
    is_checked = isinstance(rows, np.ndarray) and rows.dtype.kind in "fOUS"
    if not (isinstance(rows, list) or hasattr(rows, "isna") or is_checked) or getattr(rows, "ndim", 1) != 1:
        return rows
    for number, row in enumerate(rows):
        if _is_missing(row):
            raise ValueError(f"`{name}` must have a value in each row. Received: {row!r} in row {number}")
    values = list(rows)
    if not values:
        raise ValueError(f"`{name}` must have at least one row. Received: {rows!r}")
    is_ragged = len({len(row) for row in values if isinstance(row, list | tuple | np.ndarray)}) > 1
    return tf.ragged.constant(values) if is_ragged else tf.constant(values)


def _is_missing(row) -> bool:
    if isinstance(row, list | tuple):
        return any(value is None for value in row)  # A word's score may be NaN.
    is_number = isinstance(row, float | np.floating)
    return row is None or type(row).__name__ == "NAType" or (is_number and not np.isfinite(row))


def read_examples(x, y, sample_weight=None) -> tuple:
    """Returns all three as `read_rows` does; raises ValueError as it does, or if their columns differ in length."""
    if sample_weight is not None and y is None:
        raise ValueError("`sample_weight` weights labels. Received: no `y`")
    examples = read_rows("x", x), read_rows("y", y), read_rows("sample_weight", sample_weight)
    check_lengths("`x`, `y` and `sample_weight`", examples)
    return examples


def check_lengths(names: str, columns) -> None:
    """Raises ValueError if columns, nested in tuples and dicts, differ in length; `names` says which they are."""
    lengths = [column.shape[0] for column in keras.tree.flatten(columns) if len(getattr(column, "shape", ()))]
    if len(set(lengths)) > 1:
        raise ValueError(f"{names} must have as many rows in each column. Received: {lengths} rows")


def has_rows(columns) -> bool:
    """Returns whether `columns` are arrays or tensors, rather than None, a dataset or a generator."""
    return columns is not None and all(hasattr(column, "shape") for column in _flatten(columns))


def split_rows(columns, share: float) -> tuple:
    """Returns the first rows, and the last ones, which are the given `share` of all.

    Raises:
        ValueError: either part would be empty.
    """
    count = _flatten(columns)[0].shape[0]
    end = math.floor(count * (1.0 - share))
    if not 0 < end < count:
        raise ValueError(f"`validation_split` must leave rows on both sides. Received: {share} of {count} rows")
    return _map(lambda column: column[:end], columns), _map(lambda column: column[end:], columns)


def make_batches(columns, batch_size: int | None = None, shuffle: bool = False) -> tf.data.Dataset:
    """Returns batches of rows.

    Args:
        columns: arrays or tensors of the same length, nested in tuples and dicts; None among them stays None.
        batch_size: int; None: 32, as in Keras.
        shuffle: bool, whether to draw a new order in each epoch.
    """
    columns = _map(_as_tensor, columns)
    rows = tf.data.Dataset.range(_flatten(columns)[0].shape[0])
    rows = rows.shuffle(rows.cardinality()) if shuffle else rows
    batches = rows.batch(32 if batch_size is None else batch_size)
    return batches.map(lambda numbers: _map(lambda column: tf.gather(column, numbers), columns))


def _as_tensor(column) -> tf.Tensor | tf.RaggedTensor:
    is_tensor = isinstance(column, tf.Tensor | tf.RaggedTensor)
    return column if is_tensor else tf.convert_to_tensor(keras.ops.convert_to_numpy(column))


def _flatten(columns) -> list:
    return [column for column in keras.tree.flatten(columns) if column is not None]


def _map(function, columns):
    return keras.tree.map_structure(lambda column: None if column is None else function(column), columns)
