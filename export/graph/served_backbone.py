"""The served encoder: computes what `BertBackbone` computes in the layout "unpadded", in fewer ops.

A single request has 10 to 30 tokens, and most of its time is not spent on arithmetic: the kernels must be read from
memory once (43 MB for MiniLM: 3.4 of 4.8 ms for 3 tokens on one thread), and threads hand work to each other and sleep.
So fewer ops help:

- One Gather lays out Q, K and V for attention and one brings the context back, by indices that all layers share.
- If only the pooled output is read (`first_token_only`), the last layer attends from one token of each sequence, and
  its other products compute only that row. This saves 1/8 of the arithmetic of 6 layers, 1/16 of that of 12.
- GELU has the form that TensorFlow's remapper fuses into a product. LayerNorm has a form that it does not fuse, since
  `_MklLayerNorm` takes 0.2 ms for 14 tokens, many times as long as its parts, and changed probabilities by 8e-3.
- Scale and mask of the scores are fused into their product, for which the mask's rank must be known.
- T and S' are rounded up, since TensorFlow keeps oneDNN's primitives for each shape, up to 1,024 in each thread. A
  MiniLM then grows by 90 MB over 600 different batches instead of 260, in the same time (docs/benchmarks.md).

Tried without gain for one request (2 cores, AMD Zen 4): products by `Einsum`, which stay on Eigen when oneDNN is on
(7.4 ms for 3 tokens, oneDNN 5.4; the same from 24 tokens on); the single-threaded executor. Weights as constants, which
oneDNN keeps packed, took 0.94 times as long for a request, but 1.09 times for a batch of 32, and 420 MB more memory for
43 MB of kernels, since every signature's graph has its own copies. So they stay variables.
TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1 takes 0.86 times as long for 3 tokens, but 1.6 times for 10 and 28, since kernels stay
packed for the size of the first request. TF_SET_ONEDNN_FPMATH_MODE=BF16 changes neither time nor answers (2 cores of an
AMD EPYC with AVX512_BF16). Kernels stored in bfloat16 do: with them, and activations cast around each product, a
request takes 0.8 times as long (`bfloat16`).

Shapes: B batch, S sequence, S' longest of the batch, T rows (see `packing.py`), both rounded up, N heads, D size per
head, H = N * D hidden.
"""

from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.encoder_layer import BertEncoderLayer
from keras_bert.encoder.packing import MASKED_SCORE

# The settings that `ServedBackbone.describe` returns.
_DESCRIBED = ("num_layers", "num_heads", "hidden_dim", "activation", "pooler_activation", "layer_norm_epsilon")
_TABLES = ("token", "position", "segment")


