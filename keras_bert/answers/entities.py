"""Finds entities in the tags of words, in the graph, as `tasks.text.tags.find_entities` does in Python.

Shapes: B texts, N words of all texts, C labels, X entities of all texts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.answers.raw_words import Words
from keras_bert.answers.rules import OUTSIDE, split_tag


class Entities(NamedTuple):
    """Entities, text after text.

    Attributes:
        rows: int64 [X], index of each entity's text.
        types: int32 [X], indices into `EntityFinder.types`.
        starts, ends: int64 [X], characters, as in `Words`.
        scores: float32 [X], mean probability of the tags of the words.
    """

    rows: tf.Tensor
    types: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    scores: tf.Tensor


class EntityFinder:
    """Reads entities as conlleval does: one begins at every B-, and at every I- that does not continue its type.

    Args:
        labels: C tags, "O" or B- or I- and a type, or "B" and "I" alone.

    Raises:
        ValueError: a label is not such a tag.

    Attributes:
        types: names of the entity types; "" for labels without one.
    """

    def __init__(self, labels: Sequence[str]):
        tags = [split_tag(label) for label in labels]
        wrong = [label for label, (prefix, _) in zip(labels, tags, strict=True) if prefix not in ("B", "I", OUTSIDE)]
        if wrong:
            raise ValueError(f"`labels` must be O, or B- or I- and a type. Received: {wrong[0]!r}")
        self.types = sorted({name for prefix, name in tags if prefix != OUTSIDE})
        self._type_of = np.array([-1 if prefix == OUTSIDE else self.types.index(name) for prefix, name in tags])
        self._continues = np.array([prefix == "I" for prefix, _ in tags])

    def __call__(self, words: Words, probabilities: tf.Tensor) -> Entities:
        """Finds the entities among N words, from the probabilities of their labels, float32 [N, C]."""
        label = tf.argmax(probabilities, axis=1)
        types = tf.gather(tf.constant(self._type_of, tf.int32), label)  # -1 outside.
        nothing = tf.constant([-1], tf.int32)
        goes_on = (
            tf.gather(self._continues, label)
            & (types == tf.concat([nothing, types[:-1]], axis=0))
            & (words.rows == tf.concat([tf.constant([-1], tf.int64), words.rows[:-1]], axis=0))
        )
        is_inside = types >= 0
        inside = tf.squeeze(tf.where(is_inside), 1)
        firsts = tf.squeeze(tf.where(is_inside & ~goes_on), 1)
        number = tf.gather(tf.cumsum(tf.cast(is_inside & ~goes_on, tf.int64)) - 1, inside)
        return Entities(
            tf.gather(words.rows, firsts),
            tf.gather(types, firsts),
            tf.gather(words.starts, firsts),
            tf.math.segment_max(tf.gather(words.ends, inside), number),
            tf.math.segment_mean(tf.gather(tf.reduce_max(probabilities, axis=1), inside), number),
        )
