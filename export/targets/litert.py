"""LiteRT (once TensorFlow Lite): token ids in, numbers out, with free batch and length, from its built-in ops alone."""

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import Head
from export.targets import network


def convert(head: Head, model) -> bytes:
    """Converts a head to a LiteRT model with the single signature `serving_default`.

    Args:
        head: declares inputs and outputs.
        model: as `network.outputs_of` takes it.

    Returns:
        The flat buffer: inputs `head.token_inputs`, int32; outputs `head.token_outputs`, float.

    Raises:
        InputError: as `network.outputs_of`.
    """

    def answer(**values):
        return network.outputs_of(head, model, network.TensorFlowOps(), values)

    specs = signatures.specs(head.token_inputs, tf.int32)
    function = tf.function(answer, autograph=False).get_concrete_function(**specs)
    # Keras's variables are constants here, so there is nothing to track.
    return tf.lite.TFLiteConverter.from_concrete_functions([function], tf.Module()).convert()


def run(path: str, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Answers requests of any shape by LiteRT's interpreter."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=path).get_signature_runner()
    return [dict(runner(**request)) for request in requests]
