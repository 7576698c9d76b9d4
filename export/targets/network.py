"""The network from token ids to `Head.token_outputs`, described once for all targets but TensorFlow Serving.

`outputs_of` walks the Keras model's graph, and computes it layer by layer from a target's operations: `TensorFlowOps`
for LiteRT, or `export.targets.onnx.OnnxOps`, which writes nodes.

Shapes: B batch, S sequence, N heads, D size per head, H hidden, K choices, P masked positions, C classes, V vocabulary.
Rows stay the rectangle [B, S, H] here.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from export import serving
from export.heads.base import Head, TokenOutput
from keras_bert.attention import BertSelfAttention
from keras_bert.backbone import FirstRows, LastToken, RestoreRectangle
from keras_bert.embeddings import BertEmbeddings
from keras_bert.encoder import BertEncoderLayer
from keras_bert.errors import InputError
from keras_bert.heads import MaskedLMHead
from keras_bert.models.multiple_choice import FlattenChoices
from keras_bert.packing import MASKED_SCORE, TokenLayout

Value = Any  # A target's tensor: a TensorFlow tensor, or the name of an ONNX value.


class TensorFlowOps:
    """The operations, as TensorFlow computes them on tensors of unknown sizes, from ops that LiteRT has built in.

    Another target has the same methods on values of its own. Keras's own graph has other ops, such as a slice that adds
    axes to a tensor of unknown sizes.
    """

    constant = staticmethod(tf.constant)  # A weight or another fixed array as a value.
    add = staticmethod(tf.add)  # This and the next three broadcast.
    multiply = staticmethod(tf.multiply)
    divide = staticmethod(tf.divide)
    minimum = staticmethod(tf.minimum)
    sum = staticmethod(tf.reduce_sum)  # Over `axis`, which goes away.
    softmax = staticmethod(tf.nn.softmax)  # Over the last axis.
    transpose = staticmethod(tf.transpose)  # To the order of axes that is given.
    take = staticmethod(tf.gather)  # Rows of a table (n, H), at an integer index of any shape (...): (..., H).

    def take_positions(self, states: Value, positions: Value) -> Value:
        """Takes `states` (B, S, H) at `positions` (B, P): (B, P, H)."""
        sizes = tf.shape(states)
        starts = tf.expand_dims(tf.range(sizes[0]) * sizes[1], 1)
        return tf.gather(tf.reshape(states, [-1, states.shape[-1]]), positions + starts)

    def leading_rows(self, table: Value, token_ids: Value) -> Value:
        """Takes the first S rows of `table`, for `token_ids` of shape (B, S)."""
        return tf.gather(table, tf.range(tf.shape(token_ids)[1]))

    def length_mask(self, lengths: Value, token_ids: Value) -> Value:
        """Turns `lengths` (...) into float (..., S): 1 where a position is below its length, else 0."""
        places = tf.range(tf.shape(token_ids)[len(token_ids.shape) - 1])
        return tf.cast(tf.less(places, tf.expand_dims(lengths, -1)), tf.float32)

    def later_positions(self, token_ids: Value) -> Value:
        """Returns float (S, S), query by key: 1 where the key is behind the query, else 0."""
        places = tf.range(tf.shape(token_ids)[1])
        return tf.cast(tf.greater(places, tf.expand_dims(places, 1)), tf.float32)

    def matmul(self, a: Value, b: Value) -> Value:
        """Returns the matrix product over the last two axes."""
        if len(b.shape) > 2:
            return tf.matmul(a, b)
        # LiteRT's fully connected op takes two axes.
        sizes = [tf.shape(a)[axis] for axis in range(len(a.shape) - 1)]
        product = tf.matmul(tf.reshape(a, [-1, b.shape[0]]), b)
        return product if len(a.shape) == 2 else tf.reshape(product, [*sizes, b.shape[1]])

    def split(self, a: Value, count: int) -> list[Value]:
        """Splits the last axis into equal parts."""
        return tf.split(a, count, axis=-1)

    def reshape(self, a: Value, sizes: tuple[int, ...]) -> Value:
        """Reshapes; a size of 0 keeps that of the same axis, and -1 (once) stands for what is left."""
        return tf.reshape(a, [tf.shape(a)[axis] if size == 0 else size for axis, size in enumerate(sizes)])

    def join_leading(self, a: Value) -> Value:
        """Reshapes (B, K, S) to (B * K, S)."""
        return tf.reshape(a, [-1, tf.shape(a)[2]])

    def first(self, a: Value) -> Value:
        """Takes position 0: (B, S, H) to (B, H)."""
        return tf.gather(a, 0, axis=1)

    def layer_norm(self, a: Value, scale: Value, offset: Value, epsilon: float) -> Value:
        """Normalizes over the last axis."""
        mean = tf.reduce_mean(a, axis=-1, keepdims=True)
        centered = a - mean
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        return centered * tf.math.rsqrt(variance + epsilon) * scale + offset

    def activation(self, a: Value, name: str) -> Value:
        """Applies an activation; `name` is as in `BertConfig.activation`."""
        if name in ("gelu", "gelu_tanh"):
            return tf.nn.gelu(a, approximate=name == "gelu_tanh")
        return a if name == "linear" else {"tanh": tf.tanh, "relu": tf.nn.relu}[name](a)


# === The head ===


def outputs_of(head: Head, model: keras.Model, ops: TensorFlowOps, values: Mapping[str, Value]) -> dict[str, Value]:
    """Builds the network.

    Args:
        head: declares its `token_inputs` and `token_outputs`.
        model: the float32 rebuild of the head's model, of the layout "rectangular".
        ops: the target's operations.
        values: the inputs, `head.token_inputs`.

    Returns:
        `head.token_outputs`, each float with dimension 0 = batch.

    Raises:
        InputError: the model has a layer that is not one of this project's.
    """
    mask = ops.length_mask(values["lengths"], values["token_ids"])
    arguments = {name: value for name, value in values.items() if name != "lengths"} | {"padding_mask": mask}
    sources = {output.source for output in head.token_outputs.values()}
    tensors = {source: model.output if source is None else model.output[source] for source in sources}
    raw = _Walk(ops, model).values(tensors, model, arguments)
    return {
        name: _finish(ops, raw[output.source], tensors[output.source].shape[-1], mask, output)
        for name, output in head.token_outputs.items()
    }


def _finish(ops: TensorFlowOps, value: Value, width: int, mask: Value, output: TokenOutput) -> Value:
    """Takes the steps of a `TokenOutput` from one of the Keras model's outputs, which has `width` columns."""
    if output.pool == "mean":
        total = ops.sum(ops.multiply(value, ops.reshape(mask, (0, -1, 1))), axis=1)
        value = ops.divide(total, ops.reshape(ops.sum(mask, axis=1), (-1, 1)))
    elif output.pool == "first":
        value = ops.first(value)
    if output.column is not None:
        part = ops.split(value, width)[output.column] if width > 1 else value
        value = ops.reshape(part, (0,) * (1 + len(output.axes)))
    if output.softmax:
        value = ops.softmax(value)
    if output.padding is not None:
        value = ops.add(ops.multiply(value, mask), _scaled_padding(ops, mask, output.padding))
    return value


