"""Order and contents of training and evaluation batches."""

import itertools
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_examples import serialize_instance

from keras_bert.errors import InputError
from tasks.pretraining.data import shard_index
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


def read(files):
    return shard_index.read_records(files, 32, **LENGTHS)


def make(files, **changes):
    settings = {"batch_size": 4, "random_seed": 5, **changes}
    return data.TrainBatches(read(files), **settings)


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


@pytest.fixture(name="many_blocks")
def _many_blocks(monkeypatch):
    """Two or three blocks a file, of which the last is smaller."""
    monkeypatch.setattr(shard_index, "GROUP", 3)


def test_many_blocks_are_read_once_an_epoch_and_in_another_order(files, many_blocks):
    stream = sum(numbers(make(files)(0), 19), [])
    assert sorted(stream[:19]) == sorted(stream[19:38]) == list(range(19))
    assert stream[:19] != stream[19:38]
    assert numbers(make(files)(7), 3) == [stream[28 + n : 32 + n] for n in (0, 4, 8)]


def test_blocks_of_one_file_change_their_places(files, many_blocks):
    first = [number // 9 for number in sum(numbers(make(files[:1], batch_size=1)(0), 21), [])]
    assert len({tuple(first[start : start + 7]) for start in (0, 7, 14)}) > 1


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("start", [0, 3, 4])
def test_workers_read_their_rows_of_the_same_batches(files, many_blocks, start, count):
    """Across the end of the first epoch."""
    batches = make(files, batch_size=8)
    whole = numbers(batches(start), 4)
    shares = [numbers(batches.share(start, index, count), 4) for index in range(count)]
    assert [sum(rows, []) for rows in zip(*shares, strict=True)] == whole


@pytest.fixture(scope="module", name="large")
def _large(tmp_path_factory):
    """A file of 100 blocks."""
    path, tokens = str(tmp_path_factory.mktemp("records") / "large.tfrecord"), np.array([1, 5, 2, 6, 2], np.int32)
    record = serialize_instance(tokens, 3, np.array([1], np.int32), np.array([7], np.int32), False, **LENGTHS)
    with tf.io.TFRecordWriter(path) as writer:
        for _ in range(100 * shard_index.GROUP):
            writer.write(record)
    shard_index.read_indexes([path], **LENGTHS)
    return path


def share_read(path, dataset, num_batches):
    """The share of a file that is read for some batches, by what the system counts for this process."""

    def bytes_read():
        return int(pathlib.Path("/proc/self/io").read_text().split()[1])

    before = bytes_read()
    assert int(dataset.take(num_batches).reduce(0, lambda count, _: count + 1)) == num_batches
    return (bytes_read() - before) / os.path.getsize(path)


@pytest.fixture(name="small_reads")
def _small_reads(monkeypatch):
    """The records are tiny; real blocks are as long as what is read at once."""
    monkeypatch.setattr(data, "_READ_BYTES", 1 << 12)


@pytest.mark.parametrize("share_done", [0.0, 0.9, 3.9], ids="{:.0%} of an epoch".format)
def test_a_start_reads_a_block_of_each_row_wherever_it_is(large, small_reads, share_done):
    start = int(share_done * 100 * shard_index.GROUP / 4)
    assert share_read(large, make([large])(start), 2) < 0.15


def test_a_worker_reads_its_share(large, small_reads):
    batches, steps = make([large]), 100 * shard_index.GROUP // 4
    shares = [share_read(large, batches.share(0, index, 4), steps - 200) for index in range(4)]
    assert max(shares) < 0.33


def test_indexes_are_kept_and_made_anew_for_another_file(files, tmp_path, monkeypatch):
    path = str(tmp_path / "copy.tfrecord")
    shutil.copyfile(files[0], path)
    (index,) = shard_index.read_indexes([path], **LENGTHS)
    with monkeypatch.context() as patch:
        patch.setattr(shard_index, "_scan", None)
        (again,) = shard_index.read_indexes([path], **LENGTHS)
    for name in index._fields:
        np.testing.assert_array_equal(getattr(again, name), getattr(index, name))
    shutil.copyfile(files[1], path)
    assert len(shard_index.read_indexes([path], **LENGTHS)[0].lengths) == 6
    with open(shard_index.index_path(path), "r+b") as file:
        file.truncate(100)
    assert len(shard_index.read_indexes([path], **LENGTHS)[0].lengths) == 6
    with pytest.raises(InputError, match="its records have 8 tokens and 2 masked positions. Give --max_seq_length"):
        shard_index.read_indexes([path], max_seq_length=16, max_predictions_per_seq=2)


def test_a_batch_larger_than_the_data_is_filled_by_repeating(files):
    (batch,) = numbers(make(files, batch_size=40)(0), 1)
    assert sorted(batch[:38]) == sorted([*range(19), *range(19)])


def test_evaluation_sees_every_record_once_with_a_partial_last_batch(files):
    dataset = data.make_eval_dataset(read(files), batch_size=8)
    batches = numbers(dataset, 10)
    assert [len(batch) for batch in batches] == [8, 8, 3]
    assert int(dataset.cardinality()) == 3
    assert sorted(sum(batches, [])) == list(range(19))


def test_a_batch_that_workers_cannot_split_is_refused(files):
    with pytest.raises(InputError, match="--train_batch_size=4 cannot be split among 3 workers. Give a multiple"):
        make(files).share(0, 0, 3)


def test_a_static_evaluation_fills_its_last_batch_with_rows_that_weigh_nothing(files):
    plain = list(data.make_eval_dataset(read(files), batch_size=8))
    dataset = data.make_eval_dataset(read(files), batch_size=8, is_static=True)
    assert {spec.shape[0] for spec in tf.nest.flatten(dataset.element_spec)} == {8}
    filled = list(dataset)
    for (features, labels), (all_features, all_labels) in zip(plain, filled, strict=True):
        count = len(labels["mask_ids"])
        for name, rows in {**features, **labels}.items():
            np.testing.assert_array_equal({**all_features, **all_labels}[name][:count], rows)
        weights = all_labels["next_sentence_weights"].numpy()
        assert weights.tolist() == [1.0] * count + [0.0] * (8 - count)
        assert not all_labels["mask_weights"][count:].numpy().any()


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
