"""Pairs of segments for next-sentence prediction, drawn as integer ranges of one flat array of token ids.

Source: google-research/bert, create_pretraining_data.py:223-341 and :418-433. A sentence is a run of a document's
tokens and a segment is a run of its sentences, so a segment is a range `[start, stop)` of the corpus: nothing is
copied until an instance is built. Every draw comes from the generator passed in, and one generator serves one
document of one duplicate, so that the result depends on the seed alone, whatever worker draws it.

B: instances of a batch, S: `max_seq_length`.
"""

import bisect
import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tasks.pretraining.data.token_store import Corpus

SPECIAL_TOKENS = 3  # [CLS] before the first segment, [SEP] after each
_TRIES_FOR_ANOTHER_DOCUMENT = 10  # create_pretraining_data.py:279


class Pair(NamedTuple):
    """Two segments, as ranges of `Corpus.token_ids`, with the label and the seed of their mask."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int
    is_random_next: bool
    mask_seed: int


def document_generator(seed: int, duplicate: int, document: int) -> random.Random:
    """Returns the generator of all draws for one document in one pass over the corpus."""
    return random.Random(f"{seed}/{duplicate}/{document}")


def draw_pairs(
    corpus: Corpus, document: int, others: range, rng: random.Random, *, max_seq_length: int, short_seq_prob: float
) -> Iterator[Pair]:
    """Cuts one document into pairs of segments (create_pretraining_data.py:223-341).

    The target length is drawn once per document. A chunk of sentences that reaches it is cut at a random sentence;
    the second part is the actual next segment, or is put back and replaced by a random segment of another document.

    Args:
        corpus: at least one document.
        document: int, index of the document.
        others: indices of the documents that random segments come from; if it is only `document`, all come from it.
        rng: generator of this document's draws.
        max_seq_length: int, at least 5, with `SPECIAL_TOKENS` counted.
        short_seq_prob: float, probability of a target length uniform in [2, max_seq_length - 3].
    """
    max_tokens = max_seq_length - SPECIAL_TOKENS
    target = rng.randint(2, max_tokens) if rng.random() < short_seq_prob else max_tokens
    bounds = corpus.bounds(document)
    num_sentences = len(bounds) - 1
    first = 0
    while first < num_sentences:
        stop = _stop_sentence(bounds, first, target)
        cut = first + (rng.randint(1, stop - first - 1) if stop - first > 1 else 1)
        is_random_next = stop - first == 1 or rng.random() < 0.5
        if is_random_next:
            b_start, b_stop = _random_segment(corpus, document, others, target - int(bounds[cut] - bounds[first]), rng)
        else:
            b_start, b_stop = int(bounds[cut]), int(bounds[stop])
        segments = truncate_pair(int(bounds[first]), int(bounds[cut]), b_start, b_stop, max_tokens, rng)
        yield Pair(*segments, is_random_next, rng.getrandbits(63))  # fits int64
        first = cut if is_random_next else stop  # sentences that a random segment displaced are used again


def _stop_sentence(bounds: np.ndarray, first: int, num_tokens: int) -> int:
    """Returns the sentence at which a run from `first` on holds `num_tokens`; at least one, at most all of them."""
    return min(bisect.bisect_left(bounds, bounds[first] + num_tokens, lo=first + 1), len(bounds) - 1)


def _random_segment(
    corpus: Corpus, document: int, others: range, num_tokens: int, rng: random.Random
) -> tuple[int, int]:
    for _ in range(_TRIES_FOR_ANOTHER_DOCUMENT):
        other = rng.randint(others.start, others.stop - 1)
        if other != document:
            break
    bounds = corpus.bounds(other)
    first = rng.randint(0, len(bounds) - 2)
    return int(bounds[first]), int(bounds[_stop_sentence(bounds, first, num_tokens)])


def truncate_pair(
    a_start: int, a_stop: int, b_start: int, b_stop: int, max_tokens: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Shortens two ranges to `max_tokens` together (create_pretraining_data.py:418-433), in constant time.

    Token by token, the longer range loses one (a tie: the second), at its front or its back by a fair coin. Hence
    first the difference goes, then both lose alternately, the second beginning; and of n lost tokens Binomial(n, 1/2)
    go at the front, which is the number of ones among n random bits.
    """
    len_a, len_b = a_stop - a_start, b_stop - b_start
    excess = max(len_a + len_b - max_tokens, 0)
    from_longer = min(excess, abs(len_a - len_b))
    alternating = excess - from_longer
    cut_a = alternating // 2 + (from_longer if len_a > len_b else 0)
    cut_b = excess - cut_a
    front_a = rng.getrandbits(cut_a).bit_count()
    front_b = rng.getrandbits(cut_b).bit_count()
    return a_start + front_a, a_stop - (cut_a - front_a), b_start + front_b, b_stop - (cut_b - front_b)


def build_tokens(
    corpus: Corpus, pairs: np.ndarray, cls_token_id: int, sep_token_id: int, max_seq_length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Joins pairs to `[CLS] a [SEP] b [SEP]`, padded with zeros to S = `max_seq_length`.

    Args:
        corpus: what the pairs are ranges of.
        pairs: int64, shape (B, fields of `Pair`).

    Returns:
        token_ids: int32, shape (B, S).
        lengths: int64, shape (B,), tokens of each instance.
        first_lengths: int64, shape (B,), those of segment 0: [CLS], a and the first [SEP].
    """
    a_start, a_stop, b_start, b_stop = pairs[:, :4].T[..., np.newaxis]
    first_lengths = a_stop - a_start + 2
    lengths = first_lengths + b_stop - b_start + 1
    column = np.arange(max_seq_length)
    in_a = (column >= 1) & (column < first_lengths - 1)
    in_b = (column >= first_lengths) & (column < lengths - 1)
    token_ids = np.where((column == first_lengths - 1) | (column == lengths - 1), np.int32(sep_token_id), np.int32(0))
    token_ids[:, 0] = cls_token_id
    token_ids[in_a] = corpus.token_ids[(a_start - 1 + column)[in_a]]
    token_ids[in_b] = corpus.token_ids[(b_start - first_lengths + column)[in_b]]
    return token_ids, lengths[:, 0], first_lengths[:, 0]
