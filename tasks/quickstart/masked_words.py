"""Asks the pre-trained masked LM: held-out sentences with a hole, and the words that it would put there."""

import functools
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_bert import BertMaskedLM
from keras_bert.tokenization.preprocessor import BertPreprocessor
from tasks.quickstart.corpus import hash_of

_CANDIDATES = 500
_MIN_TOKENS = 10  # With [CLS] and [SEP]; a shorter sentence says too little about its words.


class Hole(NamedTuple):
    """A sentence with a hole.

    Attributes:
        text: the sentence, with [MASK] for the word.
        word: the token that is hidden, a whole word.
        token_ids: those of the text, with [CLS] and [SEP].
        position: of [MASK] among them.
    """

    text: str
    word: str
    token_ids: list[int]
    position: int


def find_holes(sentences: Sequence[str], preprocessor: BertPreprocessor, count: int, max_characters: int) -> list[Hole]:
    """Hides a word, which is one token and occurs once, in each of the first sentences. Hashes choose both."""
    candidates = sorted({text for text in sentences if 0 < len(text) <= max_characters}, key=hash_of)[:_CANDIDATES]
    if not candidates:
        return []
    encoded = {name: value.numpy() for name, value in preprocessor.encode(candidates).items()}
    ids_of_each = (
        row[mask > 0].tolist() for row, mask in zip(encoded["token_ids"], encoded["padding_mask"], strict=True)
    )
    holes = map(functools.partial(_hide, preprocessor), candidates, ids_of_each)
    return list(itertools.islice(filter(None, holes), count))


def _hide(preprocessor: BertPreprocessor, sentence: str, ids: list[int]) -> Hole | None:
    """Returns a sentence with its hole, or None if it has no such word, is too short, or was cut."""
    tokens = [preprocessor.tokenizer.id_to_token(number) for number in ids]
    whole = [
        place
        for place, token in enumerate(tokens)
        if token.isalpha() and not tokens[place + 1].startswith("##") and tokens.count(token) == 1
    ]
    if not whole or not _MIN_TOKENS <= len(tokens) < preprocessor.sequence_length:
        return None
    place = min(whole, key=lambda place: hash_of(f"{tokens[place]} {sentence}"))
    parts = re.split(re.escape(tokens[place]), sentence, flags=re.IGNORECASE)
    if len(parts) != 2:  # It is spelled otherwise in the text, or also part of another word.
        return None
    masked = [*ids[:place], preprocessor.tokenizer.mask_token_id, *ids[place + 1 :]]
    return Hole("[MASK]".join(parts), tokens[place], masked, place)


def best_words(model: BertMaskedLM, holes: Sequence[Hole], count: int = 5) -> list[list[list]]:
    """Returns `[token, probability]` of the likeliest tokens of each hole, the best first."""
    vocabulary, answers = model.preprocessor.tokenizer.get_vocabulary(), []
    for hole in holes:
        ids = tf.constant([hole.token_ids])
        features = {"token_ids": ids, "segment_ids": tf.zeros_like(ids), "padding_mask": tf.ones_like(ids)}
        logits = model({**features, "mask_positions": tf.constant([[hole.position]])}, training=False)[0, 0]
        probabilities, places = tf.math.top_k(tf.nn.softmax(logits), count)
        answers.append([[vocabulary[place], float(one)] for place, one in zip(places, probabilities, strict=True)])
    return answers
