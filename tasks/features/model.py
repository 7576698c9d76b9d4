"""Contextual embeddings: hidden states of chosen encoder layers, combined, and pooled to one vector per text.

And the feature-based tagger of the paper's section 5.3: a two-layer BiLSTM and a linear layer on frozen hidden states.

Shapes: B batch, S sequence in tokens, T rows (see keras_bert/packing.py), W sentence in words, H hidden size, K chosen
layers, C tags.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_bert.backbone import BertBackbone, FirstRows, RestoreRectangle
from keras_bert.heads import PoolTokens, TakePositions
from keras_bert.layer import BertLayer, keep_arguments
from keras_bert.tokenization.tokenizer import BertTokenizer
from tasks.features.settings import COMBINES, POOLINGS, FeatureSettings, layer_name
from tasks.fine_tuning import start
from tasks.fine_tuning.examples import Examples, compute_outputs

COMBINED = "features"
POOLED = "pooled_output"
TAGGER = "bilstm_tagger"
EXTRACTOR = "feature_extractor"


@keras.saving.register_keras_serializable(package="keras_bert")
class FeatureExtractor(keras.Model):
    """Functional model that outputs the hidden states of chosen layers (paper, section 5.3).

    It shares the backbone's layers, weights and inputs, and computes no layer above the highest chosen one. The output
    is a dict of float tensors. In the layout "unpadded" padding costs nothing, and its rows are zeros.

    This is a class because Keras saves a plain functional model call by call, and would lose the layouts that the
    encoder's layers pass on.

    Args:
        backbone: BertBackbone.
        layers: numbers of the layers, as `resolve_layers` returns them: 0 for the embeddings' output, 1 to num_layers.
        combine: "none" for an output per layer, named by `layer_name`; else a single output `features`: "concatenate"
            (the layers in the order given, K * H wide), "sum", "mean", or "weighted_sum".
        layer_weights: K factors for "weighted_sum", which are not normalized.
        pooling: "none" for a vector per token, (B, S, ...); else a vector per text, (B, ...): "cls", that of the first
            token; "mean", the mean over all real tokens, [CLS] and [SEP] included, as in sentence-transformers;
            "pooler", the backbone's pooled output, named `pooled_output`, with the last layer alone in `layers`.
        normalize: whether to divide each pooled vector by its Euclidean norm.
        name: name of the model.

    Raises:
        ValueError: a layer does not exist, or the arguments do not fit together.
    """

    def __init__(
        self,
        backbone: BertBackbone,
        layers: Sequence[int],
        combine: str = "none",
        layer_weights: Sequence[float] | None = None,
        pooling: str = "none",
        normalize: bool = False,
        name: str = "feature_extractor",
        **kwargs,
    ):
        _check(backbone, layers, combine, layer_weights, pooling, normalize)

        # === Functional model ===
        if pooling == "pooler":
            outputs = {POOLED: backbone.output[POOLED]}
        else:
            chosen = {layer_name(number): _rows(backbone, number) for number in layers}
            outputs = {
                name: _pool(backbone, name, rows, pooling)
                for name, rows in _combine(chosen, combine, layer_weights).items()
            }
        if normalize:
            outputs = {
                name: keras.layers.UnitNormalization(axis=-1, dtype="float32", name=f"{name}_normalized")(vectors)
                for name, vectors in outputs.items()
            }
        super().__init__(backbone.input, outputs, name=name, **kwargs)

        # === Config ===
        self._config = {
            "backbone": backbone.get_config(),
            "layers": list(layers),
            "combine": combine,
            "layer_weights": list(layer_weights) if layer_weights else None,
            "pooling": pooling,
            "normalize": normalize,
        }

    def get_config(self):
        return {**self._config, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        backbone = BertBackbone.from_config(config["backbone"])
        return cls(**{**config, "backbone": backbone})


build_feature_extractor = FeatureExtractor


def _check(backbone, layers, combine, layer_weights, pooling, normalize) -> None:
    if not layers or len(set(layers)) != len(layers) or not all(0 <= n <= backbone.num_layers for n in layers):
        raise ValueError(f"`layers` must be different numbers from 0 to {backbone.num_layers}. Received: {layers=}")
    if combine not in COMBINES or pooling not in POOLINGS:
        raise ValueError(f"`combine` must be of {COMBINES}, `pooling` of {POOLINGS}. Received: {combine=}, {pooling=}")
    if (combine == "weighted_sum") != bool(layer_weights) or len(layer_weights or layers) != len(layers):
        raise ValueError(f"`layer_weights` must hold a number for each layer. Received: {combine=}, {layer_weights=}")
    if pooling == "pooler" and (list(layers) != [backbone.num_layers] or combine != "none"):
        raise ValueError(f"`pooling` 'pooler' takes the last layer alone. Received: {layers=}, {combine=}")
    if normalize and pooling == "none":
        raise ValueError("`normalize` is for pooled vectors. Received: pooling='none'")


def _rows(backbone: BertBackbone, number: int):
    """Returns a layer's symbolic output, [T, H]."""
    return backbone.get_layer(f"transformer_layer_{number - 1}" if number else "embeddings").output


