"""A small encoder with a vocabulary of its own, saved as a preset, and files of texts and of tagged words for it."""

import keras
import numpy as np

from keras_bert import BertBackbone, BertTokenizer

WORDS = ["rome", "paris", "anna", "ben", "saw", "left", "met", "##s", "un", "##seen", "the", "man", ",", "."]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
NUM_LAYERS, HIDDEN_DIM, MAX_LENGTH = 2, 16, 24


def backbone(**changes) -> BertBackbone:
    """Random weights, none at zero or one."""
    keras.utils.set_random_seed(4)
    sizes = {"num_heads": 2, "intermediate_dim": 32, "max_sequence_length": MAX_LENGTH, "dropout": 0.1}
    model = BertBackbone(len(VOCABULARY), NUM_LAYERS, hidden_dim=HIDDEN_DIM, **{**sizes, **changes})
    generator = np.random.default_rng(4)
    for weight in model.weights:
        weight.assign(generator.normal(1.0 if "gamma" in weight.path else 0.0, 0.4, size=weight.shape))
    return model


def save_preset(directory) -> str:
    backbone().save_to_preset(str(directory))
    BertTokenizer(VOCABULARY).save_to_preset(str(directory))
    return str(directory)


def inputs(lengths=(7, 4, 1), width=9) -> dict[str, np.ndarray]:
    """Encoder inputs: sequences of these lengths, padded to `width`; the later half of each is segment 1."""
    generator = np.random.default_rng(1)
    mask = (np.arange(width) < np.array(lengths)[:, None]).astype(np.int32)
    token_ids = generator.integers(5, len(VOCABULARY), mask.shape, np.int32) * mask
    segment_ids = (np.arange(width) >= np.array(lengths)[:, None] // 2).astype(np.int32) * mask
    return {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": mask}


def write_tagged(path, count: int, seed: int) -> str:
    """Sentences whose every `rome`, `paris` is a place and `anna`, `ben` a person, in columns."""
    generator = np.random.default_rng(seed)
    tags = {"rome": "B-place", "paris": "B-place", "anna": "B-person", "ben": "B-person"}
    choices = [word for word in WORDS if not word.startswith("##")]
    sentences = [generator.choice(choices, generator.integers(2, 9)) for _ in range(count)]
    blocks = ["\n".join(f"{word}\t{tags.get(word, 'O')}" for word in words) for words in sentences]
    path.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return str(path)
