"""A loaded version of a model: runs its signatures on arrays, in batches if the server is told to.

Needs tensorflow and tensorflow_text, but none of the project's model code.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from export.base_path import DESCRIPTION_FILE
from export.server.batching import Batcher
from export.server.monitoring import Metrics
from export.server.serving_error import CODE_NAMES, ServingError, too_late
from keras_bert.errors import InputError
from keras_bert.files import read_object

_MAX_DESCRIPTION_BYTES = 1 << 20


class Signature(NamedTuple):
    """Names, types and shapes of one signature's inputs and outputs."""

    inputs: dict[str, tf.TensorSpec]
    outputs: dict[str, tf.TensorSpec]

    @property
    def is_batchable(self) -> bool:
        """True if dimension 0 of all inputs and outputs is a batch of any size, so that requests can be joined."""
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
        signatures: those that can be run, by name.
        description: what bert-export wrote into `assets.extra/model.json`; None for other models.

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
        # The loader has no error of its own for a damaged directory; cut files and flipped bytes raise these.
        except (OSError, ValueError, LookupError, RuntimeError, DecodeError, tf.errors.OpError) as error:
            raise InputError(
                f"{directory}: cannot be loaded as a SavedModel ({_first_line(error)}). Was it copied whole? Copy or "
                "export it again."
            ) from error
        self.signatures = {key: _signature(its) for key, its in self.signature_defs.items() if key in self._functions}
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
    for name in sorted(graph.signature_def):  # Copies, since a part of a message keeps all of it in memory.
        copies[name] = meta_graph_pb2.SignatureDef.FromString(graph.signature_def[name].SerializeToString())
    return copies


def _signature(signature: meta_graph_pb2.SignatureDef) -> Signature:
    inputs, outputs = (
        {name: tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype), name) for name, info in infos}
        for infos in (sorted(signature.inputs.items()), sorted(signature.outputs.items()))
    )
    return Signature(inputs, outputs)


def _read_description(directory: str) -> dict | None:
    """Reads a version's description; returns None for anything but a JSON object of reasonable size."""
    path = os.path.join(directory, DESCRIPTION_FILE)
    if not os.path.isfile(path) or os.path.getsize(path) > _MAX_DESCRIPTION_BYTES:
        return None
    with contextlib.suppress(InputError):
        return read_object(path)
    return None


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _reason(error: tf.errors.OpError) -> str:
    """Finds the cause in a message that also names graph nodes and the exporter's stack."""
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    before_nodes = [line for line, following in zip(lines, lines[1:], strict=False) if following.startswith("[[{{node")]
    return (before_nodes + lines + ["The graph failed."])[0]


class Servable:
    """A version that answers requests, several at a time.

    Args:
        model: the loaded version.
        metrics: counts run times.
        batcher: runs requests in batches; None: each runs by itself.
    """

    def __init__(self, model: ServedModel, metrics: Metrics, batcher: Batcher | None = None):
        self.model = model
        self.name = model.name
        self.version = model.version
        self.metrics = metrics
        self._batcher = batcher

    def signature(self, name: str) -> Signature:
        """Returns a signature of the model.

        Raises:
            ServingError: (FAILED_PRECONDITION) the model has no such signature.
        """
        if name not in self.model.signatures:
            raise ServingError(
                "FAILED_PRECONDITION",
                f'Serving signature name: "{name[:200]}" not found in signature def. '
                f"Expected one of {sorted(self.model.signatures)}.",
            )
        return self.model.signatures[name]

    def run(
        self, signature_name: str, arrays: Mapping[str, np.ndarray], deadline: float | None, api: str
    ) -> dict[str, np.ndarray]:
        """Runs a signature on arrays that fit it, in a batch if possible.

        Args:
            deadline: time of `time.monotonic` from which the answer is no longer wanted; None: never. A run that has
                begun is not interrupted.
            api: `Predict`, `Classify` or `Regress`, for the metrics.

        Raises:
            ServingError: the graph refuses the values or fails, the deadline passed, or too many requests wait.
        """
        if deadline is not None and time.monotonic() > deadline:
            raise too_late()
        start = time.perf_counter()
        if self._batcher and self.signature(signature_name).is_batchable:
            outputs = self._batcher.run(signature_name, arrays, deadline)
        else:
            outputs = self.model.run(signature_name, arrays)
        microseconds = (time.perf_counter() - start) * 1e6
        self.metrics.runtime_latency.labels(self.name, api, "TF2").observe(microseconds)
        return outputs
