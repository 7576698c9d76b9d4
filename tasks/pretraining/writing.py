"""From a tokenized corpus to shuffled TFRecord files, and what was written, counted."""

import contextlib
import dataclasses
import itertools

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import atomic_path
from tasks.pretraining.corpus import Corpus
from tasks.pretraining.instances import SPECIAL_TOKENS, Pair, build_tokens, document_generator, draw_pairs
from tasks.pretraining.masking import MaskedTokens, MaskingRules, mask_tokens
from tasks.records import serialize_instance

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


def masking_rules(tokenizer, settings: Settings) -> MaskingRules:
    """Reads the special ids, and for whole-word masking the "##" marks, off a BertTokenizer."""
    continues_word = None
    if settings.do_whole_word_mask:
        continues_word = np.array([token.startswith("##") for token in tokenizer.get_vocabulary()])
    return MaskingRules(
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        mask_token_id=tokenizer.mask_token_id,
        vocabulary_size=tokenizer.vocabulary_size(),
        masked_lm_prob=settings.masked_lm_prob,
        max_predictions_per_seq=settings.max_predictions_per_seq,
        continues_word=continues_word,
    )


def draw_all_pairs(corpus: Corpus, settings: Settings) -> np.ndarray:
    """Draws the pairs of all duplicates in a shuffled order.

    Returns:
        int64, shape (instances, fields of `Pair`).
    """
    drawn = []
    todo = list(itertools.product(range(settings.dupe_factor), range(corpus.num_documents)))
    for duplicate, document in tqdm(todo, desc="draw pairs", unit="document", mininterval=0.5):
        rng = document_generator(settings.random_seed, duplicate, document)
        pairs = draw_pairs(
            corpus, document, rng, max_seq_length=settings.max_seq_length, short_seq_prob=settings.short_seq_prob
        )
        drawn.append(np.array(pairs, np.int64))
    pairs = np.concatenate(drawn)
    return pairs[np.random.default_rng(settings.random_seed).permutation(len(pairs))]


class Counts:
    """Running totals over the instances written."""

    def __init__(self, mask_token_id: int):
        self.mask_token_id = mask_token_id
        self.instances = self.real_tokens = self.random_next = 0
        self.masked = self.shown_mask = self.shown_kept = 0

    def add(self, instance: MaskedTokens, is_random_next: bool) -> None:
        shown = instance.token_ids[instance.mask_positions]
        self.instances += 1
        self.real_tokens += len(instance.token_ids)
        self.random_next += is_random_next
        self.masked += len(shown)
        is_mask = shown == self.mask_token_id
        self.shown_mask += int(is_mask.sum())
        self.shown_kept += int(((shown == instance.mask_ids) & ~is_mask).sum())

    def report(self, max_seq_length: int) -> dict:
        """Counts and shares; `mask_share`, `kept_share` and `random_share` are of the masked positions."""
        masked = max(self.masked, 1)
        return {
            "instances": self.instances,
            "real_tokens": self.real_tokens,
            "padding_share": 1 - self.real_tokens / (self.instances * max_seq_length),
            "masked_share": self.masked / self.real_tokens,
            "mask_share": self.shown_mask / masked,
            "kept_share": self.shown_kept / masked,
            "random_share": (self.masked - self.shown_mask - self.shown_kept) / masked,
            "random_next_share": self.random_next / self.instances,
        }


def write_instances(
    corpus: Corpus, pairs: np.ndarray, rules: MaskingRules, settings: Settings, output_files: list[str]
) -> Counts:
    """Builds, masks and writes the pairs in their order, round-robin over the files, all of which appear at the end.

    Raises:
        InputError: a file cannot be written.
    """
    counts = Counts(rules.mask_token_id)
    with contextlib.ExitStack() as stack:
        paths = [stack.enter_context(atomic_path(path)) for path in output_files]
        writers = [stack.enter_context(tf.io.TFRecordWriter(path)) for path in paths]
        for index, row in enumerate(tqdm(pairs, desc="write instances", unit="instance", mininterval=0.5)):
            pair = Pair(*row.tolist())
            token_ids, first_segment_length = build_tokens(corpus, pair, rules.cls_token_id, rules.sep_token_id)
            instance = mask_tokens(token_ids, rules, np.random.default_rng(pair.mask_seed))
            counts.add(instance, bool(pair.is_random_next))
            record = serialize_instance(
                instance.token_ids,
                first_segment_length,
                instance.mask_positions,
                instance.mask_ids,
                bool(pair.is_random_next),
                max_seq_length=settings.max_seq_length,
                max_predictions_per_seq=settings.max_predictions_per_seq,
            )
            writers[index % len(writers)].write(record)
    return counts
