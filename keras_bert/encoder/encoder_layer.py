"""One encoder layer of BERT, on rows.

Shapes: T rows (see packing.py), H hidden.
"""

import functools

import keras

from keras_bert.config import ACTIVATIONS
from keras_bert.encoder.attention import BertSelfAttention
from keras_bert.encoder.layer import BertLayer, keep_arguments
from keras_bert.encoder.packing import as_layout


def get_activation(name: str):
    """Returns the function named by `BertConfig.activation`. The tanh GELU and the erf GELU differ by up to 5e-4."""
    if name not in ACTIVATIONS:
        raise ValueError(f"`activation` must be one of {', '.join(ACTIVATIONS)}. Received: {name!r}")
    gelu_tanh = functools.partial(keras.activations.gelu, approximate=True)
    return gelu_tanh if name == "gelu_tanh" else keras.activations.get(name)


@keras.saving.register_keras_serializable(package="keras_bert")
class BertEncoderLayer(BertLayer):
    """x = LayerNorm(x + Dropout(Attention(x))); LayerNorm(x + Dropout(W2 act(W1 x + b1) + b2)).

    Args:
        hidden_dim, num_heads, intermediate_dim, activation, dropout, attention_dropout, layer_norm_epsilon,
        initializer_range: as in `BertConfig`.

    Call arguments:
        rows: float, shape (T, H).
        layout: of packing.py.

    Returns:
        float, shape (T, H).
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        intermediate_dim: int,
        activation: str = "gelu_tanh",
        dropout: float = 0.1,
        attention_dropout: float | None = None,
        layer_norm_epsilon: float = 1e-12,
        initializer_range: float = 0.02,
        **kwargs,
    ):
        super().__init__(**kwargs)
        attention_dropout = dropout if attention_dropout is None else attention_dropout
        keep_arguments(self, locals())
        self.self_attention = BertSelfAttention(
            hidden_dim=hidden_dim,
            num_heads=num_heads,
            dropout=attention_dropout,
            initializer_range=initializer_range,
            dtype=self.dtype_policy,
            name="self_attention",
        )
        self.self_attention_layer_norm = self._layer_norm("self_attention_layer_norm")
        self.intermediate_dense = self._dense(intermediate_dim, "intermediate_dense")
        self.activation_function = get_activation(activation)
        self.output_dense = self._dense(hidden_dim, "output_dense")
        self.output_layer_norm = self._layer_norm("output_layer_norm")
        self.dropout_layer = self._dropout()

    def build(self, *_):
        self.self_attention.build()
        self.intermediate_dense.build((None, self.hidden_dim))
        self.output_dense.build((None, self.intermediate_dim))
        self.self_attention_layer_norm.build((None, self.hidden_dim))
        self.output_layer_norm.build((None, self.hidden_dim))
        self.built = True

    def call(self, rows, layout, training=None):
        # LayerNorm(x + Dropout(sublayer(x))) for both sublayers (Vaswani et al. 2017, sections 3.1 and 5.4). They share
        # a dropout layer, since each call draws a new mask.
        attended = self.self_attention(rows, layout=as_layout(layout), training=training)
        attended = self.dropout_layer(attended, training=training)
        rows = self.self_attention_layer_norm(rows + attended)
        inner = self.activate(self.intermediate_dense(rows))  # [T, intermediate_dim]
        output = self.dropout_layer(self.output_dense(inner), training=training)
        return self.output_layer_norm(rows + output)

    def activate(self, rows):
        """Applies the activation of the feed-forward block to float (T, intermediate_dim)."""
        return self.activation_function(rows)

    def compute_output_spec(self, rows, layout, training=None):
        return keras.KerasTensor(rows.shape, dtype=self.compute_dtype)  # As in BertEmbeddings.
