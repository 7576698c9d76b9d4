"""The input of the encoder: token, segment and position embeddings (paper, figure 2).

Shapes: B batch, S sequence, T rows (see packing.py), H hidden.
"""

import keras

from keras_bert.encoder.layer import BertLayer, encoder_initializer, keep_arguments
from keras_bert.encoder.packing import as_layout


@keras.saving.register_keras_serializable(package="keras_bert")
class BertEmbeddings(BertLayer):
    """Adds the three embeddings of each token, then applies layer normalization and dropout.

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
        keep_arguments(self, locals())
        # Otherwise the masked-LM head's product would be float32 under every policy: Keras does not autocast the table.
        self.token_embedding = self._table(
            vocabulary_size, "token_embedding", keras.layers.ReversibleEmbedding, reverse_dtype=self.compute_dtype
        )
        self.segment_embedding = self._table(num_segments, "segment_embedding")
        self.position_embedding = self._table(max_sequence_length, "position_embedding")
        self.layer_norm = self._layer_norm("layer_norm")
        self.dropout_layer = self._dropout()

    def _table(self, rows: int, name: str, cls=keras.layers.Embedding, **options) -> keras.layers.Embedding:
        options |= {"embeddings_initializer": encoder_initializer(self.initializer_range), "dtype": self.dtype_policy}
        return cls(rows, self.hidden_dim, name=name, **options)

    def build(self, *_):
        for table in (self.token_embedding, self.segment_embedding, self.position_embedding):
            table.build(None)
        self.layer_norm.build((None, self.hidden_dim))
        self.built = True

    def call(self, token_ids, segment_ids, layout, training=None):
        # On a GPU, a look-up beyond the table would return zeros instead of failing.
        length = token_ids.shape[1]
        if length is not None and length > self.max_sequence_length:
            raise ValueError(
                f"Sequences must have at most `max_sequence_length` tokens. Received: {length} tokens, "
                f"max_sequence_length={self.max_sequence_length}"
            )
        layout = as_layout(layout)
        rows = self.token_embedding(layout.flatten(token_ids))  # [T, H]
        rows = rows + self.segment_embedding(layout.flatten(segment_ids))
        rows = layout.add_positions(rows, keras.ops.cast(self._position_table(), rows.dtype))
        return self.dropout_layer(self.layer_norm(rows), training=training)

    def _position_table(self):
        if self.position_embedding.quantization_mode is None:
            return self.position_embedding.embeddings
        # A quantized variable holds integers; only the layer knows their scales.
        return self.position_embedding(keras.ops.arange(self.max_sequence_length))

    def compute_output_spec(self, token_ids, segment_ids, layout, training=None):
        # Keras would infer the shape with one number for all unknown dimensions, but T is B * S.
        return keras.KerasTensor((None, self.hidden_dim), dtype=self.compute_dtype)
