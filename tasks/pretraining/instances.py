"""Pairs of segments for next-sentence prediction, drawn as integer ranges of one flat array of token ids.

Source: google-research/bert, create_pretraining_data.py:223-341 and :418-433. A sentence is a run of a document's
tokens and a segment is a run of its sentences, so a segment is a range `[start, stop)` of the corpus: nothing is
copied until an instance is built. Every draw comes from the generator passed in, and one generator serves one
document of one duplicate, so that the result depends on the seed alone, whatever worker draws it.

L: tokens of one instance.
"""

import bisect
import random
from typing import NamedTuple

import numpy as np

from tasks.pretraining.corpus import Corpus

SPECIAL_TOKENS = 3  # [CLS] before the first segment, [SEP] after each
_TRIES_FOR_ANOTHER_DOCUMENT = 10  # create_pretraining_data.py:279


class Pair(NamedTuple):
    """Two segments as ranges of `Corpus.token_ids`, and the seed of their mask."""

    a_start: int
    a_stop: int
    b_start: int
    b_stop: int
    is_random_next: bool
    mask_seed: int


def document_generator(seed: int, duplicate: int, document: int) -> random.Random:
    """The source of all draws for one document in one duplicate of the corpus."""
    return random.Random(f"{seed}/{duplicate}/{document}")


def draw_pairs(
    corpus: Corpus, document: int, rng: random.Random, *, max_seq_length: int, short_seq_prob: float
) -> list[Pair]:
    """Cuts one document into pairs of segments (create_pretraining_data.py:223-341).

    The target length is drawn once per document. A chunk of sentences that reaches it is cut at a random sentence;
    the second part is the actual next segment, or is put back and replaced by a random segment of another document.

    Args:
        corpus: at least one document; with one alone every random segment comes from that document itself.
        document: int, index of the document.
        rng: generator of this document's draws.
        max_seq_length: int, at least 5, with `SPECIAL_TOKENS` counted.
        short_seq_prob: float, probability of a target length uniform in [2, max_seq_length - 3].
    """
    max_tokens = max_seq_length - SPECIAL_TOKENS
    target = rng.randint(2, max_tokens) if rng.random() < short_seq_prob else max_tokens
    bounds = corpus.bounds(document)
    num_sentences = len(bounds) - 1
    pairs = []
    first = 0
    while first < num_sentences:
        stop = _stop_sentence(bounds, first, target)
        cut = first + (rng.randint(1, stop - first - 1) if stop - first > 1 else 1)
        is_random_next = stop - first == 1 or rng.random() < 0.5
        if is_random_next:
            b_start, b_stop = _random_segment(corpus, document, target - (bounds[cut] - bounds[first]), rng)
        else:
            b_start, b_stop = bounds[cut], bounds[stop]
        segments = truncate_pair(bounds[first], bounds[cut], b_start, b_stop, max_tokens, rng)
        pairs.append(Pair(*segments, is_random_next, rng.getrandbits(63)))  # fits int64
        first = cut if is_random_next else stop  # sentences that a random segment displaced are used again
    return pairs


def _stop_sentence(bounds: list[int], first: int, num_tokens: int) -> int:
    """First sentence after `first` such that those between hold `num_tokens`; at least one, at most all."""
    return min(bisect.bisect_left(bounds, bounds[first] + num_tokens, lo=first + 1), len(bounds) - 1)


def _random_segment(corpus: Corpus, document: int, num_tokens: int, rng: random.Random) -> tuple[int, int]:
    for _ in range(_TRIES_FOR_ANOTHER_DOCUMENT):
        other = rng.randint(0, corpus.num_documents - 1)
        if other != document:
            break
    bounds = corpus.bounds(other)
    first = rng.randint(0, len(bounds) - 2)
    return bounds[first], bounds[_stop_sentence(bounds, first, num_tokens)]


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


def build_tokens(corpus: Corpus, pair: Pair, cls_token_id: int, sep_token_id: int) -> tuple[np.ndarray, int]:
    """Joins a pair to `[CLS] a [SEP] b [SEP]`.

    Returns:
        (int32, shape (L,), number of tokens in segment 0: [CLS], a and the first [SEP]).
    """
    len_a, len_b = pair.a_stop - pair.a_start, pair.b_stop - pair.b_start
    token_ids = np.empty(len_a + len_b + SPECIAL_TOKENS, np.int32)
    token_ids[0] = cls_token_id
    token_ids[1 : len_a + 1] = corpus.token_ids[pair.a_start : pair.a_stop]
    token_ids[len_a + 1] = sep_token_id
    token_ids[len_a + 2 : -1] = corpus.token_ids[pair.b_start : pair.b_stop]
    token_ids[-1] = sep_token_id
    return token_ids, len_a + 2
