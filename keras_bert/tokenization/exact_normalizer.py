"""Normalizes, in the graph, the few texts in which a character's neighbours matter, and finds each byte's origin.

It works on code points, in time linear in the text, with core TensorFlow ops. The cased characters around a capital
sigma decide whether it becomes a final one; marks that lower-casing keeps are put into NFD's order; words of over 200
characters become [UNK]. The op FastBertNormalize does the rest, and sees every distinct character once. The steps that
look at neighbours work on all rows joined into one sequence; the blank at the end of each row separates the rows.

Shapes: B texts; C characters, a number that changes from step to step.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.tokenization import normalizer
from keras_bert.tokenization.normalizer import MAX_WORD_LENGTH

NOWHERE = "\x01"  # Becomes [UNK]. Neither normalized texts nor the op's pieces contain this control character.


# TensorFlow's equivalents of the next three functions make 13 to 72 ops at each use, and whenever a tf.data pipeline
# starts, each of its ops costs 0.1 ms, even one that never runs.


def bisect(ascending: tf.Tensor, values: tf.Tensor, side: str = "left") -> tf.Tensor:
    """Counts the values in `ascending`, [C], before each of `values`, [T]: int64 [T]. "right" counts equal ones too."""
    count = tf.raw_ops.UpperBound if side == "right" else tf.raw_ops.LowerBound
    ascending, values = tf.expand_dims(ascending, 0), tf.expand_dims(values, 0)
    return tf.squeeze(count(sorted_inputs=ascending, values=values, out_type=tf.int64), 0)


def row_ids(row_splits: tf.Tensor) -> tf.Tensor:
    """Returns the row of each value of a ragged tensor, int64 [C]."""
    return bisect(row_splits, tf.range(row_splits[-1]), "right") - 1


def select(mask: tf.Tensor, *columns: tf.Tensor) -> list[tf.Tensor]:
    """Returns the values of each column, [C], that `mask`, bool [C], selects."""
    indices = tf.squeeze(tf.where(mask), 1)
    return [tf.gather(column, indices) for column in columns]


class Origins(NamedTuple):
    """The origins in the source of the characters of normalized texts."""

    places: tf.Tensor  # int64, [C]: the byte where each character begins in the normalized texts, joined
    row_places: tf.Tensor  # int64, [B]: where each text begins there
    starts: tf.Tensor  # int64, [C]: the byte where its source character begins in the source text
    ends: tf.Tensor  # int64, [C]: the byte where the next character begins that does not vanish

    def of(self, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns starts and ends in the source, int64 [T], of T tokens with bytes `starts` to `ends` of `rows`."""
        base = tf.gather(self.row_places, rows)
        covered = tf.ragged.range(bisect(self.places, base + starts), bisect(self.places, base + ends))
        tokens = row_ids(covered.row_splits)  # No token is empty.
        return (
            tf.math.segment_min(tf.gather(self.starts, covered.values), tokens),
            tf.math.segment_max(tf.gather(self.ends, covered.values), tokens),
        )


