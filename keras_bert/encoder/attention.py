"""Multi-head self-attention (Vaswani et al. 2017, section 3.2) on rows.

Shapes: B batch, S sequence, T rows (see packing.py), N heads, D size per head, H = N * D hidden.
"""

import keras
from keras import ops

from keras_bert.encoder.layer import BertLayer, keep_arguments


@keras.saving.register_keras_serializable(package="keras_bert")
class BertSelfAttention(BertLayer):
    """softmax(Q K^T / sqrt(D) + bias) V for each head (Vaswani et al. 2017, equation 1), then the output projection.

    Q, K and V come from one matrix product: one kernel of shape (H, 3H), the three side by side. On two CPU cores
    one wide product is faster than three narrow ones, and needs no copy at batch 1.

    Args:
        hidden_dim: int, H.
        num_heads: int, N; divides H.
        dropout: float, on the attention probabilities.
        initializer_range: float.

    Call arguments:
        rows: float, shape (T, H).
        layout: of packing.py; its `attention_bias` masks the keys, not the queries (google-research/bert
            modeling.py:712).

    Returns:
        float, shape (T, H).
    """

    def __init__(self, hidden_dim: int, num_heads: int, dropout: float, initializer_range: float, **kwargs):
        super().__init__(**kwargs)
        keep_arguments(self, locals())
        self.query_key_value = self._dense(3 * hidden_dim, "query_key_value")
        self.output_dense = self._dense(hidden_dim, "output_dense")
        self.dropout_layer = self._dropout()

    def build(self, *_):
        self.query_key_value.build((None, self.hidden_dim))
        self.output_dense.build((None, self.hidden_dim))
        self.built = True

    def call(self, rows, layout, training=None):
        size = self.hidden_dim // self.num_heads  # D
        fused = layout.unflatten(self.query_key_value(rows))  # [B, S, 3H]
        batch, sequence, _ = ops.shape(fused)
        # The gradient of a split is one concatenation, that of slicing three padded sums.
        query, key, value = (
            ops.reshape(part, (batch, sequence, self.num_heads, size)) for part in ops.split(fused, 3, axis=-1)
        )
        # Scaling the query, [B, S, H], by 1 / sqrt(D) is cheaper than scaling the scores, [B, N, S, S].
        query = ops.transpose(query * size**-0.5, (0, 2, 1, 3))  # [B, N, S, D]
        key = ops.transpose(key, (0, 2, 3, 1))  # [B, N, D, S]
        value = ops.transpose(value, (0, 2, 1, 3))  # [B, N, S, D]
        scores = ops.matmul(query, key) + layout.attention_bias  # [B, N, S, S]
        # Sums of many small exponentials need float32's mantissa. The casts do nothing when computing in float32.
        probabilities = ops.cast(ops.softmax(ops.cast(scores, "float32")), self.compute_dtype)
        probabilities = self.dropout_layer(probabilities, training=training)
        # The heads side by side again are Concat(head_1, ..., head_N) (section 3.2.2).
        context = ops.transpose(ops.matmul(probabilities, value), (0, 2, 1, 3))  # [B, S, N, D]
        context = ops.reshape(context, (batch, sequence, self.hidden_dim))
        return self.output_dense(layout.flatten(context))
