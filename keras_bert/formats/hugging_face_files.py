"""Opens the weight files of a Hugging Face directory: safetensors, PyTorch's or TensorFlow's, whole or in shards."""

import contextlib
import functools
import math
import os
import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from safetensors import safe_open

from keras_bert.errors import InputError
from keras_bert.files import parsing
from keras_bert.formats.checkpoint import StoredTensor, shard_paths
from keras_bert.formats.keras_h5 import open_arrays
from keras_bert.formats.torch_file import open_torch_file

CONFIG_FILE = "config.json"
SAFETENSORS_FILE = "model.safetensors"
TORCH_FILE = "pytorch_model.bin"
TENSORFLOW_FILE = "tf_model.h5"  # Keras 2's weights of a `TFBert...` class, which transformers had before version 5.
_INDEX = ".index.json"  # Added to a file's name, it names the index of its shards.
# In transformers' order of preference: safetensors cannot hold code.
WEIGHT_FILES = tuple(name + end for name in (SAFETENSORS_FILE, TORCH_FILE, TENSORFLOW_FILE) for end in ("", _INDEX))

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
    """Opens the weights of a directory; their tensors can be read inside the `with`.

    Raises:
        InputError: the weights or a shard are missing, or a file is damaged.
    """
    path = find_weights(directory)
    if path is None:
        raise InputError(
            f"{directory}: no weights beside {CONFIG_FILE}. Expected {SAFETENSORS_FILE}, {TORCH_FILE} or "
            f"{TENSORFLOW_FILE}, or the shards that an index of these names (...{_INDEX}) lists."
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
    if path.endswith(".h5"):
        return _as_torch(open_arrays(path, stack)[0])
    with parsing(path, "safetensors file"):
        with open(path, "rb") as file:
            (header,) = struct.unpack("<Q", file.read(8))
        if _MOST_HEADER < header < os.path.getsize(path):
            raise InputError(f"{path}: expected a header of at most {_MOST_HEADER:,} bytes, found {header:,}.")
        stored = stack.enter_context(safe_open(path, framework="numpy"))
        shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}
    read = functools.partial(_read_tensor, path, stored)
    return {name: StoredTensor(name, shape, functools.partial(read, name)) for name, shape in shapes.items()}


# The end of a path in `tf_model.h5`, which names the weight; the group of a layer and the name of the model precede it.
_LAYERS = r"(?:distil)?bert|electra|\w+___cls|(?:pre_)?classifier|qa_outputs|vocab_\w+|generator_\w+|sequence_summary"
_TENSORFLOW_NAME = re.compile(rf"(?:.*/)?((?:{_LAYERS})/.+):0")
_TORCH_ENDINGS = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}


def _as_torch(arrays: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Converts the arrays of a `tf_model.h5` to PyTorch's names and layouts.

    The rules are those of transformers 4, modeling_tf_pytorch_utils.py: `a___b` stands for `b`, and `_._` for a slash.
    A masked-LM head's group repeats the embeddings. Versions 4.2 and 4.3 had a separate axis for the attention heads.
    """
    tensors = {}
    for place, array in arrays.items():
        match = _TENSORFLOW_NAME.fullmatch(place)
        *layer, ending = re.sub(r"\w+___", "", match[1]).replace("_._", "/").split("/") if match else [place]
        split = 1 if layer[-1:] in (["query"], ["key"], ["value"]) else -1  # Between the axes of inputs and outputs.
        inputs, outputs = math.prod(array.shape[:split]), math.prod(array.shape[split:])
        shape = {"kernel": (outputs, inputs), "bias": (inputs * outputs,)}.get(ending)
        if shape:
            array = StoredTensor(place, shape, functools.partial(_read_turned, array, shape))
        tensors[".".join([*layer, _TORCH_ENDINGS.get(ending, ending)])] = array
    return tensors


def _read_turned(array: StoredTensor, shape: tuple[int, ...]) -> np.ndarray:
    return array.read().reshape(shape[::-1]).T


def _read_tensor(path: str, stored, name: str) -> np.ndarray:
    dtype = stored.get_slice(name).get_dtype()
    if dtype not in _FLOATS:
        raise InputError(
            f"{path}: {name}: expected floats ({', '.join(_FLOATS)}), found {dtype}. Save the model unquantized."
        )
    if dtype == "BF16":
        import tensorflow  # noqa: F401  Registers the type with NumPy.
    return stored.get_tensor(name)
