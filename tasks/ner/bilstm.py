"""Builds the tagger of the paper's section 5.3: two BiLSTM layers and a linear layer on frozen hidden states of words.

Shapes: B batch, S sequence in tokens, W sentence in words, H hidden size, K chosen layers, C tags.
"""

import keras
from keras import ops

from keras_bert.encoder.heads import TakePositions
from keras_bert.encoder.layer import BertLayer, keep_arguments
from tasks.features.model import FeatureExtractor
from tasks.ner.settings import NerSettings

TAGGER = "bilstm_tagger"


def build_tagger(settings: NerSettings, num_layers: int, hidden_dim: int, num_tags: int) -> keras.Model:
    """Builds the model to train.

    Args:
        settings: `combine`: "concatenate" to read all K * H numbers; "sum"; "mean"; or "weighted_sum", which is
            gamma * sum_k softmax(w)_k h_k with learned gamma and w (Peters et al. 2018, equation 1), equal at first.
            `lstm_units`: width of each direction. `lstm_layers`: number of stacked BiLSTMs. `lstm_dropout`: dropout on
            the input and on each BiLSTM's output. The paper does not give a rate.
        num_layers: K, the number of layers whose states are concatenated in the input.
        hidden_dim: H, the width of each layer's states.
        num_tags: C.

    Returns:
        A functional model from `features` float32 (B, W, K * H) and `padding_mask` int32 (B, W) to logits (B, W, C).
    """
    # === Functional model ===
    features = keras.Input((None, num_layers * hidden_dim), dtype="float32", name="features")
    padding_mask = keras.Input((None,), dtype="int32", name="padding_mask")
    states = features
    if settings.combine != "concatenate" and num_layers > 1:
        states = CombineStates(num_layers, settings.combine, name="combine_states")(states)
    mask = ops.cast(padding_mask, "bool")
    states = keras.layers.Dropout(settings.lstm_dropout, name="input_dropout")(states)
    for index in range(settings.lstm_layers):
        lstm = keras.layers.LSTM(settings.lstm_units, return_sequences=True, name=f"lstm_{index}")
        states = keras.layers.Bidirectional(lstm, name=f"bilstm_{index}")(states, mask=mask)
        states = keras.layers.Dropout(settings.lstm_dropout, name=f"lstm_dropout_{index}")(states)
    # With Keras's Glorot initializer. With BERT's 0.02 the first epochs learn nothing, since BiLSTM outputs are small.
    logits = keras.layers.Dense(num_tags, dtype="float32", name="token_classification")(states)
    return keras.Model({"features": features, "padding_mask": padding_mask}, logits, name=TAGGER)


def join_extractor(extractor: FeatureExtractor, tagger: keras.Model) -> keras.Model:
    """Joins the tagger with its encoder into the model to save.

    Args:
        extractor: the encoder's chosen layers.
        tagger: the model that `build_tagger` returned.

    Returns:
        A functional model from the encoder's inputs and `word_positions` to logits (B, W, C). `word_positions`, int32
        (B, W), is the index of each word's first token in its sequence, 0 for padding.
    """
    positions = keras.Input((None,), dtype="int32", name="word_positions")
    inputs = {**extractor.input, "word_positions": positions}
    words = TakePositions(dtype="float32", name="first_tokens")(extractor(extractor.input), positions)
    # Position 0 is [CLS], and never a word.
    mask = ops.cast(ops.greater(positions, 0), "int32")
    return keras.Model(inputs, tagger({"features": words, "padding_mask": mask}), name="feature_based_tagger")


@keras.saving.register_keras_serializable(package="keras_bert")
class CombineStates(BertLayer):
    """Combines the states of K layers, (B, W, K * H), to (B, W, H): by sum, mean, or learned weighted sum.

    Args:
        num_layers: K.
        combine: "sum", "mean" or "weighted_sum".
    """

    def __init__(self, num_layers: int, combine: str, **kwargs):
        super().__init__(**kwargs)
        keep_arguments(self, locals())

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