class _RowIndices:
    """Indices that relate rows to sequences; int32 unless noted. Rows above the number of tokens repeat row 0.

    Args:
        padding_mask: int32, shape (B, S).
        num_heads: N.

    Attributes:
        positions: shape (T,), position of each row within its sequence.
        position_of_row: shape (T,), index of each row's token in the flattened rectangle.
        row_of_position: shape (B, S), 0 at padding.
        is_real: bool, shape (B, S).
        heads: shape (3, B, N, S'), which of the T * 3 * N pieces of D numbers Q, K and V take.
        back: shape (T, N), which of the B * N * S' pieces of the context each row takes.
        bias: float, shape (B, 1, 1, S'), added to the attention scores.
    """

    def __init__(self, padding_mask: tf.Tensor, num_heads: int):
        batch, sequence = tf.unstack(tf.shape(padding_mask))
        padding_mask = tf.reshape(padding_mask, [batch, sequence])  # The graph optimizer must know the rank, too.
        self.is_real = tf.cast(padding_mask, tf.bool) | (tf.range(sequence) == 0)
        flat = tf.reshape(self.is_real, [-1])
        position_of_row = tf.cast(tf.where(flat)[:, 0], tf.int32)  # [T]
        rows = tf.size(position_of_row)
        self.position_of_row = tf.pad(position_of_row, [[0, _round_up(rows) - rows]])
        row = tf.reshape(tf.cumsum(tf.cast(flat, tf.int32)) - 1, [batch, sequence])
        self.row_of_position = tf.where(self.is_real, row, 0)
        self.positions, examples = self.position_of_row % sequence, self.position_of_row // sequence
        # The maximum of no numbers is the least int32.
        longest = _round_up(tf.maximum(tf.reduce_max(self.positions) + 1, 0))

        def attended(rectangle: tf.Tensor) -> tf.Tensor:
            return tf.pad(rectangle, [[0, 0], [0, tf.maximum(longest - sequence, 0)]])[:, :longest]

        heads, kinds = tf.range(num_heads), tf.range(3)[:, tf.newaxis, tf.newaxis, tf.newaxis]
        pieces = attended(self.row_of_position)[:, tf.newaxis] * (3 * num_heads)  # [B, 1, S']
        self.heads = pieces + kinds * num_heads + heads[:, tf.newaxis]
        self.back = (examples[:, tf.newaxis] * num_heads + heads) * longest + self.positions[:, tf.newaxis]
        self.bias = tf.where(attended(padding_mask)[:, tf.newaxis, tf.newaxis] == 0, MASKED_SCORE, 0.0)


