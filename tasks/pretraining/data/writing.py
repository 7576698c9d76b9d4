"""Draws the pairs of a block and builds their records in shuffled order; joins the records of blocks to shards.

Pairs of segments for next-sentence prediction are drawn as integer ranges of one flat array of token ids. Source:
google-research/bert, create_pretraining_data.py:223-341 and :418-433. A sentence is a run of a document's tokens and a
segment is a run of its sentences, so a segment is a range `[start, stop)` of the corpus: nothing is copied until an
instance is built. Each document has a generator of its own in each pass over the text, which makes all of its draws. So
the result depends on the seed alone, not on the worker.

B: instances of a batch, S: `max_seq_length`.
"""

import array
import bisect
import random
import shutil
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from keras_bert.files import atomic_path, exists, open_file, remove_path
from tasks.engine.settings import tokenizer_identity
from tasks.pretraining.data import token_store
from tasks.pretraining.data.counter_random import random_order
from tasks.pretraining.data.masking import mask_batch
from tasks.pretraining.data.record_bytes import instance_features, serialize_batch
from tasks.pretraining.data.report import count_batch
from tasks.pretraining.data.shard_index import RecordFigures, make_index, read_arrays, write_arrays
from tasks.pretraining.data.token_store import Corpus, read_store
from tasks.pretraining.data.workspace import Workspace, open_workspace

_INSTANCES_AT_ONCE = 512
SPECIAL_TOKENS = 3  # [CLS] before the first segment, [SEP] after each
_TRIES_FOR_ANOTHER_DOCUMENT = 10  # create_pretraining_data.py:279


def write_block(directory: str, block: int) -> list[int]:
    """Writes the records of all instances of a block, one file for each shard that gets some of them.

    Args:
        directory: directory of the workspace, with all stores.
        block: number of the block in the plan.

    Returns:
        Their counts, as `count_batch` returns them.
    """
    workspace = open_workspace(directory)
    pairs, corpus = _draw_pairs(workspace, block)
    order = random_order(len(pairs), workspace.settings.random_seed, stream=block + 1)
    total = np.zeros(1, np.int64)
    for shard, first, last in workspace.plan.shares(block, len(pairs)):
        total = total + _write_part(workspace, workspace.part_path(shard, block), corpus, pairs[order[first:last]])
    return total.tolist()


def _draw_pairs(workspace: Workspace, block: int) -> tuple[np.ndarray, Corpus]:
    """Returns the pairs, int64 of shape (pairs, fields of `Pair`), and the corpus whose ranges they are."""
    settings, plan = workspace.settings, workspace.plan
    own = _read_block(workspace, block)
    sample = [_read_block(workspace, *part) for part in plan.neighbours(block)]
    corpus = token_store.join([own, *sample])
    others = range(0 if plan.is_whole or not sample else own.num_documents, corpus.num_documents)
    lengths = {"max_seq_length": settings.max_seq_length, "short_seq_prob": settings.short_seq_prob}
    first = int(plan.first_documents[block])
    drawn = array.array("q")
    for duplicate in range(settings.dupe_factor):
        for document in range(own.num_documents):
            rng = document_generator(settings.random_seed, duplicate, first + document)
            for pair in draw_pairs(corpus, document, others, rng, **lengths):
                drawn.extend(pair)
    return np.array(drawn).reshape(-1, len(Pair._fields)), corpus


def _read_block(workspace: Workspace, block: int, *part: int) -> Corpus:
    return read_store(workspace.store_path(*workspace.plan.table[block, :2]), workspace.dtype, *part)


def _write_part(workspace: Workspace, path: str, corpus: Corpus, pairs: np.ndarray) -> np.ndarray:
    rules, settings = workspace.masking, workspace.settings
    counts = []

    def write(file: BinaryIO) -> Iterator[RecordFigures]:
        for start in range(0, len(pairs), _INSTANCES_AT_ONCE):
            part = pairs[start : start + _INSTANCES_AT_ONCE]
            built = build_tokens(corpus, part, rules.cls_token_id, rules.sep_token_id, settings.max_seq_length)
            token_ids, lengths, first_lengths = built
            batch = mask_batch(token_ids, lengths, rules, part[:, 5].astype(np.uint64))
            features = instance_features(batch, lengths, first_lengths, part[:, 4])
            content, record_bytes = serialize_batch(features)
            file.write(content)
            counts.append(count_batch(batch, lengths, part[:, 4], rules.mask_token_id))
            yield RecordFigures.of(features, record_bytes)

    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        figures = RecordFigures.join(write(file))
    write_arrays(f"{path}.npz", figures)
    return sum(counts)


def join_shard(directory: str, shard: int) -> None:
    """Makes a shard and its index from the records that the blocks have written for it."""
    workspace = open_workspace(directory)
    path = workspace.shard_path(shard)
    parts = [workspace.part_path(shard, block) for block in workspace.plan.blocks_of(shard)]
    if not exists(path):
        with atomic_path(path) as temporary, open(temporary, "wb") as target:
            for part in parts:
                with open_file(part) as source:
                    shutil.copyfileobj(source, target, 1 << 20)
    figures = RecordFigures.join(read_arrays(f"{part}.npz", RecordFigures) for part in parts)
    sizes = (workspace.settings.max_seq_length, workspace.settings.max_predictions_per_seq)
    vocabulary = tokenizer_identity(workspace.tokenizer)["vocabulary_checksum"]
    write_arrays(f"{path}.npz", make_index(path, figures, sizes, vocabulary))
    for part in parts:
        remove_path(part)


# === Pairs ===


class Pair(NamedTuple):
    """Two segments as ranges of `Corpus.token_ids`, the next-sentence label, and the seed of the masks."""

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
        document: index of the document.
        others: indices of the documents that random segments come from; if it is only `document`, all come from it.
        rng: generator of this document's draws.
        max_seq_length: maximum tokens of an instance, at least 5, including `SPECIAL_TOKENS`.
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
    """Returns the end of the shortest run of sentences from `first` with at least `num_tokens`, or of all sentences."""
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

    In the source, the longer range loses a token at a time (in a tie, the second range), at its front or its back with
    equal probability. So first the difference goes, then both ranges lose tokens alternately, beginning with the
    second. Of n lost tokens, Binomial(n, 1/2) are at the front, which is the number of ones among n random bits.
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
        corpus: corpus whose ranges the pairs are.
        pairs: int64, shape (B, fields of `Pair`).
        cls_token_id, sep_token_id: ids of [CLS] and [SEP].
        max_seq_length: S.

    Returns:
        token_ids: int32, shape (B, S).
        lengths: int64, shape (B,), number of tokens of each instance.
        first_lengths: int64, shape (B,), number of tokens of segment 0: [CLS], a and the first [SEP].
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
