"""Parses pre-training instances, and explains why a file of them cannot be read.

B: records of a batch, S: `max_seq_length`, P: `max_predictions_per_seq`, L: tokens and M: masked positions of one
instance, V: vocabulary.
"""

import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_bert.errors import InputError
from tasks.pretraining.data.record_names import FEATURE_NAMES

_LABELS = ("mask_ids", "mask_weights", "next_sentence_labels")
ABSENT = -1  # No feature of an instance is negative.


def feature_lengths(max_seq_length: int, max_predictions_per_seq: int) -> dict[str, int]:
    """Returns how many numbers each feature of a record holds."""
    lengths = dict.fromkeys(FEATURE_NAMES, max_seq_length)
    masked = dict.fromkeys(("mask_positions", "mask_ids", "mask_weights"), max_predictions_per_seq)
    return {**lengths, **masked, "next_sentence_labels": 1}


def parse_records(serialized, *, max_seq_length: int, max_predictions_per_seq: int) -> tuple[dict, dict]:
    """Parses a batch in the graph, under any of the known names. An absent feature becomes -1.

    Args:
        serialized: string tensor, shape (B,).
        max_seq_length: S.
        max_predictions_per_seq: P.

    Returns:
        features: dict of int32 tensors, `token_ids segment_ids padding_mask` (B, S) and `mask_positions` (B, P).
        labels: dict of `mask_ids` int32 (B, P), `mask_weights` float32 (B, P), `next_sentence_labels` int32 (B,).
    """
    lengths = feature_lengths(max_seq_length, max_predictions_per_seq)
    spec = {}
    for name, foreign_names in FEATURE_NAMES.items():
        dtype = tf.float32 if name == "mask_weights" else tf.int64
        for foreign_name in foreign_names:
            spec[foreign_name] = tf.io.FixedLenFeature([lengths[name]], dtype, [ABSENT] * lengths[name])
    parsed = tf.io.parse_example(serialized, spec)
    values = {}
    for name, foreign_names in FEATURE_NAMES.items():
        value = parsed[foreign_names[0]]
        if len(foreign_names) == 2:
            value = tf.where(value == ABSENT, parsed[foreign_names[1]], value)
        values[name] = value if value.dtype == tf.float32 else tf.cast(value, tf.int32)
    values["next_sentence_labels"] = tf.squeeze(values["next_sentence_labels"], axis=1)
    labels = {name: values.pop(name) for name in _LABELS}
    return values, labels


def lacking(where: str, name: str) -> str:
    """Returns the message for a record that lacks a feature."""
    names = " or ".join(FEATURE_NAMES[name])
    return f"{where}: lacks the feature {names}. Expected records as bert-create-pretraining-data writes them."


def explain_failure(path: str, lengths: dict[str, int]) -> None:
    """Reads record by record until one fails.

    Raises:
        InputError: a record cannot be read; the message names it and the reason.
    """
    number = 0
    try:
        for number, serialized in enumerate(tf.data.TFRecordDataset(path).as_numpy_iterator(), start=1):
            _check_example(f"{path}: record {number}", serialized, lengths)
    except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
        raise InputError(f"{path}: cannot be opened ({type(error).__name__}). Check the path.") from error
    except tf.errors.DataLossError as error:
        raise InputError(
            f"{path}: record {number + 1}: truncated or corrupt. Expected an uncompressed TFRecord file, as "
            "bert-create-pretraining-data writes it; create or copy it again."
        ) from error


def _check_example(where: str, serialized: bytes, lengths: dict[str, int]) -> None:
    try:
        example = tf.train.Example.FromString(serialized)
    except DecodeError as error:
        raise InputError(f"{where}: not a tf.train.Example. Is it a file of pre-training instances?") from error
    features = example.features.feature
    for name, foreign_names in FEATURE_NAMES.items():
        present = [foreign_name for foreign_name in foreign_names if foreign_name in features]
        if not present:
            raise InputError(lacking(where, name))
        kind = "float_list" if name == "mask_weights" else "int64_list"
        length = len(getattr(features[present[0]], kind).value)
        if length != lengths[name]:
            raise InputError(
                f"{where}: {present[0]} must hold {lengths[name]} numbers ({kind}), found {length}. Give "
                "--max_seq_length and --max_predictions_per_seq the values with which the data was created."
            )
