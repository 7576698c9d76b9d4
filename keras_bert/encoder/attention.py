"""Multi-head self-attention (Vaswani et al. 2017, section 3.2) on rows.

Shapes: B batch, S sequence, T rows (see packing.py), N heads, D size per head, H = N * D hidden.
"""

import keras
from keras import ops

from keras_bert.encoder.layer import BertLayer, keep_arguments
from keras_bert.encoder.packing import MASKED_SCORE


def has_fused_kernel(dtype: str) -> bool:
    """Returns whether cuDNN's kernel, which never materializes the scores, is available: on JAX, a GPU, in 16 bits."""
    on_jax = keras.backend.backend() == "jax" and dtype in ("bfloat16", "float16")
    return on_jax and keras.distribution.list_devices()[0].startswith(("gpu", "cuda"))


def fused_attention(query, key, value, bias):
    """Computes attention in one kernel if the backend has one.

    Args:
        query, key, value: float, shape (B, S, N, D).
        bias: a layout's `attention_bias`.

    Returns:
        float, shape (B, S, N, D).
    """
    is_seen = bias > MASKED_SCORE / 2
    # A query without keys attends to all keys, as under a softmax of equal biases; the kernel would return NaN.
    is_seen = ops.logical_or(is_seen, ops.logical_not(ops.any(is_seen, axis=-1, keepdims=True)))
    batch, sequence, _, _ = ops.shape(query)
    return ops.dot_product_attention(query, key, value, mask=ops.broadcast_to(is_seen, (batch, 1, sequence, sequence)))


@keras.saving.register_keras_serializable(package="keras_bert")
class BertSelfAttention(BertLayer):
    """softmax(Q K^T / sqrt(D) + bias) V for each head (Vaswani et al. 2017, equation 1), then the output projection.

    Q, K and V come from one matrix product, with one kernel of shape (H, 3H). On two CPU cores one wide product is
    faster than three narrow ones, and needs no copy at batch 1.

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
        if has_fused_kernel(self.compute_dtype) and not (training and self.dropout):
            context = fused_attention(query, key, value, layout.attention_bias)
        else:
            context = self._attend(query, key, value, layout.attention_bias, training)
        # The heads side by side are Concat(head_1, ..., head_N) (section 3.2.2).
        context = ops.reshape(context, (batch, sequence, self.hidden_dim))
        return self.output_dense(layout.flatten(context))

    def _attend(self, query, key, value, bias, training):
        """Computes attention, with dropout on the probabilities: float (B, S, N, D) each to the same shape."""
        # Scaling the query, [B, S, H], by 1 / sqrt(D) is cheaper than scaling the scores, [B, N, S, S].
        query = ops.transpose(query * query.shape[-1] ** -0.5, (0, 2, 1, 3))  # [B, N, S, D]
        key = ops.transpose(key, (0, 2, 3, 1))  # [B, N, D, S]
        value = ops.transpose(value, (0, 2, 1, 3))  # [B, N, S, D]
        scores = ops.matmul(query, key) + bias  # [B, N, S, S]
        # Sums of many small exponentials need float32's mantissa. The casts do nothing when computing in float32.
        probabilities = ops.cast(ops.softmax(ops.cast(scores, "float32")), self.compute_dtype)
        probabilities = self.dropout_layer(probabilities, training=training)
        return ops.transpose(ops.matmul(probabilities, value), (0, 2, 1, 3))