def _round_up(count: tf.Tensor) -> tf.Tensor:
    """Rounds up to a multiple of 8, and from 512 on of 1/64 to 1/32 of the number."""
    step = tf.maximum(count // 256, 1) * 8
    return -(-count // step) * step


@keras.saving.register_keras_serializable(package="keras_bert")
class ServedBackbone(BertBackbone):
    """A float32 `BertBackbone` for inference in a graph on a CPU, with the same weights and answers.

    All calls in a graph share one traced function. In training, and with left-to-right attention, it behaves like
    `BertBackbone`.

    Args:
        *args, **kwargs: as in `BertBackbone`.
        first_token_only: bool, whether to compute `sequence_output` only for the first token, shape (B, 1, H).
        bfloat16: bool, whether to store tables, kernels and their biases in bfloat16, and compute the products in it.
        tied: bool, whether another part of the model reads the token table, which then stays in float32.

    The last three have no effect where this behaves like `BertBackbone`.
    """

    def __init__(self, *args, first_token_only: bool = False, bfloat16: bool = False, tied: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.first_token_only = first_token_only
        self.bfloat16 = bfloat16
        self.tied = tied
        self._matrices = _Matrices(tf.bfloat16 if bfloat16 else tf.float32)
        ids = tf.TensorSpec([None, None], tf.int32)
        self._encode_in_graph = tf.function(self._encode, input_signature=[ids] * 3, autograph=False)

    def call(self, inputs, training=None, mask=None):
        if training or self.bert_config.attention != "bidirectional":
            return super().call(inputs, training=training, mask=mask)
        return self._encode_in_graph(*(inputs[name] for name in ("token_ids", "segment_ids", "padding_mask")))

    def encode_by(self, encode: Callable) -> None:
        """Lets a function compute the encoder, in graphs that are traced from now on.

        Args:
            encode: `token_ids`, `segment_ids`, `padding_mask`, int32 tensors (B, S), to the encoder's outputs by name.
        """
        self._encode_in_graph = encode

    def get_config(self):
        own = {name: getattr(self, name) for name in ("first_token_only", "bfloat16", "tied")}
        return {**super().get_config(), **own}

    @property
    def rounded(self) -> list[tf.Variable]:
        """The weights in bfloat16 that a graph reads in place of the model's own."""
        return list(self._matrices.rounded.values())

    @property
    def is_described(self) -> bool:
        """Whether another runtime can compute what the graph computes: in both directions, in float32."""
        return self.bert_config.attention == "bidirectional" and not self.bfloat16

    def describe(self, names: Mapping[int, str]) -> dict:
        """Describes the traced function for a server that computes it by another runtime.

        Args:
            names: id of a weight's `tf.Variable` -> its name where the graph is stored.

        Returns:
            JSON: `function`, its name in the graph; sizes and settings; `weights`, from their names in
            `named_weights` to those where the graph is stored.
        """
        return {
            "function": tf.compat.as_str(self._encode_in_graph.get_concrete_function().name),
            **{name: getattr(self.bert_config, name) for name in _DESCRIBED},
            "first_token_only": self.first_token_only,
            "weights": {name: names[id(variable.value)] for name, variable in named_weights(self).items()},
        }

    def _encode(self, token_ids, segment_ids, padding_mask) -> dict[str, tf.Tensor]:
        indices = _RowIndices(padding_mask, self.num_heads)
        rows = self._embed(token_ids, segment_ids, indices)
        *lower, last = (self.get_layer(f"transformer_layer_{index}") for index in range(self.num_layers))
        for layer in lower:
            rows = _encoder_layer(layer, rows, indices, self._matrices)
        rows = _encoder_layer(last, rows, indices, self._matrices, self.first_token_only)
        if self.first_token_only:
            return {"sequence_output": rows[:, tf.newaxis], "pooled_output": self._pool(rows)}
        is_real = tf.cast(indices.is_real, rows.dtype)[..., tf.newaxis]
        return {
            "sequence_output": tf.gather(rows, indices.row_of_position) * is_real,
            "pooled_output": self._pool(tf.gather(rows, indices.row_of_position[:, 0])),
        }

    def _pool(self, first: tf.Tensor) -> tf.Tensor:
        layer = self.get_layer("pooled_dense")
        return layer.activation(self._matrices.product(first, layer))

    def _embed(self, token_ids, segment_ids, indices: _RowIndices) -> tf.Tensor:
        layer = self.get_layer("embeddings")
        token_ids = tf.gather(tf.reshape(token_ids, [-1]), indices.position_of_row)
        segment_ids = tf.gather(tf.reshape(segment_ids, [-1]), indices.position_of_row)
        words = layer.token_embedding.embeddings
        rows = _take(words.value if self.tied else self._matrices(words), token_ids)  # [T, H]
        rows += _take(self._matrices(layer.segment_embedding.embeddings), segment_ids)
        rows += _take(self._matrices(layer.position_embedding.embeddings), indices.positions)
        return _layer_norm(layer.layer_norm, rows)


def named_weights(backbone: BertBackbone) -> dict[str, keras.Variable]:
    """Returns an encoder's weights by the names that `export.graph.onnx_encoder` reads."""
    embeddings = backbone.get_layer("embeddings")
    weights = {f"{name}_embedding": getattr(embeddings, f"{name}_embedding").embeddings for name in _TABLES}
    layers = {"embeddings": embeddings.layer_norm, "pooled_dense": backbone.get_layer("pooled_dense")}
    for index in range(backbone.num_layers):
        layer = backbone.get_layer(f"transformer_layer_{index}")
        layers |= {
            f"layer_{index}/query_key_value": layer.self_attention.query_key_value,
            f"layer_{index}/attention_output": layer.self_attention.output_dense,
            f"layer_{index}/attention_norm": layer.self_attention_layer_norm,
            f"layer_{index}/intermediate": layer.intermediate_dense,
            f"layer_{index}/output": layer.output_dense,
            f"layer_{index}/output_norm": layer.output_layer_norm,
        }
    for name, layer in layers.items():
        weights |= {f"{name}/{weight.name}": weight for weight in layer.weights}  # kernel, bias, gamma, beta
    return weights


class _Matrices:
    """The tables, kernels and biases of an encoder as its graph reads them, of one type, each stored once.

    Args:
        dtype: float32, which leaves them as they are, or bfloat16.
    """

    def __init__(self, dtype: tf.DType):
        self._dtype = dtype
        self.rounded: dict[int, tf.Variable] = {}  # By the id of the weight.

    def __call__(self, weight: keras.Variable) -> tf.Variable:
        if self._dtype == tf.float32:
            return weight.value
        if id(weight) not in self.rounded:
            with tf.init_scope():  # outside the graph that is being traced
                self.rounded[id(weight)] = tf.Variable(tf.cast(weight.value, self._dtype), trainable=False)
        return self.rounded[id(weight)]

    def product(self, rows: tf.Tensor, layer: keras.layers.Dense) -> tf.Tensor:
        """Returns a dense layer's output without its activation, in float32."""
        return tf.cast(self.narrow_product(rows, layer), tf.float32)

    def narrow_product(self, rows: tf.Tensor, layer: keras.layers.Dense) -> tf.Tensor:
        """Returns the same as `product`, in the matrices' type."""
        return tf.nn.bias_add(tf.matmul(tf.cast(rows, self._dtype), self(layer.kernel)), self(layer.bias))


def _take(table: tf.Variable, indices: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.gather(table, indices), tf.float32)


def _encoder_layer(
    layer: BertEncoderLayer, rows: tf.Tensor, indices: _RowIndices, matrices: _Matrices, first_token_only: bool = False
) -> tf.Tensor:
    """Computes `BertEncoderLayer.call`: float [T, H] to the same, or to [B, H] for the first token of each sequence."""
    attention = layer.self_attention
    pieces = matrices.product(rows, attention.query_key_value)
    pieces = tf.reshape(pieces, [-1, layer.hidden_dim // layer.num_heads])  # [T * 3 * N, D]
    attend = _attend_from_first if first_token_only else _attend
    context = tf.reshape(attend(pieces, indices), [-1, layer.hidden_dim])
    if first_token_only:
        rows = tf.gather(rows, indices.row_of_position[:, 0])
    rows = _layer_norm(layer.self_attention_layer_norm, rows + matrices.product(context, attention.output_dense))
    inner = _activate(layer, matrices.narrow_product(rows, layer.intermediate_dense))
    return _layer_norm(layer.output_layer_norm, rows + matrices.product(inner, layer.output_dense))


def _attend(pieces: tf.Tensor, indices: _RowIndices) -> tf.Tensor:
    """Computes the context of all rows, [T, N, D], from the pieces of Q, K and V."""
    context = _context(*tf.unstack(tf.gather(pieces, indices.heads), num=3), indices)
    return tf.gather(tf.reshape(context, [-1, pieces.shape[-1]]), indices.back)


def _attend_from_first(pieces: tf.Tensor, indices: _RowIndices) -> tf.Tensor:
    """Computes the context of the first token of each sequence, [B, N, 1, D]."""
    key, value = tf.unstack(tf.gather(pieces, indices.heads[1:]), num=2)  # [B, N, S', D]
    return _context(tf.gather(pieces, indices.heads[0, :, :, :1]), key, value, indices)


def _context(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, indices: _RowIndices) -> tf.Tensor:
    scores = tf.matmul(query, key, transpose_b=True) * key.shape[-1] ** -0.5
    return tf.matmul(tf.nn.softmax(scores + indices.bias), value)


def _activate(layer: BertEncoderLayer, inner: tf.Tensor) -> tf.Tensor:
    if layer.activation != "gelu":
        return layer.activation_function(inner)
    return (tf.math.erf(inner * 0.5**0.5) + 1.0) * 0.5 * inner  # the form that the remapper knows


def _layer_norm(layer: keras.layers.LayerNormalization, rows: tf.Tensor) -> tf.Tensor:
    difference = rows - tf.reduce_mean(rows, axis=1, keepdims=True)
    variance = tf.reduce_mean(tf.square(difference), axis=1, keepdims=True)
    return difference * tf.math.rsqrt(variance + layer.epsilon) * layer.gamma.value + layer.beta.value
