"""Records written without TensorFlow, as TensorFlow reads them."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_examples import serialize_instance

from tasks.pretraining.data.masking import MaskedBatch
from tasks.pretraining.data.record_bytes import instance_features, serialize_batch
from tasks.pretraining.data.records import parse_records
from tasks.pretraining.data.shard_index import read_indexes


def batch_of(num_rows, max_seq_length, width, vocabulary_size, seed=0):
    """Random arrays of the right shapes: (batch, lengths, first lengths, labels)."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, max_seq_length + 1, num_rows)
    first_lengths = rng.integers(3, lengths - 1)
    num_masked = rng.integers(0, width + 1, num_rows)
    token_ids = rng.integers(0, vocabulary_size, (num_rows, max_seq_length), dtype=np.int32)
    token_ids[np.arange(max_seq_length) >= lengths[:, np.newaxis]] = 0
    is_masked = np.arange(width) < num_masked[:, np.newaxis]
    positions = np.where(is_masked, rng.integers(0, max_seq_length, (num_rows, width)), 0).astype(np.int32)
    mask_ids = np.where(is_masked, rng.integers(0, vocabulary_size, (num_rows, width)), 0).astype(np.int32)
    labels = rng.integers(0, 2, num_rows)
    return MaskedBatch(token_ids, positions, mask_ids, num_masked), lengths, first_lengths, labels


def serialize(*arguments):
    return serialize_batch(instance_features(*arguments))


def written(path, content):
    path.write_bytes(content)
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())  # checks both checksums of each record


@pytest.mark.parametrize("vocabulary_size", [100, 30522, 3_000_000])
@pytest.mark.parametrize(("max_seq_length", "width"), [(5, 1), (128, 20), (512, 76)])
def test_records_are_the_examples_that_tensorflow_writes(tmp_path, max_seq_length, width, vocabulary_size):
    batch, lengths, first_lengths, labels = batch_of(33, max_seq_length, width, vocabulary_size)
    content, sizes = serialize(batch, lengths, first_lengths, labels)
    records = written(tmp_path / "records", content)
    assert list(map(len, records)) == sizes.tolist() and len(records) == 33
    for row, record in enumerate(records):
        count = int(batch.num_masked[row])
        expected = serialize_instance(
            batch.token_ids[row, : lengths[row]],
            int(first_lengths[row]),
            batch.mask_positions[row, :count],
            batch.mask_ids[row, :count],
            bool(labels[row]),
            max_seq_length=max_seq_length,
            max_predictions_per_seq=width,
        )
        assert tf.train.Example.FromString(record) == tf.train.Example.FromString(expected)
        assert len(record) == len(expected)  # no byte is wasted


def test_our_readers_accept_them(tmp_path):
    batch, lengths, first_lengths, labels = batch_of(50, 32, 5, 1000)
    content, _ = serialize(batch, lengths, first_lengths, labels)
    records = written(tmp_path / "records", content)
    sizes = {"max_seq_length": 32, "max_predictions_per_seq": 5}
    features, parsed_labels = parse_records(records, **sizes)
    assert np.array_equal(features["token_ids"], batch.token_ids)
    assert np.array_equal(features["mask_positions"], batch.mask_positions)
    assert np.array_equal(features["padding_mask"].numpy().sum(axis=1), lengths)
    assert np.array_equal(features["segment_ids"].numpy().sum(axis=1), lengths - first_lengths)
    assert np.array_equal(parsed_labels["next_sentence_labels"], labels)
    (index,) = read_indexes([str(tmp_path / "records")], **sizes)
    assert np.array_equal(index.lengths, lengths)


def test_a_changed_byte_is_noticed(tmp_path):
    content, _ = serialize(*batch_of(3, 16, 3, 1000))
    for place in (3, 9, 40, len(content) - 1):  # length, its checksum, content, its checksum
        changed = bytearray(content)
        changed[place] ^= 1
        with pytest.raises(tf.errors.DataLossError):
            written(tmp_path / "changed", bytes(changed))
