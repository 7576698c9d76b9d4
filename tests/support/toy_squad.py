"""Small questions about small texts, in SQuAD's JSON, and the vocabulary and preset that go with them."""

import json

import keras
import numpy as np

from keras_bert import BertBackbone, BertTokenizer

ANIMALS = ["cat", "dog", "cow", "hen", "pig", "fox", "owl", "bee"]
COLORS = ["red", "blue", "green", "black", "white", "pale", "dark", "grey"]
FILLER = [f"w{i}" for i in range(10)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [".", ",", "?", "(", ")", "the", "is", "what", "which", "color", "has", "##ish", "and"]
VOCABULARY = [*SPECIAL, *PIECES, *ANIMALS, *COLORS, *FILLER]
MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH = 48, 24, 12


def questions(with_negative: bool, seed: int = 0, copies: int = 1) -> dict:
    """SQuAD's JSON: each paragraph says the colors of five animals in some 45 words, and is asked four questions.

    The answers have one piece or two ("Redish"), capital letters, and brackets around them; half of the texts do not
    fit into one window. With `with_negative` the last question of each paragraph is about an animal it does not name.
    There are 8 paragraphs, all of them `copies` times, under other ids.
    """
    generator = np.random.default_rng(seed)
    paragraphs = [_paragraph(generator, number, with_negative) for number in range(8)]
    articles = []
    for copy in range(copies):
        for number, paragraph in enumerate(paragraphs):
            qas = [{**qa, "id": f"{qa['id']}-{copy}" if copy else qa["id"]} for qa in paragraph["qas"]]
            articles.append({"title": f"{number}", "paragraphs": [{**paragraph, "qas": qas}]})
    return {"version": "toy", "data": articles}


def _paragraph(generator, number: int, with_negative: bool) -> dict:
    animals = generator.permutation(ANIMALS)
    answers = [f"{color.title()}ish" if generator.random() < 0.3 else color for color in generator.permutation(COLORS)]
    context, facts = "", []
    for animal, answer in zip(animals[:5], answers, strict=False):
        context += " ".join(generator.choice(FILLER, 1 + 4 * (number % 2))) + f", the {animal.title()} is ("
        facts.append({"animal": animal, "text": answer, "answer_start": len(context)})
        context += f"{answer}).  "
    qas = []
    for place in range(4):
        fact = facts[place]
        impossible = with_negative and place == 3
        animal = animals[6] if impossible else fact["animal"]
        start = {"text": fact["text"], "answer_start": fact["answer_start"]}
        qas.append(
            {
                "id": f"{number}-{place}",
                "question": f"{('What', 'Which')[place % 2]} color has the {animal}?",
                "answers": [] if impossible else [start, {**start, "text": fact["text"].lower()}],
                **({"is_impossible": impossible} if with_negative else {}),
            }
        )
    return {"context": context, "qas": qas}


def write(path, content) -> str:
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def save_preset(directory) -> str:
    """An encoder with random weights, far enough from each other to learn in seconds."""
    keras.utils.set_random_seed(7)
    backbone = BertBackbone(
        len(VOCABULARY),
        num_layers=1,
        num_heads=4,
        hidden_dim=128,
        intermediate_dim=256,
        max_sequence_length=48,
        dropout=0.0,
        initializer_range=0.1,
    )
    backbone.save_to_preset(str(directory))
    BertTokenizer(VOCABULARY).save_to_preset(str(directory))
    return str(directory)
