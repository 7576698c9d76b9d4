"""Splits raw text into words like those that a tagger was trained on, in the graph.

A word is a run of characters between white space. The punctuation characters at its beginning and end are words of
their own, and so is each CJK character anywhere. Characters that leave no token belong to no word, unless they
follow a token directly: then they belong to that token (`keras_bert.BertTokenizer.tokenize_with_offsets`).

Shapes: T tokens of all texts, N words of all texts.
"""

import functools
import itertools
from typing import NamedTuple

import tensorflow as tf

from keras_bert.answers.source_text import SourceText
from keras_bert.tokenization import normalizer
from keras_bert.tokenization.exact_normalizer import CodePointTable

_LETTER, _PUNCTUATION, _CJK, _BLANK = range(4)  # Every other character is a letter, even one that leaves no token.


class Words(NamedTuple):
    """The words of a batch's texts.

    Attributes:
        firsts: int64 [N], the first token of each word, which extends to the next word's first.
        rows: int64 [N], index of each word's text.
        starts, ends: int64 [N], characters, as in `SourceText`; an end is exclusive.
    """

    firsts: tf.Tensor
    rows: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


# === Characters ===


def _kind(char: str, lowercase: bool) -> int:
    """Returns the kind of a character as the tokenizer sees it once normalized."""
    words = normalizer.split_words(f"a{char}a", lowercase)
    if len(words) == 3:
        return _CJK if normalizer.is_cjk(char) else _PUNCTUATION
    return _BLANK if len(words) == 2 else _LETTER


@functools.cache
def _kinds(lowercase: bool) -> CodePointTable:
    """Returns the kinds of all characters."""
    # Beyond ASCII, normalizing puts blanks around all punctuation.
    changed = (*normalizer.code_point_map(lowercase), *range(0x80))
    kinds = {code_point: _kind(chr(code_point), lowercase) for code_point in changed}
    kinds |= dict.fromkeys(itertools.chain(*normalizer.CJK_RANGES), _CJK)
    return CodePointTable(kinds)


# === Words ===


def find_words(source: SourceText, lowercase: bool) -> Words:
    """Finds the words of texts: `(U.S. law)` has the words `(`, `U.S`, `.`, `law` and `)`.

    Args:
        source: the texts, T tokens.
        lowercase: bool, the tokenizer's.
    """
    kinds = _kinds(lowercase)(source.codes)
    # The blank after each text separates its last word from the next text's first.
    blanks = tf.gather(tf.cumsum(tf.cast(kinds == _BLANK, tf.int64)), source.token_starts)
    kinds = tf.gather(kinds, source.token_starts)
    is_cjk, is_letter = kinds == _CJK, tf.cast(kinds != _PUNCTUATION, tf.int64)
    # A run starts after white space, and on both sides of a CJK character.
    cjk_before = tf.concat([[False], is_cjk[:-1]], axis=0)
    is_run = (blanks != tf.concat([[-1], blanks[:-1]], axis=0)) | is_cjk | cjk_before
    runs, run = tf.squeeze(tf.where(is_run), 1), tf.cumsum(tf.cast(is_run, tf.int64)) - 1
    # Letters before and after each token in its run.
    sums = tf.pad(tf.cumsum(is_letter), [[1, 0]])
    limits = tf.concat([runs[1:], [tf.size(kinds, tf.int64)]], axis=0)
    before = sums[1:] - tf.gather(sums, tf.gather(runs, run))
    after = tf.gather(sums, tf.gather(limits, run)) - sums[:-1]
    is_core = (before > 0) & (after > 0)
    is_first = is_run | ~is_core | ~tf.concat([[False], is_core[:-1]], axis=0)
    number, firsts = tf.cumsum(tf.cast(is_first, tf.int64)) - 1, tf.squeeze(tf.where(is_first), 1)
    return Words(
        firsts,
        tf.gather(source.token_rows, firsts),
        # Combining marks may stand in another order than their tokens.
        tf.math.segment_min(source.token_starts, number),
        tf.math.segment_max(source.token_ends, number),
    )
