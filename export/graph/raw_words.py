"""Splits raw text into words like those that a tagger was trained on, in Python and in the graph.

A word is a run of characters between white space. The punctuation characters at its beginning and end are words of
their own, and so is each CJK character anywhere. Characters that leave no token belong to no word, except directly
behind a token, which they belong to (`keras_bert.BertTokenizer.tokenize_with_offsets`).

Shapes: T tokens of all texts, N words of all texts.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from export.graph.source_text import SourceText
from keras_bert.tokenization import normalizer
from keras_bert.tokenization.exact_normalizer import bisect

_LETTER, _PUNCTUATION, _CJK, _BLANK = range(4)  # A letter is any other character, even one that vanishes.


class Word(NamedTuple):
    """A word of a text, at the characters `start` to `end` (exclusive)."""

    text: str
    start: int
    end: int


class Words(NamedTuple):
    """The words of a batch's texts.

    Attributes:
        firsts: int64 [N], the first token of each word, which extends to the next word's first.
        rows: int64 [N], texts.
        starts, ends: int64 [N], characters, as in `SourceText`; an end is exclusive.
    """

    firsts: tf.Tensor
    rows: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor


# === Characters ===


@functools.lru_cache(maxsize=1 << 16)
def _kind(char: str, lowercase: bool) -> int:
    """Returns the kind of a character as the tokenizer sees it once normalized."""
    words = normalizer.split_words(f"a{char}a", lowercase)
    if len(words) == 3:
        return _CJK if normalizer.is_cjk(char) else _PUNCTUATION
    return _BLANK if len(words) == 2 else _LETTER


def _kinds(lowercase: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns the kinds of all characters as ranges: (first code point of each range, its kind), int32."""
    kinds = np.full(0x110000, _LETTER)
    changed = normalizer.code_point_map(lowercase)
    for code_point in (*changed, *range(0x80)):  # Beyond ASCII, normalizing puts blanks around all punctuation.
        kinds[code_point] = _kind(chr(code_point), lowercase)
    for first, last in normalizer.CJK_RANGES:
        kinds[first : last + 1] = _CJK
    starts = np.flatnonzero(np.diff(kinds, prepend=-1))
    return starts.astype(np.int32), kinds[starts].astype(np.int32)


# === Python ===


def find_words(text: str, tokenizer) -> list[Word]:
    """Finds the words of a text.

    Args:
        text: str.
        tokenizer: `PythonBertTokenizer`.

    >>> find_words("(U.S. law)", tokenizer)
    [Word('(', 0, 1), Word('U.S', 1, 4), Word('.', 4, 5), Word('law', 6, 9), Word(')', 9, 10)]
    """
    _, starts, ends = tokenizer.tokenize_with_offsets(text)
    kinds = [_kind(char, tokenizer.lowercase) for char in text]
    blanks = list(itertools.accumulate(kind == _BLANK for kind in kinds))
    # Tokens of one run stand between the same blanks; each CJK character is a run of its own.
    runs: list[list[tuple[int, int]]] = []
    for start, end in zip(starts, ends, strict=True):
        before = runs[-1][-1][0] if runs else start
        if not runs or blanks[start] != blanks[before] or _CJK in (kinds[start], kinds[before]):
            runs.append([])
        runs[-1].append((start, end))
    return [word for run in runs for word in _words_of_run(text, run, kinds)]


def _words_of_run(text: str, run: list[tuple[int, int]], kinds: list[int]) -> list[Word]:
    letters = [index for index, (start, _) in enumerate(run) if kinds[start] != _PUNCTUATION]
    groups = [[token] for token in run]
    if letters:
        first, last = letters[0], letters[-1] + 1
        groups = [*groups[:first], run[first:last], *groups[last:]]
    # Combining marks may stand in another order than their tokens.
    spans = [(min(start for start, _ in group), max(end for _, end in group)) for group in groups]
    return [Word(text[start:end], start, end) for start, end in spans]


# === Graph ===


class WordFinder:
    """Finds the words of texts, in the graph.

    Args:
        lowercase: bool, as the tokenizer has it.
    """

    def __init__(self, lowercase: bool):
        self._starts, self._kinds = _kinds(lowercase)

    def __call__(self, source: SourceText) -> Words:
        """Finds the words of `source`, T tokens."""
        kinds = tf.gather(self._kinds, bisect(self._starts, source.codes, "right") - 1)
        # The blank behind each text separates its last word from the next text's first.
        blanks = tf.gather(tf.cumsum(tf.cast(kinds == _BLANK, tf.int64)), source.token_starts)
        kinds = tf.gather(kinds, source.token_starts)
        is_cjk, is_letter = kinds == _CJK, tf.cast(kinds != _PUNCTUATION, tf.int64)
        # A run starts behind white space, and on both sides of a CJK character.
        cjk_before = tf.concat([[False], is_cjk[:-1]], axis=0)
        is_run = (blanks != tf.concat([[-1], blanks[:-1]], axis=0)) | is_cjk | cjk_before
        runs, run = tf.squeeze(tf.where(is_run), 1), tf.cumsum(tf.cast(is_run, tf.int64)) - 1
        # Letters before and behind each token in its run.
        sums = tf.pad(tf.cumsum(is_letter), [[1, 0]])
        limits = tf.concat([runs[1:], [tf.size(kinds, tf.int64)]], axis=0)
        before = sums[1:] - tf.gather(sums, tf.gather(runs, run))
        behind = tf.gather(sums, tf.gather(limits, run)) - sums[:-1]
        is_core = (before > 0) & (behind > 0)
        is_first = is_run | ~is_core | ~tf.concat([[False], is_core[:-1]], axis=0)
        number, firsts = tf.cumsum(tf.cast(is_first, tf.int64)) - 1, tf.squeeze(tf.where(is_first), 1)
        return Words(
            firsts,
            tf.gather(source.token_rows, firsts),
            # Combining marks may stand in another order than their tokens.
            tf.math.segment_min(source.token_starts, number),
            tf.math.segment_max(source.token_ends, number),
        )
