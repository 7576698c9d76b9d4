"""Draws the pairs of a tokenized corpus, then builds their records in shuffled order."""

import array
import os
from collections.abc import Iterator

import numpy as np

from tasks.pretraining.data.counter_random import Permutation
from tasks.pretraining.data.instances import Pair, build_tokens, document_generator, draw_pairs
from tasks.pretraining.data.masking import mask_batch
from tasks.pretraining.data.record_bytes import serialize_batch
from tasks.pretraining.data.report import Counts
from tasks.pretraining.data.token_store import Corpus
from tasks.pretraining.data.workspace import PAIR_BYTES, Workspace, open_workspace

INSTANCES_PER_UNIT = 4096
_TOKENS_PER_UNIT = 1 << 17
_DOCUMENTS_PER_UNIT = 1 << 12
_INSTANCES_AT_ONCE = 512
# Look-ups between two releases of mapped files: each touched page brings 15 neighbours along, 64 KiB in all.
_LOOK_UPS_AT_ONCE = 128


# === Pairs ===


def pair_units(corpus: Corpus, dupe_factor: int) -> Iterator[tuple[int, int, int]]:
    """Yields (duplicate, first document, document behind the last), of about the same number of tokens each."""
    for duplicate in range(dupe_factor):
        for start in range(0, corpus.num_documents, _DOCUMENTS_PER_UNIT):
            sentences = corpus.document_starts[start : start + _DOCUMENTS_PER_UNIT + 1]
            units = np.diff(corpus.sentence_starts[sentences[:-1]] // _TOKENS_PER_UNIT, prepend=-1)
            firsts = [*(start + np.flatnonzero(units)).tolist(), start + len(sentences) - 1]
            for first, last in zip(firsts[:-1], firsts[1:], strict=True):
                yield duplicate, first, last
            corpus.release()


def draw_unit(directory: str, unit: tuple[int, int, int]) -> tuple[bytes, int]:
    """Draws the pairs of a unit, as `pair_units` yields it, in the workspace at `directory`.

    Returns:
        The pairs, as the bytes of int64 of shape (pairs, fields of `Pair`), and the number of documents.
    """
    workspace = open_workspace(directory)
    settings, corpus = workspace.settings, workspace.corpus
    duplicate, first, last = unit
    drawn = array.array("q")
    for document in range(first, last):
        rng = document_generator(settings.random_seed, duplicate, document)
        lengths = {"max_seq_length": settings.max_seq_length, "short_seq_prob": settings.short_seq_prob}
        for pair in draw_pairs(corpus, document, rng, **lengths):
            drawn.extend(pair)
            if len(drawn) // len(pair) % _LOOK_UPS_AT_ONCE == 0:
                corpus.release()
    corpus.release()
    return drawn.tobytes(), last - first


# === Records ===


def build_unit(directory: str, positions: range, *, num_shards: int) -> tuple[list[bytes], Counts]:
    """Builds, masks and writes the instances at some positions of the shuffled order, round-robin over the shards.

    Args:
        directory: the workspace's, with all pairs.
        positions: the first one goes to the first shard.

    Returns:
        The framed records for each output file, and their counts.
    """
    workspace = open_workspace(directory)
    order = Permutation(workspace.num_instances, workspace.settings.random_seed)
    counts, records = Counts(), [b""] * num_shards
    at_once = max(num_shards, _INSTANCES_AT_ONCE // num_shards * num_shards)
    for start in range(0, len(positions), at_once):
        numbers = order(np.array(positions[start : start + at_once]))
        contents, more = _build(workspace, numbers, num_shards)
        records = [shard + content for shard, content in zip(records, contents, strict=True)]
        counts += more
    return records, counts


def _build(workspace: Workspace, numbers: np.ndarray, num_shards: int) -> tuple[list[bytes], Counts]:
    pairs = _read_pairs(workspace.pairs_file, numbers)
    rules, size = workspace.masking, workspace.settings.max_seq_length
    parts = []
    for start in range(0, len(pairs), _LOOK_UPS_AT_ONCE):
        part = pairs[start : start + _LOOK_UPS_AT_ONCE]
        parts.append(build_tokens(workspace.corpus, part, rules.cls_token_id, rules.sep_token_id, size))
        workspace.corpus.release()
    token_ids, lengths, first_lengths = map(np.concatenate, zip(*parts, strict=True))
    is_random_next, mask_seeds = pairs[:, 4], pairs[:, 5].astype(np.uint64)
    batch = mask_batch(token_ids, lengths, rules, mask_seeds)
    records = serialize_batch(batch, lengths, first_lengths, is_random_next, num_shards)
    return records, Counts.of(batch, lengths, is_random_next, rules.mask_token_id)


def _read_pairs(path: str, numbers: np.ndarray) -> np.ndarray:
    """Reads pairs by their numbers: int64, shape (numbers, fields of `Pair`)."""
    with open(path, "rb", buffering=0) as file:
        content = b"".join(os.pread(file.fileno(), PAIR_BYTES, PAIR_BYTES * number) for number in numbers.tolist())
    return np.frombuffer(content, np.int64).reshape(-1, len(Pair._fields))
