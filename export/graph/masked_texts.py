"""Texts with `[MASK]` in them: to token ids with the mask token there, and where it stands, inside the graph.

To the tokenizer `[MASK]` in a text is text. Here it is the mask token: a text is split at it, and what stands between
is tokenized by itself.

Shapes: B batch, S sequence, M masks.
"""

from typing import NamedTuple

import tensorflow as tf

from export import serving
from keras_bert.preprocessor import BertPreprocessor

MASK = "[MASK]"
_MIN_PADDED_LENGTH = 2  # [CLS] [SEP]; a width of 0, of an empty batch, breaks slicing in models.


class MaskedTexts(NamedTuple):
    """A batch of encoded texts.

    Attributes:
        encoded: the encoder's inputs, int32 [B, S].
        mask_positions: int32 [B, M], where in the sequence each mask stands; -1 behind a text's last one.
        characters: int32 [B, M], where in the text (of its valid UTF-8 part) each mask begins; -1 likewise.
        num_masks: int32 [B].
    """

    encoded: dict[str, tf.Tensor]
    mask_positions: tf.Tensor
    characters: tf.Tensor
    num_masks: tf.Tensor


def encode(preprocessor: BertPreprocessor, texts: tf.Tensor) -> MaskedTexts:
    """Encodes texts, string [B], cut at the preprocessor's length; M is the batch's most, at least 1."""
    tokenizer, longest = preprocessor.tokenizer, preprocessor.sequence_length - 2
    # As text, a mask gives 3 to 6 tokens. One mask more, because the bound may cut one in two.
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
    return MaskedTexts(
        _pack(preprocessor, ids),
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
    """Where in its text each mask begins, and at last the text's end: int32 [B, (masks + 1)]."""
    lengths = pieces.with_values(tf.strings.length(pieces.values, unit="UTF8_CHAR") + len(MASK))
    before = tf.cumsum(lengths.values)
    row_before = tf.gather(tf.concat([[0], before], axis=0), lengths.row_starts())  # of the texts before each
    return lengths.with_values(before - tf.gather(row_before, lengths.value_rowids()) - len(MASK))


def _pack(preprocessor: BertPreprocessor, ids: tf.RaggedTensor) -> dict[str, tf.Tensor]:
    """Adds [CLS] and [SEP], and pads to the longest: int32 [B, S]."""
    tokenizer, batch = preprocessor.tokenizer, ids.nrows(out_type=tf.int32)
    rows = tf.concat([tf.fill([batch, 1], tokenizer.cls_token_id), ids, tf.fill([batch, 1], tokenizer.sep_token_id)], 1)
    lengths = tf.cast(rows.row_lengths(), tf.int32)
    width = tf.maximum(tf.reduce_max(lengths), _MIN_PADDED_LENGTH)
    token_ids = _to_dense(rows, [batch, width], tokenizer.pad_token_id)
    mask = tf.sequence_mask(lengths, width, dtype=tf.int32)
    return {"token_ids": token_ids, "segment_ids": tf.zeros_like(token_ids), "padding_mask": mask}


def _to_dense(rows: tf.RaggedTensor, shape: list, default: int) -> tf.Tensor:
    return tf.ensure_shape(rows.to_tensor(default, shape=tf.stack(shape)), [None, None])
