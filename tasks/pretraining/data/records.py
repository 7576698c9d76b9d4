"""Parses pre-training instances in TFRecord files, and checks them.

B: records of a batch, S: `max_seq_length`, P: `max_predictions_per_seq`, L: tokens and M: masked positions of one
instance, V: vocabulary.
"""

import functools
import math
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError

from keras_bert.errors import InputError
from tasks.pretraining.data.record_names import FEATURE_NAMES
from tasks.text.parallel import progress_bar

_LABELS = ("mask_ids", "mask_weights", "next_sentence_labels")
_NUM_SEGMENTS = 2
_ABSENT = -1  # No feature of an instance is negative.
_SCAN_BATCH_SIZE = 1024


def _feature_lengths(max_seq_length: int, max_predictions_per_seq: int) -> dict[str, int]:
    lengths = dict.fromkeys(FEATURE_NAMES, max_seq_length)
    masked = dict.fromkeys(("mask_positions", "mask_ids", "mask_weights"), max_predictions_per_seq)
    return {**lengths, **masked, "next_sentence_labels": 1}


def parse_records(serialized, *, max_seq_length: int, max_predictions_per_seq: int) -> tuple[dict, dict]:
    """Parses a batch in the graph, under whichever of the known names; an absent feature reads as -1.

    Args:
        serialized: string tensor, shape (B,).

    Returns:
        features: dict of int32 tensors, `token_ids segment_ids padding_mask` (B, S) and `mask_positions` (B, P).
        labels: dict of `mask_ids` int32 (B, P), `mask_weights` float32 (B, P), `next_sentence_labels` int32 (B,).
    """
    lengths = _feature_lengths(max_seq_length, max_predictions_per_seq)
    spec = {}
    for name, foreign_names in FEATURE_NAMES.items():
        dtype = tf.float32 if name == "mask_weights" else tf.int64
        for foreign_name in foreign_names:
            spec[foreign_name] = tf.io.FixedLenFeature([lengths[name]], dtype, [_ABSENT] * lengths[name])
    parsed = tf.io.parse_example(serialized, spec)
    values = {}
    for name, foreign_names in FEATURE_NAMES.items():
        value = parsed[foreign_names[0]]
        if len(foreign_names) == 2:
            value = tf.where(value == _ABSENT, parsed[foreign_names[1]], value)
        values[name] = value if value.dtype == tf.float32 else tf.cast(value, tf.int32)
    values["next_sentence_labels"] = tf.squeeze(values["next_sentence_labels"], axis=1)
    labels = {name: values.pop(name) for name in _LABELS}
    return values, labels


class RecordSizes(NamedTuple):
    """Sizes of the records of a file.

    Attributes:
        lengths: int32, shape (records,), tokens that are not padding.
        masked: int32, shape (records,), masked positions.
    """

    lengths: np.ndarray
    masked: np.ndarray


class RecordStatistics(NamedTuple):
    """Totals of a pass over TFRecord files.

    Attributes:
        num_records: int.
        num_real_tokens: int, tokens that are not padding.
        answer_counts: int64, shape (V,), how often each WordPiece is the answer at a masked position.
        next_sentence_counts: int64, shape (2,), how often the second segment is the next one, and is a random one.
        checksum: int, CRC-32 of all numbers in the files' order.
        sizes: RecordSizes of each file; empty unless asked for.
    """

    num_records: int
    num_real_tokens: int
    answer_counts: np.ndarray
    next_sentence_counts: np.ndarray
    checksum: int
    sizes: list[RecordSizes]


