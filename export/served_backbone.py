"""The served encoder: computes what `BertBackbone` computes in the layout "unpadded", in fewer ops.

A single request has 10 to 30 tokens, and arithmetic is not what takes its time: the kernels must come from memory once
(43 MB for MiniLM: 3.4 of 4.8 ms for 3 tokens on one thread), and threads hand work to each other and sleep. So fewer
ops help:

- One Gather lays out Q, K and V for attention and one brings the context back, by indices that all layers share.
- If only the pooled output is read (`first_token_only`), the last layer attends from one token of each sequence, and
  its other products see that row alone. This saves 1/8 of the arithmetic of 6 layers, 1/16 of that of 12.
- gelu has the form that TensorFlow's remapper fuses into a product. LayerNorm has a form that it does not fuse, since
  `_MklLayerNorm` takes 0.2 ms for 14 tokens, many times as long as its parts, and moved probabilities by 8e-3.
- Scale and mask of the scores are fused into their product, for which the mask's rank must be known.

Tried without gain for one request (2 cores, AMD Zen 4): products by `Einsum`, which stay on Eigen when oneDNN is on
(7.4 ms for 3 tokens, oneDNN 5.4; the same from 24 tokens on); the single-threaded executor; each layer in two halves,
of heads and of inner units, one per core. Weights as constants, which oneDNN keeps packed, took 0.94 of a request's
time, but 1.09 of a batch of 32's, and 420 MB more memory for 43 MB of kernels, since every signature's graph has its
own copies. So they stay variables. TF_ONEDNN_ASSUME_FROZEN_WEIGHTS=1 takes 0.86 of the time for 3 tokens, and 1.6 times
it for 10 and 28, since kernels stay packed for the first size that was asked. TF_SET_ONEDNN_FPMATH_MODE=BF16 changes
neither time nor answers (2 cores of an AMD EPYC with AVX512_BF16). Kernels that are stored in bfloat16 do: with them,
and activations cast around each product, a request takes 0.8 of the time (`bfloat16`).

Shapes: B batch, S sequence, S' longest of the batch, T rows (see keras_bert/packing.py), N heads, D size per head,
H = N * D hidden.
"""

import functools
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from keras_bert.backbone import BertBackbone
from keras_bert.encoder import BertEncoderLayer
from keras_bert.packing import MASKED_SCORE

# What `ServedBackbone.describe` tells about the encoder.
_DESCRIBED = ("num_layers", "num_heads", "hidden_dim", "activation", "layer_norm_epsilon")
_TABLES = ("token", "position", "segment")
# A constant of `encode_in_halves`, the least number of rows of a half, which `export/single_texts.py` changes.
LEAST_ROWS = "least_rows"


