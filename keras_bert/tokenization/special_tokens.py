"""Tokenizes texts in which special tokens keep their special meaning.

A text is split at its special tokens, its parts are tokenized one by one, and the special tokens keep their places.
Everything here is core TensorFlow, so that any tokenizer of plain texts can do the rest.

Shapes: B texts; P parts of all texts, of which every second one of a text is a special token; T tokens.
"""

import re
from typing import NamedTuple

import tensorflow as tf

_EDGE = b"\xff"  # Never occurs in UTF-8.
_ONE_TOKEN = "["  # Punctuation always becomes one token, [UNK] at worst.


class Parts(NamedTuple):
    """Texts, split at their special tokens.

    Attributes:
        texts: string ragged [B, (P)], without invalid UTF-8.
        special_ids: int32 [P], the ids of special tokens, -1 for other parts.
    """

    texts: tf.RaggedTensor
    special_ids: tf.Tensor

    @property
    def is_special(self) -> tf.Tensor:
        """Whether each part is a special token, bool [P]."""
        return self.special_ids >= 0

    def plain(self) -> tf.Tensor:
        """Returns the parts for a tokenizer of plain texts, string [P], with `_ONE_TOKEN` for each special token."""
        return tf.where(self.is_special, _ONE_TOKEN, self.texts.values)

    def join(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Turns the ids of `plain()`, ragged [P, None], into those of the texts, ragged [B, None]."""
        special_ids = tf.gather(self.special_ids, ids.value_rowids())
        return self.rows(ids, tf.where(special_ids >= 0, special_ids, ids.values))

    def rows(self, ids: tf.RaggedTensor, values: tf.Tensor) -> tf.RaggedTensor:
        """Returns values, [T], of the tokens of `plain()`, whose ids are [P, None], by text: ragged [B, None]."""
        splits = tf.gather(ids.row_splits, self.texts.row_splits)
        return tf.RaggedTensor.from_row_splits(values, splits, validate=False)

    def spans(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the characters of its text where each part begins and ends (exclusive), int32 [P] each."""
        ends = tf.cumsum(tf.strings.length(self.texts.values, unit="UTF8_CHAR"))
        begins = tf.concat([[0], ends], axis=0)  # of the parts, and the end of the last
        row_begins = tf.gather(tf.gather(begins, self.texts.row_starts()), self.texts.value_rowids())
        return begins[:-1] - row_begins, ends - row_begins


def split(texts: tf.Tensor, ids: dict[str, int]) -> Parts:
    """Splits `texts`, string [B], at the special tokens, the keys of `ids`, in exactly this spelling."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
    edges = tf.strings.regex_replace(texts, "({})".format("|".join(map(re.escape, ids))), _EDGE + rb"\1" + _EDGE)
    parts = tf.strings.split(edges, _EDGE)
    is_token = parts.values[:, tf.newaxis] == tf.constant(list(ids))
    return Parts(parts, tf.reduce_max(tf.where(is_token, tf.constant(list(ids.values())), -1), axis=1))


class SpecialTokens:
    """Splits text into WordPieces, except special tokens, which become their own ids.

    Args:
        engine: the tokenizer of plain texts, GraphTokenizer or HostTokenizer.
        ids: the id of each special token.
    """

    def __init__(self, engine, ids: dict[str, int]):
        self._engine = engine
        self._ids = ids

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of `texts`, string [B]; int32 ragged [B, None]."""
        parts = split(texts, self._ids)
        return parts.join(self._engine.tokenize(parts.plain()))

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns ids, starts and ends in characters of `texts`; each int32 ragged [B, None]."""
        parts = split(texts, self._ids)
        ids, starts, ends = self._engine.tokenize_with_offsets(parts.plain())
        part = ids.value_rowids()
        part_begins, part_ends = (tf.gather(places, part) for places in parts.spans())
        ends = tf.where(tf.gather(parts.is_special, part), part_ends, part_begins + ends.values)
        return parts.join(ids), parts.rows(ids, part_begins + starts.values), parts.rows(ids, ends)
