"""GraphTokenizer: turns any text into exact WordPiece ids, with ops that TensorFlow Serving links.

Nearly every text takes two ops of tensorflow-text: FastBertNormalize with our own model (`normalizer_model.py`), then
FastWordpieceTokenize, which splits and matches in linear time. Two kinds of words show that the ops do not suffice:
`MARKER`, where neighbours matter, and words over 200 bytes, which may still have at most 200 characters. Only the texts
with such words go through `exact_normalizer.py`. Words that the two ops cannot match get an id above all others, so
that one comparison finds the batches that need no more work.

Shapes: B texts; T tokens, of all texts.
"""

import struct
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.core.pybinds import pywrap_fast_wordpiece_tokenizer_model_builder as wordpiece_builder

from keras_bert.tokenization import normalizer
from keras_bert.tokenization.exact_normalizer import MAX_WORD_LENGTH, NOWHERE, ExactNormalizer, bisect, row_ids, select
from keras_bert.tokenization.normalizer_model import MARKER, normalizer_model

NO_PIECE = f"[{NOWHERE}]"  # The op's result for words that no pieces match.
_MAX_BYTES_FIELD = 4  # Number of `max_bytes_per_token` in tensorflow-text's `fast_wordpiece_tokenizer_model.fbs`.


class GraphTokenizer:
    """Splits text into WordPieces inside the graph.

    Args:
        pieces: the vocabulary, in the order of the ids.
        lowercase: bool.
    """

    def __init__(self, pieces: list[str], lowercase: bool):
        # These ids are above those of all pieces, so that a batch's greatest id shows whether it needs more work.
        self._marker_id, self._nowhere_id = len(pieces), len(pieces) + 1
        self._unknown_id = max(index for index, piece in enumerate(pieces) if piece == "[UNK]")
        self._normalizer = tf_text.FastBertNormalizer(model_buffer=as_constant(normalizer_model(lowercase)))
        self._exact = ExactNormalizer(lowercase, self._normalizer.normalize)
        model = wordpiece_model([*_pieces_for_op(pieces), MARKER, NO_PIECE], MAX_WORD_LENGTH)
        self._limit_place = _place_of_limit(model)
        self._wordpiece_model = as_constant(model)
        self._wordpiece = wordpiece_op(self._wordpiece_model)
        # As functions, each runs as one graph in an eager call, and is inlined elsewhere.
        self._ids_of, self._spans_of = _function(self._tokenize), _function(self._tokenize_with_spans)
        # The rare paths are not inlined, since every op of a branch costs time, taken or not.
        place = tf.TensorSpec([None], tf.int64)
        columns = [place, tf.TensorSpec([None], tf.int32), place, place]
        self._settle_rare = _function(self._settle_unknown, place, place, *columns, _noinline=True)
        self._tokenize_exactly = _function(self._exact_columns, _noinline=True)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of `texts`, string [B]; int32 ragged [B, None]."""
        return self._ids_of(texts)

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns ids, starts and ends in characters of `texts`; each int32 ragged [B, None]."""
        return self._spans_of(texts)

    # === Graphs ===

    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        ids, starts, ends = self._wordpiece.tokenize_with_offsets(self._normalizer.normalize(texts))
        return self._settle(texts, starts, ends, [ids, starts, ends])[0]  # Any spans will do; they are not returned.

    def _tokenize_with_spans(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        normalized, sources = self._normalizer.normalize_with_offsets(texts)
        ids, starts, ends = self._wordpiece.tokenize_with_offsets(normalized)
        spans = _spans_in_source(texts, sources, starts, ends)
        ids, *spans = self._settle(texts, starts, ends, [ids, *spans])
        return ids, *_in_characters(texts, *spans)

    def _settle(
        self, texts: tf.Tensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor, columns: list[tf.RaggedTensor]
    ) -> list[tf.RaggedTensor]:
        """Gives unknown words their id, and tokenizes exactly the texts for which the two ops do not suffice.

        Args:
            texts: string [B].
            starts, ends: bytes where the tokens start and end in the normalized texts, int64 ragged [B, None].
            columns: ids, starts and ends in bytes of the source; each ragged [B, None].

        Returns:
            The corrected `columns`.
        """
        flat = tf.cond(
            tf.reduce_max(columns[0].values) >= self._marker_id,
            lambda: self._settle_rare(texts, starts.values, ends.values, *_flat(columns)),
            lambda: _flat(columns),
        )
        return _ragged(flat)

    def _settle_unknown(self, texts, starts, ends, row_splits, ids, *spans) -> list[tf.Tensor]:
        """Does the work of `_settle` for texts with unknown words, long ones, or markers."""
        doubtful = (ids == self._marker_id) | (ends - starts > MAX_WORD_LENGTH)
        columns = [row_splits, ids, *spans]

        def again():
            rows = tf.unique(*select(doubtful, row_ids(row_splits)))[0]
            exact = self._tokenize_exactly(tf.gather(texts, rows))
            size = tf.size(texts, tf.int64)
            places = size + tf.range(tf.size(rows, tf.int64))
            order = tf.tensor_scatter_nd_update(tf.range(size), tf.expand_dims(rows, 1), places)
            pairs = zip(_ragged(columns), exact, strict=True)
            return _flat([tf.gather(tf.concat(pair, axis=0), order) for pair in pairs])

        row_splits, ids, *spans = tf.cond(tf.reduce_any(doubtful), again, lambda: columns)
        return [row_splits, tf.where(ids == self._nowhere_id, self._unknown_id, ids), *spans]

    def _exact_columns(self, texts: tf.Tensor) -> list[tf.RaggedTensor]:
        """Returns the ids of any texts, and their starts and ends in bytes."""
        normalized, origins = self._exact(texts)
        place = tf.range(self._limit_place, self._limit_place + 4)[:, tf.newaxis]
        # 200 characters have at most 800 bytes; longer words have been replaced.
        limit = tf.constant(list(struct.pack("<i", 4 * MAX_WORD_LENGTH)), tf.uint8)
        model = tf.tensor_scatter_nd_update(self._wordpiece_model, place, limit)
        ids, starts, ends = wordpiece_op(model).tokenize_with_offsets(normalized)
        return [ids, *map(ids.with_values, origins.of(row_ids(ids.row_splits), starts.values, ends.values))]


def _function(function: Callable, *more: tf.TensorSpec, **attributes) -> tf.types.experimental.PolymorphicFunction:
    signature = [tf.TensorSpec([None], tf.string), *more]
    return tf.function(function, input_signature=signature, autograph=False, experimental_attributes=attributes)


def _flat(columns: list[tf.RaggedTensor]) -> list[tf.Tensor]:
    return [columns[0].row_splits, *(column.values for column in columns)]


def _ragged(flat: list[tf.Tensor]) -> list[tf.RaggedTensor]:
    return [tf.RaggedTensor.from_row_splits(values, flat[0], validate=False) for values in flat[1:]]


# === Offsets ===


def _bases(texts: tf.Tensor) -> tf.Tensor:
    """Returns an offset for each text, int64 [B], so that offset + byte, ends included, ascends through the batch."""
    return tf.cumsum(tf.cast(tf.strings.length(texts), tf.int64) + 1, exclusive=True)


def _spans_in_source(
    texts: tf.Tensor, sources: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.RaggedTensor
) -> list[tf.RaggedTensor]:
    """Turns bytes of the normalized texts into bytes of the source.

    A token ends where the next character begins that does not vanish. That is not always the source of the next
    normalized byte, since one source character may become several tokens.

    Args:
        texts: string [B], the source.
        sources: int64 ragged [B, None], the byte of the source for each normalized byte, and for the end.
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
    """Turns bytes of the source into valid characters of the source: int32 ragged [B, None]."""
    _, places = tf.strings.unicode_decode_with_offsets(texts, "UTF-8", errors="ignore")
    bases = _bases(texts)
    ascending = places.values + tf.gather(bases, row_ids(places.row_splits))
    rows = row_ids(columns[0].row_splits)
    first_places = tf.gather(places.row_splits, rows)
    converted = []
    for column in columns:
        before = bisect(ascending, tf.gather(bases, rows) + column.values)
        converted.append(column.with_values(tf.cast(before - first_places, tf.int32)))
    return converted


# === Models of the ops ===


def as_constant(buffer: bytes) -> tf.Tensor:
    """Returns an op's model as a constant, uint8, outside of any graph that is being traced."""
    with tf.init_scope(), tf.device("cpu"):
        return tf.constant(np.frombuffer(buffer, dtype=np.uint8))


def wordpiece_op(model: tf.Tensor) -> tf_text.FastWordpieceTokenizer:
    """Returns the op that splits normalized texts into the pieces of a model, uint8."""
    return tf_text.FastWordpieceTokenizer(model_buffer=model, token_out_type=tf.int32)


def wordpiece_model(pieces: list[str], max_bytes: int) -> bytes:
    """Builds the op's model; words of more than `max_bytes`, and those that no pieces match, become `NO_PIECE`."""
    return wordpiece_builder.build_fast_wordpiece_model(pieces, max_bytes, "##", NO_PIECE, False, False)


def _place_of_limit(model: bytes) -> int:
    """Returns the offset in the model of its limit on the bytes of a word, a little-endian int32."""
    from flatbuffers import encode, packer, table

    root = table.Table(model, encode.Get(packer.uoffset, model, 0))
    return root.Pos + root.Offset(4 + 2 * _MAX_BYTES_FIELD)


def _pieces_for_op(vocabulary: list[str]) -> list[str]:
    """Replaces pieces that no text can match by unique names, since the op's builder requires distinct pieces.

    In other pieces, characters that the op does not know are replaced by their stand-ins.
    """
    last = {piece: index for index, piece in enumerate(vocabulary)}
    stand_ins = normalizer.substitutes()
    pieces = []
    for index, piece in enumerate(vocabulary):
        empty = piece in ("", "##") or last[piece] != index  # The reference uses the last of equal pieces.
        holds_control = not piece.isprintable() and any(map(normalizer.vanishes, piece))
        pieces.append(f"[{NOWHERE}{index}]" if empty or holds_control else piece.translate(stand_ins))
    return pieces