class _Places:
    """Indices that say which rows belong together; int32 unless noted.

    Args:
        padding_mask: int32, shape (B, S).
        num_heads: N.
        in_halves: bool; True repeats the last row, so that halves have the least number of rows that the graph names.

    Attributes:
        positions: shape (T,), of each row within its sequence.
        sequences: shape (T,), of each row.
        position_of_row: shape (T,), index of each row's token in the flattened rectangle.
        row_of_position: shape (B, S), 0 at padding.
        is_real: bool, shape (B, S).
        heads: shape (3, B, N, S'), which of the T * 3 * N pieces of D numbers Q, K and V take.
        back: shape (T, N), which of the B * N * S' pieces of the context each row takes.
        bias: float, shape (B, 1, 1, S'), added to the attention scores.
    """

    def __init__(self, padding_mask: tf.Tensor, num_heads: int, in_halves: bool = False):
        batch, sequence = tf.unstack(tf.shape(padding_mask))
        padding_mask = tf.reshape(padding_mask, [batch, sequence])  # The graph optimizer, too, must know the rank.
        self.is_real = tf.cast(padding_mask, tf.bool) | (tf.range(sequence) == 0)
        flat = tf.reshape(self.is_real, [-1])
        self.position_of_row = tf.cast(tf.where(flat)[:, 0], tf.int32)  # [T]
        if in_halves:
            self._num_tokens, self._least = tf.size(self.position_of_row), tf.constant(0, name=LEAST_ROWS)
            least = tf.where(self._num_tokens > self._least, 2 * self._least, self._least)
            least = tf.where(self._num_tokens == 0, 0, least)  # Of a batch of no texts.
            rows = tf.minimum(tf.range(tf.maximum(self._num_tokens, least)), self._num_tokens - 1)
            self.position_of_row = tf.gather(self.position_of_row, rows)
        row = tf.reshape(tf.cumsum(tf.cast(flat, tf.int32)) - 1, [batch, sequence])
        self.row_of_position = tf.where(self.is_real, row, 0)
        self.positions, self.sequences = self.position_of_row % sequence, self.position_of_row // sequence
        longest = tf.maximum(tf.reduce_max(self.positions) + 1, 0)  # The largest of no numbers is the least int32.
        heads, parts = tf.range(num_heads), tf.range(3)[:, tf.newaxis, tf.newaxis, tf.newaxis]
        pieces = self.row_of_position[tf.newaxis, :, tf.newaxis, :longest] * (3 * num_heads)
        self.heads = pieces + parts * num_heads + heads[:, tf.newaxis]
        self.back = (self.sequences[:, tf.newaxis] * num_heads + heads) * longest + self.positions[:, tf.newaxis]
        self.bias = tf.where(padding_mask[:, tf.newaxis, tf.newaxis, :longest] == 0, MASKED_SCORE, 0.0)

    def halves(self) -> list["_Half"]:
        """Cuts several sequences between two of them, and a single one in the middle, if it is not too short."""
        num_sequences = tf.shape(self.heads)[1]
        is_one = num_sequences == 1
        sequence = tf.where(is_one, 1, (num_sequences + 1) // 2)
        position = tf.where(is_one, tf.maximum((self._num_tokens + 1) // 2, self._least), self._num_tokens)
        row = tf.reduce_sum(tf.cast((self.sequences < sequence) & (self.positions < position), tf.int32))
        first = _Half(self, slice(0, row), slice(0, sequence), slice(0, position))
        sequence, position = tf.where(is_one, 0, sequence), tf.where(is_one, position, 0)
        return [first, _Half(self, slice(row, None), slice(sequence, None), slice(position, None))]


class _Half:
    """Half of the rows, which attend to all rows of their sequences.

    Args:
        places: of all rows.
        rows, sequences, positions: of the half. It has all positions of some sequences, or some positions of one.

    Attributes:
        rows: slice of all rows.
        attention: tensors that lay out its attention: of `_Places`, `heads` for queries, and for keys and values,
            `bias` and `back`.
    """

    def __init__(self, places: _Places, rows: slice, sequences: slice, positions: slice):
        self.rows = rows
        queries = places.heads[0, sequences, :, positions]  # [B', N, S'']
        _, num_heads, length = tf.unstack(tf.shape(queries))
        sequence, position = places.sequences[rows] - sequences.start, places.positions[rows] - positions.start
        back = (sequence[:, tf.newaxis] * num_heads + tf.range(num_heads)) * length + position[:, tf.newaxis]
        self.attention = (queries, places.heads[1:, sequences], places.bias[sequences], back)


@keras.saving.register_keras_serializable(package="keras_bert")
class ServedBackbone(BertBackbone):
    """A float32 `BertBackbone` for inference in a graph on a CPU, with the same weights and answers.

    All calls in a graph share one traced function. In training, and with left-to-right attention, it behaves as the
    Keras model.

    Args:
        *args, **kwargs: as `BertBackbone`.
        first_token_only: bool; True computes `sequence_output` for the first token alone, shape (B, 1, H).
        bfloat16: bool; True stores tables, kernels and their biases in bfloat16, and computes the products in it.
        tied: bool; True keeps the token table in float32, which another part of the model reads.

    The last three have no effect where this behaves as the Keras model.
    """

    def __init__(self, *args, first_token_only: bool = False, bfloat16: bool = False, tied: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        self.first_token_only = first_token_only
        self.bfloat16 = bfloat16
        self.tied = tied
        self._matrices = _Matrices(tf.bfloat16 if bfloat16 else tf.float32)
        ids = tf.TensorSpec([None, None], tf.int32)
        self._encode_in_graph = tf.function(self._encode, input_signature=[ids] * 3, autograph=False)
        self.encode_in_halves = tf.function(self._encode_in_halves, input_signature=[ids] * 3, autograph=False)

    def call(self, inputs, training=None, mask=None):
        if training or self.bert_config.attention != "bidirectional":
            return super().call(inputs, training=training, mask=mask)
        return self._encode_in_graph(*(inputs[name] for name in ("token_ids", "segment_ids", "padding_mask")))

    def get_config(self):
        own = {name: getattr(self, name) for name in ("first_token_only", "bfloat16", "tied")}
        return {**super().get_config(), **own}

    @property
    def rounded(self) -> list[tf.Variable]:
        """The weights in bfloat16 that a graph reads in place of the model's own."""
        return self._matrices.rounded

    @property
    def is_traced(self) -> bool:
        """Whether a graph calls the traced function."""
        return bool(self._encode_in_graph.experimental_get_tracing_count())

    def describe(self, names: Mapping[int, str]) -> dict:
        """Describes the traced function for a server that computes it by another runtime (`export/encoders.py`).

        Args:
            names: id of a weight's `tf.Variable` -> its name where the graph is stored.

        Returns:
            JSON: `function`, its name in the graph; sizes and settings; `weights`, their names there by their own.
        """
        config = self.bert_config
        settings = {name: getattr(config, name) for name in _DESCRIBED}
        return {
            "function": tf.compat.as_str(self._encode_in_graph.get_concrete_function().name),
            **settings,
            "first_token_only": self.first_token_only,
            "weights": {name: names[id(variable.value)] for name, variable in self._named_weights().items()},
        }

    def _named_weights(self) -> dict[str, keras.Variable]:
        embeddings = self.get_layer("embeddings")
        found = {f"{name}_embedding": getattr(embeddings, f"{name}_embedding").embeddings for name in _TABLES}
        parts = {"embeddings": embeddings.layer_norm, "pooled_dense": self.get_layer("pooled_dense")}
        for index in range(self.num_layers):
            layer = self.get_layer(f"transformer_layer_{index}")
            its = {
                "query_key_value": layer.self_attention.query_key_value,
                "attention_output": layer.self_attention.output_dense,
                "attention_norm": layer.self_attention_layer_norm,
                "intermediate": layer.intermediate_dense,
                "output": layer.output_dense,
                "output_norm": layer.output_layer_norm,
            }
            parts |= {f"layer_{index}/{name}": part for name, part in its.items()}
        for name, part in parts.items():
            found |= {f"{name}/{weight.name}": weight for weight in part.weights}  # kernel, bias, gamma, beta
        return found

    def _encode(self, token_ids, segment_ids, padding_mask) -> dict[str, tf.Tensor]:
        places = _Places(padding_mask, self.num_heads)
        rows = self._embed(token_ids, segment_ids, places)
        *others, last = self._encoder_layers()
        for layer in others:
            rows = _encoder_layer(layer, rows, places, self._matrices)
        if self.first_token_only:
            return self._of_first(_query_key_value(last, rows, self._matrices), rows, places)
        return self._of_all(_encoder_layer(last, rows, places, self._matrices), places)

    def _encode_in_halves(self, token_ids, segment_ids, padding_mask) -> dict[str, tf.Tensor]:
        """Computes `_encode` in two chains of ops, one for each half of the rows, which meet once in each layer.

        Both call the same functions, which are not inlined, so that a kernel has one op, which may keep it packed.
        """
        places = _Places(padding_mask, self.num_heads, in_halves=True)
        rows, halves, layers = self._embed(token_ids, segment_ids, places), places.halves(), self._encoder_layers()
        parts = [rows[half.rows] for half in halves]
        project = _called(lambda rows: _query_key_value(layers[0], rows, self._matrices), parts[:1])
        pieces = tf.concat([project(part) for part in parts], axis=0)
        for layer, following in zip(layers, [*layers[1:], None], strict=True):
            if self.first_token_only and not following:
                return self._of_first(pieces, tf.concat(parts, axis=0), places)
            its = functools.partial(_half_of_layer, layer, following, self._matrices)
            its = _called(its, [pieces, *halves[0].attention, parts[0]])
            results = [its(pieces, *half.attention, part) for half, part in zip(halves, parts, strict=True)]
            parts, projected = zip(*results, strict=True)
            pieces = tf.concat(projected, axis=0)
        return self._of_all(tf.concat(parts, axis=0), places)

    def _encoder_layers(self) -> list[BertEncoderLayer]:
        return [self.get_layer(f"transformer_layer_{index}") for index in range(self.num_layers)]

    def _of_first(self, pieces: tf.Tensor, rows: tf.Tensor, places: _Places) -> dict[str, tf.Tensor]:
        """Computes the last layer for the first token of each sequence, from its pieces and the rows before it."""
        query = tf.gather(pieces, places.heads[0, :, :, :1])  # [B, N, 1, D]
        key, value = tf.unstack(tf.gather(pieces, places.heads[1:]), num=2)  # [B, N, S', D]
        context, first = _attend(query, key, value, places.bias), tf.gather(rows, places.row_of_position[:, 0])
        first = _after_attention(self._encoder_layers()[-1], context, first, self._matrices)
        return {"sequence_output": first[:, tf.newaxis], "pooled_output": self._pool(first)}

    def _of_all(self, rows: tf.Tensor, places: _Places) -> dict[str, tf.Tensor]:
        is_real = tf.cast(places.is_real, rows.dtype)[..., tf.newaxis]
        return {
            "sequence_output": tf.gather(rows, places.row_of_position) * is_real,
            "pooled_output": self._pool(tf.gather(rows, places.row_of_position[:, 0])),
        }

    def _pool(self, first: tf.Tensor) -> tf.Tensor:
        layer = self.get_layer("pooled_dense")
        return layer.activation(tf.cast(self._matrices.dense(layer, first), first.dtype))

    def _embed(self, token_ids, segment_ids, places: _Places) -> tf.Tensor:
        layer = self.get_layer("embeddings")
        token_ids, segment_ids = (
            tf.gather(tf.reshape(ids, [-1]), places.position_of_row) for ids in (token_ids, segment_ids)
        )
        words = layer.token_embedding.embeddings
        rows = _take(words.value if self.tied else self._matrices(words), token_ids)  # [T, H]
        rows += _take(self._matrices(layer.segment_embedding.embeddings), segment_ids)
        rows += _take(self._matrices(layer.position_embedding.embeddings), places.positions)
        return _layer_norm(layer.layer_norm, rows)


class _Matrices:
    """The tables, kernels and biases of an encoder as its graph reads them, of one type, each stored once.

    Args:
        dtype: float32, which leaves them as they are, or bfloat16.
    """

    def __init__(self, dtype: tf.DType):
        self._dtype = dtype
        self._rounded: dict[int, tf.Variable] = {}

    @property
    def rounded(self) -> list[tf.Variable]:
        return list(self._rounded.values())

    def __call__(self, weight: keras.Variable) -> tf.Variable:
        if self._dtype == tf.float32:
            return weight.value
        if id(weight) not in self._rounded:
            with tf.init_scope():  # outside the graph that is being traced
                self._rounded[id(weight)] = tf.Variable(tf.cast(weight.value, self._dtype), trainable=False)
        return self._rounded[id(weight)]

    def dense(self, layer: keras.layers.Dense, rows: tf.Tensor) -> tf.Tensor:
        """Returns the product and bias of a layer, without its activation, in the matrices' type."""
        return tf.nn.bias_add(tf.matmul(tf.cast(rows, self._dtype), self(layer.kernel)), self(layer.bias))


def _take(table: tf.Variable, places: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.gather(table, places), tf.float32)


def _encoder_layer(layer: BertEncoderLayer, rows: tf.Tensor, places: _Places, matrices: _Matrices) -> tf.Tensor:
    """Computes `BertEncoderLayer.call`: float [T, H] to the same."""
    pieces = _query_key_value(layer, rows, matrices)
    context = _attend(*tf.unstack(tf.gather(pieces, places.heads), num=3), places.bias)
    back = tf.gather(tf.reshape(context, [-1, pieces.shape[-1]]), places.back)
    return _after_attention(layer, back, rows, matrices)


def _half_of_layer(layer, following, matrices, pieces, queries, keys_values, bias, back, rows) -> tuple:
    """Computes `_encoder_layer` for half of the rows, and their pieces for the following layer, if there is one.

    Args:
        pieces: of all rows.
        queries, keys_values, bias, back: `_Half.attention`.
        rows: of the half, before the layer.
    """
    key, value = tf.unstack(tf.gather(pieces, keys_values), num=2)
    context = _attend(tf.gather(pieces, queries), key, value, bias)
    rows = _after_attention(layer, tf.gather(tf.reshape(context, [-1, pieces.shape[-1]]), back), rows, matrices)
    return rows, _query_key_value(following, rows, matrices) if following else rows


def _called(function: Callable, arguments: Sequence[tf.Tensor]) -> Callable:
    """Makes a function of the graph that is not inlined, for arguments of these types and shapes."""
    signature = [tf.TensorSpec(argument.shape, argument.dtype) for argument in arguments]

    def half(*values):
        return function(*values)

    return tf.function(half, input_signature=signature, autograph=False, experimental_attributes={"_noinline": True})


def _query_key_value(layer: BertEncoderLayer, rows: tf.Tensor, matrices: _Matrices) -> tf.Tensor:
    """Projects to Q, K and V, one piece per head: float [T, H] to [T * 3 * N, D]."""
    fused = tf.cast(matrices.dense(layer.self_attention.query_key_value, rows), rows.dtype)
    return tf.reshape(fused, [-1, layer.hidden_dim // layer.num_heads])


def _attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    scores = tf.matmul(query, key, transpose_b=True) * key.shape[-1] ** -0.5 + bias
    scores = tf.ensure_shape(scores, [None] * 4)  # The optimizer cannot infer it in a half, and warns.
    return tf.matmul(tf.nn.softmax(scores), value)


def _after_attention(layer: BertEncoderLayer, context: tf.Tensor, rows: tf.Tensor, matrices: _Matrices) -> tf.Tensor:
    """Computes the rest of a layer for the given rows [., H], their context in any shape: [., H]."""
    attended = matrices.dense(layer.self_attention.output_dense, tf.reshape(context, [-1, layer.hidden_dim]))
    rows = _layer_norm(layer.self_attention_layer_norm, tf.cast(attended, rows.dtype) + rows)
    inner = _activate(layer, matrices.dense(layer.intermediate_dense, rows))
    output = tf.cast(matrices.dense(layer.output_dense, inner), rows.dtype)
    return _layer_norm(layer.output_layer_norm, output + rows)


def _activate(layer: BertEncoderLayer, inner: tf.Tensor) -> tf.Tensor:
    if layer.activation != "gelu":
        return layer.activation_function(inner)
    return (tf.math.erf(inner * 0.5**0.5) + 1.0) * 0.5 * inner  # the form that the remapper knows


def _layer_norm(layer: keras.layers.LayerNormalization, rows: tf.Tensor) -> tf.Tensor:
    difference = rows - tf.reduce_mean(rows, axis=1, keepdims=True)
    variance = tf.reduce_mean(tf.square(difference), axis=1, keepdims=True)
    return difference * tf.math.rsqrt(variance + layer.epsilon) * layer.gamma.value + layer.beta.value
