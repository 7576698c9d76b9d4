"""Windows over texts of any length, in the graph: cuts them, lays them out, pools the model's outputs for them.

All windows of a batch are handled at once; `tasks.squad.windows` and `tasks.text.word_windows` handle them one by one.

Shapes: B texts, T tokens of all texts, W windows of all texts, S tokens of the longest window.
"""

from collections.abc import Mapping
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_bert.answers.pieces import outputs_in_pieces
from keras_bert.answers.rules import LONG_TEXTS, MOST_TOKENS, POOLED, SPECIAL_TOKENS
from keras_bert.answers.text_bounds import bound_texts
from keras_bert.tokenization import preprocessor
from keras_bert.tokenization.exact_normalizer import row_ids


class Windows(NamedTuple):
    """Windows, text after text.

    Attributes:
        rows: int64 [W], index of each window's text, ascending.
        starts: int64 [W], index of the window's first token in the text.
        lengths: int64 [W], number of the window's tokens, without query and special tokens.
    """

    rows: tf.Tensor
    starts: tf.Tensor
    lengths: tf.Tensor


class Layout(NamedTuple):
    """Windows as the encoder reads them.

    Attributes:
        inputs: the encoder's, `token_ids segment_ids padding_mask`, int32 [W, S].
        tokens: int64 [W, S], index of each cell's token among the T; -1 for special and query tokens and padding.
        firsts: int64 [W], index of the window's first token among the T.
    """

    inputs: dict[str, tf.Tensor]
    tokens: tf.Tensor
    firsts: tf.Tensor


def cut_windows(lengths: tf.Tensor, rooms: tf.Tensor, stride: int, of_empty: int = 0) -> Windows:
    """Cuts texts into windows that start `stride` tokens apart, until one reaches the end.

    Args:
        lengths: int64 [B], tokens of each text.
        rooms: int64 [B], number of tokens that one window of each text holds, at least 1.
        stride: int, limited to the room, so that no tokens between two windows are lost.
        of_empty: int, number of windows of a text without tokens, 0 or 1.
    """
    strides = tf.minimum(tf.cast(stride, tf.int64), rooms)
    counts = 1 + (tf.maximum(lengths - rooms, 0) + strides - 1) // strides
    splits = tf.pad(tf.cumsum(tf.where(lengths > 0, counts, of_empty)), [[1, 0]])
    rows = row_ids(splits)
    starts = (tf.range(splits[-1]) - tf.gather(splits, rows)) * tf.gather(strides, rows)
    return Windows(rows, starts, tf.minimum(tf.gather(lengths, rows) - starts, tf.gather(rooms, rows)))


def lay_out(windows: Windows, tokens: tf.RaggedTensor, tokenizer, queries: tf.RaggedTensor | None = None) -> Layout:
    """Lays out each window as `[CLS] piece [SEP]`, or as `[CLS] query [SEP] piece [SEP]`.

    Args:
        windows: of `tokens`.
        tokens: int32 ragged [B, None], T in all.
        tokenizer: BertTokenizer; has the special tokens.
        queries: int32 ragged [B, None], or None.
    """
    firsts = tf.gather(tokens.row_starts(), windows.rows) + windows.starts
    texts = [(tokens.values, firsts, tf.cast(windows.lengths, tf.int32))]
    position_0 = tf.ones_like(windows.rows)  # [W], where the piece begins.
    if queries is not None:
        lengths = tf.gather(queries.row_lengths(), windows.rows)
        query_firsts = tf.gather(queries.row_starts(), windows.rows)
        texts = [(queries.values, query_firsts, tf.cast(lengths, tf.int32)), *texts]
        position_0 += lengths + 1
    inputs = preprocessor.lay_out(tokenizer, texts)
    offset = tf.range(tf.shape(inputs["token_ids"], tf.int64)[1]) - position_0[:, tf.newaxis]  # [W, S]
    is_inside = (offset >= 0) & (offset < windows.lengths[:, tf.newaxis])
    return Layout(inputs, tf.where(is_inside, firsts[:, tf.newaxis] + offset, -1), firsts)


def best_cells(windows: Windows, layout: Layout, num_tokens: tf.Tensor, length_weight: float) -> tf.Tensor:
    """Finds each token's place in its window of maximum context (google-research/bert run_squad.py:542).

        score(token, window) = min(tokens left of it, tokens right of it in the window) + length_weight * length

    The first window with the highest score wins. Scores are float64, as in `tasks.text.word_windows.best_windows`.

    Args:
        windows: every token is in at least one of them.
        layout: of the windows.
        num_tokens: int64, T.
        length_weight: weight of the window's length, 0.01 in run_squad.py.

    Returns:
        int64 [T], index of the cell among the W * S.
    """
    before = layout.tokens - layout.firsts[:, tf.newaxis]
    lengths = windows.lengths[:, tf.newaxis]
    context = tf.cast(tf.minimum(before, lengths - 1 - before), tf.float64)
    scores = tf.reshape(context + tf.constant(length_weight, tf.float64) * tf.cast(lengths, tf.float64), [-1])
    tokens, count = tf.reshape(layout.tokens, [-1]), tf.size(layout.tokens, tf.int64)
    highest = tf.math.unsorted_segment_max(scores, tokens, num_tokens)  # Segment -1: no token.
    none = tf.constant([0.0], tf.float64)
    is_best = scores == tf.gather(tf.concat([highest, none], axis=0), tf.where(tokens >= 0, tokens, num_tokens))
    return tf.math.unsorted_segment_min(tf.where(is_best, tf.range(count), count), tokens, num_tokens)


