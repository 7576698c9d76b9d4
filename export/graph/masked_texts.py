"""Encodes texts with `[MASK]` in them, in the graph: token ids, and the places of the masks.

The tokenizer takes a text's `[MASK]` for ordinary text. So a text is split there, its parts are tokenized one by one,
and the id of the mask token is put between them.

Shapes: B batch, S sequence, M masks.
"""

from typing import NamedTuple

import tensorflow as tf

from export import serving
from export.graph.tables import Table
from export.graph.windows import Windows, lay_out
from keras_bert.tokenization.preprocessor import BertPreprocessor

MASK = "[MASK]"


class MaskedTexts(NamedTuple):
    """A batch of encoded texts.

    Attributes:
        encoded: the encoder's inputs, int32 [B, S].
        mask_positions: int32 [B, M], place of each mask in the sequence; -1 behind a text's last one.
        characters: int32 [B, M], the character of the text's valid UTF-8 part where each mask begins; -1 likewise.
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
    is_mask, lengths = ids.values == tokenizer.mask_token_id, ids.row_lengths()
    table = Table(tf.boolean_mask(ids.value_rowids(), is_mask), ids.nrows())
    places = tf.ragged.range(tf.cast(lengths, tf.int32)).values + 1  # behind [CLS]
    positions = table(tf.boolean_mask(places, is_mask), -1)
    width = tf.shape(positions)[1]
    characters = _characters(pieces).to_tensor(-1, shape=[None, None])
    characters = tf.pad(characters, [[0, 0], [0, width]], constant_values=-1)[:, :width]
    windows = Windows(tf.range(tf.size(lengths, tf.int64)), tf.zeros_like(lengths), lengths)  # one for each text
    return MaskedTexts(
        lay_out(windows, ids, tokenizer).inputs,
        positions,
        tf.where(positions >= 0, characters, -1),
        table.counts,
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
