"""Opens the weight files of a Hugging Face directory: safetensors or PyTorch's, whole or in shards."""

import contextlib
import functools
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from safetensors import safe_open

from keras_bert.errors import InputError, shown
from keras_bert.files import parsing, read_json
from keras_bert.formats.checkpoint import StoredTensor
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
    with contextlib.ExitStack() as stack:
        yield WeightFile(path, _open_shards(path, stack) if path.endswith(_INDEX) else _open_file(path, stack))


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


def _open_shards(index: str, stack: contextlib.ExitStack) -> dict[str, StoredTensor]:
    directory = os.path.dirname(index)
    shard_of = _read_index(index)
    shards = sorted(set(shard_of.values()))
    missing = [shard for shard in shards if not os.path.isfile(os.path.join(directory, shard))]
    if missing:
        raise InputError(
            f"{index}: of the {len(shards)} shards that it lists, missing: {', '.join(missing)}. Fetch them."
        )
    opened = {shard: _open_file(os.path.join(directory, shard), stack) for shard in shards}
    for name, shard in shard_of.items():
        if name not in opened[shard]:
            raise InputError(
                f"{os.path.join(directory, shard)}: lacks {name}, which by {index} it holds. Fetch it again."
            )
    return {name: opened[shard][name] for name, shard in shard_of.items()}


def _read_index(index: str) -> dict[str, str]:
    content = read_json(index)
    shard_of = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shard_of, dict) or not all(isinstance(shard, str) for shard in shard_of.values()):
        raise InputError(f"{index}: expected `weight_map`, an object that maps each tensor's name to its file.")
    ending = os.path.splitext(index.removesuffix(_INDEX))[1]
    for name, shard in shard_of.items():
        # A shard has the ending of its index, so that no safetensors index leads to a pickle.
        if os.path.basename(shard.replace("\\", "/")) != shard or not shard.endswith(ending):
            raise InputError(
                f"{index}: {name}: expected the name of a {ending} file beside the index, found {shown(shard)}. "
                "Do not trust this file."
            )
    return shard_of
