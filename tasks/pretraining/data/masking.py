"""Chooses the masked-LM targets of a batch of instances, and their replacements.

Source: google-research/bert, create_pretraining_data.py:344-415; Devlin et al. 2018, section 3.1, task 1.
Every instance has its own seed, so its draws do not depend on the rest of the batch.

B: instances of the batch, S: `max_seq_length`, P: `max_predictions_per_seq`, V: vocabulary.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from tasks.pretraining.data.counter_random import random_bits

_SHARE_MASK = 0.8
_SHARE_KEPT = 0.1  # The remaining tenth becomes a random WordPiece.


@dataclasses.dataclass(frozen=True)
class MaskingRules:
    """The part of the vocabulary and of the settings that masking needs.

    Attributes:
        cls_token_id, sep_token_id: int, never masked.
        mask_token_id: int, replaces 80% of the masked tokens.
        vocabulary_size: int, V; random replacements come from all of it, special and unused WordPieces included.
        masked_lm_prob: float in (0, 1), share of tokens to predict.
        max_predictions_per_seq: int, P, at least 1.
        continues_word: bool, shape (V,), whether a WordPiece begins with "##". If given, whole words are masked.
    """

    cls_token_id: int
    sep_token_id: int
    mask_token_id: int
    vocabulary_size: int
    masked_lm_prob: float
    max_predictions_per_seq: int
    continues_word: np.ndarray | None = None

    @classmethod
    def of(cls, tokenizer, settings) -> "MaskingRules":
        """Takes the ids from a tokenizer, and the rules from settings.

        Args:
            tokenizer: BertTokenizer or PythonBertTokenizer.
            settings: has `masked_lm_prob`, `max_predictions_per_seq` and `do_whole_word_mask`.
        """
        continues_word = None
        if settings.do_whole_word_mask:
            continues_word = np.array([piece.startswith("##") for piece in tokenizer.get_vocabulary()])
        return cls(
            cls_token_id=tokenizer.cls_token_id,
            sep_token_id=tokenizer.sep_token_id,
            mask_token_id=tokenizer.mask_token_id,
            vocabulary_size=tokenizer.vocabulary_size(),
            masked_lm_prob=settings.masked_lm_prob,
            max_predictions_per_seq=settings.max_predictions_per_seq,
            continues_word=continues_word,
        )


class MaskedBatch(NamedTuple):
    """Masked instances, padded with zeros.

    Attributes:
        token_ids: int32, shape (B, S).
        mask_positions: int32, shape (B, P), ascending.
        mask_ids: int32, shape (B, P), the original tokens at these positions.
        num_masked: int64, shape (B,), number of the P positions that are used.
    """

    token_ids: np.ndarray
    mask_positions: np.ndarray
    mask_ids: np.ndarray
    num_masked: np.ndarray


def num_to_mask(lengths: np.ndarray, rules: MaskingRules) -> np.ndarray:
    """Returns how many tokens of each instance are masked; with whole-word masking, an upper bound.

    Args:
        lengths: int, shape (B,), tokens with [CLS] and both [SEP] (create_pretraining_data.py:369).
        rules: MaskingRules.

    Returns:
        int64, shape (B,).
    """
    wanted = np.maximum(1, np.rint(lengths * rules.masked_lm_prob))
    return np.minimum(rules.max_predictions_per_seq, wanted).astype(np.int64)


def mask_batch(token_ids: np.ndarray, lengths: np.ndarray, rules: MaskingRules, seeds: np.ndarray) -> MaskedBatch:
    """Masks WordPieces of `[CLS] a [SEP] b [SEP]`, in which the first `lengths` tokens, int64 (B,), are not padding.

    The other arguments are those of `mask_tokens`.
    """
    return mask_tokens(token_ids, np.arange(token_ids.shape[1]) < lengths[:, np.newaxis], rules, seeds)


def mask_tokens(token_ids: np.ndarray, is_real: np.ndarray, rules: MaskingRules, seeds: np.ndarray) -> MaskedBatch:
    """Masks WordPieces, wherever padding is. The input arrays are not changed.

    Args:
        token_ids: int32, shape (B, S).
        is_real: bool, shape (B, S), False for padding.
        rules: MaskingRules.
        seeds: uint64, shape (B,), the seed of each instance's draws.
    """
    size, width = token_ids.shape[1], rules.max_predictions_per_seq
    is_candidate = is_real & (token_ids != rules.cls_token_id) & (token_ids != rules.sep_token_id)
    starts_word = is_candidate.copy()
    if rules.continues_word is not None:
        starts_word &= ~rules.continues_word[token_ids]
        starts_word[np.arange(len(token_ids)), is_candidate.argmax(axis=1)] = True  # A word that truncation has cut.
    is_masked = _choose_words(is_candidate, starts_word, num_to_mask(is_real.sum(axis=1), rules), seeds)
    rows, columns = np.nonzero(is_masked)
    num_masked = np.bincount(rows, minlength=len(token_ids))
    ranks = np.arange(len(rows)) - np.repeat(np.cumsum(num_masked) - num_masked, num_masked)

    answers = token_ids[rows, columns]
    masked = token_ids.copy()
    masked[rows, columns] = _shown(answers, rules, seeds[rows], size + ranks)
    mask_positions, mask_ids = np.zeros((2, len(token_ids), width), np.int32)
    mask_positions[rows, ranks] = columns
    mask_ids[rows, ranks] = answers
    return MaskedBatch(masked, mask_positions, mask_ids, num_masked)


def _shown(answers: np.ndarray, rules: MaskingRules, seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Returns the replacements of the masked tokens, drawn per WordPiece even with whole-word masking."""
    draws = (random_bits(seeds, counters) >> np.uint64(11)) * 2.0**-53
    bits = random_bits(seeds, counters + rules.max_predictions_per_seq) >> np.uint64(32)
    random_ids = (bits * np.uint64(rules.vocabulary_size)) >> np.uint64(32)
    kept_or_random = np.where(draws < _SHARE_MASK + _SHARE_KEPT, answers, random_ids.astype(np.int32))
    return np.where(draws < _SHARE_MASK, np.int32(rules.mask_token_id), kept_or_random)


def _choose_words(
    is_candidate: np.ndarray, starts_word: np.ndarray, budgets: np.ndarray, seeds: np.ndarray
) -> np.ndarray:
    """Draws words until the budget is full; a word that would exceed it is skipped (create_pretraining_data.py:379).

    As in the source, a "##" piece belongs to the candidate before it, even across a [SEP] where truncation cut a word.
    All instances draw their first word, then all the second, and so on.

    Returns:
        bool, shape (B, S), True for the tokens of the drawn words.
    """
    num_rows, size = is_candidate.shape
    row = np.arange(num_rows)
    words = np.cumsum(starts_word, axis=1) - 1
    num_words = words[:, -1] + 1
    word_lengths = np.bincount((words + row[:, np.newaxis] * size)[is_candidate], minlength=num_rows * size)
    word_lengths = word_lengths.reshape(num_rows, size)
    keys = random_bits(seeds[:, np.newaxis], np.arange(size))
    keys[np.arange(size) >= num_words[:, np.newaxis]] = np.iinfo(np.uint64).max
    order = np.argsort(keys, axis=1)
    is_chosen = np.zeros((num_rows, size), bool)
    remaining = budgets.copy()
    for rank in range(int(num_words.max())):
        word = order[:, rank]
        length = word_lengths[row, word]
        takes = (length <= remaining) & (rank < num_words)
        is_chosen[row, word] = takes
        remaining -= length * takes
        if not remaining.any():
            break
    return is_candidate & is_chosen[row[:, np.newaxis], words]
