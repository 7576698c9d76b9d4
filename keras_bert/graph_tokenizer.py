"""GraphTokenizer: text to WordPiece ids in ops that TensorFlow Serving links, exact on every text.

Nearly every text takes two ops of tensorflow-text: FastBertNormalize with our own model (`normalizer_model.py`), then
FastWordpieceTokenize, which splits and matches in linear time. Two kinds of words give away a text for which they do
not suffice: `MARKER`, where neighbours matter, and words over 200 bytes, which may have no more than 200 characters.
Those texts alone go through `exact_normalizer.py`.

Shapes: B texts; T tokens, of all texts.
"""

import functools
import struct
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.core.pybinds import pywrap_fast_wordpiece_tokenizer_model_builder as wordpiece_builder

from keras_bert import normalizer
from keras_bert.exact_normalizer import MAX_WORD_LENGTH, NOWHERE, ExactNormalizer, bisect, row_ids, select
from keras_bert.normalizer_model import MARKER, normalizer_model

_MAX_BYTES_FIELD = 4  # Number of `max_bytes_per_token` in tensorflow-text's `fast_wordpiece_tokenizer_model.fbs`.


class GraphTokenizer:
    """Splits text into WordPieces inside the graph.

    Args:
        pieces: the vocabulary, in the order of the ids.
        lowercase: bool.
    """

    def __init__(self, pieces: list[str], lowercase: bool):
        self._marker_id = len(pieces)
        self._normalizer = tf_text.FastBertNormalizer(model_buffer=_as_constant(normalizer_model(lowercase)))
        self._exact = ExactNormalizer(lowercase, self._normalizer.normalize)
        model = _wordpiece_model([*_pieces_for_op(pieces), MARKER])
        self._limit_place = _place_of_limit(model)
        self._wordpiece_model = _as_constant(model)
        self._wordpiece = _wordpiece_op(self._wordpiece_model)
        # Functions of their own: an eager call runs each as one graph, others inline it.
        self._functions = {
            "ids": _function(self._tokenize),
            "byte": _function(self._tokenize_with_bytes),
            "character": _function(self._tokenize_with_characters),
        }
        # The exact path stays out of line: every op of a branch costs time, even if it is not taken.
        self._tokenize_exactly = {
            with_offsets: _function(functools.partial(self._exact_columns, with_offsets), _noinline=True)
            for with_offsets in (False, True)
        }

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of `texts`, string [B]; int32 ragged [B, None]."""
        return self._functions["ids"](texts)

    def tokenize_with_offsets(self, texts: tf.Tensor, unit: str) -> tuple[tf.RaggedTensor, ...]:
        """Returns ids, starts and ends, in units of "byte" or "character", of `texts`; each int32 ragged [B, None]."""
        return self._functions[unit](texts)

    # === Graphs ===

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        ids, starts, ends = self._wordpiece.tokenize_with_offsets(self._normalizer.normalize(texts))
        return self._settle(texts, self._are_doubtful(ids, starts, ends), [ids])[0]

    def _tokenize_with_bytes(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        normalized, sources = self._normalizer.normalize_with_offsets(texts)
        ids, starts, ends = self._wordpiece.tokenize_with_offsets(normalized)
        spans = _spans_in_source(texts, sources, starts, ends)
        ids, starts, ends = self._settle(texts, self._are_doubtful(ids, starts, ends), [ids, *spans])
        return ids, tf.cast(starts, tf.int32), tf.cast(ends, tf.int32)

    def _tokenize_with_characters(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        ids, starts, ends = self._tokenize_with_bytes(texts)
        return ids, *_in_characters(texts, starts, ends)

    def _are_doubtful(self, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor) -> tf.Tensor:
        """Says which tokens give their text away, bool [T]."""
        return (ids.values == self._marker_id) | (ends.values - starts.values > MAX_WORD_LENGTH)

    def _settle(self, texts: tf.Tensor, doubtful: tf.Tensor, columns: list[tf.RaggedTensor]) -> list[tf.RaggedTensor]:
        """Does the texts with doubtful tokens again, exactly.

        Args:
            texts: string [B].
            doubtful: bool [T].
            columns: ids; or ids, starts and ends in bytes of the source; each ragged [B, None].

        Returns:
            As `columns`.
        """

        def again():
            rows = tf.unique(*select(doubtful, row_ids(columns[0].row_splits)))[0]
            exact = self._tokenize_exactly[len(columns) > 1](tf.gather(texts, rows))
            size = tf.size(texts, tf.int64)
            places = size + tf.range(tf.size(rows, tf.int64))
            order = tf.tensor_scatter_nd_update(tf.range(size), tf.expand_dims(rows, 1), places)
            return _flat([tf.gather(tf.concat(pair, axis=0), order) for pair in zip(columns, exact, strict=True)])

        row_splits, *flat = tf.cond(tf.reduce_any(doubtful), again, lambda: _flat(columns))
        return [tf.RaggedTensor.from_row_splits(values, row_splits, validate=False) for values in flat]

    def _exact_columns(self, with_offsets: bool, texts: tf.Tensor) -> list[tf.RaggedTensor]:
        """Returns ids of any texts, and with offsets starts and ends in bytes."""
        normalized, origins = self._exact(texts)
        place = tf.range(self._limit_place, self._limit_place + 4)[:, tf.newaxis]
        # As many bytes as 200 characters can have: longer words are replaced already.
        limit = tf.constant(list(struct.pack("<i", 4 * MAX_WORD_LENGTH)), tf.uint8)
        model = tf.tensor_scatter_nd_update(self._wordpiece_model, place, limit)
        ids, starts, ends = _wordpiece_op(model).tokenize_with_offsets(normalized)
        if not with_offsets:
            return [ids]
        return [ids, *map(ids.with_values, origins.of(row_ids(ids.row_splits), starts.values, ends.values))]


def _function(function: Callable, **attributes) -> tf.types.experimental.PolymorphicFunction:
    signature = [tf.TensorSpec([None], tf.string)]
    return tf.function(function, input_signature=signature, autograph=False, experimental_attributes=attributes)


def _flat(columns: list[tf.RaggedTensor]) -> list[tf.Tensor]:
    return [columns[0].row_splits, *(column.values for column in columns)]


# === Offsets ===


def _bases(texts: tf.Tensor) -> tf.Tensor:
    """What to add to the bytes of each text, int64 [B], so that they ascend through the batch, ends included."""
    return tf.cumsum(tf.cast(tf.strings.length(texts), tf.int64) + 1, exclusive=True)


def _spans_in_source(
    texts: tf.Tensor, sources: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> list[tf.RaggedTensor]:
    """Turns bytes of the normalized texts into bytes of the source.

    A token ends where the next character begins that leaves anything behind. That is not always the source of the
    next normalized byte: one source character may become several tokens.

    Args:
        texts: string [B], the source.
        sources: int64 ragged [B, None]: for each normalized byte, and the end, the byte of the source.
        starts, ends: int64 ragged [B, None].
    """
    first_places = tf.gather(sources.row_splits, row_ids(starts.row_splits))
    ascending = sources.values + tf.gather(_bases(texts), row_ids(sources.row_splits))
    lasts = tf.gather(ascending, first_places + ends.values - 1)
    nexts = bisect(ascending, lasts, "right")
    return [
        starts.with_values(tf.gather(sources.values, first_places + starts.values)),
        ends.with_values(tf.gather(sources.values, nexts)),
    ]


def _in_characters(texts: tf.Tensor, *columns: tf.RaggedTensor) -> list[tf.RaggedTensor]:
    """Turns bytes of the source into its characters, those of its valid part; int32 ragged [B, None]."""
    _, places = tf.strings.unicode_decode_with_offsets(texts, "UTF-8", errors="ignore")
    bases = _bases(texts)
    ascending = places.values + tf.gather(bases, row_ids(places.row_splits))
    rows = row_ids(columns[0].row_splits)
    first_places = tf.gather(places.row_splits, rows)
    found = []
    for column in columns:
        before = bisect(ascending, tf.gather(bases, rows) + tf.cast(column.values, tf.int64))
        found.append(column.with_values(tf.cast(before - first_places, tf.int32)))
    return found


# === Models of the ops ===


def _as_constant(buffer: bytes) -> tf.Tensor:
    with tf.init_scope(), tf.device("cpu"):
        return tf.constant(np.frombuffer(buffer, dtype=np.uint8))


def _wordpiece_op(model: tf.Tensor) -> tf_text.FastWordpieceTokenizer:
    return tf_text.FastWordpieceTokenizer(model_buffer=model, token_out_type=tf.int32)


def _wordpiece_model(pieces: list[str]) -> bytes:
    """Builds the op's model; it takes words of up to 200 bytes, and makes longer ones [UNK]."""
    return wordpiece_builder.build_fast_wordpiece_model(pieces, MAX_WORD_LENGTH, "##", "[UNK]", False, False)


def _place_of_limit(model: bytes) -> int:
    """Where in the model its limit of bytes of a word stands, as a little-endian int32."""
    from flatbuffers import encode, packer, table

    root = table.Table(model, encode.Get(packer.uoffset, model, 0))
    return root.Pos + root.Offset(4 + 2 * _MAX_BYTES_FIELD)


def _pieces_for_op(vocabulary: list[str]) -> list[str]:
    """Replaces pieces that no text can match by names that differ, as the op's builder needs them."""
    last = {piece: index for index, piece in enumerate(vocabulary)}
    stand_ins = normalizer.substitutes()
    pieces = []
    for index, piece in enumerate(vocabulary):
        empty = piece in ("", "##") or last[piece] != index  # Of equal pieces the reference knows the last.
        holds_control = any(not char.isprintable() and normalizer.vanishes(char) for char in piece)
        pieces.append(f"[{NOWHERE}{index}]" if empty or holds_control else piece.translate(stand_ins))
    return pieces
