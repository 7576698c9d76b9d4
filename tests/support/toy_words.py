"""Sentences of toy words in CoNLL's columns, each with a number that its word alone decides."""

import keras
import numpy as np

from keras_bert import BertBackbone, BertTokenizer

WORDS = [f"w{number}" for number in range(20)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s"]
# A high rate: correlation near 1 from random weights, in seconds.
TRAINING = {"train_batch_size": 16, "learning_rate": 3e-3, "num_train_epochs": 8, "max_seq_length": 16}


SCALE = 100.0


def score_of(word: str) -> float:
    """Returns milliseconds, such as times of reading, far from what a new head answers."""
    return 250 + 0.1 * SCALE * WORDS.index(word.removesuffix("s"))


def write_file(path, count: int, seed: int, with_numbers: bool = True) -> str:
    """Writes `count` sentences of 1 to 19 words, some of two sub-tokens; one word in ten has no number."""
    generator = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        for word in generator.choice(WORDS, generator.integers(1, 20)):
            word = f"{word}s" if generator.random() < 0.2 else str(word)
            number = "_" if generator.random() < 0.1 else f"{score_of(word):.2f}"
            lines.append(f"{word} {number}" if with_numbers else word)
        lines.append("")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def write_preset(directory, num_layers: int = 1) -> str:
    keras.utils.set_random_seed(7)
    backbone = BertBackbone(
        len(VOCABULARY),
        num_layers=num_layers,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=32,
        initializer_range=0.1,
    )
    backbone.save_to_preset(str(directory))
    BertTokenizer(VOCABULARY).save_to_preset(str(directory))
    return str(directory)
