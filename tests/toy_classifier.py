"""A small classifier of three classes with a vocabulary of its own: random weights, far from even answers."""

import keras
import numpy as np

from keras_bert import BertBackbone, BertPreprocessor, BertTokenizer
from tasks.glue.model import build_classifier

LABELS = ["bad", "good", "Ünklar"]
SEQUENCE_LENGTH = 32
PIECES = ["the", "cat", "sat", "##s", "on", "mat", "word", "##ing", "a", "long", "text", "σας", "σασ", "中", "文"]
VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *[chr(code) for code in range(33, 127) if chr(code) != "a"],
    *["##" + chr(code) for code in range(97, 123) if chr(code) != "s"],
    *PIECES,
]


def classifier(dtype=None, seed: int = 1) -> keras.Model:
    """Encoder inputs to three logits."""
    keras.utils.set_random_seed(seed)
    backbone = BertBackbone(
        len(VOCABULARY),
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=48,
        dtype=dtype,
    )
    model = build_classifier(backbone, len(LABELS))
    generator = np.random.default_rng(seed)
    for weight in model.weights:  # fresh weights give nearly equal probabilities, which hide mistakes
        weight.assign(generator.normal(1.0 if "gamma" in weight.path else 0.0, 0.3, size=weight.shape))
    return model


def assets() -> BertPreprocessor:
    """Its tokenizer and longest sequence."""
    return BertPreprocessor(BertTokenizer(VOCABULARY), SEQUENCE_LENGTH)
