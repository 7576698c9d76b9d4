"""Finds, checks and reads TensorFlow's checkpoint files, `<prefix>.index` and `<prefix>.data-00000-of-00001`.

Two kinds of checkpoint use these files. A TensorFlow 1 checkpoint names its variables
(`bert/embeddings/word_embeddings`); a TensorFlow 2 checkpoint also holds a graph of Python objects, in which each
variable has its place.
"""

import glob
import math
import os
import re

import numpy as np

from keras_bert.errors import InputError, first_line
from keras_bert.files import read_lines
from keras_bert.tokenization.vocabulary import check_rows

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # TensorFlow's name for the tensor with the graph of objects.
STATE_FILE = "checkpoint"
VOCABULARY_FILE = "vocab.txt"
_INDEX = ".index"


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
    for _, line in read_lines(file):
        match = re.match(r'model_checkpoint_path: "(.*)"', line)
        if match:
            return re.split(r"[/\\]", match[1])[-1]
    return None


def _steps(name: str) -> int:
    match = re.search(r"-(\d+)$", name)
    return int(match[1]) if match else -1


def mentions(prefix: str, name: str) -> bool:
    """Tells whether a checkpoint's index holds the start of a variable's name; reads some kilobytes, no TensorFlow."""
    with open(prefix + _INDEX, "rb") as file:
        return name.encode() in file.read()


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
        check_rows(file, sum(1 for _ in read_lines(file)), rows)


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
        self._errors = (tf.errors.OpError, RuntimeError, ValueError)  # A damaged file can raise any of them.
        try:
            self._reader = tf.train.load_checkpoint(path)
            self.shapes = {name: tuple(shape) for name, shape in self._reader.get_variable_to_shape_map().items()}
        except self._errors as error:
            reason = first_line(error)
            raise InputError(f"{path}{_INDEX}: not a whole checkpoint index ({reason}). Fetch it again.") from error
        self._check_size(_data_files(path))

    def _check_size(self, files: list[str]) -> None:
        types = self._reader.get_variable_to_dtype_map()
        # The index does not tell the length of strings.
        sizes = {name: 0 if dtype.name == "string" else dtype.size for name, dtype in types.items()}
        expected = sum(math.prod(shape) * sizes[name] for name, shape in self.shapes.items())
        found = sum(os.path.getsize(file) for file in files)
        if found < expected:
            raise InputError(
                f"{files[-1]}: truncated. Expected at least {expected} bytes of data by {os.path.basename(self.path)}"
                f"{_INDEX}, found {found}. Fetch it again."
            )

    def read(self, name: str) -> np.ndarray:
        """Reads a variable in its stored type.

        Raises:
            InputError: its data is damaged.
        """
        try:
            return self._reader.get_tensor(name)
        except self._errors as error:
            raise InputError(
                f"{self.path}: cannot read {name}, expected a whole array of shape {self.shapes.get(name)}, found: "
                f"{first_line(error)}. Fetch the checkpoint again."
            ) from error


def _data_files(prefix: str) -> list[str]:
    """Lists the data files; raises InputError if one is missing."""
    found = glob.glob(f"{glob.escape(prefix)}.data-?????-of-?????")
    if not found:
        raise InputError(f"{prefix}.data-00000-of-00001: no such file. Expected the data beside {prefix}{_INDEX}.")
    count = max(int(name[-5:]) for name in found)
    expected = [f"{prefix}.data-{number:05d}-of-{count:05d}" for number in range(count)]
    missing = [name for name in expected if not os.path.isfile(name)]
    if missing:
        raise InputError(f"{missing[0]}: no such file. Expected all {count} data files, found {count - len(missing)}.")
    return expected
