"""Splits texts into words as the tokenizer does, in the graph: `keras_bert.tokenization.normalizer.split_words`.

Shapes: B texts; V words of all texts; N characters of all words.
"""

from typing import NamedTuple

import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.core.pybinds import pywrap_fast_wordpiece_tokenizer_model_builder as wordpiece_builder

from keras_bert.tokenization.exact_normalizer import ExactNormalizer, bisect, row_ids
from keras_bert.tokenization.graph_tokenizer import as_constant
from keras_bert.tokenization.normalizer_model import MARKER, normalizer_model

_NO_PIECE = "[\x01]"  # Never in a normalized text.
_NO_LIMIT = 2**31 - 1
_HOLDS_MARKER = f"(?s).*{MARKER}.*"


class NormalizedWords(NamedTuple):
    """Words in the order of the texts.

    Attributes:
        codes: int32 [N], the characters; a stand-in may replace punctuation that Unicode added later.
        starts: int64 [V + 1], the first character of each word, and N.
        row_splits: int64 [B + 1], of words.
    """

    codes: tf.Tensor
    starts: tf.Tensor
    row_splits: tf.Tensor


class WordSplitter:
    """Splits texts into words, punctuation characters and ideographs, normalized.

    Args:
        lowercase: bool.
    """

    def __init__(self, lowercase: bool):
        self._normalizer = tf_text.FastBertNormalizer(model_buffer=as_constant(normalizer_model(lowercase)))
        self._exact = ExactNormalizer(lowercase, self._normalizer.normalize, replaces_long_words=False)
        # A word that no piece matches becomes one token. (The op requires at least one piece.)
        pieces = [MARKER, _NO_PIECE]
        model = wordpiece_builder.build_fast_wordpiece_model(pieces, _NO_LIMIT, "##", _NO_PIECE, False, False)
        self._splitter = tf_text.FastWordpieceTokenizer(model_buffer=as_constant(model), token_out_type=tf.int32)

    def __call__(self, texts: tf.Tensor) -> NormalizedWords:
        """Splits `texts`, string [B]."""
        normalized = self._normalize(texts)
        _, starts, _ = self._splitter.tokenize_with_offsets(normalized)
        codes, places = tf.strings.unicode_decode_with_offsets(normalized, "UTF-8")
        is_inside = codes.values != ord(" ")
        bases = tf.cumsum(tf.cast(tf.strings.length(normalized), tf.int64), exclusive=True)
        places = tf.boolean_mask(places.values + tf.gather(bases, row_ids(places.row_splits)), is_inside)
        first_places = starts.values + tf.gather(bases, row_ids(starts.row_splits))
        word_starts = tf.concat([bisect(places, first_places), [tf.size(places, tf.int64)]], axis=0)
        return NormalizedWords(tf.boolean_mask(codes.values, is_inside), word_starts, starts.row_splits)

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        normalized = self._normalizer.normalize(texts)
        is_doubtful = tf.strings.regex_full_match(normalized, _HOLDS_MARKER)

        def exactly():
            rows = tf.where(is_doubtful)
            return tf.tensor_scatter_nd_update(normalized, rows, self._exact(tf.gather_nd(texts, rows))[0])

        return tf.cond(tf.reduce_any(is_doubtful), exactly, lambda: normalized)
