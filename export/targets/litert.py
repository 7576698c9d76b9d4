"""LiteRT (once TensorFlow Lite): token ids in, numbers out, with free batch and length, from its built-in ops alone."""

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import Head
from export.targets import network


class LiteRtOps(network.Ops):
    """TensorFlow ops that the converter supports for unknown sizes; a value is a tensor.

    Keras's own graph has others, such as a slice that adds axes to a tensor of unknown sizes.
    """

    def constant(self, array):
        return tf.constant(array)

    def take(self, table, index):
        return tf.gather(table, index)

    def take_positions(self, states, positions):
        sizes = tf.shape(states)
        starts = tf.expand_dims(tf.range(sizes[0]) * sizes[1], 1)
        return tf.gather(tf.reshape(states, [-1, states.shape[-1]]), positions + starts)

    def leading_rows(self, table, token_ids):
        return tf.gather(table, tf.range(tf.shape(token_ids)[1]))

    def length_mask(self, lengths, token_ids):
        places = tf.range(tf.shape(token_ids)[len(token_ids.shape) - 1])
        return tf.cast(tf.less(places, tf.expand_dims(lengths, -1)), tf.float32)

    def later_positions(self, token_ids):
        places = tf.range(tf.shape(token_ids)[1])
        return tf.cast(tf.greater(places, tf.expand_dims(places, 1)), tf.float32)

    def add(self, a, b):
        return a + b

    def multiply(self, a, b):
        return a * b

    def divide(self, a, b):
        return a / b

    def minimum(self, a, b):
        return tf.minimum(a, b)

    def matmul(self, a, b):
        if len(b.shape) > 2:
            return tf.matmul(a, b)
        # LiteRT's fully connected op takes two axes.
        sizes = [tf.shape(a)[axis] for axis in range(len(a.shape) - 1)]
        product = tf.matmul(tf.reshape(a, [-1, b.shape[0]]), b)
        return product if len(a.shape) == 2 else tf.reshape(product, [*sizes, b.shape[1]])

    def sum(self, a, axis):
        return tf.reduce_sum(a, axis)

    def softmax(self, a):
        return tf.nn.softmax(a)

    def split(self, a, count):
        return tf.split(a, count, axis=-1)

    def transpose(self, a, order):
        return tf.transpose(a, order)

    def reshape(self, a, sizes):
        return tf.reshape(a, [tf.shape(a)[axis] if size == 0 else size for axis, size in enumerate(sizes)])

    def join_leading(self, a):
        return tf.reshape(a, [-1, tf.shape(a)[2]])

    def first(self, a):
        return tf.gather(a, 0, axis=1)

    def layer_norm(self, a, scale, offset, epsilon):
        mean = tf.reduce_mean(a, axis=-1, keepdims=True)
        centered = a - mean
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        return centered * tf.math.rsqrt(variance + epsilon) * scale + offset

    def activation(self, a, name):
        if name in ("gelu", "gelu_tanh"):
            return tf.nn.gelu(a, approximate=name == "gelu_tanh")
        return a if name == "linear" else {"tanh": tf.tanh, "relu": tf.nn.relu}[name](a)


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
        return network.outputs_of(head, model, LiteRtOps(), values)

    specs = signatures.specs(head.token_inputs, tf.int32)
    function = tf.function(answer, autograph=False).get_concrete_function(**specs)
    # Keras's variables are constants here, so there is nothing to track.
    return tf.lite.TFLiteConverter.from_concrete_functions([function], tf.Module()).convert()


def run(path: str, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Answers requests of any shape by LiteRT's interpreter."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=path).get_signature_runner()
    return [dict(runner(**request)) for request in requests]
