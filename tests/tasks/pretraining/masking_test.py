"""Masked positions: how many, where, and what is shown there."""

import numpy as np
import pytest

from tasks.pretraining.data.masking import MaskedBatch, MaskingRules, mask_batch, mask_tokens

CLS, SEP, MASK, VOCABULARY = 1, 2, 3, 1000


def rules(masked_lm_prob=0.15, max_predictions_per_seq=20, continues_word=None):
    return MaskingRules(CLS, SEP, MASK, VOCABULARY, masked_lm_prob, max_predictions_per_seq, continues_word)


def mask_one(token_ids, rules, seed):
    """Masks one instance, padded: the arrays without padding."""
    padded = np.concatenate([token_ids, np.zeros(7, np.int32)])[np.newaxis]
    masked = mask_batch(padded, np.array([len(token_ids)]), rules, np.array([seed], np.uint64))
    count = int(masked.num_masked[0])
    assert not masked.token_ids[0, len(token_ids) :].any()
    assert not masked.mask_positions[0, count:].any() and not masked.mask_ids[0, count:].any()
    return MaskedBatch(
        masked.token_ids[0, : len(token_ids)], masked.mask_positions[0, :count], masked.mask_ids[0, :count], count
    )


def instance(length, rng):
    token_ids = rng.integers(10, VOCABULARY, length).astype(np.int32)
    token_ids[0], token_ids[length // 2], token_ids[-1] = CLS, SEP, SEP
    return token_ids


@pytest.mark.parametrize(
    ("length", "prob", "most", "expected"),
    [
        (128, 0.15, 20, 19),  # round(19.2)
        (130, 0.15, 20, 20),  # round(19.5): to even
        (10, 0.25, 20, 2),  # round(2.5): to even, [CLS] and [SEP] counted
        (5, 0.15, 20, 1),  # at least one
        (128, 0.15, 5, 5),
        (6, 1.0, 20, 3),  # no more than there are
    ],
)
def test_number_of_masked_positions(length, prob, most, expected):
    rng = np.random.default_rng(0)
    masked = mask_one(instance(length, rng), rules(prob, most), 0)
    assert len(masked.mask_positions) == expected


def test_masked_positions_restore_the_source_and_spare_special_tokens():
    rng = np.random.default_rng(1)
    for length in range(5, 129):
        source = instance(length, rng)
        before = source.copy()
        masked = mask_one(source, rules(), length)
        assert np.array_equal(source, before)
        restored = masked.token_ids.copy()
        restored[masked.mask_positions] = masked.mask_ids
        assert np.array_equal(restored, source)
        assert not np.isin(masked.mask_ids, [CLS, SEP]).any()
        assert (np.diff(masked.mask_positions) > 0).all()
        assert masked.token_ids.dtype == masked.mask_positions.dtype == masked.mask_ids.dtype == np.int32


@pytest.mark.parametrize("whole_word", [False, True])
def test_80_10_10_within_binomial_bounds(whole_word):
    rng = np.random.default_rng(2)
    continues = np.arange(VOCABULARY) % 3 == 0 if whole_word else None
    sources = np.stack([instance(128, rng) for _ in range(1500)])
    seeds = rng.integers(1 << 63, size=1500, dtype=np.uint64)
    masked = mask_batch(sources, np.full(1500, 128), rules(continues_word=continues), seeds)
    is_used = np.arange(20) < masked.num_masked[:, np.newaxis]
    shown = np.take_along_axis(masked.token_ids, masked.mask_positions, axis=1)[is_used]
    answers = masked.mask_ids[is_used]
    total = len(shown)
    is_random = (shown != MASK) & (shown != answers)
    # A random WordPiece is by chance the answer or [MASK]: 2 / V of a tenth.
    for frequency, share in (
        ((shown == MASK).mean(), 0.8 + 0.1 / VOCABULARY),
        ((shown == answers).mean(), 0.1 + 0.1 / VOCABULARY),
        (is_random.mean(), 0.1 - 0.2 / VOCABULARY),
    ):
        assert abs(frequency - share) < 4 * (share * (1 - share) / total) ** 0.5
    # From the whole vocabulary: also below 10, where no text is, and evenly.
    randoms = shown[is_random]
    assert randoms.min() < 10
    assert abs(randoms.mean() - (VOCABULARY - 1) / 2) < 5 * VOCABULARY / (12 * len(randoms)) ** 0.5


def test_positions_are_uniform():
    rng = np.random.default_rng(3)
    source = instance(20, rng)
    counts = np.zeros(20)
    seeds = rng.integers(1 << 63, size=6000, dtype=np.uint64)
    masked = mask_batch(np.tile(source, (6000, 1)), np.full(6000, 20), rules(), seeds)
    np.add.at(counts, masked.mask_positions[:, :3], 1)
    assert (masked.num_masked == 3).all()
    assert counts[[0, 10, 19]].sum() == 0
    expected = 6000 * 3 / 17
    others = np.delete(counts, [0, 10, 19])
    assert (np.abs(others - expected) < 5 * expected**0.5).all()


def test_whole_words_are_masked_together_and_skipped_when_too_long():
    continues = np.zeros(VOCABULARY, bool)
    continues[500:] = True
    word_of_two, word_of_four = [10, 500], [20, 501, 502, 503]
    source = np.array([CLS, *word_of_two, *word_of_four, 30, SEP, *word_of_two, 31, SEP], np.int32)
    groups = [{1, 2}, {3, 4, 5, 6}, {7}, {9, 10}, {11}]
    seen = set()
    for seed in range(400):
        masked = mask_one(source, rules(0.25, continues_word=continues), seed)
        positions = set(masked.mask_positions.tolist())
        assert all(group <= positions or not group & positions for group in groups)
        # The budget is round(3.25) = 3: the word of four never fits, nor one of two after both of one.
        assert len(positions) == 3 or positions == {7, 11}
        seen |= positions
    assert seen == {1, 2, 7, 9, 10, 11}


def test_whole_words_that_all_overflow_give_no_position():
    continues = np.zeros(VOCABULARY, bool)
    continues[500:] = True
    source = np.array([CLS, 10, 500, SEP, 11, 501, SEP], np.int32)
    masked = mask_one(source, rules(continues_word=continues), 0)
    assert masked.mask_positions.shape == masked.mask_ids.shape == (0,)
    assert masked.mask_positions.dtype == np.int32
    assert np.array_equal(masked.token_ids, source)


def test_a_word_without_its_beginning_counts_from_its_first_piece():
    continues = np.zeros(VOCABULARY, bool)
    continues[500:] = True
    source = np.array([CLS, 500, 501, 10, SEP, 11, SEP], np.int32)
    for seed in range(50):
        masked = mask_one(source, rules(0.3, continues_word=continues), seed)
        assert len({1, 2} & set(masked.mask_positions.tolist())) in (0, 2)


def test_padding_before_real_tokens_is_never_masked():
    token_ids = np.array([[CLS, 10, 11, SEP, 12, SEP, 0, 13]], np.int32)
    is_real = np.array([[True, True, False, True, False, True, False, True]])
    masked = [mask_tokens(token_ids, is_real, rules(0.5), np.array([seed], np.uint64)) for seed in range(30)]
    assert {tuple(batch.mask_positions[0, : batch.num_masked[0]].tolist()) for batch in masked} == {(1, 7)}


def test_same_seed_same_mask():
    source = instance(64, np.random.default_rng(5))
    first, again, other = (mask_one(source, rules(), seed) for seed in (6, 6, 7))
    assert np.array_equal(first.token_ids, again.token_ids)
    assert not np.array_equal(first.mask_positions, other.mask_positions)


@pytest.mark.parametrize("whole_word", [False, True])
def test_the_batch_around_an_instance_does_not_show(whole_word):
    rng = np.random.default_rng(8)
    continues = np.arange(VOCABULARY) % 4 == 0 if whole_word else None
    lengths = rng.integers(5, 65, size=50)
    sources = np.zeros((50, 64), np.int32)
    for row, length in enumerate(lengths):
        sources[row, :length] = instance(length, rng)
    seeds = rng.integers(1 << 63, size=50, dtype=np.uint64)
    together = mask_batch(sources, lengths, rules(continues_word=continues), seeds)
    for row in range(50):
        rows = slice(row, row + 1)
        alone = mask_batch(sources[rows], lengths[rows], rules(continues_word=continues), seeds[rows])
        assert all(np.array_equal(x[0], y[row]) for x, y in zip(alone, together, strict=True))
