"""A loaded version of a model: its signatures, asked with arrays, and what it says of itself.

Needs tensorflow and tensorflow_text; the project's model code is not loaded.
"""

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from export.base_path import DESCRIPTION_FILE
from export.server.serving_error import CODE_NAMES, ServingError
from keras_bert.errors import InputError

_MAX_DESCRIPTION_BYTES = 1 << 20


class Signature(NamedTuple):
    """Names, types and shapes of one signature."""

    inputs: dict[str, tf.TensorSpec]
    outputs: dict[str, tf.TensorSpec]
    method_name: str

    @property
    def is_batchable(self) -> bool:
        """Whether dimension 0 of everything is the batch, of any size: then requests can be joined along it."""
        specs = [*self.inputs.values(), *self.outputs.values()]
        return bool(self.inputs) and all(spec.shape.rank and spec.shape[0] is None for spec in specs)


class ServedModel:
    """One loaded version of a model.

    Args:
        directory: a version directory (holds `saved_model.pb`).
        name: the model's name in URLs.
        version: the version's number.

    Attributes:
        signature_defs: mapping of name to `SignatureDef`.
        signatures: the ones that can be asked, by name.
        description: what bert-export wrote into `assets.extra/model.json`; None for a model from elsewhere.

    Raises:
        InputError: the directory cannot be loaded: a file is missing or damaged.
    """

    def __init__(self, directory: str, name: str, version: int):
        self.directory = directory
        self.name = name
        self.version = version
        try:
            self.signature_defs = _read_signature_defs(directory)
            self._loaded = tf.saved_model.load(directory)
            self._functions = dict(self._loaded.signatures.items())
        # The loader has no error of its own for a damaged directory: these come of files cut short, bytes flipped.
        except (OSError, ValueError, LookupError, RuntimeError, DecodeError, tf.errors.OpError) as error:
            raise InputError(
                f"{directory}: cannot be loaded as a SavedModel ({_first_line(error)}). Was it copied whole? Copy or "
                "export it again."
            ) from error
        self.signatures = {
            key: _signature(signature) for key, signature in self.signature_defs.items() if key in self._functions
        }
        self.description = _read_description(directory)

    def run(self, signature_name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature on arrays that fit it.

        Raises:
            ServingError: the graph refuses the values, such as a token id outside the vocabulary, or it failed.
        """
        specs = self.signatures[signature_name].inputs
        try:
            tensors = {name: tf.constant(array, specs[name].dtype) for name, array in arrays.items()}
            return {name: tensor.numpy() for name, tensor in self._functions[signature_name](**tensors).items()}
        except tf.errors.OpError as error:
            raise ServingError(CODE_NAMES.get(error.error_code, "UNKNOWN"), _reason(error)) from error


def _read_signature_defs(directory: str) -> dict[str, meta_graph_pb2.SignatureDef]:
    with open(os.path.join(directory, "saved_model.pb"), "rb") as file:
        meta_graphs = saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs
    graph = next((graph for graph in meta_graphs if "serve" in graph.meta_info_def.tags), meta_graphs[0])
    copies = {}
    for name in sorted(graph.signature_def):  # copies: a part of a message keeps the whole of it in memory
        copies[name] = meta_graph_pb2.SignatureDef.FromString(graph.signature_def[name].SerializeToString())
    return copies


def _signature(signature: meta_graph_pb2.SignatureDef) -> Signature:
    inputs, outputs = (
        {name: tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype), name) for name, info in infos}
        for infos in (sorted(signature.inputs.items()), sorted(signature.outputs.items()))
    )
    return Signature(inputs, outputs, signature.method_name)


def _read_description(directory: str) -> dict | None:
    """What the version says of itself; anything but a JSON object of sane size counts as nothing."""
    path = os.path.join(directory, DESCRIPTION_FILE)
    if not os.path.isfile(path) or os.path.getsize(path) > _MAX_DESCRIPTION_BYTES:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            description = json.load(file)
    except (ValueError, RecursionError):
        return None
    return description if isinstance(description, dict) else None


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _reason(error: tf.errors.OpError) -> str:
    """The line that says what was wrong, out of a message that also names graph nodes and the exporter's stack."""
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    before_nodes = [line for line, following in zip(lines, lines[1:], strict=False) if following.startswith("[[{{node")]
    return (before_nodes + lines + ["The graph failed."])[0]
