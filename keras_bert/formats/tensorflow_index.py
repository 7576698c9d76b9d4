"""Reads the index of a TensorFlow checkpoint, a table as LevelDB's, and believes no number in it.

TensorFlow's own reader ends the process over an impossible shape, and takes the memory that any length asks for. It may
read an index that came through here.
"""

import math
import pathlib
import struct
from collections.abc import Iterator
from typing import NamedTuple

from keras_bert.files import check_size, parsing

_MOST_BYTES = 2**21  # BERT-large and its optimizer's slots take 100,000.
_LONGEST_NAME = 1000
_MOST_AXES, _MOST_NUMBERS = 8, 2**48
_FOOTER, _TRAILER = 48, 5  # Bytes at the end of the file and of each block (tensorflow/core/lib/io/format.h).


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
    check_size(path, _MOST_BYTES)
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
    # TensorFlow multiplies the axes, even if another one is zero.
    is_possible = len(shape) <= _MOST_AXES and math.prod(max(axis, 1) for axis in shape) <= _MOST_NUMBERS
    if min(numbers) < 0 or not is_possible or message.slices:
        raise ValueError(f"a variable in parts, or of shape {shape[:_MOST_AXES]}")
    is_numeric = dtype.is_floating or dtype.is_integer or dtype.is_bool
    if is_numeric and message.size != math.prod(shape) * dtype.size:
        raise ValueError(f"a variable of shape {shape} in {message.size} bytes")
    return Entry(shape, is_numeric, *numbers[-3:])


def _block(content: bytes, start: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block; each key continues the one before it."""
    if start + size + _TRAILER > len(content) or content[start + size]:
        raise ValueError("a block that is compressed, or beyond the file")
    block = content[start : start + size]
    end = size - 4 - 4 * struct.unpack("<I", block[-4:])[0]
    restarts = {place for (place,) in struct.iter_unpack("<I", block[end:-4])}
    place, key = 0, b""
    while place < end:
        restarts.discard(place)
        (shared, own, length), place = varints(block, place, 3)
        key, start, place = key[:shared] + block[place : place + own], place + own, place + own + length
        if len(key) != shared + own or len(key) > _LONGEST_NAME or place > end:
            raise ValueError("a key that is too long")
        yield key, block[start:place]
    if restarts - {0}:  # TensorFlow looks for a key at these places.
        raise ValueError("keys in other places than it says")


def varints(data: bytes, place: int, count: int) -> tuple[list[int], int]:
    """Reads numbers of seven bits a byte; returns them, and the place behind them."""
    found = []
    for _ in range(count):
        value, shift = 0, 0
        while data[place] & 128:
            value, shift, place = value | (data[place] & 127) << shift, shift + 7, place + 1
        found.append(value | data[place] << shift)
        place += 1
    return found, place
