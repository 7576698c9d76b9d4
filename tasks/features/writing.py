"""Files of embeddings: NumPy archives, TFRecord, Parquet, and google-research/bert's JSON lines.

All formats are written block by block, in memory that does not grow with the file. A file appears whole or not at all.

Shapes: N rows of a block, U tokens of its rows, W words, D numbers of a vector.
"""

import contextlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import atomic_path


class Column(NamedTuple):
    """The values of N rows, one row after the other.

    Attributes:
        values: array whose first axis runs over rows, tokens or words.
        splits: int64, shape (N + 1,): row i holds `values[splits[i] : splits[i + 1]]`; None: it holds `values[i]`.
    """

    values: np.ndarray
    splits: np.ndarray | None = None


# The columns that are written at once, by name:
#   index         int64 (N,)         number of the row in the input, from 0
#   <vectors>     float32 (U, D)     one column for each output of the extractor; (N, D) if pooled
#   tokens        str (U,)           pieces of the vocabulary; this and all below only for vectors of tokens
#   token_ids     int32 (U,)
#   segment_ids   int32 (U,)
#   starts, ends  int32 (U,)         characters of the text that the token stems from; 0, 0 for special tokens
#   word_starts   int32 (W,)         only for sentences of words: place of each word's first token within its row
Block = dict[str, Column]


def rows_of(block: Block) -> Iterator[dict[str, Any]]:
    """Yields the values of each row by column; arrays are views."""
    for row in range(len(block["index"].values)):
        yield {
            name: values[row] if splits is None else values[splits[row] : splits[row + 1]]
            for name, (values, splits) in block.items()
        }


@contextlib.contextmanager
def open_writer(path: str, layer_indices: dict[str, int | str]) -> Iterator:
    """Opens a file for embeddings and yields an object with `write(block)`; the extension chooses the format.

    Args:
        path: the file; `WRITERS` lists the extensions.
        layer_indices: what JSON lines call each column of vectors: google-research/bert's index of the layer.

    Raises:
        InputError: as `check_path`; or the directory cannot be written.
    """
    writer_class = WRITERS[check_path(path)]
    with atomic_path(path) as temporary, contextlib.closing(writer_class(temporary, layer_indices)) as writer:
        yield writer
        writer.finish()


def check_path(path: str) -> str:
    """Returns the extension of an output file.

    Raises:
        InputError: it is unknown, or needs a package that is not installed, or the path is a directory.
    """
    extension = os.path.splitext(path)[1].lower()
    if extension not in WRITERS:
        raise InputError(f"--output_file={path}: expected a name that ends in {', '.join(WRITERS)}.")
    if os.path.isdir(path):
        raise InputError(f"--output_file={path}: is a directory. Name a file.")
    if extension == ".parquet":
        _import_parquet(path)
    return extension


class _Writer:
    """Base of the formats that append to one file, `self.file`."""

    file = None

    def finish(self) -> None:
        """Completes the file; not called after an error."""

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


# === NumPy archive ===


class NpzWriter(_Writer):
    """One uncompressed `.npy` for each array: `np.load(path)`.

    `indices` (N,); vectors under their names, (U, D) or (N, D); for tokens `tokens` (strings), `token_ids segment_ids
    starts ends` (U,), `row_splits` (N + 1,); for sentences also `word_starts` (W,), `word_splits` (N + 1,).

    Arrays grow in anonymous files, which vanish with the process, and are copied into the archive at the end: the disk
    must hold them twice.
    """

    _NAMES = {"index": "indices"}
    _SPLITS = {"token_ids": "row_splits", "word_starts": "word_splits"}
    _LAST = ("row_splits", "word_starts", "word_splits", "tokens")

    def __init__(self, path: str, layer_indices: dict):
        del layer_indices
        self._path = path
        self._columns: dict[str, _GrowingArray] = {}

    def write(self, block: Block) -> None:
        for name, (values, splits) in block.items():
            column = self._column(self._NAMES.get(name, name), values)
            if name in self._SPLITS and splits is not None:
                limits = self._column(self._SPLITS[name], splits)
                limits.append(splits[min(limits.rows, 1) :] + column.rows)  # Their leading 0 is written once.
            column.append(values)

    def _column(self, name: str, like: np.ndarray) -> "_GrowingArray":
        if name not in self._columns:
            self._columns[name] = _GrowingArray(os.path.dirname(self._path), like)
        return self._columns[name]

    def finish(self) -> None:
        names = sorted(self._columns, key=lambda name: self._LAST.index(name) if name in self._LAST else -1)
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name in names:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    self._columns[name].copy_to(member)

    def close(self) -> None:
        for column in self._columns.values():
            column.file.close()