def scan_records(
    files: list[str], *, vocabulary_size: int, for_packing: bool = False, **lengths: int
) -> RecordStatistics:
    """Reads every record once, on the host, and refuses what training could not use.

    A graph on GPU or TPU does not check ids: one outside its table gives NaN or another row, without an error.

    Args:
        files: TFRecord paths.
        for_packing: return the sizes of all records too, and refuse those whose real tokens are not their first ones.
        **lengths: `max_seq_length` and `max_predictions_per_seq` of the records.

    Raises:
        InputError: a record is corrupt, lacks a feature, has other lengths than the flags say, or holds a number out
            of its range; a file cannot be opened; no record at all. The message names file and record, from 1.
    """
    # The number that each feature must be less than.
    limits = {"token_ids": vocabulary_size, "padding_mask": 2, "segment_ids": _NUM_SEGMENTS}
    limits |= {"mask_positions": lengths["max_seq_length"], "mask_ids": vocabulary_size, "mask_weights": math.inf}
    limits["next_sentence_labels"] = 2
    num_records = num_real_tokens = checksum = 0
    answer_counts, next_sentence_counts = np.zeros(vocabulary_size, np.int64), np.zeros(2, np.int64)
    sizes = []
    with progress_bar("check records", "record") as progress:
        for path in files:
            first_record, parts = 1, [RecordSizes(*np.zeros((2, 0), np.int32))]
            for batch in _parsed_batches(path, lengths):
                _check_values(path, first_record, batch, limits)
                answers = batch["mask_ids"][batch["mask_weights"] > 0]
                answer_counts += np.bincount(answers, minlength=vocabulary_size)
                next_sentence_counts += np.bincount(batch["next_sentence_labels"], minlength=2)
                num_real_tokens += int(batch["padding_mask"].sum())
                for name in FEATURE_NAMES:
                    checksum = zlib.crc32(np.ascontiguousarray(batch[name]), checksum)
                if for_packing:
                    parts.append(_sizes(path, first_record, batch))
                first_record += len(batch["token_ids"])
                progress.update(len(batch["token_ids"]))
            num_records += first_record - 1
            if for_packing:
                sizes.append(RecordSizes(*map(np.concatenate, zip(*parts, strict=True))))
    if not num_records:
        raise InputError(f"{', '.join(files)}: no record. Create the data again with bert-create-pretraining-data.")
    return RecordStatistics(num_records, num_real_tokens, answer_counts, next_sentence_counts, checksum, sizes)


def _parsed_batches(path: str, lengths: dict[str, int]) -> Iterator[dict[str, np.ndarray]]:
    dataset = tf.data.TFRecordDataset(path).batch(_SCAN_BATCH_SIZE)
    parse = tf.autograph.experimental.do_not_convert(functools.partial(parse_records, **lengths))
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    try:
        for features, labels in dataset.prefetch(2).as_numpy_iterator():
            yield {**features, **labels}
    except (tf.errors.OpError, UnicodeDecodeError) as error:  # The latter: TensorFlow quotes a record's bytes as text.
        _explain_failure(path, _feature_lengths(**lengths))
        raise InputError(f"{path}: cannot be read as TFRecord ({error}).") from error


def _check_values(path: str, first_record: int, batch: dict[str, np.ndarray], limits: dict[str, float]) -> None:
    for name, limit in limits.items():
        values = batch[name]
        if values.min() >= 0 and values.max() < limit:  # False for NaN.
            continue
        is_wrong = ~((values >= 0) & (values < limit))
        row = int(np.argmax(is_wrong.reshape(len(values), -1).any(axis=1)))
        where = f"{path}: record {first_record + row}"
        if np.all(values[row] == _ABSENT):
            raise InputError(_lacking(where, name))
        raise InputError(
            f"{where}: {FEATURE_NAMES[name][0]} must lie in [0, {limit}). Received: {values[row][is_wrong[row]][0]}. "
            "Was the data created with this vocabulary and these lengths?"
        )


def _sizes(path: str, first_record: int, batch: dict[str, np.ndarray]) -> RecordSizes:
    is_real = batch["padding_mask"] > 0
    lengths = is_real.sum(axis=1, dtype=np.int32)
    is_prefix = (is_real == (np.arange(is_real.shape[1]) < lengths[:, np.newaxis])).all(axis=1)
    if not is_prefix.all():
        raise InputError(
            f"{path}: record {first_record + int(np.argmin(is_prefix))}: input_mask must be ones, then zeros. Such "
            "instances cannot be packed; train without --packing."
        )
    return RecordSizes(lengths, (batch["mask_weights"] > 0).sum(axis=1, dtype=np.int32))


def _lacking(where: str, name: str) -> str:
    return (
        f"{where}: lacks the feature {' or '.join(FEATURE_NAMES[name])}. "
        "Expected records as bert-create-pretraining-data writes them."
    )


def _explain_failure(path: str, lengths: dict[str, int]) -> None:
    """Reads record by record until one fails, and raises an InputError that names it and the reason."""
    number = 0
    try:
        for serialized in tf.data.TFRecordDataset(path).as_numpy_iterator():
            number += 1
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
            raise InputError(_lacking(where, name))
        kind = "float_list" if name == "mask_weights" else "int64_list"
        found = len(getattr(features[present[0]], kind).value)
        if found != lengths[name]:
            raise InputError(
                f"{where}: {present[0]} must hold {lengths[name]} numbers ({kind}), found {found}. Give "
                "--max_seq_length and --max_predictions_per_seq the values with which the data was created."
            )
