"""Contextual embeddings: hidden states of chosen encoder layers, or one vector per text.

Shapes: B batch, S sequence in tokens, T rows (see keras_bert/encoder/packing.py), H hidden size, K chosen layers.
"""

from collections.abc import Sequence

import keras
from keras import ops

from keras_bert.encoder.backbone import BertBackbone, RestoreRectangle
from keras_bert.encoder.heads import PoolTokens
from tasks.features.settings import POOLED
from tasks.fine_tuning.start import Start


@keras.saving.register_keras_serializable(package="keras_bert")
class FeatureExtractor(keras.Model):
    """Functional model that outputs the hidden states of chosen layers (section 5.3 of the paper).

    It shares the backbone's layers, weights and inputs, and computes no layer above the highest chosen one. The output
    is a float tensor with the states of the layers one after the other, in the given order. In the layout "unpadded",
    padding costs nothing, and its rows are zeros.

    This is a class because Keras saves a plain functional model call by call, and would lose the layouts that the
    encoder's layers pass on.

    Args:
        backbone: BertBackbone.
        layers: indices of the layers, as `resolve_layers` returns them: 0 for the embeddings' output, 1 to num_layers.
        pooling: "none" for a vector per token, (B, S, K * H); else a vector per text, (B, K * H): "cls", the vector of
            the first token; "mean", the mean over all real tokens, [CLS] and [SEP] included, as in
            sentence-transformers; "pooler", the backbone's pooled output, (B, H), for which `layers` do not count.
        name: name of the model.
    """

    def __init__(
        self,
        backbone: BertBackbone,
        layers: Sequence[int],
        pooling: str = "none",
        name: str = "feature_extractor",
        **kwargs,
    ):
        # === Functional model ===
        outputs = backbone.output[POOLED] if pooling == "pooler" else _states(backbone, layers, pooling)
        super().__init__(backbone.input, outputs, name=name, **kwargs)

        # === Config ===
        self._config = {"backbone": backbone.get_config(), "layers": list(layers), "pooling": pooling}

    def get_config(self):
        return {**self._config, "name": self.name, "trainable": self.trainable}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        # Extractors of earlier taggers also say that they concatenate, and do not normalize.
        kept = {name: config[name] for name in ("layers", "pooling", "name", "trainable") if name in config}
        return cls(BertBackbone.from_config(config["backbone"]), **kept)


def _states(backbone: BertBackbone, layers: Sequence[int], pooling: str):
    """Returns the symbolic output of the chosen layers."""
    names = (f"transformer_layer_{number - 1}" if number else "embeddings" for number in layers)
    rows = ops.concatenate([backbone.get_layer(name).output for name in names], axis=-1)  # [T, K * H]
    tokens = backbone.get_layer("token_layout")(backbone.input["padding_mask"])  # Its `output` lacks the structure.
    rectangle = RestoreRectangle(dtype=backbone.compute_dtype, name="token_states")(rows, layout=tokens)
    if pooling == "none":
        return rectangle
    # A mean of hundreds of tokens needs float32's mantissa.
    return PoolTokens(pooling, dtype="float32", name="pooled_states")(rectangle, backbone.input["padding_mask"])


def load_encoder(origin: Start, random_seed: int, layout: str = "unpadded") -> BertBackbone:
    """Loads the encoder. If its weights are not to be loaded, they are drawn from the seed."""
    if not origin.load_weights:
        keras.utils.set_random_seed(random_seed)
    return BertBackbone.from_preset(origin.preset, origin.load_weights, keras.config.dtype_policy(), layout=layout)
