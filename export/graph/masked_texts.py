"""Encodes texts with `[MASK]` in them, in the graph: token ids, and the places of the masks.

The tokenizer reads `[MASK]` in a text as text. To make it the mask token, a text is split there, and the parts between
are tokenized by themselves.

Shapes: B batch, S sequence, M masks.
"""

from typing import NamedTuple

import tensorflow as tf

from export import serving
from export.graph.windows import Windows, lay_out
from keras_bert.tokenization.preprocessor import BertPreprocessor

MASK = "[MASK]"


class MaskedTexts(NamedTuple):
    """A batch of encoded texts.

    Attributes:
        encoded: the encoder's inputs, int32 [B, S].
        mask_positions: int32 [B, M], place of each mask in the sequence; -1 behind a text's last one.
        characters: int32 [B, M], character of the text (its valid UTF-8 part) where each mask begins; -1 likewise.
        num_masks: int32 [B].
    """

    encoded: dict[str, tf.Tensor]
    mask_positions: tf.Tensor
    characters: tf.Tensor
    num_masks: tf.Tensor


def encode(preprocessor: BertPreprocessor, texts: tf.Tensor) -> MaskedTexts:
    """Encodes texts, string [B], cut at the preprocessor's length; M is the largest count in the batch, at least 1."""
    tokenizer, longest = preprocessor.tokenizer, preprocessor.sequence_length - 2
    # As text, a mask has 3 to 6 tokens. There is room for one mask more, because the bound may cut one in two.
    texts = serving.bound_texts(texts, tokenizer, len(MASK) * (longest + 1))
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
    pieces = tf.strings.split(texts, MASK)  # [B, (masks + 1)]
    ids = _join(tokenizer.tokenize(pieces.values), tokenizer.mask_token_id, pieces)[:, :longest]
    is_mask = ids.with_values(ids.values == tokenizer.mask_token_id)
    num_masks = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
    places = tf.ragged.range(tf.cast(ids.row_lengths(), tf.int32)) + 1  # behind [CLS]
    shape = [tf.size(num_masks), tf.maximum(tf.reduce_max(num_masks), 1)]
    characters = _characters(pieces).to_tensor(-1, shape=[None, None])
    characters = tf.pad(characters, [[0, 0], [0, shape[1]]], constant_values=-1)[:, : shape[1]]
    lengths = ids.row_lengths()
    windows = Windows(tf.range(tf.size(lengths, tf.int64)), tf.zeros_like(lengths), lengths)  # one for each text
    return MaskedTexts(
        lay_out(windows, ids, tokenizer).inputs,
        _to_dense(tf.ragged.boolean_mask(places, is_mask), shape, -1),
        tf.where(tf.sequence_mask(num_masks, shape[1]), characters, -1),
        num_masks,
    )


def _join(pieces_ids: tf.RaggedTensor, mask_id: int, pieces: tf.RaggedTensor) -> tf.RaggedTensor:
    """Joins the ids of all texts' pieces to the ids of texts [B, None], a mask after each piece but a text's last."""
    masks = tf.fill([pieces_ids.nrows(), 1], mask_id)
    ids = tf.concat([pieces_ids, masks], axis=1)  # each piece with a mask behind it
    return tf.RaggedTensor.from_row_splits(ids.values, tf.gather(ids.row_splits, pieces.row_splits))[:, :-1]


def _characters(pieces: tf.RaggedTensor) -> tf.RaggedTensor:
    """Returns the character where each mask begins, and the text's end: int32 [B, (masks + 1)]."""
    lengths = pieces.with_values(tf.strings.length(pieces.values, unit="UTF8_CHAR") + len(MASK))
    before = tf.cumsum(lengths.values)
    row_before = tf.gather(tf.concat([[0], before], axis=0), lengths.row_starts())  # of the texts before each
    return lengths.with_values(before - tf.gather(row_before, lengths.value_rowids()) - len(MASK))


def _to_dense(rows: tf.RaggedTensor, shape: list, default: int) -> tf.Tensor:
    return tf.ensure_shape(rows.to_tensor(default, shape=tf.stack(shape)), [None, None])
