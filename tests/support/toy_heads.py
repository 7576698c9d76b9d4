"""A small model of each task that is served, with random weights far from even answers."""

import keras
import numpy as np
from toy_classifier import LABELS, VOCABULARY, assets, classifier

from export.heads.classification import Classification, LabelSet, Regression
from export.heads.embeddings import Embeddings
from export.heads.fill_mask import FillMask
from export.heads.multiple_choice import MultipleChoice
from keras_bert import BertBackbone, BertTokenizer
from keras_bert.models import BertMultipleChoice, BertPretrainer, BertTextClassifier

NUM_CHOICES = 3
NUM_LAYERS, HIDDEN_DIM = 2, 16


def backbone(seed: int = 1, **changes) -> BertBackbone:
    """An encoder with a row in its token table beyond the vocabulary."""
    keras.utils.set_random_seed(seed)
    sizes = {"num_layers": NUM_LAYERS, "num_heads": 2, "intermediate_dim": 32, "max_sequence_length": 48}
    return BertBackbone(len(VOCABULARY) + 1, **{**sizes, "hidden_dim": HIDDEN_DIM, **changes})


def shaken(model: keras.Model, seed: int = 1) -> keras.Model:
    """Gives a model other weights: fresh ones give nearly equal answers, which hide mistakes."""
    generator = np.random.default_rng(seed)
    for weight in model.weights:
        weight.assign(generator.normal(1.0 if "gamma" in weight.path else 0.0, 0.4, size=weight.shape))
    return model


def pretrainer() -> BertPretrainer:
    return shaken(BertPretrainer(backbone(), compile=False))


def save_preset(directory, model=None) -> str:
    """Writes an encoder, or the model given, and its tokenizer as a preset; returns the path."""
    (model or shaken(backbone())).save_to_preset(str(directory))
    BertTokenizer(VOCABULARY).save_to_preset(str(directory))
    return str(directory)


HEADS = {
    "classification": lambda: Classification(classifier(), assets(), LABELS),
    "classification of pairs": lambda: Classification(
        classifier(), assets(), LABELS, 2.5, [0.6, 0.9, 0.45], num_texts=2
    ),
    "multi_label_classification": lambda: LabelSet(
        shaken(BertTextClassifier(backbone(), len(LABELS), multi_label=True, compile=False)),
        assets(),
        LABELS,
        thresholds=[0.5, 0.3, 0.8],
    ),
    "regression of pairs": lambda: Regression(
        shaken(BertTextClassifier(backbone(), 1, pooling="mean", compile=False)), assets(), num_texts=2
    ),
    "multiple_choice": lambda: MultipleChoice(
        shaken(BertMultipleChoice(backbone(), NUM_CHOICES, compile=False)), assets()
    ),
    "fill_mask": lambda: FillMask(pretrainer(), assets(), top_k=3),
    "embeddings": lambda: Embeddings(shaken(backbone()), assets()),
    "embeddings without pooler": lambda: Embeddings(shaken(backbone()), assets(), has_pooler=False),
}
