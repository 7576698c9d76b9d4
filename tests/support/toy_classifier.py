"""Small classifiers: one of three classes with random weights, far from even answers, and a task to be learned.

The task is to tell animals from tools, by the one word of a text that names one.
"""

import csv
import functools

import keras
import numpy as np

from keras_bert import BertBackbone, BertPreprocessor, BertTokenizer
from keras_bert.models import BertTextClassifier

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
    model = BertTextClassifier(backbone, len(LABELS), compile=False)
    generator = np.random.default_rng(seed)
    for weight in model.weights:  # fresh weights give nearly equal probabilities, which hide mistakes
        weight.assign(generator.normal(1.0 if "gamma" in weight.path else 0.0, 0.3, size=weight.shape))
    return model


def assets() -> BertPreprocessor:
    """Its tokenizer and longest sequence."""
    return BertPreprocessor(_tokenizer(), SEQUENCE_LENGTH)


@functools.cache  # Tracing a tokenizer's graphs takes a second.
def _tokenizer() -> BertTokenizer:
    return BertTokenizer(VOCABULARY)


# === Animals and tools ===

ANIMALS, TOOLS = ["cat", "dog", "cow", "hen"], ["saw", "axe", "pin", "rod"]
KINDS = ("animal", "tool")
FILLER = [f"w{i}" for i in range(20)]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", *ANIMALS, *TOOLS, *FILLER]
COLUMNS = {"text_column": "words", "label_column": "kind"}
# A high rate: 100% from random weights, in seconds. The longest text has 9 words and 8 commas: 19 tokens.
TRAINING = {
    "train_batch_size": 16,
    "learning_rate": 3e-3,
    "num_train_epochs": 8,
    "max_seq_length": 24,
    "random_seed": 3,
}


def toy_rows(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts and their kinds, in turn."""
    generator = np.random.default_rng(seed)
    rows = []
    for index in range(count):
        words = list(generator.choice(FILLER, generator.integers(0, 9)))
        words.insert(generator.integers(0, len(words) + 1), generator.choice((ANIMALS, TOOLS)[index % 2]))
        rows.append((", ".join(words), KINDS[index % 2]))
    return rows


def write_rows(path, rows: list[tuple]) -> str:
    """Writes CSV; returns the path."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return str(path)


def write_tables(directory, train: int = 203, dev: int = 75, test: int = 37) -> None:
    """Writes train.csv, dev.csv and test.csv, the last without labels."""
    for split, count, seed in (("train", train, 0), ("dev", dev, 1)):
        write_rows(directory / f"{split}.csv", [("words", "kind"), *toy_rows(count, seed)])
    numbered = [(i, text) for i, (text, _) in enumerate(toy_rows(test, 2))]
    write_rows(directory / "test.csv", [("id", "words"), *numbered])


def write_preset(directory) -> str:
    """Writes an encoder of one layer that has the task's words; returns the path."""
    keras.utils.set_random_seed(7)  # Not the seed that trainings begin with.
    backbone = BertBackbone(
        len(WORDS),
        num_layers=1,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=32,
        initializer_range=0.1,
    )
    backbone.save_to_preset(str(directory))
    BertTokenizer(WORDS).save_to_preset(str(directory))
    return str(directory)