class ExactNormalizer:
    """Normalizes any texts exactly.

    Args:
        lowercase: bool.
        normalize: FastBertNormalize with our model, string [B] to string [B]. It is exact for single characters, except
            those of `normalizer.kept_marks` and their compounds.
        replaces_long_words: bool; False keeps words of over 200 characters.
    """

    def __init__(self, lowercase: bool, normalize: Callable[[tf.Tensor], tf.Tensor], replaces_long_words: bool = True):
        self._lowercase = lowercase
        self._replaces_long_words = replaces_long_words
        self._normalize = normalize
        self._is_boundary = _boundaries()
        if lowercase:
            self._context, self._compounds = _lower_casing()

    def __call__(self, texts: tf.Tensor) -> tuple[tf.Tensor, Origins]:
        """Normalizes `texts`: string, shape (B,), any bytes."""
        # The blank separates neighbouring rows, and its offset is the length of the text.
        decoded, places = tf.strings.unicode_decode_with_offsets(texts + " ", "UTF-8", errors="ignore")
        codes, sources = decoded.values, tf.range(tf.size(decoded.values), dtype=tf.int64)
        if self._lowercase:
            codes, sources = self._settle_context(codes, sources)
        codes, sources = self._map(codes, sources)
        rows = tf.gather(row_ids(decoded.row_splits), sources)
        starts = tf.gather(places.values, sources)
        ends = tf.gather(_ends(places.values, sources), sources)
        if self._replaces_long_words:
            codes, rows, starts, ends = self._replace_long_words(codes, rows, starts, ends)
        splits = bisect(rows, tf.range(tf.size(texts, tf.int64) + 1))
        sizes = sum(tf.cast(codes >= least, tf.int64) for least in (0, 0x80, 0x800, 0x10000))  # UTF-8
        begins = tf.cumsum(sizes, exclusive=True)
        row_begins = tf.gather(begins, splits[:-1])
        normalized = tf.strings.unicode_encode(
            tf.RaggedTensor.from_row_splits(codes, splits, validate=False), "UTF-8", errors="ignore"
        )
        return normalized, Origins(begins, row_begins, starts, ends)

    # === Lower-casing ===

    def _settle_context(self, codes: tf.Tensor, sources: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        context = self._context(codes)
        codes, sources, context = select(~_has(context, normalizer.VANISHES), codes, sources, context)
        codes, sources = self._decompose(_settle_sigmas(codes, context), sources)
        moved = _in_canonical_order(self._context(codes))
        return tf.gather(codes, moved), tf.gather(sources, moved)

    def _decompose(self, codes: tf.Tensor, sources: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Decomposes the compounds of marks."""
        longest = max(map(len, self._compounds.values()))
        keys = tf.constant(list(self._compounds))
        decompositions = tf.constant([marks + [-1] * (longest - len(marks)) for marks in self._compounds.values()])
        place = tf.minimum(bisect(keys, codes), len(self._compounds) - 1)
        is_compound = tf.gather(keys, place) == codes
        alone = tf.pad(codes[:, tf.newaxis], [[0, 0], [0, longest - 1]], constant_values=-1)
        decomposed = tf.reshape(tf.where(is_compound[:, tf.newaxis], tf.gather(decompositions, place), alone), [-1])
        (indices,) = select(decomposed >= 0, tf.range(tf.size(decomposed)))
        return tf.gather(decomposed, indices), tf.gather(sources, indices // longest)

    # === Each character by itself ===

    def _map(self, codes: tf.Tensor, sources: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        distinct, place = tf.unique(codes)
        alone = tf.RaggedTensor.from_row_splits(distinct, tf.range(tf.size(distinct) + 1), validate=False)
        chars = tf.strings.unicode_encode(alone, "UTF-8", errors="ignore")
        texts = self._normalize(chars)
        if self._lowercase:
            texts = tf.where(_has(self._context(distinct), normalizer.MARK_ORDER), chars, texts)
        code_points = tf.gather(tf.strings.unicode_decode(texts, "UTF-8"), place)
        return code_points.values, tf.gather(sources, row_ids(code_points.row_splits))

    # === Words ===

    def _replace_long_words(self, codes: tf.Tensor, rows, starts, ends) -> tuple[tf.Tensor, ...]:
        """Replaces each word of over 200 characters by `NOWHERE`."""
        is_inside = self._is_boundary(codes) == 0
        words = tf.cumsum(tf.cast(~is_inside, tf.int32))  # A word's number is that of the boundary before it.
        lengths = tf.math.segment_sum(tf.cast(is_inside, tf.int32), words)
        is_long = is_inside & (tf.gather(lengths, words) > MAX_WORD_LENGTH)
        is_first = is_long & ~tf.concat([[False], is_long[:-1]], axis=0)
        firsts = tf.math.segment_min(tf.where(is_inside, starts, tf.int64.max), words)
        lasts = tf.math.segment_max(tf.where(is_inside, ends, -1), words)
        codes = tf.where(is_long, ord(NOWHERE), codes)
        starts = tf.where(is_long, tf.gather(firsts, words), starts)
        ends = tf.where(is_long, tf.gather(lasts, words), ends)
        return select(is_first | ~is_long, codes, rows, starts, ends)


class CodePointTable:
    """Maps each code point to a number, by default 0, and stores ranges of equal numbers."""

    def __init__(self, numbers: dict[int, int]):
        dense = np.zeros(0x110000, dtype=np.int32)
        dense[list(numbers)] = list(numbers.values())
        starts = np.flatnonzero(np.diff(dense, prepend=-1))
        self._starts, self._numbers = starts.astype(np.int32), dense[starts]

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        distinct, place = tf.unique(codes)
        ranges = bisect(tf.constant(self._starts), distinct, "right") - 1
        return tf.gather(tf.gather(tf.constant(self._numbers), ranges), place)


@functools.cache
def _boundaries() -> CodePointTable:
    symbols = itertools.chain(*normalizer.ASCII_PUNCTUATION_RANGES, *normalizer.CJK_RANGES)
    return CodePointTable(dict.fromkeys((ord(" "), *symbols), 1))


@functools.cache
def _lower_casing() -> tuple[CodePointTable, dict[int, list[int]]]:
    """Returns the context of each character, and the compounds of marks that lower-casing keeps."""
    return CodePointTable(normalizer.context_of()), dict(sorted(normalizer.compounds_of_kept_marks().items()))


def _has(context: tf.Tensor, bits: int) -> tf.Tensor:
    return tf.bitwise.bitwise_and(context, bits) != 0


def _settle_sigmas(codes: tf.Tensor, context: tf.Tensor) -> tf.Tensor:
    """Lower-cases capital sigma: final after a cased character and not before one, skipping ignorable characters."""
    is_seen = ~_has(context, normalizer.IGNORABLE)
    seen = tf.pad(select(is_seen, _has(context, normalizer.CASED))[0], [[1, 1]])
    number = tf.cumsum(tf.cast(is_seen, tf.int32))  # The number of a sigma itself, in `seen`.
    is_final = tf.gather(seen, tf.maximum(number - 1, 0)) & ~tf.gather(seen, number + 1)
    small = tf.where(is_final, normalizer.FINAL_SIGMA, normalizer.SMALL_SIGMA)
    return tf.where(codes == normalizer.SIGMA, small, codes)


def _in_canonical_order(context: tf.Tensor) -> tf.Tensor:
    """Returns the order of the characters after NFD, int64 [C]: kept marks are sorted within their runs."""
    order = tf.bitwise.bitwise_and(context, normalizer.MARK_ORDER)
    run = tf.cumsum(tf.cast(~_has(context, normalizer.IN_RUN), tf.int32))
    marks = tf.squeeze(tf.where(order > 0), 1)
    rank = tf.cast(tf.gather(run, marks), tf.int64) * (normalizer.MARK_ORDER + 1)
    rank += tf.cast(tf.gather(order, marks), tf.int64)
    moved = tf.gather(marks, tf.argsort(rank, stable=True))
    return tf.tensor_scatter_nd_update(tf.range(tf.size(context, tf.int64)), tf.expand_dims(marks, 1), moved)


def _ends(places: tf.Tensor, sources: tf.Tensor) -> tf.Tensor:
    """Returns, for each source character, the byte where the next one begins that does not vanish, int64 [C]."""
    size = tf.size(places)
    is_kept = tf.math.unsorted_segment_max(tf.ones_like(sources), sources, size) > 0
    kept = tf.pad(select(is_kept, places)[0], [[0, 1]])
    return tf.gather(kept, tf.cumsum(tf.cast(is_kept, tf.int32)))