class LongTexts:
    """Reads single texts of any length, as one sequence each or as windows.

    `head_tail` keeps the first quarter of what a sequence holds and the last three quarters, in the proportion of Sun
    et al., arXiv:1905.05583, section 5.3.1: 128 and 382 of 510 tokens. Windows overlap by a quarter. The last one
    begins earlier to be as full as the others, since a window of few tokens would count as much as a full one.

    Args:
        tokenizer: BertTokenizer.
        sequence_length: int, the longest sequence, special tokens included.
        long_text: str, `"head_tail"`, `"mean"` or `"max"`.
        max_tokens: int, number of tokens of a text that are read; None: `MOST_TOKENS`.

    Raises:
        ValueError: `long_text` is none of these, or `max_tokens` is below 1.
    """

    def __init__(self, tokenizer, sequence_length: int, long_text: str, max_tokens: int | None = None):
        self.tokenizer, self.room, self.long_text = tokenizer, sequence_length - SPECIAL_TOKENS, long_text
        self.max_tokens = MOST_TOKENS if max_tokens is None else max_tokens
        if long_text not in LONG_TEXTS[1:]:
            raise ValueError(f"`long_text` must be one of {', '.join(LONG_TEXTS)}. Received: {long_text=}")
        if self.max_tokens < 1:
            raise ValueError(f"`max_tokens` must be at least 1. Received: {max_tokens=}")

    def __call__(self, texts: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Encodes texts, string [B].

        Returns:
            The encoder's inputs, int32 [W, S], and the index of each window's text, int64 [W], ascending.
        """
        tokens = self.tokenizer.tokenize(bound_texts(texts, self.tokenizer, self.max_tokens))[:, : self.max_tokens]
        if self.long_text == "head_tail":
            places, head = tf.ragged.range(tokens.row_lengths()), -(-self.room // 4)
            from_end = tf.expand_dims(tokens.row_lengths(), 1) - places
            tokens = tf.ragged.boolean_mask(tokens, (places < head) | (from_end <= self.room - head))
        lengths, room = tokens.row_lengths(), tf.constant(self.room, tf.int64)
        windows = cut_windows(lengths, tf.fill(tf.shape(lengths), room), self.room - self.room // 4, of_empty=1)
        lasts = tf.gather(tf.maximum(lengths - room, 0), windows.rows)
        lengths = tf.minimum(tf.gather(lengths, windows.rows), room)
        windows = windows._replace(starts=tf.minimum(windows.starts, lasts), lengths=lengths)
        return lay_out(windows, tokens, self.tokenizer).inputs, windows.rows


def list_windows(features: Mapping[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Turns texts of at most K windows, int32 [..., K, S], into a flat list of windows.

    Windows without tokens are padding, and left out.

    Returns:
        The encoder's inputs, int32 [W, S], and the index of each window's text, int64 [W].
    """
    flat = {name: tf.reshape(ids, [-1, *tf.unstack(tf.shape(ids)[-2:])]) for name, ids in features.items()}
    is_window = flat["padding_mask"][..., 0] > 0
    return {name: tf.boolean_mask(ids, is_window) for name, ids in flat.items()}, tf.where(is_window)[:, 0]


def pool_windows(model: keras.Model, outputs: tf.Tensor, rows: tf.Tensor, shape: tf.Tensor, pooling: str) -> tf.Tensor:
    """Pools the outputs for a text's windows into one output; unit vectors are pooled into a unit vector.

    Args:
        model: the model that computed the outputs.
        outputs: float [W, C].
        rows: int64 [W], index of each window's text.
        shape: int32, the shape of the batch of texts, such as [B].
        pooling: one of `POOLED`: the mean or the maximum of each of the C components.

    Returns:
        float, shape (*shape, C).
    """
    pool = dict(zip(POOLED, (tf.math.unsorted_segment_mean, tf.math.unsorted_segment_max), strict=True))[pooling]
    pooled = pool(outputs, rows, tf.reduce_prod(shape))
    if isinstance(model.layers[-1], keras.layers.UnitNormalization):
        pooled = tf.math.l2_normalize(pooled, -1)
    width = outputs.shape[-1]
    return tf.ensure_shape(tf.reshape(pooled, [*tf.unstack(shape), width]), [*[None] * shape.shape[0], width])


def answer_windows(model: keras.Model, features: Mapping[str, tf.Tensor], pooling: str) -> tf.Tensor:
    """Applies a model to texts of at most K windows, int32 [..., K, S], in pieces, and pools: float [..., C]."""
    windows, rows = list_windows(features)
    outputs = outputs_in_pieces(model, windows)
    return pool_windows(model, outputs, rows, tf.shape(features["padding_mask"])[:-2], pooling)
