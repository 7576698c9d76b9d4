"""Finds, checks and reads TensorFlow's checkpoint files, `<prefix>.index` and `<prefix>.data-00000-of-00001`.

Two kinds of checkpoint use these files. A TensorFlow 1 checkpoint names its variables
(`bert/embeddings/word_embeddings`); a TensorFlow 2 checkpoint also holds a graph of Python objects, in which each
variable has its place.

The index is a table in LevelDB's format. Every number in it is checked, since TensorFlow's own reader aborts the
process on an impossible shape, and allocates whatever memory a length claims. It reads only what has passed the checks.
"""

import functools
import glob
import math
import mmap
import os
import pathlib
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError, first_line
from keras_bert.files import MOST_TEXT, check_size, parsing, read_lines
from keras_bert.formats.checkpoint import StoredTensor, check_claim

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # TensorFlow's name for the tensor with the graph of objects.
STATE_FILE = "checkpoint"
VOCABULARY_FILE = "vocab.txt"
_INDEX = ".index"
_FIVE_DIGITS = 5 * "[0-9]"
_CHECKSUM = 4  # Bytes between the length of a string and the string.

# Limits of an index. That of BERT-large with its optimizer's slots takes 100,000 bytes.
_MOST_INDEX, _LONGEST_NAME, _MOST_AXES, _MOST_NUMBERS = 2**21, 1000, 8, 2**48
_MOST_SHARED = 20  # Bytes of keys per byte of a block, which stores a key without the prefix shared with the last one.
_LONGEST_VARINT = 10  # Bytes for 64 bits, seven in each.
_FOOTER, _TRAILER = 48, 5  # Bytes at the end of an index and of each block (tensorflow/core/lib/io/format.h).


def find_prefix(path: str) -> str | None:
    """Returns the prefix of a checkpoint's files, or None if there is no checkpoint.

    Args:
        path: the prefix itself, or a directory. If the directory has several checkpoints, the one that its file
            `checkpoint` names is chosen, else the one with the most steps, else the newest.
    """
    if os.path.isfile(path + _INDEX):
        return path
    if not os.path.isdir(path):
        return None
    names = [name.removesuffix(_INDEX) for name in os.listdir(path) if name.endswith(_INDEX)]
    if not names:
        return None
    named = _named_by_state(path)
    if named not in names:
        named = max(names, key=lambda name: (_steps(name), os.path.getmtime(os.path.join(path, name + _INDEX)), name))
    return os.path.join(path, named)


def _named_by_state(directory: str) -> str | None:
    """Returns the name in the file `checkpoint`, whose path may be of the machine that trained the model."""
    file = os.path.join(directory, STATE_FILE)
    if not os.path.isfile(file):
        return None
    matches = (re.match(r'model_checkpoint_path: "(?:.*[/\\])?(.*)"', line) for _, line in read_lines(file, MOST_TEXT))
    return next((match[1] for match in matches if match), None)


def _steps(name: str) -> int:
    match = re.search(r"-(\d+)$", name)
    return int(match[1]) if match else -1


def mentions(prefix: str, name: str) -> bool:
    """Returns whether a checkpoint's index contains `name`, such as the start of a variable's name."""
    return search(prefix + _INDEX, re.escape(name).encode()) is not None


def search(path: str, pattern: bytes) -> re.Match | None:
    """Searches a file without reading it into memory."""
    if not os.path.getsize(path):  # An empty file cannot be mapped.
        return None
    with open(path, "rb") as file:
        return re.search(pattern, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def directory_of(path: str) -> str:
    """Returns the directory of a checkpoint that is named by directory or prefix."""
    return path if os.path.isdir(path) else os.path.dirname(path)


def find_vocabulary(path: str) -> str | None:
    """Returns the path of `vocab.txt` beside a checkpoint that is named by directory or prefix, or None."""
    file = os.path.join(directory_of(path), VOCABULARY_FILE)
    return file if os.path.isfile(file) else None


class TensorFlowCheckpoint:
    """The variables of a checkpoint, each read only when it is needed.

    Attributes:
        path: str, the prefix.
        shapes: tuple of int by the name of the variable.

    Raises:
        InputError: the index is damaged, or a data file is missing or too short for what the index says.
    """

    def __init__(self, path: str):
        import tensorflow as tf

        self.path = path
        index = path + _INDEX
        self._entries = read_index(index)
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}
        self._files = _data_files(path)
        sizes = [os.path.getsize(file) for file in self._files]
        with parsing(index, "checkpoint index"):
            for entry in self._entries.values():
                check_claim(self._files[entry.shard], entry.offset + entry.size, sizes[entry.shard])
            self._reader = tf.train.load_checkpoint(path)
        check_claim(self._files[-1], sum(entry.size for entry in self._entries.values()), sum(sizes))

    def tensor(self, name: str) -> StoredTensor:
        """Returns a variable, unread, in the checkpoint's own layout."""
        return StoredTensor(name, self.shapes[name], functools.partial(self.read, name))

    def read(self, name: str) -> np.ndarray:
        """Reads a numeric variable in its stored type.

        Raises:
            InputError: the data is damaged or not numeric.
        """
        try:
            if not self._entries[name].is_numeric:
                raise TypeError("strings")
            return self._reader.get_tensor(name)
        except Exception as error:  # A damaged file can raise any of TensorFlow's errors.
            raise InputError(
                f"{self.path}: cannot read {name}, expected a whole array of shape {self.shapes.get(name)}, found: "
                f"{first_line(error)}. Fetch the checkpoint again."
            ) from error

    def read_string(self, name: str, most_bytes: int) -> bytes:
        """Reads a variable of one string. TensorFlow would allocate whatever length the string claims.

        Raises:
            ValueError: the string is damaged, or has more than `most_bytes`.
        """
        entry = self._entries[name]
        with open(self._files[entry.shard], "rb") as file:
            file.seek(entry.offset)
            content = file.read(min(entry.size, most_bytes + 1))
        (length,), start = varints(content, 0, 1)
        content = content[start + _CHECKSUM :]
        if entry.shape or length > most_bytes or length != len(content):
            raise ValueError(f"expected one string of at most {most_bytes:,} bytes, found {entry.size:,}")
        return content


