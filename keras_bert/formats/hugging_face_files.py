"""Opens the weight files of a Hugging Face directory: safetensors or PyTorch's, whole or in shards."""

import contextlib
import functools
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from safetensors import safe_open

from keras_bert.errors import InputError
from keras_bert.files import parsing
from keras_bert.formats.checkpoint import StoredTensor, shard_paths
from keras_bert.formats.torch_file import open_torch_file

CONFIG_FILE = "config.json"
SAFETENSORS_FILE = "model.safetensors"
TORCH_FILE = "pytorch_model.bin"
_INDEX = ".index.json"  # Added to a file's name, it names the index of its shards.
# In transformers' order of preference: safetensors cannot hold code.
WEIGHT_FILES = (SAFETENSORS_FILE, SAFETENSORS_FILE + _INDEX, TORCH_FILE, TORCH_FILE + _INDEX)

_FLOATS = ("F64", "F32", "F16", "BF16")

_MOST_HEADER = 2**22  # Bytes of the names and shapes; BERT-large has 40,000.


class WeightFile(NamedTuple):
    """Open weights.

    Attributes:
        path: str, the file, or the index of the shards, for messages.
        tensors: StoredTensor by the stored name, which is its `source`.
    """

    path: str
    tensors: dict[str, StoredTensor]


@contextlib.contextmanager
def open_weights(directory: str) -> Iterator[WeightFile]:
    """Opens the weights of a directory; tensors can be read inside the `with`.

    Raises:
        InputError: the weights or a shard are missing, or a file is damaged.
    """
    path = find_weights(directory)
    if path is None:
        raise InputError(
            f"{directory}: no weights beside {CONFIG_FILE}. Expected {SAFETENSORS_FILE} or {TORCH_FILE}, or the shards "
            f"that {SAFETENSORS_FILE + _INDEX} or {TORCH_FILE + _INDEX} lists."
        )
    files = [path]
    if path.endswith(_INDEX):
        # A shard has the ending of its index, so that no index of safetensors leads to a pickle.
        files = shard_paths(path, os.path.splitext(path.removesuffix(_INDEX))[1])
    tensors = {}
    with contextlib.ExitStack() as stack:
        for file in files:
            tensors |= _open_file(file, stack)
        yield WeightFile(path, tensors)


def find_weights(directory: str) -> str | None:
    """Returns the path of the weights or of their index, or None if the directory has neither."""
    paths = (os.path.join(directory, name) for name in WEIGHT_FILES)
    return next((path for path in paths if os.path.isfile(path)), None)


def _open_file(path: str, stack: contextlib.ExitStack) -> dict[str, StoredTensor]:
    if path.endswith(".bin"):
        return open_torch_file(path)
    with parsing(path, "safetensors file"):
        with open(path, "rb") as file:
            (header,) = struct.unpack("<Q", file.read(8))
        if _MOST_HEADER < header < os.path.getsize(path):
            raise InputError(f"{path}: expected a header of at most {_MOST_HEADER:,} bytes, found {header:,}.")
        stored = stack.enter_context(safe_open(path, framework="numpy"))
        shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}
    read = functools.partial(_read_tensor, path, stored)
    return {name: StoredTensor(name, shape, functools.partial(read, name)) for name, shape in shapes.items()}


def _read_tensor(path: str, stored, name: str) -> np.ndarray:
    dtype = stored.get_slice(name).get_dtype()
    if dtype not in _FLOATS:
        raise InputError(
            f"{path}: {name}: expected floats ({', '.join(_FLOATS)}), found {dtype}. Save the model unquantized."
        )
    if dtype == "BF16":
        import ml_dtypes  # noqa: F401  It teaches NumPy the type, and comes with TensorFlow.
    return stored.get_tensor(name)
