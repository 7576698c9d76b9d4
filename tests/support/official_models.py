"""Small encoders and pre-trainers of tf-models-official, whose checkpoints and outputs the format tests compare with.

Shapes: B batch, S sequence, P masked positions.
"""

import importlib.util

import numpy as np
import pytest
import tensorflow as tf

if importlib.util.find_spec("official") is None:
    pytest.skip("tf-models-official is not installed", allow_module_level=True)

from official.modeling import tf_utils
from official.nlp.modeling import layers, models, networks

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxy"]
SIZES = {
    "vocab_size": len(VOCABULARY),
    "num_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "inner_dim": 32,
    "max_sequence_length": 20,
    "type_vocab_size": 2,
}
# The same sizes in bert_config.json's names.
BERT_CONFIG = {
    "vocab_size": len(VOCABULARY),
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
}


def batch() -> dict[str, np.ndarray]:
    """Three sequences of 7, 5 and 1 tokens, padded to 7, and masked positions, under our names: int32."""
    rng = np.random.default_rng(7)
    mask = np.arange(7) < np.array([[7], [5], [1]])
    values = {
        "token_ids": rng.integers(1, SIZES["vocab_size"], mask.shape) * mask,
        "segment_ids": rng.integers(0, 2, mask.shape) * mask,
        "padding_mask": mask,
        "mask_positions": np.array([[1, 6], [4, 0], [0, 0]]),
    }
    return {name: value.astype("int32") for name, value in values.items()}


def their_names(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same batch under official's names."""
    names = {
        "token_ids": "input_word_ids",
        "segment_ids": "input_type_ids",
        "padding_mask": "input_mask",
        "mask_positions": "masked_lm_positions",
    }
    return {names[name]: value for name, value in inputs.items()}


def randomized(model):
    """Gives every variable values that tell: LayerNorms about 1, the rest about 0."""
    rng = np.random.default_rng(3)
    for variable in model.variables:
        middle = 1.0 if "gamma" in variable.name else 0.0
        variable.assign(rng.normal(middle, 0.3, variable.shape))
    return model


def build_encoder(version: int = 2, **changes):
    """`BertEncoderV2`, or the functional `BertEncoder`; 0: that one as its checkpoints were before 2021."""
    if version == 2:
        encoder = networks.BertEncoderV2(**SIZES | changes)
        encoder(encoder.inputs)
    else:
        encoder = networks.BertEncoder(**SIZES | changes, dict_outputs=True)
    randomized(encoder)
    return forget_names(encoder) if version == 0 else encoder


def forget_names(encoder):
    """Takes from an encoder's checkpoints what those of 2020 lack: names of layers, and attention's output in it."""
    for layer in encoder.transformer_layers:
        layer._attention_output_dense = layer._attention_layer._output_dense
        _untrack(layer._attention_layer, "_output_dense")
    for name in (
        "_pooler_layer",
        "_transformer_layers",
        "_embedding_norm_layer",
        "_embedding_layer",
        "_position_embedding_layer",
        "_type_embedding_layer",
    ):
        _untrack(encoder, name)
    return encoder


def _untrack(trackable, name: str) -> None:
    tracked = trackable._self_unconditional_checkpoint_dependencies
    trackable._self_unconditional_checkpoint_dependencies = [child for child in tracked if child.name != name]


def build_pretrainer(encoder, inner_dim: int = 16):
    """Masked-LM and next-sentence heads as official's pre-training experiment has them."""
    head = layers.ClassificationHead(inner_dim=inner_dim, num_classes=2, dropout_rate=0.1, name="next_sentence")
    pretrainer = models.BertPretrainerV2(
        encoder, mlm_activation=tf_utils.get_activation("gelu"), classification_heads=[head]
    )
    pretrainer(their_names({name: tf.constant(value) for name, value in batch().items()}))
    return randomized(pretrainer)
