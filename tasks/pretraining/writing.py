"""From a tokenized corpus to shuffled TFRecord files: pairs to disk first, then records in their order."""

import array
import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from tasks.pretraining.corpus import open_tokenizer
from tasks.pretraining.counter_random import Permutation
from tasks.pretraining.data_report import Counts
from tasks.pretraining.instances import SPECIAL_TOKENS, Pair, build_tokens, document_generator, draw_pairs
from tasks.pretraining.masking import MaskingRules, mask_batch
from tasks.pretraining.record_bytes import serialize_batch
from tasks.pretraining.token_store import Corpus, open_store

PAIRS = "pairs.bin"  # int64, shape (instances, fields of `Pair`).
PAIR_BYTES = 8 * len(Pair._fields)
INSTANCES_PER_UNIT = 4096
_TOKENS_PER_UNIT = 1 << 17
_DOCUMENTS_PER_UNIT = 1 << 12
_INSTANCES_AT_ONCE = 512
# Between two releases of mapped files: a page that is touched brings 15 neighbours along, 64 KiB in sum.
_LOOK_UPS_AT_ONCE = 128
_SHORTEST = SPECIAL_TOKENS + 2  # one token in each segment


@dataclasses.dataclass(frozen=True)
class Settings:
    """How instances are drawn, under the names of the flags.

    Raises:
        InputError: a value is out of its range.
    """

    max_seq_length: int
    max_predictions_per_seq: int
    masked_lm_prob: float
    short_seq_prob: float
    dupe_factor: int
    random_seed: int
    do_whole_word_mask: bool

    def __post_init__(self):
        least = {"max_seq_length": _SHORTEST, "max_predictions_per_seq": 1, "dupe_factor": 1, "random_seed": 0}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise InputError(f"--{name} must be at least {minimum}. Received: {getattr(self, name)}")
        if not 0 < self.masked_lm_prob <= 1:
            raise InputError(f"--masked_lm_prob must lie in (0, 1]. Received: {self.masked_lm_prob}")
        if not 0 <= self.short_seq_prob <= 1:
            raise InputError(f"--short_seq_prob must lie in [0, 1]. Received: {self.short_seq_prob}")


class Context(NamedTuple):
    """What a process has opened of a directory."""

    corpus: Corpus
    rules: MaskingRules


@functools.lru_cache(maxsize=1)
def open_context(directory: str, settings: Settings, do_lower_case: bool) -> Context:
    """Opens the store, and reads the special ids, and for whole words the "##" marks, off the vocabulary."""
    tokenizer = open_tokenizer(directory, do_lower_case)
    rules = MaskingRules.of(
        tokenizer,
        masked_lm_prob=settings.masked_lm_prob,
        max_predictions_per_seq=settings.max_predictions_per_seq,
        do_whole_word_mask=settings.do_whole_word_mask,
    )
    return Context(open_store(directory, tokenizer.vocabulary_size()), rules)


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


class DrawnUnit(NamedTuple):
    """Pairs of some documents: the bytes of int64, shape (pairs, fields of `Pair`)."""

    pairs: bytes
    num_documents: int


def draw_unit(directory: str, unit: tuple[int, int, int], *, settings: Settings, do_lower_case: bool) -> DrawnUnit:
    """Draws the pairs of a unit, as `pair_units` yields it."""
    corpus, _ = open_context(directory, settings, do_lower_case)
    duplicate, first, last = unit
    drawn = array.array("q")
    for document in range(first, last):
        rng = document_generator(settings.random_seed, duplicate, document)
        pairs = draw_pairs(
            corpus,
            document,
            rng,
            max_seq_length=settings.max_seq_length,
            short_seq_prob=settings.short_seq_prob,
        )
        for pair in pairs:
            drawn.extend(pair)
            if len(drawn) // len(pair) % _LOOK_UPS_AT_ONCE == 0:
                corpus.release()
    corpus.release()
    return DrawnUnit(drawn.tobytes(), last - first)


# === Records ===


class WrittenUnit(NamedTuple):
    """Framed records for each output file, and what they hold."""

    records: list[bytes]
    counts: Counts


def build_unit(
    directory: str,
    positions: range,
    *,
    num_instances: int,
    num_shards: int,
    settings: Settings,
    do_lower_case: bool,
) -> WrittenUnit:
    """Builds, masks and writes the instances at some positions of the shuffled order, round-robin over the shards.

    Args:
        positions: the first one goes to the first shard.
        num_instances: int, how many there are in all.
    """
    context = open_context(directory, settings, do_lower_case)
    order = Permutation(num_instances, settings.random_seed)
    counts = Counts(settings.max_seq_length, context.rules.mask_token_id)
    records: list[list[bytes]] = [[] for _ in range(num_shards)]
    at_once = max(num_shards, _INSTANCES_AT_ONCE // num_shards * num_shards)
    for start in range(0, len(positions), at_once):
        numbers = order(np.array(positions[start : start + at_once]))
        contents = _build(directory, context, numbers, settings, counts, num_shards)
        for shard, content in zip(records, contents, strict=True):
            shard.append(content)
    return WrittenUnit([b"".join(shard) for shard in records], counts)


def _build(
    directory: str, context: Context, numbers: np.ndarray, settings: Settings, counts: Counts, num_shards: int
) -> list[bytes]:
    pairs = _read_pairs(os.path.join(directory, PAIRS), numbers)
    rules = context.rules
    parts = []
    for start in range(0, len(pairs), _LOOK_UPS_AT_ONCE):
        part = pairs[start : start + _LOOK_UPS_AT_ONCE]
        parts.append(
            build_tokens(context.corpus, part, rules.cls_token_id, rules.sep_token_id, settings.max_seq_length)
        )
        context.corpus.release()
    token_ids, lengths, first_lengths = map(np.concatenate, zip(*parts, strict=True))
    is_random_next, mask_seeds = pairs[:, 4], pairs[:, 5].astype(np.uint64)
    batch = mask_batch(token_ids, lengths, rules, mask_seeds)
    counts.add(batch, lengths, is_random_next)
    return serialize_batch(batch, lengths, first_lengths, is_random_next, num_shards)


def _read_pairs(path: str, numbers: np.ndarray) -> np.ndarray:
    """Reads pairs by their numbers: int64, shape (numbers, fields of `Pair`)."""
    size = PAIR_BYTES
    with open(path, "rb", buffering=0) as file:
        content = b"".join(os.pread(file.fileno(), size, size * number) for number in numbers.tolist())
    return np.frombuffer(content, np.int64).reshape(-1, len(Pair._fields))
