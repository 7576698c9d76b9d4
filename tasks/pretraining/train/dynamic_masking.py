"""Draws new masks in each epoch, when records are read (Liu et al. 2019, "RoBERTa", section 4.1).

The rules are those of `tasks.pretraining.data.masking.mask_batch`, here as TensorFlow ops for tf.data. The same seeds
give the same masks, number by number, as a test checks.

n: instances, S: `max_seq_length`, P: `max_predictions_per_seq`.
"""

import tensorflow as tf

from tasks.pretraining.data.counter_random import GAMMA, LAST_SHIFT, STEPS
from tasks.pretraining.data.masking import SHARE_KEPT, SHARE_MASK, MaskingRules

_Tensors = dict[str, tf.Tensor]


def record_seeds(random_seed: int, numbers: tf.Tensor) -> tf.Tensor:
    """Returns the seeds of instances by their int64 numbers in the stream of all epochs: uint64, of the same shape."""
    return _random_bits(tf.constant(random_seed % (1 << 64), tf.uint64), tf.cast(numbers, tf.uint64))


def mask_again(features: _Tensors, labels: _Tensors, rules: MaskingRules, seeds: tf.Tensor) -> tuple[dict, dict]:
    """Restores the tokens that instances had before they were masked, and masks them anew.

    Args:
        features, labels: of n instances, as `tasks.pretraining.data.records.parse_records` returns them.
        rules: MaskingRules.
        seeds: uint64, shape (n,), the seed of each instance's draws.

    Returns:
        `features` and `labels` with other `token_ids`, `mask_positions`, `mask_ids` and `mask_weights`.
    """
    token_ids = restore_tokens(features, labels)
    is_real = features["padding_mask"] > 0
    is_masked = _choose(token_ids, is_real, rules, seeds)  # [n, S]
    positions, count = _positions(is_masked, rules.max_predictions_per_seq)  # [n, P], [n]
    used = tf.range(rules.max_predictions_per_seq) < count[:, tf.newaxis]
    answers = tf.where(used, tf.gather(token_ids, positions, batch_dims=1), 0)
    shown = _shown(answers, rules, seeds, tf.shape(token_ids)[1])
    features = {**features, "token_ids": _put(token_ids, positions, shown, used), "mask_positions": positions}
    return features, {**labels, "mask_ids": answers, "mask_weights": tf.cast(used, tf.float32)}


def restore_tokens(features: _Tensors, labels: _Tensors) -> tf.Tensor:
    """Returns `token_ids` int32 (n, S) with the original tokens at the masked positions."""
    return _put(features["token_ids"], features["mask_positions"], labels["mask_ids"], labels["mask_weights"] > 0)


def _put(token_ids: tf.Tensor, positions: tf.Tensor, values: tf.Tensor, used: tf.Tensor) -> tf.Tensor:
    """Replaces tokens `[n, S]` at positions `[n, P]` where these are `used`."""
    rows = tf.broadcast_to(tf.range(tf.shape(positions)[0])[:, tf.newaxis], tf.shape(positions))
    indices = tf.stack([rows, positions], axis=-1)
    return tf.tensor_scatter_nd_update(token_ids, tf.boolean_mask(indices, used), tf.boolean_mask(values, used))


def _choose(token_ids: tf.Tensor, is_real: tf.Tensor, rules: MaskingRules, seeds: tf.Tensor) -> tf.Tensor:
    """Draws words until the budget is full; a word that would overflow it is skipped: bool [n, S]."""
    count, size = tf.unstack(tf.shape(token_ids))
    rows = tf.range(count)[:, tf.newaxis]
    candidates = is_real & (token_ids != rules.cls_token_id) & (token_ids != rules.sep_token_id)
    words = _words(token_ids, candidates, rules)
    cells = tf.boolean_mask(words + rows * size, candidates)
    word_lengths = tf.reshape(tf.math.bincount(cells, minlength=count * size, maxlength=count * size), [count, size])
    order = _drawn_order(words[:, -1:] + 1, rules, seeds, size)
    lengths = tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1)
    taken = _fill(tf.gather(word_lengths, order, batch_dims=1), _budgets(lengths, rules))  # By rank.
    chosen = tf.boolean_mask(order + rows * size, taken)
    is_chosen = tf.scatter_nd(chosen[:, tf.newaxis], tf.ones_like(chosen, tf.bool), [count * size])
    return candidates & tf.gather(is_chosen, words + rows * size)


