"""Masked-LM targets of one instance: which positions, and what stands there instead.

Source: google-research/bert, create_pretraining_data.py:344-415; Devlin et al. 2018, section 3.1, task 1.

L: tokens of the instance, M: masked positions, V: vocabulary.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

_SHARE_MASK = 0.8
_SHARE_KEPT = 0.1  # the remaining tenth becomes a random WordPiece


@dataclasses.dataclass(frozen=True)
class MaskingRules:
    """What masking needs to know of the vocabulary and of the flags.

    Attributes:
        cls_token_id, sep_token_id: int, never masked.
        mask_token_id: int, what stands at 80% of the masked positions.
        vocabulary_size: int, V; random replacements come from all of it, special and unused WordPieces included.
        masked_lm_prob: float in (0, 1), share of tokens to predict.
        max_predictions_per_seq: int, at least 1.
        continues_word: bool, shape (V,), which WordPieces begin with "##"; given, words are masked whole.
    """

    cls_token_id: int
    sep_token_id: int
    mask_token_id: int
    vocabulary_size: int
    masked_lm_prob: float
    max_predictions_per_seq: int
    continues_word: np.ndarray | None = None


class MaskedTokens(NamedTuple):
    """An instance with its blanks.

    Attributes:
        token_ids: int32, shape (L,).
        mask_positions: int32, shape (M,), ascending.
        mask_ids: int32, shape (M,), what stood there.
    """

    token_ids: np.ndarray
    mask_positions: np.ndarray
    mask_ids: np.ndarray


def mask_tokens(token_ids: np.ndarray, rules: MaskingRules, rng: np.random.Generator) -> MaskedTokens:
    """Blanks out WordPieces of `[CLS] a [SEP] b [SEP]`; the input array is not changed.

    Args:
        token_ids: int32, shape (L,), with at least one token that is neither [CLS] nor [SEP].
        rules: MaskingRules.
        rng: generator of this instance's draws.
    """
    candidates = np.flatnonzero((token_ids != rules.cls_token_id) & (token_ids != rules.sep_token_id))
    # The length counts [CLS] and the two [SEP] (create_pretraining_data.py:369).
    budget = min(rules.max_predictions_per_seq, max(1, round(len(token_ids) * rules.masked_lm_prob)))
    if rules.continues_word is None:
        positions = rng.permutation(candidates)[:budget]
    else:
        positions = _whole_words(candidates, rules.continues_word[token_ids[candidates]], budget, rng)
    positions = np.sort(positions).astype(np.int32)
    mask_ids = token_ids[positions]

    draws = rng.random(len(positions))  # per WordPiece, also where words are masked whole
    random_ids = rng.integers(rules.vocabulary_size, size=len(positions), dtype=np.int32)
    kept_or_random = np.where(draws < _SHARE_MASK + _SHARE_KEPT, mask_ids, random_ids)
    masked = token_ids.copy()
    masked[positions] = np.where(draws < _SHARE_MASK, rules.mask_token_id, kept_or_random)
    return MaskedTokens(masked, positions, mask_ids)


def _whole_words(candidates: np.ndarray, continues: np.ndarray, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Draws words until the budget is full; a word that would overflow it is skipped, not cut.

    As in the source a "##" piece belongs to the candidate before it, even across a [SEP] where truncation cut a word.
    """
    starts = ~continues
    starts[0] = True  # a word whose beginning was cut off
    begins = [*np.flatnonzero(starts).tolist(), len(candidates)]
    chosen: list[int] = []
    for word in rng.permutation(len(begins) - 1).tolist():
        if len(chosen) + begins[word + 1] - begins[word] <= budget:
            chosen.extend(range(begins[word], begins[word + 1]))
        if len(chosen) == budget:
            break
    return candidates[chosen]
