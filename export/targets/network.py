"""The network from token ids to `Head.token_outputs`, described once for all targets but TensorFlow Serving.

`outputs_of` walks the Keras model's graph and calls the operations of an `Ops` layer by layer. One `Ops` writes ONNX
nodes, another calls TensorFlow ops that LiteRT has.

Shapes: B batch, S sequence, N heads, D size per head, H hidden, K choices, P masked positions, C classes, V vocabulary.
Rows stay the rectangle [B, S, H] here.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

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

# A target's tensor: the name of an ONNX value, or a TensorFlow tensor.
Value = Any


class Ops(Protocol):
    """The operations of a target, on its tensors, whose sizes may be unknown."""

    def constant(self, array: np.ndarray) -> Value:
        """Returns a weight or another fixed array as a value."""

    def take(self, table: Value, index: Value) -> Value:
        """Takes the rows of `table` (n, H) at an integer index of any shape (...): (..., H)."""

    def take_positions(self, states: Value, positions: Value) -> Value:
        """Takes `states` (B, S, H) at `positions` (B, P): (B, P, H)."""

    def leading_rows(self, table: Value, token_ids: Value) -> Value:
        """Takes the first S rows of `table`, for `token_ids` of shape (B, S)."""

    def length_mask(self, lengths: Value, token_ids: Value) -> Value:
        """Turns `lengths` (...) into float (..., S): 1 where a position is below its length, else 0."""

    def later_positions(self, token_ids: Value) -> Value:
        """Returns float (S, S), query by key: 1 where the key is behind the query, else 0."""

    def add(self, a: Value, b: Value) -> Value:
        """Returns a + b, broadcast."""

    def multiply(self, a: Value, b: Value) -> Value:
        """Returns a * b, broadcast."""

    def divide(self, a: Value, b: Value) -> Value:
        """Returns a / b, broadcast."""

    def minimum(self, a: Value, b: Value) -> Value:
        """Returns the smaller of a and b, broadcast."""

    def matmul(self, a: Value, b: Value) -> Value:
        """Returns the matrix product over the last two axes."""

    def sum(self, a: Value, axis: int) -> Value:
        """Sums over an axis, which goes away."""

    def softmax(self, a: Value) -> Value:
        """Returns the softmax over the last axis."""

    def split(self, a: Value, count: int) -> list[Value]:
        """Splits the last axis into equal parts."""

    def transpose(self, a: Value, order: tuple[int, ...]) -> Value:
        """Permutes the axes."""

    def reshape(self, a: Value, sizes: tuple[int, ...]) -> Value:
        """Reshapes; a size of 0 keeps that of the same axis, -1 (once) stands for what is left."""

    def join_leading(self, a: Value) -> Value:
        """Reshapes (B, K, S) to (B * K, S)."""

    def first(self, a: Value) -> Value:
        """Takes position 0: (B, S, H) to (B, H)."""

    def layer_norm(self, a: Value, scale: Value, offset: Value, epsilon: float) -> Value:
        """Normalizes over the last axis."""

    def activation(self, a: Value, name: str) -> Value:
        """Applies an activation; `name` is as in `BertConfig.activation`."""


# === The head ===


def outputs_of(head: Head, model: keras.Model, ops: Ops, values: Mapping[str, Value]) -> dict[str, Value]:
    """Builds the network.

    Args:
        head: declares its `token_inputs` and `token_outputs`.
        model: the float32 rebuild of the head's model, of the layout "rectangular".
        ops: of the target.
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


def _finish(ops: Ops, value: Value, width: int, mask: Value, output: TokenOutput) -> Value:
    """Takes the steps of a `TokenOutput`, from one of the Keras model's outputs, which has `width` columns."""
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


def _scaled_padding(ops: Ops, mask: Value, scale: float) -> Value:
    """Returns 0 where there is a token, `scale` where there is none."""
    inverse = ops.add(ops.constant(np.float32(1.0)), ops.multiply(mask, ops.constant(np.float32(-1.0))))
    return ops.multiply(inverse, ops.constant(np.float32(scale)))


# === The Keras model ===


class _Walk:
    """Walks from a functional model's outputs back to its inputs, through each layer once.

    Only private attributes of Keras tell which layer made a tensor, and of what.
    """

    def __init__(self, ops: Ops, model: keras.Model):
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
        return self.ops.layer_norm(value, self._weight(layer.gamma), self._weight(layer.beta), layer.epsilon)

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

    def _embed(self, layer: BertEmbeddings, token_ids: Value, segment_ids: Value, layout) -> Value:
        del layout
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

    def _first_rows(self, _: FirstRows, rows: Value, layout) -> Value:
        del layout
        return self.ops.first(rows)

    def _last_token(self, _: LastToken, states: Value, padding_mask: Value) -> Value:
        """Sums all tokens, times 1 for the one that has no real token behind it and 0 for others."""
        ops, one = self.ops, self.ops.constant(np.float32(1.0))
        pairs = ops.multiply(ops.reshape(padding_mask, (0, 1, -1)), ops.later_positions(padding_mask))  # [B, S, S]
        behind = ops.sum(pairs, axis=2)  # [B, S], a count
        is_inside = ops.multiply(ops.minimum(behind, one), ops.constant(np.float32(-1.0)))
        is_last = ops.multiply(padding_mask, ops.add(one, is_inside))
        return ops.sum(ops.multiply(states, ops.reshape(is_last, (0, -1, 1))), axis=1)

    def _flatten_choices(self, _: FlattenChoices, value: Value) -> Value:
        return self.ops.join_leading(value)

    def _masked_lm(self, layer: MaskedLMHead, states: Value, mask_positions: Value) -> Value:
        backbone = serving.find_backbone(self.model)
        activation = getattr(self.model, "masked_lm_activation", None) or backbone.activation
        rows = self.ops.take_positions(states, mask_positions)  # [B, P, H]
        rows = self._layer_norm(
            layer.transform_layer_norm, self.ops.activation(self._affine(layer.transform_dense, rows), activation)
        )
        table = self.ops.transpose(self._weight(layer.token_embedding.embeddings), (1, 0))  # [H, V]
        return self.ops.add(self.ops.matmul(rows, table), self._weight(layer.output_bias))


_LAYERS: dict[type, Callable] = {
    keras.layers.Dropout: _Walk._same,
    keras.layers.Dense: _Walk._dense,
    TokenLayout: _Walk._token_layout,
    BertEmbeddings: _Walk._embed,
    BertEncoderLayer: _Walk._encode,
    RestoreRectangle: _Walk._same,
    FirstRows: _Walk._first_rows,
    LastToken: _Walk._last_token,
    FlattenChoices: _Walk._flatten_choices,
    MaskedLMHead: _Walk._masked_lm,
}