class _GrowingArray:
    """An array that grows along its first axis, in an anonymous file."""

    def __init__(self, directory: str, like: np.ndarray):
        self.file = tempfile.TemporaryFile(dir=directory)
        self.dtype, self.shape, self.rows = like.dtype, like.shape[1:], 0

    def append(self, values: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(values, self.dtype).tobytes())
        self.rows += len(values)

    def copy_to(self, file) -> None:
        """Writes the array as a `.npy` file."""
        description, shape = np.lib.format.dtype_to_descr(self.dtype), (self.rows, *self.shape)
        header = {"descr": description, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        self.file.seek(0)
        shutil.copyfileobj(self.file, file, 1 << 20)


# === TFRecord ===


class TFRecordWriter(_Writer):
    """A `tf.train.Example` for each row.

    `index` int64; vectors under their names, float, U * D or D values; for tokens `tokens` bytes, `token_ids
    segment_ids starts ends` and for sentences `word_starts`, int64.
    """

    def __init__(self, path: str, layer_indices: dict):
        import tensorflow as tf

        del layer_indices
        self._train = tf.train
        self.file = tf.io.TFRecordWriter(path)

    def write(self, block: Block) -> None:
        for row in rows_of(block):
            features = {name: self._feature(np.ravel(values)) for name, values in row.items()}
            example = self._train.Example(features=self._train.Features(feature=features))
            self.file.write(example.SerializeToString(deterministic=True))  # Else their order changes from run to run.

    def _feature(self, values: np.ndarray):
        train, listed = self._train, values.tolist()
        if values.dtype.kind == "f":
            return train.Feature(float_list=train.FloatList(value=listed))
        if values.dtype.kind == "i":
            return train.Feature(int64_list=train.Int64List(value=listed))
        return train.Feature(bytes_list=train.BytesList(value=[text.encode() for text in listed]))


# === Parquet ===


class ParquetWriter(_Writer):
    """A row for each row of the input: `index` int64; vectors as fixed-size lists of float, for tokens a list of them.

    For tokens `tokens` list of string, `token_ids segment_ids starts ends` and for sentences `word_starts`, lists of
    int32. Written by pyarrow, one row group a block.
    """

    def __init__(self, path: str, layer_indices: dict):
        del layer_indices
        self._arrow, self._parquet = _import_parquet(path)
        self._path = path

    def write(self, block: Block) -> None:
        table = self._arrow.table({name: self._array(*column) for name, column in block.items()})
        if self.file is None:
            self.file = self._parquet.ParquetWriter(self._path, table.schema)
        self.file.write_table(table)

    def _array(self, values: np.ndarray, splits: np.ndarray | None):
        arrow = self._arrow
        flat = values.tolist() if values.dtype.kind == "U" else np.ascontiguousarray(values).ravel()
        array = arrow.array(flat)
        if values.ndim == 2:
            array = arrow.FixedSizeListArray.from_arrays(array, values.shape[1])
        if splits is None:
            return array
        return arrow.ListArray.from_arrays(arrow.array(splits.astype(np.int32)), array)


def _import_parquet(path: str):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            f"--output_file={path}: Parquet needs the package pyarrow, which is not installed. Install it "
            "(pip install pyarrow), or choose another extension."
        ) from error
    return pyarrow, pyarrow.parquet


# === JSON lines ===


class JsonLinesWriter(_Writer):
    """google-research/bert's form (extract_features.py: main); values are rounded to six digits as there.

        {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1, "values": [...]}, ...]}, ...]}

    In addition each token has `start` and `end`, and a sentence `word_starts`. For combined layers `index` is the
    combination's name. A pooled row has `layers` in place of `features`.
    """

    def __init__(self, path: str, layer_indices: dict):
        self._layer_indices = layer_indices
        self.file = open(path, "w", encoding="utf-8", newline="\n")

    def write(self, block: Block) -> None:
        for row in rows_of(block):
            vectors = {
                index: np.round(row[name].astype(np.float64), 6).tolist()
                for name, index in self._layer_indices.items()
                if name in row
            }
            line: dict = {"linex_index": int(row["index"])}
            if "tokens" in row:
                line["features"] = _token_features(row, vectors)
            else:
                line["layers"] = [{"index": index, "values": values} for index, values in vectors.items()]
            if "word_starts" in row:
                line["word_starts"] = row["word_starts"].tolist()
            self.file.write(json.dumps(line) + "\n")


def _token_features(row: dict[str, np.ndarray], vectors: dict) -> list[dict]:
    columns = (row[name].tolist() for name in ("tokens", "starts", "ends"))
    return [
        {
            "token": token,
            "layers": [{"index": index, "values": values[place]} for index, values in vectors.items()],
            "start": start,
            "end": end,
        }
        for place, (token, start, end) in enumerate(zip(*columns, strict=True))
    ]


WRITERS = {".npz": NpzWriter, ".tfrecord": TFRecordWriter, ".parquet": ParquetWriter, ".jsonl": JsonLinesWriter}
