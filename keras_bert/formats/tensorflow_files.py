"""Finds, checks and reads TensorFlow's checkpoint files, `<prefix>.index` and `<prefix>.data-00000-of-00001`.

Two kinds of checkpoint use these files. A TensorFlow 1 checkpoint names its variables
(`bert/embeddings/word_embeddings`); a TensorFlow 2 checkpoint also holds a graph of Python objects, in which each
variable has its place.
"""

import functools
import glob
import mmap
import os
import re

import numpy as np

from keras_bert.errors import InputError, first_line
from keras_bert.files import MOST_TEXT, parsing, read_lines
from keras_bert.formats.checkpoint import StoredTensor, check_claim
from keras_bert.formats.tensorflow_index import read_index, varints
from keras_bert.tokenization.vocabulary import check_rows

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # TensorFlow's name for the tensor with the graph of objects.
STATE_FILE = "checkpoint"
VOCABULARY_FILE = "vocab.txt"
_INDEX = ".index"
_FIVE_DIGITS = 5 * "[0-9]"
_CHECKSUM = 4  # Bytes between the length of a string and the string.


def find_prefix(path: str) -> str | None:
    """Returns the prefix of a checkpoint's files, or None if there is no checkpoint.

    Args:
        path: the prefix itself, or a directory. If that holds several checkpoints, the one that its `checkpoint` file
            names counts, else the one with the most steps, else the newest.
    """
    if os.path.isfile(path + _INDEX):
        return path
    if not os.path.isdir(path):
        return None
    found = [name.removesuffix(_INDEX) for name in os.listdir(path) if name.endswith(_INDEX)]
    if not found:
        return None
    named = _named_by_state(path)
    if named not in found:
        named = max(found, key=lambda name: (_steps(name), os.path.getmtime(os.path.join(path, name + _INDEX)), name))
    return os.path.join(path, named)


def _named_by_state(directory: str) -> str | None:
    """Returns the name in the file `checkpoint`, whose path may be one on the machine that trained."""
    file = os.path.join(directory, STATE_FILE)
    if not os.path.isfile(file):
        return None
    for _, line in read_lines(file, MOST_TEXT):
        match = re.match(r'model_checkpoint_path: "(.*)"', line)
        if match:
            return re.split(r"[/\\]", match[1])[-1]
    return None


def _steps(name: str) -> int:
    match = re.search(r"-(\d+)$", name)
    return int(match[1]) if match else -1


def mentions(prefix: str, name: str) -> bool:
    """Tells whether a checkpoint's index holds the start of a variable's name; needs no TensorFlow."""
    return search(prefix + _INDEX, re.escape(name).encode()) is not None


def search(path: str, pattern: bytes) -> re.Match | None:
    """Searches a file without reading it into memory."""
    if not os.path.getsize(path):  # It cannot be mapped.
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


def check_vocabulary(file: str | None, rows: int) -> None:
    """Compares a vocabulary, if there is one, with the rows of the token table.

    Raises:
        InputError: it has more pieces than the table rows.
    """
    if file:
        check_rows(file, sum(1 for _ in read_lines(file, MOST_TEXT)), rows)


class TensorFlowCheckpoint:
    """The variables of a checkpoint, each read when it is needed.

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
            ends = {}
            for entry in self._entries.values():
                ends[entry.shard] = max(ends.get(entry.shard, 0), entry.offset + entry.size)
            for shard, end in ends.items():
                check_claim(self._files[shard], end, sizes[shard])
            self._reader = tf.train.load_checkpoint(path)
        check_claim(self._files[-1], sum(entry.size for entry in self._entries.values()), sum(sizes))

    def tensor(self, name: str) -> StoredTensor:
        """Returns a variable in the checkpoint's own layout."""
        return StoredTensor(name, self.shapes[name], functools.partial(self.read, name))

    def read(self, name: str) -> np.ndarray:
        """Reads a variable of numbers in its stored type.

        Raises:
            InputError: its data is damaged, or holds no numbers.
        """
        try:
            if not self._entries[name].is_numeric:
                raise TypeError("strings")
            return self._reader.get_tensor(name)
        except Exception as error:  # A damaged file can raise any of TensorFlow's.
            raise InputError(
                f"{self.path}: cannot read {name}, expected a whole array of shape {self.shapes.get(name)}, found: "
                f"{first_line(error)}. Fetch the checkpoint again."
            ) from error

    def read_string(self, name: str, most_bytes: int) -> bytes:
        """Reads a variable of one string; TensorFlow would take the memory that the string's own length asks for.

        Raises:
            ValueError: it is damaged, or has more bytes.
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
    found = glob.glob(f"{glob.escape(prefix)}.data-{_FIVE_DIGITS}-of-{_FIVE_DIGITS}")
    if not found:
        raise InputError(f"{prefix}.data-00000-of-00001: no such file. Expected the data beside {prefix}{_INDEX}.")
    count = max(int(name[-5:]) for name in found)
    expected = [f"{prefix}.data-{number:05d}-of-{count:05d}" for number in range(count)]
    missing = [name for name in expected if not os.path.isfile(name)]
    if missing:
        raise InputError(f"{missing[0]}: no such file. Expected all {count} data files, found {count - len(missing)}.")
    return expected
