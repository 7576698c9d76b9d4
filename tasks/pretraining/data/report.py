"""Makes the report of pre-training data: counts of the written tokens and instances.

S: `max_seq_length`.
"""

import numpy as np

from tasks.pretraining.data.masking import MaskedBatch

_BARS = 32


def count_batch(batch: MaskedBatch, lengths: np.ndarray, is_random_next: np.ndarray, mask_token_id: int) -> np.ndarray:
    """Counts the tokens and instances of a masked batch. The counts of batches can be added.

    Args:
        batch: the masked batch.
        lengths: tokens of each instance, int64, shape (B,).
        is_random_next: whether the second segment is random, int64, shape (B,).
        mask_token_id: id of [MASK].

    Returns:
        int64, shape (4 + S + 1,): the numbers of masked positions, of those that show [MASK], of those that show the
        original token, and of instances with a random second segment; then the number of instances of 0 to S tokens.
    """
    is_used = np.arange(batch.mask_ids.shape[1]) < batch.num_masked[:, np.newaxis]
    shown = np.take_along_axis(batch.token_ids, batch.mask_positions, axis=1)[is_used]
    is_mask = shown == mask_token_id
    is_kept = (shown == batch.mask_ids[is_used]) & ~is_mask
    by_length = np.bincount(lengths, minlength=batch.token_ids.shape[1] + 1)
    return np.array([len(shown), is_mask.sum(), is_kept.sum(), is_random_next.sum(), *by_length])


def describe_counts(counts: np.ndarray) -> dict:
    """Returns counts and shares, from the sum of the return values of `count_batch` over at least one instance.

    `mask_share`, `kept_share` and `random_share` are shares of the masked positions. `length_histogram` counts the
    instances of `from` to `to` tokens.
    """
    masked, shown_mask, shown_kept, random_next, *lengths = counts.tolist()
    instances, longest = sum(lengths), len(lengths) - 1
    width = -(-longest // _BARS)
    real_tokens = sum(length * count for length, count in enumerate(lengths))
    positions = max(masked, 1)
    return {
        "instances": instances,
        "real_tokens": real_tokens,
        "padding_share": 1 - real_tokens / (instances * longest),
        "masked_share": masked / real_tokens,
        "mask_share": shown_mask / positions,
        "kept_share": shown_kept / positions,
        "random_share": (masked - shown_mask - shown_kept) / positions,
        "random_next_share": random_next / instances,
        "length_histogram": [
            {"from": start, "to": min(end, longest), "instances": sum(lengths[start : end + 1])}
            for start, end in ((start, start + width - 1) for start in range(1, longest + 1, width))
        ],
    }
