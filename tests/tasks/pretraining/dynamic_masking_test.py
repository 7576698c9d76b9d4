"""Masks drawn at reading: number by number those of the NumPy rules, their statistics, and resuming."""

import itertools

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from toy_instances import CLS, MASK, SEP, draw_tokens, mask, masking_rules, write_records

from tasks.pretraining.data.counter_random import random_bits
from tasks.pretraining.data.masking import mask_batch, num_to_mask
from tasks.pretraining.data.shard_index import read_records
from tasks.pretraining.train.batches import TrainBatches
from tasks.pretraining.train.dynamic_masking import mask_again, restore_tokens

N, S, P, V = 4000, 64, 8, 200


@pytest.fixture(scope="module")
def source():
    return draw_tokens(N, S, V)


def stored(source, rules, seed=0):
    """Instances as they lie in files, masked with a seed."""
    token_ids, lengths, first_lengths = source
    batch = mask(token_ids, lengths, rules, seed)
    places = np.arange(S)
    features = {
        "token_ids": batch.token_ids,
        "padding_mask": (places < lengths[:, None]).astype("int32"),
        "segment_ids": ((places >= first_lengths[:, None]) & (places < lengths[:, None])).astype("int32"),
        "mask_positions": batch.mask_positions,
    }
    labels = {
        "mask_ids": batch.mask_ids,
        "mask_weights": (np.arange(P) < batch.num_masked[:, None]).astype("float32"),
        "next_sentence_labels": np.arange(N, dtype="int32") % 2,
    }
    return tuple({name: tf.constant(value) for name, value in part.items()} for part in (features, labels))


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("in_graph", [False, True])
def test_equals_the_rules_in_numpy_number_by_number(source, whole_words, in_graph):
    rules = masking_rules(V, P, whole_words)
    numbers = np.arange(N, dtype=np.int64) * 7 + 10**12
    expected = mask_batch(*source[:2], rules, random_bits(np.array(77, np.uint64), numbers))

    def again(features, labels, numbers):
        return mask_again(features, labels, rules, 77, numbers)

    features, labels = (tf.function(again, autograph=False) if in_graph else again)(
        *stored(source, rules), tf.constant(numbers)
    )
    np.testing.assert_array_equal(features["token_ids"], expected.token_ids)
    np.testing.assert_array_equal(features["mask_positions"], expected.mask_positions)
    np.testing.assert_array_equal(labels["mask_ids"], expected.mask_ids)
    np.testing.assert_array_equal(labels["mask_weights"].numpy().sum(axis=1), expected.num_masked)
    assert (features["token_ids"].numpy() != stored(source, rules)[0]["token_ids"].numpy()).any(axis=1).mean() > 0.9


def restored(features, labels):
    """The tokens before they were masked."""
    values = features | labels
    names = ("token_ids", "mask_positions", "mask_ids", "mask_weights")
    return restore_tokens(*(values[name].numpy() for name in names))


def redrawn(source, rules, seed):
    return mask_again(*stored(source, rules), rules, seed, tf.range(N, dtype=tf.int64))


@pytest.mark.parametrize("whole_words", [False, True])
def test_every_masked_position_restores_to_its_source_and_the_rest_is_untouched(source, whole_words):
    rules = masking_rules(V, P, whole_words)
    before = stored(source, rules)
    np.testing.assert_array_equal(restored(*before), source[0])
    features, labels = redrawn(source, rules, 5)
    np.testing.assert_array_equal(restored(features, labels), source[0])
    used = labels["mask_weights"].numpy() > 0
    at_masks = np.take_along_axis(source[0], features["mask_positions"].numpy(), axis=1)
    np.testing.assert_array_equal(at_masks[used], labels["mask_ids"].numpy()[used])
    assert not np.isin(at_masks[used], (CLS, SEP)).any()
    for name, part in (("segment_ids", features), ("padding_mask", features), ("next_sentence_labels", labels)):
        np.testing.assert_array_equal(part[name], {**before[0], **before[1]}[name])


