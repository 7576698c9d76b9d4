"""The layers on top of the encoder: pooler, masked-LM, next-sentence and classification heads.

Shapes: B batch, S sequence, P masked positions, K examples of a packed sequence, H hidden, V vocabulary. Logits are
float32 under every dtype policy.
"""

import keras
from keras import ops

from keras_bert.encoder.encoder_layer import get_activation
from keras_bert.encoder.layer import BertLayer


@keras.saving.register_keras_serializable(package="keras_bert")
class MaskedLMHead(keras.layers.Layer):
    """Dense -> activation -> LayerNorm -> tied token table + output bias (google-research/bert run_pretraining.py:240).

    Args:
        token_embedding: `ReversibleEmbedding` of the backbone; its table is the output kernel.
        activation: str, the backbone's.
        layer_norm_epsilon: float, 1e-12 as in the backbone (1e-5 in KerasHub's head).
        initializer_range: float.

    Call arguments:
        sequence_output: float, shape (B, S, H).
        mask_positions: int32, shape (B, P), positions within each sequence.

    Returns:
        float32 logits, shape (B, P, V), computed at the masked positions only.
    """

    def __init__(
        self,
        token_embedding: keras.layers.Embedding,
        activation: str = "gelu_tanh",
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.token_embedding = token_embedding
        self.activation = activation
        transform = get_activation(activation)
        self.transform_dense = output_head(
            token_embedding.output_dim, initializer_range, "transform_dense", transform, self.dtype_policy
        )
        self.transform_layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="transform_layer_norm"
        )

    def build(self, *_):
        vocabulary_size, hidden_dim = self.token_embedding.input_dim, self.token_embedding.output_dim
        self.transform_dense.build((None, hidden_dim))
        self.transform_layer_norm.build((None, hidden_dim))
        self.output_bias = self.add_weight(shape=(vocabulary_size,), initializer="zeros", name="output_bias")
        self.built = True

    def call(self, sequence_output, mask_positions):
        # The product with the token table is the most expensive one, so it is computed at the masked positions only.
        rows = rows_at(sequence_output, mask_positions)  # [B * P, H]
        rows = self.transform_layer_norm(self.transform_dense(rows))
        logits = ops.cast(self.token_embedding(rows, reverse=True), "float32") + ops.cast(self.output_bias, "float32")
        return ops.reshape(logits, (*ops.shape(mask_positions), self.token_embedding.input_dim))


@keras.saving.register_keras_serializable(package="keras_bert")
class TakePositions(keras.layers.Layer):
    """Picks positions of each sequence: `sequence_output` (B, S, H), `positions` int32 (B, K) to (B, K, H)."""

    def call(self, sequence_output, positions):
        rows = rows_at(sequence_output, positions)
        return ops.reshape(rows, (*ops.shape(positions), sequence_output.shape[-1]))


@keras.saving.register_keras_serializable(package="keras_bert")
class LastPositions(keras.layers.Layer):
    """Finds where each example of a sequence ends, for encoders that read from left to right.

    In them, only the last token has seen the whole example, so it is pooled instead of [CLS], which sees only itself.

    Call arguments:
        padding_mask: int or bool, shape (B, S): the number of each token's example, from 1; 0 for padding.
        first_positions: int32, shape (B, K); only the shape is used.

    Returns:
        int32, shape (B, K): the position of the last token of example 1, 2, ..., K; 0 where there is none.
    """

    def call(self, padding_mask, first_positions):
        return last_positions(padding_mask, ops.shape(first_positions)[1])


def last_positions(padding_mask, count):
    """Returns the last positions of the examples 1 to `count`, as `LastPositions` does: int32 (B, count)."""
    numbers = ops.arange(1, count + 1, dtype="int32")
    is_inside = ops.equal(ops.expand_dims(ops.cast(padding_mask, "int32"), 1), numbers[None, :, None])  # [B, count, S]
    positions = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    return ops.max(ops.where(is_inside, positions[None, None, :], 0), axis=-1, initial=0)  # A batch may be empty.


@keras.saving.register_keras_serializable(package="keras_bert")
class PoolTokens(BertLayer):
    """Pools each sequence's real tokens into one vector.

    Args:
        pooling: str, `"mean"` or `"max"` of each component over the real tokens, or `"cls"` for the first token.

    Call arguments:
        sequence_output: float, shape (B, S, H).
        padding_mask: int or bool, shape (B, S), 0 for padding, 2 for tokens that only the encoder reads.

    Returns:
        Shape (B, H), in the layer's dtype.
    """

    def __init__(self, pooling: str, **kwargs):
        super().__init__(**kwargs)
        self.pooling = pooling

    def call(self, sequence_output, padding_mask):
        if self.pooling == "cls":
            return sequence_output[:, 0]
        is_real = ops.expand_dims(ops.equal(ops.cast(padding_mask, "int32"), 1), -1)
        if self.pooling == "max":
            return ops.max(ops.where(is_real, sequence_output, -1e9), axis=1)
        counts = ops.maximum(ops.sum(ops.cast(is_real, sequence_output.dtype), axis=1), 1)
        return ops.sum(ops.where(is_real, sequence_output, 0), axis=1) / counts


def rows_at(sequence_output, positions):
    """Returns the representations `[B * K, H]` at positions `[B, K]` within each sequence."""
    # `take` has no batch axis, so the positions become indices into the rows of the whole batch.
    batch, sequence, hidden_dim = ops.shape(sequence_output)
    starts = ops.arange(batch, dtype="int32")[:, None] * sequence
    indices = ops.reshape(ops.cast(positions, "int32") + starts, (-1,))
    return ops.take(ops.reshape(sequence_output, (-1, hidden_dim)), indices, axis=0)


def output_head(
    units: int, initializer_range: float, name: str, activation=None, dtype="float32"
) -> keras.layers.Dense:
    """Returns a head of one dense layer, by default linear, and float32 under every dtype policy."""
    initializer = keras.initializers.TruncatedNormal(stddev=initializer_range)
    return keras.layers.Dense(units, activation, kernel_initializer=initializer, dtype=dtype, name=name)
