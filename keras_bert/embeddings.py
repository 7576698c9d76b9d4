"""The input of the encoder: token, segment and position embeddings (paper, figure 2).

Shapes: B batch, S sequence, T rows (see packing.py), H hidden.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

_weights_follow = contextvars.ContextVar("weights_follow", default=False)


def truncated_normal(stddev: float) -> keras.initializers.Initializer:
    """BERT's initializer for every kernel and table (google-research/bert modeling.py:377), freshly seeded."""
    return keras.initializers.TruncatedNormal(stddev=stddev)


@contextlib.contextmanager
def weights_follow() -> Iterator[None]:
    """Inside it embeddings and encoder layers start from any values, since a checkpoint's weights follow.

    Drawing them is what building a base model takes its time for: 2.8 s, 0.25 s without (2 cores).
    """
    token = _weights_follow.set(True)
    try:
        yield
    finally:
        _weights_follow.reset(token)


def encoder_initializer(stddev: float) -> keras.initializers.Initializer:
    """As `truncated_normal`, for what every checkpoint holds; any values under `weights_follow`."""
    return _AnyValues() if _weights_follow.get() else truncated_normal(stddev)


class _AnyValues(keras.initializers.Zeros):
    """Memory as it comes, which nothing writes to, where the backend can give that; else zeros."""

    def __call__(self, shape, dtype=None):
        if keras.backend.backend() != "tensorflow":
            return super().__call__(shape, dtype=dtype)
        import tensorflow as tf

        dtype = tf.as_dtype(keras.backend.standardize_dtype(dtype))
        return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=False)


@keras.saving.register_keras_serializable(package="keras_bert")
class BertEmbeddings(keras.layers.Layer):
    """Adds the three embeddings of each token, then normalizes and drops.

    Args:
        vocabulary_size, hidden_dim, max_sequence_length, num_segments, dropout, layer_norm_epsilon,
        initializer_range: as in `BertConfig`.

    Call arguments:
        token_ids: int32, shape (B, S).
        segment_ids: int32, shape (B, S).
        layout: of packing.py.

    Returns:
        float, shape (T, H).
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.1,
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.hidden_dim = hidden_dim
        self.max_sequence_length = max_sequence_length
        self.num_segments = num_segments
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self.token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=encoder_initializer(initializer_range),
            dtype=self.dtype_policy,
            name="token_embedding",
        )
        self.segment_embedding = self._table(num_segments, "segment_embedding")
        self.position_embedding = self._table(max_sequence_length, "position_embedding")
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm"
        )
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy, name="dropout")

    def _table(self, rows: int, name: str) -> keras.layers.Embedding:
        return keras.layers.Embedding(
            rows,
            self.hidden_dim,
            embeddings_initializer=encoder_initializer(self.initializer_range),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, *_):
        for table in (self.token_embedding, self.segment_embedding, self.position_embedding):
            table.build(None)
        self.layer_norm.build((None, self.hidden_dim))
        self.built = True

    def call(self, token_ids, segment_ids, layout, training=None):
        length = token_ids.shape[1]
        if length is not None and length > self.max_sequence_length:
            raise ValueError(
                f"Sequences must have at most `max_sequence_length` tokens. Received: {length} tokens, "
                f"max_sequence_length={self.max_sequence_length}"
            )
        rows = self.token_embedding(layout.flatten(token_ids))  # [T, H]
        rows = rows + self.segment_embedding(layout.flatten(segment_ids))
        rows = layout.add_positions(rows, keras.ops.cast(self._position_table(), rows.dtype))
        return self.dropout_layer(self.layer_norm(rows), training=training)

    def _position_table(self):
        if self.position_embedding.quantization_mode is None:
            return self.position_embedding.embeddings
        # The variable holds integers then; only the layer knows their scales.
        return self.position_embedding(keras.ops.arange(self.max_sequence_length))

    def compute_output_spec(self, token_ids, segment_ids, layout, training=None):
        # Said, not inferred: Keras infers by putting one number in every place of an unknown size, but T is B * S.
        return keras.KerasTensor((None, self.hidden_dim), dtype=self.compute_dtype)

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "hidden_dim": self.hidden_dim,
            "max_sequence_length": self.max_sequence_length,
            "num_segments": self.num_segments,
            "dropout": self.dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
        }
