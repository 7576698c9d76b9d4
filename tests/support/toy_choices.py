"""Rows of choices whose right answer nothing tells but memory, and a small preset with a vocabulary for them."""

import csv
import json
import pathlib

import keras
import numpy as np

from keras_bert import BertBackbone, BertTokenizer

WORDS = [f"w{number}" for number in range(60)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def save_preset(directory) -> str:
    keras.utils.set_random_seed(7)  # Not the seed that trainings begin with.
    backbone = BertBackbone(
        len(VOCABULARY),
        num_layers=1,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=32,
        dropout=0.0,
        initializer_range=0.1,
    )
    backbone.save_to_preset(str(directory))
    BertTokenizer(VOCABULARY).save_to_preset(str(directory))
    return str(directory)


def make_rows(count: int, num_choices: int = 4, seed: int = 0) -> list[dict]:
    """SWAG's columns; texts of random words, no word in two choices of a row, a random place of the right choice."""
    generator = np.random.default_rng(seed)

    def text(low, high):
        return " ".join(generator.choice(WORDS, generator.integers(low, high)))

    rows = []
    for _ in range(count):
        lengths = generator.integers(1, 5, num_choices)
        endings = np.split(generator.permutation(WORDS)[: lengths.sum()], np.cumsum(lengths)[:-1])
        row = {"sent1": text(2, 6), "sent2": text(1, 3)}
        row |= {f"ending{number}": " ".join(words) for number, words in enumerate(endings)}
        rows.append({**row, "label": int(generator.integers(num_choices))})
    return rows


def write_csv(path: pathlib.Path, rows: list[dict]) -> str:
    """SWAG's own layout: a nameless column of row numbers first."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["", *rows[0]])
        writer.writeheader()
        writer.writerows({"": number, **row} for number, row in enumerate(rows))
    return str(path)


def write_jsonl(path: pathlib.Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)
