"""A loaded version of a model: its signatures, asked with arrays, and what TensorFlow Serving says about it.

Needs tensorflow and tensorflow_text; the project's model code is not loaded.
"""

import os
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import saved_model_pb2

from export.rest_api import RestError
from keras_bert.errors import InputError


class ServedModel:
    """One loaded version of a model.

    Args:
        directory: a version directory (holds `saved_model.pb`).
        name: the model's name in URLs.
        version: the version's number.

    Raises:
        InputError: the directory cannot be loaded: a file is missing or damaged.
    """

    def __init__(self, directory: str, name: str, version: int):
        self.name = name
        self.version = version
        try:
            with open(os.path.join(directory, "saved_model.pb"), "rb") as file:
                graph = saved_model_pb2.SavedModel.FromString(file.read())
            self._signature_defs = graph.meta_graphs[0].signature_def
            self._loaded = tf.saved_model.load(directory)
        # The loader has no error of its own for a damaged directory: these come of files cut short, bytes flipped.
        except (OSError, ValueError, LookupError, RuntimeError, DecodeError, tf.errors.OpError) as error:
            raise InputError(
                f"{directory}: cannot be loaded as a SavedModel ({_first_line(error)}). Was it copied whole? Copy or "
                "export it again."
            ) from error

    def input_specs(self, signature_name: str) -> dict[str, tf.TensorSpec]:
        """Input name -> specification of one signature.

        Raises:
            RestError: (400) the model has no such signature.
        """
        return self._function(signature_name).structured_input_signature[1]

    def predict(self, signature_name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature.

        Raises:
            RestError: (400) the graph refuses the values, such as a token id outside the vocabulary; (500) it failed.
        """
        function = self._function(signature_name)
        specs = self.input_specs(signature_name)
        try:
            outputs = function(**{name: tf.constant(array, specs[name].dtype) for name, array in arrays.items()})
            return {name: tensor.numpy() for name, tensor in outputs.items()}
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise RestError(400, _reason(error)) from error
        except tf.errors.OpError as error:
            raise RestError(500, _reason(error)) from error

    def _function(self, signature_name: str):
        if signature_name not in self._loaded.signatures:
            raise RestError(
                400,
                f"Serving signature name: {signature_name!r} not found in signature def. "
                f"Expected one of {sorted(self._loaded.signatures)}.",
            )
        return self._loaded.signatures[signature_name]

    def status(self) -> dict:
        """TensorFlow Serving's answer to a status request."""
        status = {"error_code": "OK", "error_message": ""}
        return {"model_version_status": [{"version": str(self.version), "state": "AVAILABLE", "status": status}]}

    def metadata(self) -> dict:
        """TensorFlow Serving's answer to a metadata request: the signatures with names, types and shapes."""
        signatures = {
            name: json_format.MessageToDict(
                signature, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            for name, signature in sorted(self._signature_defs.items())
        }
        return {
            "model_spec": {"name": self.name, "signature_name": "", "version": str(self.version)},
            "metadata": {"signature_def": {"signature_def": signatures}},
        }


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _reason(error: tf.errors.OpError) -> str:
    """The line that says what was wrong, out of a message that also names graph nodes and the exporter's stack."""
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    before_nodes = [line for line, following in zip(lines, lines[1:], strict=False) if following.startswith("[[{{node")]
    return (before_nodes + lines + ["The graph failed."])[0]
