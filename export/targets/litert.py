"""LiteRT (once TensorFlow Lite): token ids in, numbers out, with free batch and length, with only its built-in ops."""

import keras
import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import Head


def convert(head: Head, model: keras.Model) -> bytes:
    """Converts a head to a LiteRT model with the single signature `serving_default`.

    Args:
        head: declares inputs and outputs.
        model: the float32 rebuild of the head's model, of the layout "rectangular".

    Returns:
        The FlatBuffers model: inputs `head.token_inputs`, int32; outputs `head.token_outputs`, float.
    """
    weights = [
        [keras.ops.convert_to_numpy(variable) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]

    def answer(lengths, **inputs):
        mask = tf.sequence_mask(lengths, tf.shape(inputs["token_ids"])[-1], dtype=tf.int32)
        # The converter would leave variables without values.
        constants = [[tf.constant(array) for array in arrays] for arrays in weights]
        outputs, _ = model.stateless_call(*constants, {**inputs, "padding_mask": mask}, training=False)
        return {name: output.of(outputs, mask) for name, output in head.token_outputs.items()}

    function = signatures.trace(answer, head.token_inputs, tf.int32)
    return tf.lite.TFLiteConverter.from_concrete_functions([function], tf.Module()).convert()


def run(path: str, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Answers requests of any shape by LiteRT's interpreter."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=path).get_signature_runner()
    return [dict(runner(**request)) for request in requests]
