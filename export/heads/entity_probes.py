"""Texts with a tagger's own entities, found by the task's Python: what `verify` asks of a tagger.

Shapes: B texts, W windows, S sequence, N words, C labels, E entities of the text that has most.
"""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from export import probes, signatures
from export.graph.raw_words import Word, find_words
from export.graph.source_text import read_text
from export.graph.windows import pad_windows
from export.verify import Probe
from keras_bert.python_tokenizer import PythonBertTokenizer
from tasks.conll import Documents
from tasks.ner.windows import Windows, make_windows
from tasks.tags import find_entities

EXAMPLE = "Rollo, a Norse leader, was born in Norway and died in Rouen."
# The outputs that have a column for each entity: what they are filled up with, and their type.
_OUTPUTS = {
    "entities": (b"", object),
    "types": (b"", object),
    "starts": (-1, np.int32),
    "ends": (-1, np.int32),
    "scores": (0.0, np.float32),
}


class _Read(NamedTuple):
    """Texts as the task's Python reads them.

    Attributes:
        texts: B pairs: the part that is read, whether there is more.
        words: B lists.
        windows: over all words, each text as one sentence.
    """

    texts: list[tuple[str, bool]]
    words: list[list[Word]]
    windows: Windows

    @property
    def rows(self) -> dict[str, np.ndarray]:
        """The windows as the encoder's inputs, int32 [W, S]."""
        ids = self.windows.token_ids
        return pad_windows(self.windows.row_splits, token_ids=ids, segment_ids=np.zeros_like(ids))


def make_probes(head, model: keras.Model) -> list[Probe]:
    """See `Head.probes`.

    Args:
        head: `TokenClassification`.
        model: float32, encoder inputs to logits [B, S, C].
    """
    found = []
    for batch in probes.batches((EXAMPLE, *probes.TEXTS)):
        found.append(Probe(signatures.SERVING_DEFAULT, {"text": batch}, *_answers(head, model, _read(head, batch))))
        rows = _read(head, batch[:3]).rows
        probabilities = _probabilities(model, rows)  # [W, S, C]
        is_token = rows["padding_mask"] == 1
        best = np.argmax(probabilities, axis=-1)
        outputs = {
            "tags": np.where(is_token, probes.as_bytes(head.labels)[best], b""),
            "scores": np.where(is_token, probabilities.max(axis=-1), np.float32(0.0)),
        }
        undecided = probes.undecided(probabilities).any(axis=-1)
        found.append(Probe(signatures.TOKEN_IDS, _request(rows), outputs, undecided))
    return found


def small_requests(head) -> list[tuple[str, dict[str, np.ndarray]]]:
    """One text, and its ids."""
    text = probes.as_bytes([EXAMPLE])
    return [
        (signatures.SERVING_DEFAULT, {"text": text}),
        (signatures.TOKEN_IDS, _request(_read(head, text).rows)),
    ]


def _read(head, batch: np.ndarray) -> _Read:
    tokenizer = head.preprocessor.tokenizer
    tokenizer = PythonBertTokenizer(tokenizer.get_vocabulary(), tokenizer.lowercase)
    texts = [read_text(text, tokenizer, head.max_tokens) for text in batch]
    words = [find_words(text, tokenizer) for text, _ in texts]
    tokens = [word.text for found in words for word in found]
    splits = np.cumsum([0, *map(len, words)])
    documents = Documents("", tokens, None, [], splits, np.arange(len(splits)), None, "tab", False)
    return _Read(texts, words, make_windows(documents, tokenizer, head.preprocessor.sequence_length, head.doc_stride))


def _request(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    lengths = rows["padding_mask"].sum(axis=1, dtype=np.int32)
    return {"token_ids": rows["token_ids"], "segment_ids": rows["segment_ids"], "lengths": lengths}


def _probabilities(model: keras.Model, rows: dict[str, np.ndarray]) -> np.ndarray:
    return probes.on_cpu(lambda tensors: tf.nn.softmax(model(tensors, training=False)), rows)


def _answers(head, model: keras.Model, read: _Read) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The outputs for the texts, and in which of them they hang on rounding."""
    rows = read.rows
    probabilities = _probabilities(model, rows)[rows["padding_mask"] == 1][read.windows.places]  # [N, C]
    limits = np.cumsum([0, *map(len, read.words)])
    parts = [probabilities[start:limit] for start, limit in zip(limits[:-1], limits[1:], strict=True)]
    entities = [
        _entities(text, words, part, head.labels)
        for (text, _), words, part in zip(read.texts, read.words, parts, strict=True)
    ]
    outputs = {}
    for column, (name, (padding, dtype)) in enumerate(_OUTPUTS.items()):
        outputs[name] = np.full([len(entities), max([1, *map(len, entities)])], padding, dtype)
        for row, found in enumerate(entities):
            outputs[name][row, : len(found)] = [entity[column] for entity in found]
    outputs["num_entities"] = np.array([len(found) for found in entities], np.int32)
    outputs["truncated"] = np.array([is_cut for _, is_cut in read.texts], bool)
    return outputs, np.array([probes.undecided(part).any() for part in parts], bool)


def _entities(text: str, words: list[Word], probabilities: np.ndarray, labels: Sequence[str]) -> list[tuple]:
    """(text, type, start, end, score) of each entity of a text."""
    tags = [labels[number] for number in probabilities.argmax(axis=-1)]
    found = []
    for name, first, limit in find_entities(tags):
        start, end = words[first].start, max(word.end for word in words[first:limit])
        score = probabilities[first:limit].max(axis=-1).mean()
        found.append((text[start:end].encode(), name.encode(), start, end, score))
    return found
