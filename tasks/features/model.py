"""Contextual embeddings: hidden states of chosen encoder layers, combined, and pooled to one vector per text.

Shapes: B batch, S sequence in tokens, T rows (see keras_bert/encoder/packing.py), H hidden size, K chosen layers.
"""

from collections.abc import Sequence

import keras
from keras import ops

from keras_bert.encoder.backbone import BertBackbone, FirstRows, RestoreRectangle
from keras_bert.encoder.heads import PoolTokens
from tasks.features.settings import layer_name
from tasks.fine_tuning.start import Start

COMBINED = "features"
POOLED = "pooled_output"


@keras.saving.register_keras_serializable(package="keras_bert")
class FeatureExtractor(keras.Model):
    """Functional model that outputs the hidden states of chosen layers (section 5.3 of the paper).

    It shares the backbone's layers, weights and inputs, and computes no layer above the highest chosen one. The output
    is a dict of float tensors. In the layout "unpadded", padding costs nothing, and its rows are zeros.

    This is a class because Keras saves a plain functional model call by call, and would lose the layouts that the
    encoder's layers pass on.

    Args:
        backbone: BertBackbone.
        layers: indices of the layers, as `resolve_layers` returns them: 0 for the embeddings' output, 1 to num_layers.
        combine: "none" for an output per layer, named by `layer_name`; otherwise a single output `features`:
            "concatenate" (the layers in the given order, K * H wide), "sum" or "mean".
        pooling: "none" for a vector per token, (B, S, ...); else a vector per text, (B, ...): "cls", the vector of the
            first token; "mean", the mean over all real tokens, [CLS] and [SEP] included, as in sentence-transformers;
            "pooler", the backbone's pooled output, named `pooled_output`, for which `layers` is the last layer alone.
        normalize: whether to divide each pooled vector by its Euclidean norm.
        name: name of the model.
    """

    def __init__(
        self,
        backbone: BertBackbone,
        layers: Sequence[int],
        combine: str = "none",
        pooling: str = "none",
        normalize: bool = False,
        name: str = "feature_extractor",
        **kwargs,
    ):
        # === Functional model ===
        if pooling == "pooler":
            outputs = {POOLED: backbone.output[POOLED]}
        else:
            chosen = {layer_name(number): _rows(backbone, number) for number in layers}
            combined = _combine(chosen, combine)
            outputs = {name: _pool(backbone, name, rows, pooling) for name, rows in combined.items()}
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
            "pooling": pooling,
            "normalize": normalize,
        }

    def get_config(self):
        return {**self._config, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        # Earlier extractors had factors for the layers.
        kept = {name: value for name, value in config.items() if name != "layer_weights"}
        return cls(**{**kept, "backbone": BertBackbone.from_config(config["backbone"])})


def _rows(backbone: BertBackbone, number: int):
    """Returns a layer's symbolic output, [T, H]."""
    return backbone.get_layer(f"transformer_layer_{number - 1}" if number else "embeddings").output


def _combine(chosen: dict, combine: str) -> dict:
    """Combines the layers' rows, [T, H] each; returns the outputs by name."""
    if combine == "none":
        return chosen
    states = list(chosen.values())
    if combine == "concatenate":
        return {COMBINED: ops.concatenate(states, axis=-1)}
    return {COMBINED: sum(states) / (len(states) if combine == "mean" else 1)}


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


def load_encoder(origin: Start, random_seed: int, layout: str = "unpadded") -> BertBackbone:
    """Loads the encoder. If its weights are not to be loaded, they are drawn from the seed."""
    if not origin.load_weights:
        keras.utils.set_random_seed(random_seed)
    return BertBackbone.from_preset(origin.preset, origin.load_weights, keras.config.dtype_policy(), layout=layout)