def _data_files(prefix: str) -> list[str]:
    """Lists the data files; raises InputError if one is missing."""
    existing = glob.glob(f"{glob.escape(prefix)}.data-{_FIVE_DIGITS}-of-{_FIVE_DIGITS}")
    count = max((int(name[-5:]) for name in existing), default=1)
    paths = [f"{prefix}.data-{number:05d}-of-{count:05d}" for number in range(count)]
    missing = [path for path in paths if not os.path.isfile(path)]
    if missing:
        raise InputError(f"{missing[0]}: no such file. Expected all {count} data files, found {count - len(missing)}.")
    return paths


# === The index ===


class Entry(NamedTuple):
    """A variable in the data files.

    Attributes:
        shape: tuple of int.
        is_numeric: bool; False for strings and serialized objects.
        shard: int, number of the data file.
        offset, size: int, bytes.
    """

    shape: tuple[int, ...]
    is_numeric: bool
    shard: int
    offset: int
    size: int


def read_index(path: str) -> dict[str, Entry]:
    """Returns the variables by name.

    Raises:
        InputError: the index is damaged, or a number in it is impossible.
    """
    check_size(path, _MOST_INDEX)
    with parsing(path, "checkpoint index"):
        content = pathlib.Path(path).read_bytes()
        (_, _, *handle), _ = varints(content[-_FOOTER:], 0, 4)
        blocks = [varints(value, 0, 2)[0] for _, value in _block(content, *handle)]
        if sum(size for _, size in blocks) > len(content):
            raise ValueError("blocks that overlap")
        pairs = [pair for block in blocks for pair in _block(content, *block)]
        if len(pairs) != len(dict(pairs)):
            raise ValueError("two variables of one name")
        return {name.decode(): _entry(value) for name, value in pairs if name}  # The empty name is the header's.


def _entry(value: bytes) -> Entry:
    import tensorflow as tf
    from tensorflow.core.protobuf import tensor_bundle_pb2

    message = tensor_bundle_pb2.BundleEntryProto.FromString(value)
    shape, dtype = tuple(axis.size for axis in message.shape.dim), tf.as_dtype(message.dtype)
    numbers = (*shape, message.shard_id, message.offset, message.size)
    # TensorFlow multiplies all axes, even if one of them is zero.
    is_possible = len(shape) <= _MOST_AXES and math.prod(max(axis, 1) for axis in shape) <= _MOST_NUMBERS
    if min(numbers) < 0 or not is_possible or message.slices:
        raise ValueError(f"a variable in parts, or of shape {shape[:_MOST_AXES]}")
    is_numeric = dtype.is_floating or dtype.is_integer or dtype.is_bool
    if is_numeric and message.size != math.prod(shape) * dtype.size:
        raise ValueError(f"a variable of shape {shape} in {message.size} bytes")
    return Entry(shape, is_numeric, *numbers[-3:])


def _block(content: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block; each key is stored without the prefix that it shares with the last one."""
    if start + size + _TRAILER > len(content) or content[start + size]:
        raise ValueError("a block that is compressed, or beyond the file")
    block = content[start : start + size]
    end = size - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    restarts = {place for (place,) in struct.iter_unpack("<I", block[end:-4])}
    place, key, in_keys = 0, b"", 0
    while place < end:
        restarts.discard(place)
        (shared, own, length), place = varints(block, place, 3)
        key, start, place = key[:shared] + block[place : place + own], place + own, place + own + length
        in_keys += len(key)
        if len(key) != shared + own or len(key) > _LONGEST_NAME or in_keys > _MOST_SHARED * size or place > end:
            raise ValueError("a key that is too long")
        yield key, block[start:place]
    if restarts - {0}:  # TensorFlow looks for a key at these places.
        raise ValueError("keys in other places than it says")


def varints(data: bytes, place: int, count: int) -> tuple[list[int], int]:
    """Reads varints, with seven bits per byte and at most ten bytes each.

    Returns:
        The numbers, and the position after them.

    Raises:
        ValueError: a number has more bytes.
    """
    numbers = []
    for _ in range(count):
        number = 0
        for shift in range(0, 7 * _LONGEST_VARINT, 7):
            number |= (data[place] & 127) << shift
            place += 1
            if data[place - 1] < 128:
                break
        else:
            raise ValueError(f"a number of more than {_LONGEST_VARINT} bytes")
        numbers.append(number)
    return numbers, place