def _scaled_padding(ops: TensorFlowOps, mask: Value, scale: float) -> Value:
    """Returns 0 where there is a token, `scale` where there is none."""
    inverse = ops.add(ops.constant(np.float32(1.0)), ops.multiply(mask, ops.constant(np.float32(-1.0))))
    return ops.multiply(inverse, ops.constant(np.float32(scale)))


# === The Keras model ===


class _Walk:
    """Walks from a functional model's outputs back to its inputs, through each layer once.

    Only private attributes of Keras tell which layer made a tensor, and of what.
    """

    def __init__(self, ops: TensorFlowOps, model: keras.Model):
        self.ops = ops
        self.model = model

    def values(self, structure, model: keras.Model, arguments: Mapping[str, Value]):
        """Returns the values of a functional model's tensors, in their structure, from the values of its inputs."""
        known = {id(tensor): arguments[name] for name, tensor in model.input.items() if name in arguments}
        return self._resolve(structure, known)

    def _resolve(self, structure, known: dict[int, Value]):
        """Replaces each KerasTensor in a structure by its value."""
        return keras.tree.map_structure(
            lambda item: self._value(item, known) if isinstance(item, keras.KerasTensor) else item, structure
        )

    def _value(self, tensor: keras.KerasTensor, known: dict[int, Value]) -> Value:
        if id(tensor) not in known:
            operation, node_index, _ = tensor._keras_history
            node = operation._inbound_nodes[node_index]
            arguments = self._resolve((node.arguments.args, node.arguments.kwargs), known)
            result = self._call(operation, *arguments)
            for output, value in zip(node.output_tensors, keras.tree.flatten(result), strict=True):
                known[id(output)] = value
        return known[id(tensor)]

    def _call(self, operation, args: tuple, kwargs: dict):
        if isinstance(operation, keras.Model):
            return self.values(operation.output, operation, args[0])
        for kind, method in _LAYERS.items():
            if isinstance(operation, kind):
                return method(self, operation, *args, **{k: v for k, v in kwargs.items() if k != "training"})
        if type(operation).__name__ == "Reshape" and hasattr(operation, "newshape"):  # keras.ops.reshape
            return self.ops.reshape(args[0], tuple(operation.newshape))
        raise InputError(
            f"The layer {operation.name!r} ({type(operation).__name__}) cannot be written for this target: expected a "
            "model of this project's tasks. Leave out --onnx and --litert."
        )

    # === Layers ===

    def _same(self, _, value, **__) -> Value:
        return value

    def _dense(self, layer: keras.layers.Dense, value: Value) -> Value:
        name = layer.activation.__name__
        if layer.quantization_mode is not None or name not in ("linear", "tanh"):
            raise InputError(
                f"The layer {layer.name!r} cannot be written for this target: expected floats and no activation but "
                f"tanh. Received: {layer.quantization_mode or 'floats'}, {name}."
            )
        return self.ops.activation(self._affine(layer, value), name)

    def _affine(self, layer: keras.layers.Dense, value: Value) -> Value:
        return self.ops.add(self.ops.matmul(value, self._weight(layer.kernel)), self._weight(layer.bias))

    def _layer_norm(self, layer: keras.layers.LayerNormalization, value: Value) -> Value:
        return self.ops.layer_norm(value, self._weight(layer.gamma), self._weight(layer.beta), epsilon=layer.epsilon)

    def _weight(self, variable) -> Value:
        with tf.init_scope():  # Also while a target traces a function, weights are numbers.
            return self.ops.constant(keras.ops.convert_to_tensor(variable, "float32").numpy())

    def _token_layout(self, layer: TokenLayout, mask: Value) -> Value:
        """Returns the attention bias, [B, 1, 1, S] or [B, 1, S, S]: all there is to the rectangle's layout."""
        bias = self.ops.reshape(_scaled_padding(self.ops, mask, MASKED_SCORE), (0, 1, 1, -1))
        if layer.attention == "bidirectional":
            return bias
        later = self.ops.multiply(self.ops.later_positions(mask), self.ops.constant(np.float32(MASKED_SCORE)))
        return self.ops.minimum(bias, later)

    def _embed(self, layer: BertEmbeddings, token_ids: Value, segment_ids: Value, **_) -> Value:
        tokens = self.ops.take(self._weight(layer.token_embedding.embeddings), token_ids)
        segments = self.ops.take(self._weight(layer.segment_embedding.embeddings), segment_ids)
        places = self.ops.leading_rows(self._weight(layer.position_embedding.embeddings), token_ids)
        return self._layer_norm(layer.layer_norm, self.ops.add(self.ops.add(tokens, segments), places))

    def _encode(self, layer: BertEncoderLayer, rows: Value, layout) -> Value:
        attended = self._attend(layer.self_attention, rows, layout.attention_bias)
        rows = self._layer_norm(layer.self_attention_layer_norm, self.ops.add(rows, attended))
        inner = self.ops.activation(self._affine(layer.intermediate_dense, rows), layer.activation)
        output = self._affine(layer.output_dense, inner)
        return self._layer_norm(layer.output_layer_norm, self.ops.add(rows, output))

    def _attend(self, layer: BertSelfAttention, rows: Value, bias: Value) -> Value:
        ops, size = self.ops, layer.hidden_dim // layer.num_heads
        fused = self._affine(layer.query_key_value, rows)  # [B, S, 3H]
        query, key, value = (ops.reshape(part, (0, 0, layer.num_heads, size)) for part in ops.split(fused, 3))
        query = ops.transpose(ops.multiply(query, ops.constant(np.float32(size**-0.5))), (0, 2, 1, 3))  # [B, N, S, D]
        scores = ops.add(ops.matmul(query, ops.transpose(key, (0, 2, 3, 1))), bias)  # [B, N, S, S]
        context = ops.matmul(ops.softmax(scores), ops.transpose(value, (0, 2, 1, 3)))  # [B, N, S, D]
        context = ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (0, 0, layer.hidden_dim))
        return self._affine(layer.output_dense, context)

    def _last_token(self, _: LastToken, states: Value, padding_mask: Value) -> Value:
        """Sums all tokens, times 1 for the one that has no real token behind it and 0 for others."""
        ops, one = self.ops, self.ops.constant(np.float32(1.0))
        pairs = ops.multiply(ops.reshape(padding_mask, (0, 1, -1)), ops.later_positions(padding_mask))  # [B, S, S]
        behind = ops.sum(pairs, axis=2)  # [B, S], a count
        is_inside = ops.multiply(ops.minimum(behind, one), ops.constant(np.float32(-1.0)))
        is_last = ops.multiply(padding_mask, ops.add(one, is_inside))
        return ops.sum(ops.multiply(states, ops.reshape(is_last, (0, -1, 1))), axis=1)

    def _masked_lm(self, layer: MaskedLMHead, states: Value, mask_positions: Value) -> Value:
        backbone = serving.find_backbone(self.model)
        activation = getattr(self.model, "masked_lm_activation", None) or backbone.activation
        rows = self.ops.take_positions(states, mask_positions)  # [B, P, H]
        rows = self.ops.activation(self._affine(layer.transform_dense, rows), activation)
        rows = self._layer_norm(layer.transform_layer_norm, rows)
        table = self.ops.transpose(self._weight(layer.token_embedding.embeddings), (1, 0))  # [H, V]
        return self.ops.add(self.ops.matmul(rows, table), self._weight(layer.output_bias))


_LAYERS: dict[type, Callable] = {
    keras.layers.Dropout: _Walk._same,
    keras.layers.Dense: _Walk._dense,
    TokenLayout: _Walk._token_layout,
    BertEmbeddings: _Walk._embed,
    BertEncoderLayer: _Walk._encode,
    RestoreRectangle: _Walk._same,
    FirstRows: lambda walk, _, rows, **__: walk.ops.first(rows),
    LastToken: _Walk._last_token,
    FlattenChoices: lambda walk, _, value: walk.ops.join_leading(value),
    MaskedLMHead: _Walk._masked_lm,
}