def _combine(chosen: dict, combine: str, layer_weights: Sequence[float] | None) -> dict:
    """Combines the layers' rows, [T, H] each; returns the outputs by name."""
    if combine == "none":
        return chosen
    states = list(chosen.values())
    if combine == "concatenate":
        return {COMBINED: ops.concatenate(states, axis=-1)}
    factors = {"sum": [1.0] * len(states), "mean": [1.0 / len(states)] * len(states), "weighted_sum": layer_weights}
    return {COMBINED: sum(state * float(factor) for state, factor in zip(states, factors[combine], strict=True))}


def _pool(backbone: BertBackbone, name: str, rows, pooling: str):
    tokens = backbone.get_layer("token_layout")(backbone.input["padding_mask"])  # Its `output` lacks the structure.
    common = {"dtype": backbone.compute_dtype, "name": f"{name}_output"}  # `embeddings` is a layer already.
    if pooling == "cls":
        return FirstRows(**common)(rows, layout=tokens)
    if pooling == "none":
        return RestoreRectangle(**common)(rows, layout=tokens)
    rectangle = RestoreRectangle(dtype=backbone.compute_dtype, name=f"{name}_rectangle")(rows, layout=tokens)
    # A mean of hundreds of tokens needs float32's mantissa.
    return PoolTokens("mean", dtype="float32", name=f"{name}_output")(rectangle, backbone.input["padding_mask"])


# === Running it ===


def load_encoder(settings: FeatureSettings) -> tuple[BertBackbone, BertTokenizer]:
    """Loads the encoder, in the layout that skips padding except for TPUs, and its tokenizer.

    Raises:
        InputError: the preset does not exist, is too short for `max_seq_length`, or does not fit its vocabulary.
    """
    origin = start.find_start(settings)
    tokenizer = origin.tokenizer()
    start.check_encoder(origin, settings, settings.max_seq_length, tokenizer.vocabulary_size())
    if not origin.load_weights:
        keras.utils.set_random_seed(settings.random_seed)
    layout = "rectangular" if settings.distribution_strategy == "tpu" else "unpadded"
    policy = keras.config.dtype_policy()
    return BertBackbone.from_preset(origin.preset, origin.load_weights, policy, layout=layout), tokenizer


class Extractor:
    """Runs a feature extractor on any number of sequences.

    Args:
        model: `FeatureExtractor`.
        batch_size: B, sequences per batch.

    Attributes:
        widths: D of each output, by name.
    """

    def __init__(self, model, batch_size: int):
        self._batch_size = batch_size
        self.widths = {name: tensor.shape[-1] for name, tensor in model.output.items()}
        outputs = list(model(model.input).values())
        self._by_token = len(outputs[0].shape) == 3
        joined = keras.layers.Concatenate(dtype="float32")(outputs) if len(outputs) > 1 else outputs[0]
        self._model = keras.Model(model.input, joined)

    def __call__(self, examples: Examples) -> dict[str, np.ndarray]:
        """Returns float32 arrays by output name, in the order of the sequences: (T, D), or (R, D) if pooled."""
        joined = compute_outputs(self._model, examples, self._batch_size, per_token=self._by_token)
        ends = np.cumsum(list(self.widths.values()))[:-1]
        return dict(zip(self.widths, np.split(joined, ends, axis=-1), strict=True))


# === The tagger ===


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
    """Builds the model to train.

    Args:
        num_layers: K, the number of layers whose states are concatenated in the input.
        hidden_dim: H, the width of each layer's states.
        num_tags: C.
        combine: "none" or "concatenate" to read all K * H numbers; "sum"; "mean"; or "weighted_sum", with learned
            weights gamma * sum_k softmax(w)_k h_k (Peters et al. 2018, equation 1), which start equal.
        lstm_units: width of each direction (the paper: 768).
        lstm_layers: number of stacked BiLSTMs (the paper: 2).
        lstm_dropout: dropout on the input and on each BiLSTM's output; the paper gives none.

    Returns:
        A functional model from `features` float32 (B, W, K * H) and `padding_mask` int32 (B, W) to logits (B, W, C).
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
    # Keras's Glorot initializer: with BERT's 0.02 the first epochs learn nothing, since BiLSTM outputs are small.
    logits = keras.layers.Dense(num_tags, dtype="float32", name="token_classification")(states)
    return keras.Model({"features": features, "padding_mask": padding_mask}, logits, name=TAGGER)


def join_extractor(extractor: keras.Model, tagger: keras.Model) -> keras.Model:
    """Joins the tagger with its encoder into the model to save.

    Args:
        extractor: `FeatureExtractor` with "concatenate".
        tagger: the model that `build_tagger` returned.

    Returns:
        A functional model from the encoder's inputs and `word_positions` to logits (B, W, C). `word_positions`, int32
        (B, W), is the index of each word's first token in its sequence, 0 for padding.
    """
    positions = keras.Input((None,), dtype="int32", name="word_positions")
    inputs = {**extractor.input, "word_positions": positions}
    states = extractor(extractor.input)[COMBINED]
    words = TakePositions(dtype="float32", name="first_tokens")(states, positions)
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
