"""Files of embeddings: NumPy archives, TFRecord, Parquet, and google-research/bert's JSON lines.

All are written block after block, in memory that does not grow with the file, and appear whole or not at all.

Shapes: N rows of a block, U tokens of its rows, W words, D features of a vector.
"""

import contextlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import atomic_path


class Tokens(NamedTuple):
    """The tokens of N rows, one row after the other; see `tasks.features.data.Encoded`.

    Attributes:
        token_ids, segment_ids, starts, ends: int32, shape (U,).
        row_splits: int64, shape (N + 1,).
        word_starts: int32, shape (W,): place of each word's first token within its row; None for texts.
        word_splits: int64, shape (N + 1,); None for texts.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    row_splits: np.ndarray
    word_starts: np.ndarray | None = None
    word_splits: np.ndarray | None = None


class Block(NamedTuple):
    """What is written at once.

    Attributes:
        indices: int64, shape (N,): the number of each row in the input, from 0.
        vectors: float32 by name, shape (U, D) with `tokens`, (N, D) without.
        tokens: `Tokens`, or None for pooled vectors.
    """

    indices: np.ndarray
    vectors: dict[str, np.ndarray]
    tokens: Tokens | None


class RowOfBlock(NamedTuple):
    """One row: `tokens` are slices of the block's, with `row_splits` left out; vectors (U, D) or (D,)."""

    index: int
    vectors: dict[str, np.ndarray]
    tokens: dict[str, np.ndarray]


def rows_of(block: Block) -> Iterator[RowOfBlock]:
    """Yields the rows of a block; arrays are views."""
    tokens = block.tokens
    for place, index in enumerate(block.indices.tolist()):
        if tokens is None:
            yield RowOfBlock(index, {name: array[place] for name, array in block.vectors.items()}, {})
            continue
        span = slice(*tokens.row_splits[place : place + 2])
        own = {name: getattr(tokens, name)[span] for name in ("token_ids", "segment_ids", "starts", "ends")}
        if tokens.word_starts is not None:
            own["word_starts"] = tokens.word_starts[slice(*tokens.word_splits[place : place + 2])]
        yield RowOfBlock(index, {name: array[span] for name, array in block.vectors.items()}, own)


@contextlib.contextmanager
def open_writer(path: str, vocabulary: Sequence[str], layer_indices: dict[str, int | str]) -> Iterator:
    """Opens a file for embeddings, of the kind that its name's ending says; gives an object with `write(block)`.

    Args:
        path: the file; see `WRITERS` for the endings.
        vocabulary: the pieces, by id.
        layer_indices: for each name of vectors what JSON lines call it: google-research/bert's index of the layer.

    Raises:
        InputError: as `check_path`; the directory cannot be written.
    """
    writer_class = WRITERS[check_path(path)]
    with atomic_path(path) as temporary, writer_class(temporary, np.array(vocabulary), layer_indices) as writer:
        yield writer