def test_statistics_of_many_epochs(source):
    """Share of masked, kept and random tokens, the random ones among all WordPieces, and places, by chi-square."""
    rules = masking_rules(V, P)
    shown, places = [], np.zeros(S)
    lengths = source[1]
    for epoch in range(3):
        features, labels = redrawn(source, rules, 100 + epoch)
        used = labels["mask_weights"].numpy() > 0
        np.testing.assert_array_equal(used.sum(axis=1), num_to_mask(lengths, rules))
        positions = features["mask_positions"].numpy()
        now = np.take_along_axis(features["token_ids"].numpy(), positions, axis=1)[used]
        shown.append(np.stack([now, labels["mask_ids"].numpy()[used]]))
        places += np.bincount(positions[used], minlength=S)
    now, answers = np.concatenate(shown, axis=1)
    kept, is_mask = now == answers, now == MASK
    counts = [is_mask.sum(), kept.sum(), (~kept & ~is_mask).sum()]
    # A tenth is drawn from the whole vocabulary, hence 1 in V of it is [MASK], and 1 in V the token itself.
    expected = np.array([0.8 + 0.1 / V, 0.1 + 0.1 / V, 0.1 - 0.2 / V]) * len(now)
    assert scipy.stats.chisquare(counts, expected).pvalue > 0.01
    random_ids = np.bincount(now[~kept & ~is_mask], minlength=V)[np.arange(V) != MASK]
    assert scipy.stats.chisquare(random_ids).pvalue > 0.01
    assert random_ids[0] > 0  # special WordPieces too
    # Every candidate of an instance is as likely as the others.
    candidates = (source[0] != CLS) & (source[0] != SEP) & (np.arange(S) < lengths[:, None])
    weights = num_to_mask(lengths, rules) / candidates.sum(axis=1)
    expected_places = 3 * (candidates * weights[:, None]).sum(axis=0)
    is_common = expected_places > 20
    scaled = expected_places[is_common] * places[is_common].sum() / expected_places[is_common].sum()
    assert scipy.stats.chisquare(places[is_common], scaled).pvalue > 0.01


def test_whole_words_are_masked_whole(source):
    rules = masking_rules(V, P, whole_words=True)
    features, labels = redrawn(source, rules, 5)
    token_ids, lengths, _ = source
    is_masked = np.zeros((N, S), bool)
    rows, columns = np.nonzero(labels["mask_weights"].numpy())
    is_masked[rows, features["mask_positions"].numpy()[rows, columns]] = True
    continues = rules.continues_word[token_ids] & (np.arange(S) < lengths[:, None])
    is_word = ~np.isin(token_ids, (CLS, SEP))
    # Inside a segment a piece shares the fate of the piece before it.
    inside = continues[:, 1:] & is_word[:, :-1]
    np.testing.assert_array_equal(is_masked[:, 1:][inside], is_masked[:, :-1][inside])
    assert inside.sum() > 1000


def test_number_of_masked_tokens_counts_special_ones():
    rules = masking_rules(V, P)
    # 0.15 * 10 = 1.5 and 0.15 * 30 = 4.5 round to even, as Python's round does.
    assert num_to_mask(np.array([5, 10, 17, 30, 64]), rules).tolist() == [1, 2, 3, 4, 8]
    assert [round(length * 0.15) for length in (10, 17, 30)] == [2, 3, 4]


# === In the stream of batches ===


@pytest.fixture(scope="module")
def make(source, tmp_path_factory):
    token_ids, lengths, first_lengths = (part[:19] for part in source)
    rules = masking_rules(V, P)
    batch = mask(token_ids, lengths, rules)
    files = write_records(tmp_path_factory.mktemp("records"), batch, lengths, first_lengths, num_files=3)

    def make_stream(seed=4):
        records = read_records(files, V, max_seq_length=S, max_predictions_per_seq=P)
        return TrainBatches(records, batch_size=4, random_seed=seed, masking=rules)

    return make_stream


def take(dataset, count):
    """Restored tokens, as tuples, with the masked positions of each, record by record."""
    records = []
    for features, labels in itertools.islice(dataset, count):
        tokens = restored(features, labels)
        records += [(tuple(row), tuple(p)) for row, p in zip(tokens, features["mask_positions"].numpy(), strict=True)]
    return records


@pytest.fixture(scope="module")
def stream(make):
    """The records of 19 batches of 4: four epochs."""
    return take(make()(0), 19)


def test_every_epoch_has_other_masks_of_the_same_records(stream, source):
    epochs = [dict(stream[start : start + 19]) for start in range(0, 76, 19)]
    expected = {tuple(row) for row in source[0][:19]}
    assert all(set(epoch) == expected for epoch in epochs)
    for first, second in itertools.combinations(epochs, 2):
        assert sum(first[tokens] != second[tokens] for tokens in expected) > 12


@pytest.mark.slow(keep=["5"])
@pytest.mark.parametrize("start", [1, 5, 11])
def test_a_start_step_continues_exactly(make, stream, start):
    tf.random.set_seed(start)
    assert take(make()(start), 14 - start) == stream[start * 4 : 14 * 4]


def test_masks_depend_on_the_seed_and_not_on_who_reads_the_row(make, stream):
    halves = [take(make().share(1, half, 2), 3) for half in range(2)]
    assert [halves[row // 2 % 2][row // 4 * 2 + row % 2] for row in range(12)] == stream[4:16]
    first, second = dict(stream[:16]), dict(take(make(seed=5)(0), 4))
    common = set(first) & set(second)
    assert common and sum(first[tokens] != second[tokens] for tokens in common) > len(common) / 2
