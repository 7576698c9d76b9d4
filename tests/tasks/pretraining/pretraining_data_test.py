"""Order and contents of training and evaluation batches."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_examples import serialize_instance

from tasks.pretraining.train import batches as data

S, P = 8, 2
LENGTHS = {"max_seq_length": S, "max_predictions_per_seq": P}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Three files of 7, 6 and 6 records; the answer of record n is n."""
    directory = tmp_path_factory.mktemp("records")
    paths = [str(directory / f"{n}.tfrecord") for n in range(3)]
    writers = [tf.io.TFRecordWriter(path) for path in paths]
    tokens, position = np.array([1, 5, 2, 6, 2], np.int32), np.array([1], np.int32)
    for number in range(19):
        answer = np.array([number], np.int32)
        writers[number % 3].write(serialize_instance(tokens, 3, position, answer, number % 2 == 1, **LENGTHS))
    for writer in writers:
        writer.close()
    return paths


def make(files, **changes):
    settings = {"num_records": 19, "batch_size": 4, "random_seed": 5, **LENGTHS, **changes}
    return data.train_dataset_maker(files, **settings)


def numbers(dataset, num_batches):
    return [labels["mask_ids"][:, 0].numpy().tolist() for _, labels in itertools.islice(dataset, num_batches)]


def test_an_epoch_holds_every_record_once_in_another_order(files):
    stream = sum(numbers(make(files)(0), 19), [])
    epochs = [stream[start : start + 19] for start in range(0, 76, 19)]
    assert all(sorted(epoch) == list(range(19)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


@pytest.mark.parametrize("start", [1, 4, 5, 11])
def test_a_start_step_continues_exactly(files, start):
    whole = numbers(make(files)(0), 16)
    assert all(len(batch) == 4 for batch in whole)
    assert numbers(make(files)(start), 16 - start) == whole[start:]


def test_order_depends_on_the_seed_given_and_not_on_tensorflows(files):
    first = numbers(make(files)(0), 5)
    tf.random.set_seed(99)
    assert numbers(make(files)(0), 5) == first
    assert numbers(make(files, random_seed=6)(0), 5) != first


def test_blocks_are_shuffled_each_by_itself(files, monkeypatch):
    monkeypatch.setattr(data, "_SHUFFLE_BLOCK", 5)
    stream = sum(numbers(make(files)(0), 19), [])
    assert sorted(stream[:19]) == sorted(stream[19:38]) == list(range(19))
    assert numbers(make(files)(7), 3) == [stream[28 + n : 32 + n] for n in (0, 4, 8)]


def test_a_batch_larger_than_the_data_is_filled_by_repeating(files):
    (batch,) = numbers(make(files, batch_size=40)(0), 1)
    assert sorted(batch[:38]) == sorted([*range(19), *range(19)])


def test_evaluation_sees_every_record_once_with_a_partial_last_batch(files):
    dataset = data.make_eval_dataset(files, num_records=19, batch_size=8, **LENGTHS)
    batches = numbers(dataset, 10)
    assert [len(batch) for batch in batches] == [8, 8, 3]
    assert int(dataset.cardinality()) == 3
    assert sorted(sum(batches, [])) == list(range(19))


def test_shapes_are_static_for_training(files):
    features, labels = make(files)(0).element_spec
    assert {name: tuple(spec.shape) for name, spec in features.items()} == {
        "token_ids": (4, S),
        "segment_ids": (4, S),
        "padding_mask": (4, S),
        "mask_positions": (4, P),
    }
    assert {name: tuple(spec.shape) for name, spec in labels.items()} == {
        "mask_ids": (4, P),
        "mask_weights": (4, P),
        "next_sentence_labels": (4,),
    }
