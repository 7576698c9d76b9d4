"""Writes embeddings as NumPy archives, Parquet, or google-research/bert's JSON lines.

Every format is written atomically and block by block, so that memory does not grow with the file.

Shapes: N rows of a block, U tokens of its rows, W words, D width of a vector.
"""

import contextlib
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, is_directory
from tasks.text.conll import splits_of


class Column(NamedTuple):
    """The values of N rows, one row after another.

    Attributes:
        values: array whose first axis is rows, tokens or words.
        splits: int64, shape (N + 1,); row i is `values[splits[i] : splits[i + 1]]`. None: row i is `values[i]`.
    """

    values: np.ndarray
    splits: np.ndarray | None = None


# The columns of a block, by name:
#   index         int64 (N,)         index of the row in the input
#   <vectors>     float32 (U, D)     one column per output of the extractor; (N, D) if pooled
#   tokens        str (U,)           WordPieces; this and all columns below only for vectors of tokens
#   token_ids     int32 (U,)
#   segment_ids   int32 (U,)
#   starts, ends  int32 (U,)         character span of the token in its text; 0, 0 for special tokens
#   word_starts   int32 (W,)         index of each word's first token within its row; only for sentences of words
Block = dict[str, Column]
Write = Callable[[Block], None]
LayerIndices = dict[str, int | str]


def rows_of(block: Block) -> Iterator[dict[str, Any]]:
    """Yields the values of each row by column; arrays are views."""
    for row in range(len(block["index"].values)):
        yield {
            name: values[row] if splits is None else values[splits[row] : splits[row + 1]]
            for name, (values, splits) in block.items()
        }


@contextlib.contextmanager
def open_writer(path: str, layer_indices: LayerIndices) -> Iterator[Write]:
    """Opens a file for embeddings in the format of its extension, and yields the function that writes a block.

    Args:
        path: the file; `WRITERS` lists the extensions.
        layer_indices: google-research/bert's index of the layer, or another name, of each column of vectors, for JSON
            lines.

    Raises:
        InputError: as in `check_path`, or the directory cannot be written.
    """
    open_format = WRITERS[check_path(path)]
    with atomic_path(path) as temporary, open_format(temporary, layer_indices) as write:
        yield write


def check_path(path: str) -> str:
    """Returns the extension of an output file.

    Raises:
        InputError: the extension is unknown, or the path is a directory.
    """
    extension = os.path.splitext(path)[1].lower()
    if extension not in WRITERS:
        raise InputError(f"--output_file={path}: expected a name that ends in {', '.join(WRITERS)}.")
    if is_directory(path):
        raise InputError(f"--output_file={path}: is a directory. Name a file.")
    return extension


# === NumPy archive ===


_SPLITS = {"token_ids": "row_splits", "word_starts": "word_splits"}


@contextlib.contextmanager
def _open_npz(path: str, _: LayerIndices) -> Iterator[Write]:
    """Writes an uncompressed `.npy` per array, for `np.load(path)`.

    The arrays are `indices` (N,) and the vectors by name, (U, D) or (N, D); for tokens also `tokens` (strings),
    `token_ids segment_ids starts ends` (U,) and `row_splits` (N + 1,); for sentences also `word_starts` (W,) and
    `word_splits` (N + 1,).

    A `.npy` file states its size before its values, but the size is known only at the end. So arrays grow in anonymous
    files, which vanish with the process, and are then copied into the archive. The disk must hold them twice.
    """
    files, lengths = {}, defaultdict(list)

    def write(block: Block) -> None:
        for name, (values, splits) in block.items():
            name_in_file = "indices" if name == "index" else name
            if name_in_file not in files:
                file = stack.enter_context(tempfile.TemporaryFile(dir=os.path.dirname(path)))
                files[name_in_file] = file, values.dtype, values.shape[1:]
            files[name_in_file][0].write(values.tobytes())
            if name in _SPLITS:
                lengths[_SPLITS[name]].append(np.diff(splits))

    with contextlib.ExitStack() as stack:
        yield write
        arrays = {name: np.memmap(file, dtype).reshape(-1, *shape) for name, (file, dtype, shape) in files.items()}
        arrays |= {name: splits_of(np.concatenate(of_blocks)) for name, of_blocks in lengths.items()}
        with open(path, "wb") as archive:
            np.savez(archive, **arrays)


# === Parquet ===


@contextlib.contextmanager
def _open_parquet(path: str, _: LayerIndices) -> Iterator[Write]:
    """Writes a row per input row with pyarrow, and a row group per block.

    The columns are `index` (int64) and the vectors by name (fixed-size list of float; for tokens a list of these). For
    tokens there are also `tokens` (list of string) and `token_ids segment_ids starts ends` (lists of int32), for
    sentences also `word_starts` (list of int32).
    """
    import pyarrow as arrow
    from pyarrow import parquet

    file = None

    def column_of(values: np.ndarray, splits: np.ndarray | None):
        array = arrow.array(values.ravel())
        if values.ndim == 2:
            array = arrow.FixedSizeListArray.from_arrays(array, values.shape[1])
        return array if splits is None else arrow.ListArray.from_arrays(arrow.array(splits.astype(np.int32)), array)

    def write(block: Block) -> None:
        nonlocal file
        table = arrow.table({name: column_of(*column) for name, column in block.items()})
        file = file or stack.enter_context(parquet.ParquetWriter(path, table.schema))
        file.write_table(table)

    with contextlib.ExitStack() as stack:
        yield write


# === JSON lines ===


@contextlib.contextmanager
def _open_json_lines(path: str, layer_indices: LayerIndices) -> Iterator[Write]:
    """Writes google-research/bert's format (extract_features.py: main), with values rounded to six digits as there.

        {"linex_index": 0, "features": [{"token": "[CLS]", "layers": [{"index": -1, "values": [...]}, ...]}, ...]}

    In addition, each token has `start` and `end`, and a sentence has `word_starts`. For combined layers `index` is the
    name of the combination. A pooled row has `layers` instead of `features`.
    """

    def line_of(row: dict[str, Any]) -> dict[str, Any]:
        indices = {name: index for name, index in layer_indices.items() if name in row}
        vectors = np.stack([row[name] for name in indices], axis=-2)  # [U, layers, D], or [layers, D] if pooled
        vectors = np.round(vectors.astype(np.float64), 6).tolist()

        def layers_of(vectors: list[list[float]]) -> list[dict]:
            return [{"index": index, "values": values} for index, values in zip(indices.values(), vectors, strict=True)]

        line = {"linex_index": int(row["index"])}
        if "tokens" not in row:
            return {**line, "layers": layers_of(vectors)}
        columns = (row[name].tolist() for name in ("tokens", "starts", "ends"))
        line["features"] = [
            {"token": token, "layers": layers_of(states), "start": start, "end": end}
            for token, start, end, states in zip(*columns, vectors, strict=True)
        ]
        return line | ({"word_starts": row["word_starts"].tolist()} if "word_starts" in row else {})

    with open(path, "w", encoding="utf-8", newline="\n") as file:
        yield lambda block: file.writelines(json.dumps(line_of(row)) + "\n" for row in rows_of(block))


WRITERS = {".npz": _open_npz, ".parquet": _open_parquet, ".jsonl": _open_json_lines}