def check_path(path: str) -> str:
    """Returns the ending of an output file's name.

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


# === NumPy archive ===


class NpzWriter:
    """One `.npy` an array, uncompressed: `np.load(path)`.

    `indices` (N,); each vectors' name (U, D) or (N, D); of tokens `tokens` (strings), `token_ids segment_ids starts
    ends` (U,), `row_splits` (N + 1,), and of sentences `word_starts` (W,), `word_splits` (N + 1,).

    Arrays grow in files without a name, which vanish with the process, and are copied into the archive at the end:
    the disk must hold them twice.
    """

    def __init__(self, path: str, vocabulary: np.ndarray, layer_indices: dict):
        del layer_indices
        self._path = path
        self._vocabulary = vocabulary
        self._columns: dict[str, _Column] = {}
        self._ends = {"row_splits": 0, "word_splits": 0}

    def __enter__(self) -> "NpzWriter":
        return self

    def write(self, block: Block) -> None:
        self._append("indices", block.indices)
        for name, array in block.vectors.items():
            self._append(name, array)
        for name, array in ({} if block.tokens is None else block.tokens._asdict()).items():
            if array is not None and name in self._ends:
                self._append_splits(name, array)
            elif array is not None:
                self._append(name, array)

    def _append(self, name: str, array: np.ndarray) -> None:
        if name not in self._columns:
            self._columns[name] = _Column(os.path.dirname(self._path), array)
        self._columns[name].append(array)

    def _append_splits(self, name: str, splits: np.ndarray) -> None:
        begin = 0 if name not in self._columns else 1
        self._append(name, splits[begin:] + self._ends[name])
        self._ends[name] += int(splits[-1])

    def __exit__(self, kind, *_) -> None:
        with contextlib.ExitStack() as stack:
            for column in self._columns.values():
                stack.enter_context(column.file)
            if kind is None:
                self._write_archive()

    def _write_archive(self) -> None:
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, column in self._columns.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    column.write_header(member)
                    shutil.copyfileobj(column.rewound(), member, 1 << 20)
            if "token_ids" in self._columns:
                with archive.open("tokens.npy", "w", force_zip64=True) as member:
                    self._write_tokens(member)

    def _write_tokens(self, member) -> None:
        column = self._columns["token_ids"]
        column.write_header(member, self._vocabulary.dtype)
        file = column.rewound()
        while ids := file.read(1 << 20):
            member.write(self._vocabulary[np.frombuffer(ids, column.dtype)].tobytes())


class _Column:
    """An array that grows along its first axis, in a file without a name."""

    def __init__(self, directory: str, first: np.ndarray):
        self.file = tempfile.TemporaryFile(dir=directory)
        self.dtype, self.shape, self.rows = first.dtype, first.shape[1:], 0

    def append(self, array: np.ndarray) -> None:
        self.file.write(np.ascontiguousarray(array, self.dtype).data.cast("B") if array.size else b"")
        self.rows += len(array)

    def rewound(self):
        self.file.seek(0)
        return self.file

    def write_header(self, file, dtype: np.dtype | None = None) -> None:
        description = np.lib.format.dtype_to_descr(dtype or self.dtype)
        shape = (self.rows, *self.shape)
        header = {"descr": description, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)


# === TFRecord ===


class TFRecordWriter:
    """A `tf.train.Example` a row.

    `index` int64; each vectors' name, float, U * D or D values; of tokens `tokens` bytes, `token_ids segment_ids
    starts ends` and of sentences `word_starts`, int64.
    """

    def __init__(self, path: str, vocabulary: np.ndarray, layer_indices: dict):
        import tensorflow as tf

        del layer_indices
        self._tf = tf
        self._pieces = [str(piece).encode() for piece in vocabulary]
        self._file = tf.io.TFRecordWriter(path)

    def __enter__(self) -> "TFRecordWriter":
        return self

    def write(self, block: Block) -> None:
        train = self._tf.train
        for row in rows_of(block):
            features = {"index": train.Feature(int64_list=train.Int64List(value=[row.index]))}
            for name, array in row.vectors.items():
                features[name] = train.Feature(float_list=train.FloatList(value=array.ravel().tolist()))
            for name, array in row.tokens.items():
                features[name] = train.Feature(int64_list=train.Int64List(value=array.tolist()))
            if row.tokens:
                pieces = [self._pieces[number] for number in row.tokens["token_ids"]]
                features["tokens"] = train.Feature(bytes_list=train.BytesList(value=pieces))
            example = train.Example(features=train.Features(feature=features))
            self._file.write(example.SerializeToString())

    def __exit__(self, *_) -> None:
        self._file.close()


# === Parquet ===


class ParquetWriter:
    """A row a text: `index` int64; vectors as fixed-size lists of float, a list of them where there are tokens.

    Of tokens `tokens` list of string, `token_ids segment_ids starts ends` and of sentences `word_starts`, lists of
    int32. Written by pyarrow, a row group a block.
    """

    def __init__(self, path: str, vocabulary: np.ndarray, layer_indices: dict):
        del layer_indices
        self._arrow, self._parquet = _import_parquet(path)
        self._path = path
        self._vocabulary = vocabulary
        self._file = None

    def __enter__(self) -> "ParquetWriter":
        return self

    def write(self, block: Block) -> None:
        arrow, columns, tokens = self._arrow, {"index": block.indices}, block.tokens
        for name, array in block.vectors.items():
            flat = arrow.array(np.ascontiguousarray(array).ravel())
            lists = arrow.FixedSizeListArray.from_arrays(flat, array.shape[-1])
            columns[name] = lists if tokens is None else self._lists(tokens.row_splits, lists)
        if tokens is not None:
            strings = arrow.array(self._vocabulary[tokens.token_ids].tolist(), arrow.string())
            columns["tokens"] = self._lists(tokens.row_splits, strings)
            for name in ("token_ids", "segment_ids", "starts", "ends"):
                columns[name] = self._lists(tokens.row_splits, arrow.array(getattr(tokens, name)))
            if tokens.word_starts is not None:
                columns["word_starts"] = self._lists(tokens.word_splits, arrow.array(tokens.word_starts))
        table = arrow.table(columns)
        if self._file is None:
            self._file = self._parquet.ParquetWriter(self._path, table.schema)
        self._file.write_table(table)

    def _lists(self, splits: np.ndarray, values):
        return self._arrow.ListArray.from_arrays(self._arrow.array(splits.astype(np.int32)), values)

    def __exit__(self, *_) -> None:
        if self._file is not None:
            self._file.close()


def _import_parquet(path: str):
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(
            f"--output_file={path}: Parquet needs the package pyarrow, which is not installed. Install it "
            "(pip install pyarrow), or choose another ending."
        ) from error
    return pyarrow, pyarrow.parquet


# === JSON lines ===


class JsonLinesWriter:
    """google-research/bert's form (extract_features.py: main), values rounded to six digits as there.

        {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1, "values": [...]}, ...]}, ...]}

    Beside it each token has `start` and `end`, and a sentence `word_starts`. Where layers are combined, `index` is
    the combination's name. A pooled row has `layers` in the place of `features`.
    """

    def __init__(self, path: str, vocabulary: np.ndarray, layer_indices: dict):
        self._pieces = vocabulary.tolist()
        self._layer_indices = layer_indices
        self._file = open(path, "w", encoding="utf-8", newline="\n")

    def __enter__(self) -> "JsonLinesWriter":
        return self

    def write(self, block: Block) -> None:
        for row in rows_of(block):
            rounded = {
                self._layer_indices[name]: np.round(array.astype(np.float64), 6).tolist()
                for name, array in row.vectors.items()
            }
            line: dict = {"linex_index": row.index}
            if row.tokens:
                line["features"] = self._token_features(row, rounded)
            else:
                line["layers"] = [{"index": index, "values": values} for index, values in rounded.items()]
            if "word_starts" in row.tokens:
                line["word_starts"] = row.tokens["word_starts"].tolist()
            self._file.write(json.dumps(line) + "\n")

    def _token_features(self, row: RowOfBlock, rounded: dict) -> list[dict]:
        columns = (row.tokens[name].tolist() for name in ("token_ids", "starts", "ends"))
        return [
            {
                "token": self._pieces[token_id],
                "layers": [{"index": index, "values": values[place]} for index, values in rounded.items()],
                "start": start,
                "end": end,
            }
            for place, (token_id, start, end) in enumerate(zip(*columns, strict=True))
        ]

    def __exit__(self, *_) -> None:
        self._file.close()


WRITERS = {".npz": NpzWriter, ".tfrecord": TFRecordWriter, ".parquet": ParquetWriter, ".jsonl": JsonLinesWriter}
