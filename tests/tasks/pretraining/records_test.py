"""TFRecord instances: both projects' names, round trip, and what is refused with which words."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_examples import serialize_instance

from keras_bert.errors import InputError
from tasks.pretraining.data.records import parse_records
from tasks.pretraining.data.shard_index import read_records

S, P, V = 12, 3, 50
LENGTHS = {"max_seq_length": S, "max_predictions_per_seq": P}


def google_record(**changes):
    """An instance under google-research/bert's names, written by hand; a change to None drops the feature."""
    values = {
        "input_ids": [1, 7, 8, 2, 9, 2] + [0] * 6,
        "input_mask": [1] * 6 + [0] * 6,
        "segment_ids": [0] * 4 + [1] * 2 + [0] * 6,
        "masked_lm_positions": [2, 4, 0],
        "masked_lm_ids": [8, 5, 0],
        "masked_lm_weights": [1.0, 1.0, 0.0],
        "next_sentence_labels": [1],
        **changes,
    }
    features = {}
    for name, value in values.items():
        if value is None:
            continue
        if name == "masked_lm_weights":
            features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=value))
        else:
            features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=value))
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def model_garden_record():
    first = [1, 7, 8, 2, 9, 2] + [0] * 6
    segments = [0] * 4 + [1] * 2 + [0] * 6
    return google_record(input_ids=None, segment_ids=None, input_word_ids=first, input_type_ids=segments)


def write(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def scan(*paths):
    return read_records(list(map(str, paths)), V, **LENGTHS)


def test_serialized_instance_is_googles_record():
    ours = serialize_instance(
        np.array([1, 7, 8, 2, 9, 2], np.int32), 4, np.array([2, 4]), np.array([8, 5]), True, **LENGTHS
    )
    assert tf.train.Example.FromString(ours) == tf.train.Example.FromString(google_record())


def test_parses_both_naming_schemes_in_one_batch():
    features, labels = parse_records(tf.constant([google_record(), model_garden_record()]), **LENGTHS)
    for name, expected in {
        "token_ids": [1, 7, 8, 2, 9, 2, 0, 0, 0, 0, 0, 0],
        "padding_mask": [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0],
        "segment_ids": [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0],
        "mask_positions": [2, 4, 0],
    }.items():
        assert features[name].dtype == tf.int32
        assert features[name].numpy().tolist() == [expected, expected]
    assert set(features) == {"token_ids", "padding_mask", "segment_ids", "mask_positions"}
    assert labels["mask_ids"].numpy().tolist() == [[8, 5, 0]] * 2
    assert labels["mask_weights"].numpy().tolist() == [[1.0, 1.0, 0.0]] * 2
    assert labels["next_sentence_labels"].numpy().tolist() == [1, 1]
    assert labels["mask_weights"].dtype == tf.float32


def test_scan_counts_records_tokens_and_answers(tmp_path):
    records = [google_record(), model_garden_record()] * 700  # more than one batch
    path = write(tmp_path / "data", records)
    statistics = scan(path, path)
    assert statistics.num_records == 2800
    assert statistics.num_real_tokens == 2800 * 6
    expected = np.zeros(V, int)
    expected[[8, 5]] = 2800  # the padding answer 0 has weight 0
    assert np.array_equal(statistics.answer_counts, expected)
    assert statistics.next_sentence_counts.tolist() == [0, 2800]


def test_the_checksum_is_of_the_numbers_not_of_names(tmp_path):
    def checksum(name, record):
        return scan(write(tmp_path / name, [google_record(), record])).checksum

    plain = checksum("a", google_record())
    assert checksum("b", model_garden_record()) == plain  # the same numbers under other names
    assert checksum("a", google_record(next_sentence_labels=[0])) != plain
    assert checksum("a", google_record(masked_lm_weights=[1.0, 0.5, 0.0])) != plain


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": [50] + [0] * 11}, r"input_ids must lie in \[0, 50\). Received: 50"),
        ({"input_ids": [-3] + [0] * 11}, r"input_ids must lie in \[0, 4194304\). Received: -3"),
        ({"masked_lm_ids": [0, 0, 99]}, r"masked_lm_ids must lie in \[0, 50\). Received: 99"),
        ({"masked_lm_positions": [12, 0, 0]}, r"masked_lm_positions must lie in \[0, 12\). Received: 12"),
        ({"segment_ids": [2] + [0] * 11}, r"segment_ids must lie in \[0, 2\). Received: 2"),
        ({"next_sentence_labels": [2]}, r"next_sentence_labels must lie in \[0, 2\). Received: 2"),
        ({"masked_lm_weights": [float("nan"), 0.0, 0.0]}, r"masked_lm_weights must lie in \[0, inf\). Received: nan"),
        ({"masked_lm_weights": None}, "lacks the feature masked_lm_weights"),
        ({"input_ids": None}, "lacks the feature input_ids or input_word_ids"),
        ({"next_sentence_labels": None}, "lacks the feature next_sentence_labels"),
        ({"input_ids": [1] * 16}, r"input_ids must hold 12 numbers \(int64_list\), found 16. Give --max_seq_length"),
        ({"masked_lm_ids": [1]}, "masked_lm_ids must hold 3 numbers .* found 1. Give .*--max_predictions_per_seq"),
    ],
)
def test_a_bad_record_is_named(tmp_path, changes, message):
    path = write(tmp_path / "data", [google_record()] * 1500 + [google_record(**changes)] + [google_record()])
    with pytest.raises(InputError, match=f"{path}: record 1501: {message}"):
        scan(path)


def test_truncated_and_corrupt_files_are_named(tmp_path):
    path = tmp_path / "data"
    write(path, [google_record()] * 5)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(InputError, match=f"{path}: record 5: truncated or corrupt"):
        scan(path)
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :])
    with pytest.raises(InputError, match=f"{path}: record 3: truncated or corrupt"):
        scan(path)


def test_files_that_hold_no_instances_are_refused(tmp_path):
    text = tmp_path / "text"
    text.write_text("not a TFRecord file\n" * 5)
    with pytest.raises(InputError, match=f"{text}: record 1: truncated or corrupt"):
        scan(text)
    with pytest.raises(InputError, match="record 1: not a tf.train.Example"):
        scan(write(tmp_path / "bytes", [b"\xff\xff\xff"]))
    with pytest.raises(InputError, match=f"{tmp_path / 'empty'}: no record"):
        scan(write(tmp_path / "empty", []))
    with pytest.raises(InputError, match="missing: cannot be opened"):
        scan(tmp_path / "missing")
