"""Encodes texts with `[MASK]` in them, in the graph: token ids, and the positions of the masks.

The tokenizer may treat a `[MASK]` in a text as ordinary text, so the text is split at its masks first.

Shapes: B batch, S sequence, M masks.
"""

import tensorflow as tf

from keras_bert.answers import text_bounds
from keras_bert.answers.tables import Table
from keras_bert.tokenization import special_tokens
from keras_bert.tokenization.preprocessor import BertPreprocessor, lay_out

MASK = "[MASK]"


def encode(preprocessor: BertPreprocessor, texts: tf.Tensor) -> dict[str, tf.Tensor]:
    """Encodes texts, string [B], cut at the preprocessor's length; M is the largest count in the batch, at least 1.

    Returns:
        The encoder's inputs, int32 [B, S], and:

        - `mask_positions`: int32 [B, M], position of each mask in the sequence; -1 after a text's last one.
        - `characters`: int32 [B, M], the character where each mask begins, not counting invalid UTF-8; -1 likewise.
        - `num_masks`: int32 [B].
    """
    tokenizer, longest = preprocessor.tokenizer, preprocessor.sequence_length - 2
    # As text, a mask has 3 to 6 tokens. There is room for one mask more, because the bound may cut one in two.
    texts = text_bounds.bound_texts(texts, tokenizer, len(MASK) * (longest + 1))
    pieces = special_tokens.split(texts, {MASK: tokenizer.mask_token_id})
    ids = pieces.join(tokenizer.tokenize(pieces.plain()))[:, :longest]
    is_mask, lengths = ids.values == tokenizer.mask_token_id, tf.cast(ids.row_lengths(), tf.int32)
    table = Table(tf.boolean_mask(ids.value_rowids(), is_mask), ids.nrows())
    positions = tf.ragged.range(lengths).values + 1  # after [CLS]
    mask_positions = table(tf.boolean_mask(positions, is_mask), -1)
    width = tf.shape(mask_positions)[1]
    begins, is_special = map(pieces.texts.with_values, (pieces.spans()[0], pieces.is_special))
    begins = tf.ragged.boolean_mask(begins, is_special)
    characters = tf.pad(begins.to_tensor(-1), [[0, 0], [0, width]], constant_values=-1)[:, :width]
    return {
        **lay_out(tokenizer, [(ids.values, ids.row_starts(), lengths)]),
        "mask_positions": mask_positions,
        "characters": tf.where(mask_positions >= 0, characters, -1),
        "num_masks": table.counts,
    }
