"""Reads texts of any length in the graph: bounds and tokenizes them, and extracts substrings by characters.

Characters, tokens and words are numbered through the whole batch. A blank is added after each text, which keeps the
words of two texts apart.

Shapes: B texts, C characters of all texts and the B blanks, T tokens of all texts, P parts.
"""

import tensorflow as tf

from keras_bert.answers.text_bounds import bound_texts
from keras_bert.tokenization.exact_normalizer import row_ids

# Bytes of a text that are read for each token that may be used. A text needs more only if it consists of endless words,
# which are one token each, or of characters that leave no token. No text of SQuAD, WNUT-17, WikiText-2 or Chinese
# reviews with at least 20 tokens has more than 7 bytes a token; their means are 3 to 5.
BYTES_PER_TOKEN = 64


class SourceText:
    """Texts of any length, their characters and tokens, read at a bounded cost in time and memory.

    Args:
        texts: string [B], any bytes.
        tokenizer: BertTokenizer.
        max_tokens: int, number of tokens of each text that count.
        num_bytes: int, number of bytes of a text that are read; None: `BYTES_PER_TOKEN * max_tokens`.

    Attributes:
        texts: string [B], valid UTF-8: without invalid bytes, cut after the bytes that are read.
        codes: int32 [C], the characters.
        row_splits: int64 [B + 1]: text b is the characters `row_splits[b]` to `row_splits[b + 1] - 1`, less its blank.
        limits: int64 [B], the character after the last that counts, where the text or its last token ends.
        token_ids: int32 [T].
        token_splits: int64 [B + 1].
        token_rows: int64 [T], the text of each token.
        token_starts, token_ends: int64 [T], characters; an end is exclusive.
        truncated: bool [B], True if part of the text was not read.
    """

    def __init__(self, texts: tf.Tensor, tokenizer, max_tokens: int, num_bytes: int | None = None):
        num_bytes = num_bytes or BYTES_PER_TOKEN * max_tokens
        is_long = tf.strings.length(texts) > num_bytes
        texts = tf.strings.substr(texts, 0, num_bytes)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="ignore")
        self.texts = bound_texts(texts, tokenizer, max_tokens + 1)
        ids, starts, ends = tokenizer.tokenize_with_offsets(self.texts)
        is_longer = ids.row_lengths() > max_tokens
        ids, starts, ends = (column[:, :max_tokens] for column in (ids, starts, ends))
        self.token_ids, self.token_splits, self.token_rows = ids.values, ids.row_splits, row_ids(ids.row_splits)
        # Only valid UTF-8 is left, so nothing is ignored, and U+FFFD is a character.
        codes = tf.strings.unicode_decode(self.texts + " ", "UTF-8", errors="ignore")
        self.codes, self.row_splits = codes.values, codes.row_splits
        shifts = tf.gather(self.row_splits, self.token_rows)
        self.token_starts, self.token_ends = (tf.cast(column.values, tf.int64) + shifts for column in (starts, ends))
        # Combining marks may stand in another order than their tokens, so the last token need not end last.
        lasts = tf.math.unsorted_segment_max(self.token_ends, self.token_rows, tf.size(texts))
        self.limits = tf.where(is_longer, lasts, self.row_splits[1:] - 1)
        self.truncated = is_long | is_longer

    def offsets(self, characters: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Turns indices of batch characters, int64 [P], in texts `rows` into indices within each text, int32 [P]."""
        return tf.cast(characters - tf.gather(self.row_splits, rows), tf.int32)


def cut_texts(codes: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Returns the substrings, string [P], of `codes`, int32, from `starts` to `ends` (exclusive), int64 [P]."""
    places = tf.ragged.range(starts, ends)
    return tf.strings.unicode_encode(places.with_values(tf.gather(codes, places.values)), "UTF-8", errors="ignore")
