"""The feature-based tagger of the paper's section 5.3: frozen hidden states, a BiLSTM of two layers, a linear layer.

Shapes: B batch, S sequence in tokens, W sentence in words, K chosen layers, H hidden, C tags.
"""

import keras
from keras import ops

from keras_bert.heads import TakePositions
from tasks.features.model import COMBINED

TAGGER = "bilstm_tagger"
EXTRACTOR = "feature_extractor"


def build_tagger(
    num_layers: int,
    hidden_dim: int,
    num_tags: int,
    combine: str = "none",
    *,
    lstm_units: int = 768,
    lstm_layers: int = 2,
    lstm_dropout: float = 0.1,
) -> keras.Model:
    """Builds the model that is trained.

    Args:
        num_layers: K, the layers whose states are concatenated in the input.
        hidden_dim: H, of each.
        num_tags: C.
        combine: "none" or "concatenate": the BiLSTM reads all K * H numbers; "sum", "mean"; or "weighted_sum", with
            learned weights: gamma * sum_k softmax(w)_k h_k (Peters et al. 2018, equation 1), equal at first.
        lstm_units: of each direction (the paper: 768).
        lstm_layers: BiLSTMs, one on top of the other (the paper: 2).
        lstm_dropout: on the input and each BiLSTM's output; the paper does not say.

    Returns:
        A functional model, `features` float32 (B, W, K * H) and `padding_mask` int32 (B, W) to logits (B, W, C).
    """
    # === Functional model ===
    features = keras.Input((None, num_layers * hidden_dim), dtype="float32", name="features")
    padding_mask = keras.Input((None,), dtype="int32", name="padding_mask")
    states = features
    if combine in ("sum", "mean", "weighted_sum") and num_layers > 1:
        states = CombineStates(num_layers, combine, name="combine_states")(states)
    mask = ops.cast(padding_mask, "bool")
    states = keras.layers.Dropout(lstm_dropout, name="input_dropout")(states)
    for index in range(lstm_layers):
        lstm = keras.layers.LSTM(lstm_units, return_sequences=True, name=f"lstm_{index}")
        states = keras.layers.Bidirectional(lstm, name=f"bilstm_{index}")(states, mask=mask)
        states = keras.layers.Dropout(lstm_dropout, name=f"lstm_dropout_{index}")(states)
    # Glorot's initializer: with BERT's 0.02 the first epochs teach nothing, since a BiLSTM's outputs are small.
    logits = keras.layers.Dense(num_tags, dtype="float32", name="token_classification")(states)
    return keras.Model({"features": features, "padding_mask": padding_mask}, logits, name=TAGGER)


def join_extractor(extractor: keras.Model, tagger: keras.Model) -> keras.Model:
    """Puts the tagger on its encoder: the model that is saved.

    Args:
        extractor: `FeatureExtractor` with "concatenate".
        tagger: of `build_tagger`.

    Returns:
        A functional model of the encoder's inputs and `word_positions`, int32 (B, W): the place of each word's first
        token in its sequence, 0 for padding; to logits (B, W, C).
    """
    positions = keras.Input((None,), dtype="int32", name="word_positions")
    inputs = {**extractor.input, "word_positions": positions}
    states = extractor(extractor.input)[COMBINED]
    words = TakePositions(dtype="float32", name="first_tokens")(states, positions)
    # Position 0 is [CLS], never a word.
    mask = ops.cast(ops.greater(positions, 0), "int32")
    return keras.Model(inputs, tagger({"features": words, "padding_mask": mask}), name="feature_based_tagger")


@keras.saving.register_keras_serializable(package="keras_bert")
class CombineStates(keras.layers.Layer):
    """(B, W, K * H) to (B, W, H): the sum, the mean, or a learned weighted sum of the K layers' states.

    Args:
        num_layers: K.
        combine: "sum", "mean" or "weighted_sum".
    """

    def __init__(self, num_layers: int, combine: str, **kwargs):
        super().__init__(**kwargs)
        self.num_layers = num_layers
        self.combine = combine

    def build(self, shape):
        if self.combine == "weighted_sum":
            self.scores = self.add_weight(shape=(self.num_layers,), initializer="zeros", name="layer_scores")
            self.scale = self.add_weight(shape=(), initializer="ones", name="layer_scale")
        self.built = True

    def layer_weights(self):
        """Returns the factor of each layer, shape (K,)."""
        if self.combine == "weighted_sum":
            return self.scale * ops.softmax(self.scores)
        return ops.full((self.num_layers,), 1.0 if self.combine == "sum" else 1.0 / self.num_layers)

    def call(self, states):
        batch, words, width = ops.shape(states)
        layers = ops.reshape(states, (batch, words, self.num_layers, width // self.num_layers))
        weights = ops.cast(self.layer_weights(), states.dtype)
        return ops.sum(layers * weights[:, None], axis=2)

    def compute_output_spec(self, states):
        return keras.KerasTensor((*states.shape[:2], states.shape[2] // self.num_layers), dtype=self.compute_dtype)

    def get_config(self):
        return {**super().get_config(), "num_layers": self.num_layers, "combine": self.combine}