def _words(token_ids: tf.Tensor, candidates: tf.Tensor, rules: MaskingRules) -> tf.Tensor:
    """Returns the number, from 0, of the word that each candidate belongs to: int32 [n, S]."""
    starts_word = candidates
    if rules.continues_word is not None:
        is_first = tf.cumsum(tf.cast(candidates, tf.int32), axis=1) == 1  # a word cut at its beginning
        starts_word &= is_first | ~tf.gather(tf.constant(rules.continues_word), token_ids)
    return tf.maximum(tf.cumsum(tf.cast(starts_word, tf.int32), axis=1) - 1, 0)


def _drawn_order(num_words: tf.Tensor, rules: MaskingRules, seeds: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns a random order of the `num_words` `[n, 1]` words of each instance: int32 [n, S]; ignore the rest."""
    places = tf.range(size)
    keys = _random_bits(seeds[:, tf.newaxis], tf.cast(places, tf.uint64))
    keys = tf.where(places < num_words, keys, _uint64(tf.uint64.max))
    # No more words than the budget are needed, even if each is one token.
    most = size if rules.continues_word is not None else tf.minimum(size, rules.max_predictions_per_seq)
    return tf.math.top_k(tf.bitwise.invert(keys), most).indices  # The smallest keys first.


def _budgets(lengths: tf.Tensor, rules: MaskingRules) -> tf.Tensor:
    wanted = tf.maximum(tf.round(tf.cast(lengths, tf.float64) * rules.masked_lm_prob), 1)  # Half to even, as rint.
    return tf.minimum(tf.cast(wanted, tf.int32), rules.max_predictions_per_seq)


def _fill(lengths: tf.Tensor, budgets: tf.Tensor) -> tf.Tensor:
    """Returns which words, of `lengths` `[n, S]` in drawn order, fit into `budgets` `[n]`: bool [n, S].

    The first word that exceeds the budget, and all longer ones behind it, do not fit into what is left: they are
    dropped together, and the sum is taken again. What is left shrinks each time, so the rounds are few.
    """

    def is_over(lengths):
        return (tf.cumsum(lengths, axis=1) > budgets[:, tf.newaxis]) & (lengths > 0)

    def drop(lengths):
        over = is_over(lengths)
        left = budgets - tf.reduce_sum(tf.where(over, 0, lengths), axis=1)
        return (tf.where(over & (lengths > left[:, tf.newaxis]), 0, lengths),)

    (lengths,) = tf.while_loop(lambda lengths: tf.reduce_any(is_over(lengths)), drop, (lengths,))
    return lengths > 0


def _positions(is_masked: tf.Tensor, width: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first `width` true places of each row, ascending, then zeros: int32 [n, width]; and their number."""
    places = tf.RaggedTensor.from_value_rowids(
        tf.cast(tf.where(is_masked)[:, 1], tf.int32), tf.where(is_masked)[:, 0], nrows=tf.shape(is_masked, tf.int64)[0]
    )
    return places.to_tensor(shape=[is_masked.shape[0], width]), tf.cast(places.row_lengths(), tf.int32)


def _shown(answers: tf.Tensor, rules: MaskingRules, seeds: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns what replaces the masked tokens `[n, P]`: 80% [MASK], 10% the token, 10% any WordPiece."""
    width = rules.max_predictions_per_seq
    counters = tf.cast(size + tf.range(width), tf.uint64)
    bits = _random_bits(seeds[:, tf.newaxis], counters)
    draws = tf.cast(tf.bitwise.right_shift(bits, _uint64(11)), tf.float64) * 2.0**-53
    bits = tf.bitwise.right_shift(_random_bits(seeds[:, tf.newaxis], counters + _uint64(width)), _uint64(32))
    random_ids = tf.cast(tf.bitwise.right_shift(bits * _uint64(rules.vocabulary_size), _uint64(32)), tf.int32)
    kept_or_random = tf.where(draws < SHARE_MASK + SHARE_KEPT, answers, random_ids)
    return tf.where(draws < SHARE_MASK, rules.mask_token_id, kept_or_random)


def _random_bits(seeds: tf.Tensor, counters: tf.Tensor) -> tf.Tensor:
    """Computes `counter_random.random_bits` in TensorFlow: uint64, of the common shape of two uint64 tensors."""
    bits = seeds + (counters + _uint64(1)) * GAMMA
    for shift, factor in STEPS:
        bits = tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, shift)) * factor
    return tf.bitwise.bitwise_xor(bits, tf.bitwise.right_shift(bits, LAST_SHIFT))


def _uint64(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)
