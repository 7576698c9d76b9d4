"""The index of a TFRecord file of pre-training instances: what a training must know of it before it starts.

An index lies beside its file, as `.NAME.index.npz`. The first training that reads the file makes it, on all cores, and
checks every record on the way. Later ones start at once, at any record.

N: records, G: groups of `GROUP` records, V: vocabulary.
"""

import concurrent.futures
import contextlib
import functools
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, open_file
from tasks.pretraining.data.record_names import FEATURE_NAMES
from tasks.pretraining.data.records import ABSENT, explain_failure, feature_lengths, lacking, parse_records
from tasks.text.parallel import available_cores, progress_bar

GROUP = 128
_SCAN_BATCH_SIZE = 8 * GROUP
_FRAME_BYTES = 16  # Of a TFRecord, around its content.
_SAMPLE_BYTES = 4096
_HIGHEST_ID = 1 << 22  # More than any vocabulary has; counts of answers take as much memory as the highest id says.
_VOCABULARY_FEATURES = ("token_ids", "mask_ids")


class ShardIndex(NamedTuple):
    """What is known of a file. Scalars are int64 arrays of shape ().

    Attributes:
        fingerprint: size of the file, CRC-32 of samples of it, and `GROUP`: whether the index still fits.
        sizes: the `max_seq_length` and `max_predictions_per_seq` of its records.
        num_records: N.
        num_real_tokens: tokens that are not padding.
        checksum: CRC-32 of all numbers.
        highest: shape (2, 2), the highest `token_ids` and `mask_ids`, each with its record, from 1.
        first_hole: the first record, from 1, with padding before a real token; 0 if there is none.
        answer_counts: int64, shape (highest answer + 1,), how often each WordPiece is the answer at a masked position.
        next_sentence_counts: int64, shape (2,), how often the second segment is the next one, and is a random one.
        offsets: int64, shape (G,), where each group begins in the file, in bytes.
        lengths: int32, shape (N,), tokens of each record that are not padding.
        masked: int32, shape (N,), masked positions of each record.
        rows: int16, shape (N,) or, until it is planned, (0,): see `packed_data.PackingPlan.row_of_record`.
    """

    fingerprint: np.ndarray
    sizes: np.ndarray
    num_records: np.ndarray
    num_real_tokens: np.ndarray
    checksum: np.ndarray
    highest: np.ndarray
    first_hole: np.ndarray
    answer_counts: np.ndarray
    next_sentence_counts: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    masked: np.ndarray
    rows: np.ndarray

    def offset_of(self, records: np.ndarray) -> np.ndarray:
        """Returns where records begin, whose numbers are multiples of `GROUP`."""
        return self.offsets[records // GROUP]


class RecordStatistics(NamedTuple):
    """Totals over files.

    Attributes:
        num_records, num_real_tokens: int.
        answer_counts, next_sentence_counts: as of `ShardIndex`, the former of shape (V,).
        checksum: int, CRC-32 of the files' checksums.
    """

    num_records: int
    num_real_tokens: int
    answer_counts: np.ndarray
    next_sentence_counts: np.ndarray
    checksum: int


def index_path(path: str) -> str:
    """Returns where the index of a file lies."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.index.npz")


def read_indexes(files: list[str], *, for_packing: bool = False, **lengths: int) -> list[ShardIndex]:
    """Reads the indexes of files, and makes those that are missing or belong to other files.

    Args:
        files: TFRecord paths.
        for_packing: refuse records whose real tokens are not their first ones.
        **lengths: `max_seq_length` and `max_predictions_per_seq` of the records.

    Raises:
        InputError: a record is corrupt, lacks a feature, has other lengths than the flags say, or holds a number out
            of its range; a file cannot be opened. The message names file and record, from 1.
    """
    indexes = {path: _load(path) for path in files}
    missing = [path for path, index in indexes.items() if index is None]
    if missing:
        with (
            progress_bar("check records", "record") as progress,
            concurrent.futures.ThreadPoolExecutor(min(len(missing), available_cores())) as pool,
        ):
            scan = functools.partial(_scan, lengths=lengths, report=progress.update)
            for path, index in zip(missing, pool.map(scan, missing), strict=True):
                indexes[path] = index
                save_index(path, index)
    for path, index in indexes.items():
        if index.sizes.tolist() != list(lengths.values()):
            raise InputError(
                f"{path}: its records have {index.sizes[0]} tokens and {index.sizes[1]} masked positions. Give "
                "--max_seq_length and --max_predictions_per_seq these values."
            )
        if for_packing and index.first_hole:
            raise InputError(
                f"{path}: record {index.first_hole}: input_mask must be ones, then zeros. Such instances cannot be "
                "packed; train without --packing."
            )
    return [indexes[path] for path in files]


def save_index(path: str, index: ShardIndex) -> None:
    """Writes the index of a file; where that is not allowed, every training makes it anew."""
    with contextlib.suppress(InputError, PermissionError), atomic_path(index_path(path)) as temporary:
        with open(temporary, "wb") as file:
            np.savez(file, **index._asdict())


def total(files: list[str], indexes: list[ShardIndex], vocabulary_size: int) -> RecordStatistics:
    """Adds up what is known of files.

    Raises:
        InputError: there is no record at all, or one holds an id that the vocabulary has not. A graph on GPU or TPU
            does not check ids: one outside its table gives NaN or another row, without an error.
    """
    answer_counts = np.zeros(vocabulary_size, np.int64)
    for path, index in zip(files, indexes, strict=True):
        for name, (highest, record) in zip(_VOCABULARY_FEATURES, index.highest.tolist(), strict=True):
            if highest >= vocabulary_size:
                raise _out_of_range(f"{path}: record {record}", name, vocabulary_size, highest)
        answer_counts[: len(index.answer_counts)] += index.answer_counts
    num_records = sum(int(index.num_records) for index in indexes)
    if not num_records:
        raise InputError(f"{', '.join(files)}: no record. Create the data again with bert-create-pretraining-data.")
    return RecordStatistics(
        num_records=num_records,
        num_real_tokens=sum(int(index.num_real_tokens) for index in indexes),
        answer_counts=answer_counts,
        next_sentence_counts=sum(index.next_sentence_counts for index in indexes),
        checksum=zlib.crc32(np.array([index.checksum for index in indexes], "<u4")),
    )


def _load(path: str) -> ShardIndex | None:
    """Returns the index of a file; None if there is none, or if it is damaged or of another file."""
    try:
        with open_file(index_path(path)) as file, np.load(file) as stored:
            index = ShardIndex(*(stored[name] for name in ShardIndex._fields))
            return index if index.fingerprint.tolist() == _fingerprint(path) else None
    except (OSError, ValueError, KeyError, EOFError, zlib.error, zipfile.BadZipFile):
        return None


def _fingerprint(path: str) -> list[int]:
    """Returns the size of a file, the CRC-32 of its first, middle and last bytes, and `GROUP`."""
    with open_file(path) as file:
        size, checksum = file.seek(0, os.SEEK_END), 0
        for start in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
            file.seek(start)
            checksum = zlib.crc32(file.read(_SAMPLE_BYTES), checksum)
    return [size, checksum, GROUP]


# === Making an index ===


def _scan(path: str, lengths: dict[str, int], report: Callable[[int], object]) -> ShardIndex:
    """Reads and checks every record of a file."""
    # The number that each feature must be less than.
    limits = {"token_ids": _HIGHEST_ID, "padding_mask": 2, "segment_ids": 2, "mask_ids": _HIGHEST_ID}
    limits |= {"mask_positions": lengths["max_seq_length"], "mask_weights": np.inf, "next_sentence_labels": 2}
    count = checksum = first_hole = 0
    highest = np.zeros((len(_VOCABULARY_FEATURES), 2), np.int64)
    answer_counts, next_sentence_counts = np.zeros(1, np.int64), np.zeros(2, np.int64)
    parts = [(np.zeros(0, np.int32),) * 3]  # Bytes, lengths and masked positions of records.
    for batch in _parsed_batches(path, lengths):
        _check_values(path, count + 1, batch, limits)
        for place, name in enumerate(_VOCABULARY_FEATURES):
            of_records = batch[name].max(axis=1)
            if of_records.max() > highest[place, 0]:
                highest[place] = of_records.max(), count + 1 + np.argmax(of_records)
        is_masked, is_real = batch["mask_weights"] > 0, batch["padding_mask"] > 0
        answers = np.bincount(batch["mask_ids"][is_masked], minlength=len(answer_counts))
        answers[: len(answer_counts)] += answer_counts
        answer_counts = answers
        next_sentence_counts += np.bincount(batch["next_sentence_labels"], minlength=2)
        for name in FEATURE_NAMES:
            checksum = zlib.crc32(np.ascontiguousarray(batch[name]), checksum)
        sizes = is_real.sum(axis=1, dtype=np.int32)
        has_hole = (is_real != (np.arange(is_real.shape[1]) < sizes[:, np.newaxis])).any(axis=1)
        if has_hole.any() and not first_hole:
            first_hole = count + 1 + int(np.argmax(has_hole))
        parts.append((batch["bytes"], sizes, is_masked.sum(axis=1, dtype=np.int32)))
        count += len(sizes)
        report(len(sizes))
    record_bytes, sizes, masked = map(np.concatenate, zip(*parts, strict=True))
    ends = np.cumsum(record_bytes + _FRAME_BYTES, dtype=np.int64)
    return ShardIndex(
        fingerprint=np.array(_fingerprint(path), np.int64),
        sizes=np.array(list(lengths.values()), np.int64),
        num_records=np.int64(count),
        num_real_tokens=sizes.sum(dtype=np.int64),
        checksum=np.int64(checksum),
        highest=highest,
        first_hole=np.int64(first_hole),
        answer_counts=answer_counts,
        next_sentence_counts=next_sentence_counts,
        offsets=np.concatenate([np.zeros(1, np.int64), ends])[:-1][::GROUP],
        lengths=sizes,
        masked=masked,
        rows=np.zeros(0, np.int16),
    )


def _parsed_batches(path: str, lengths: dict[str, int]) -> Iterator[dict[str, np.ndarray]]:
    @tf.autograph.experimental.do_not_convert
    def parse(serialized):
        features, labels = parse_records(serialized, **lengths)
        return {"bytes": tf.strings.length(serialized), **features, **labels}

    dataset = tf.data.TFRecordDataset(path).batch(_SCAN_BATCH_SIZE).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    try:
        yield from dataset.prefetch(2).as_numpy_iterator()
    except (tf.errors.OpError, UnicodeDecodeError) as error:  # The latter: TensorFlow quotes a record's bytes as text.
        explain_failure(path, feature_lengths(**lengths))
        raise InputError(f"{path}: cannot be read as TFRecord ({error}).") from error


def _check_values(path: str, first_record: int, batch: dict[str, np.ndarray], limits: dict[str, float]) -> None:
    for name, limit in limits.items():
        values = batch[name]
        if values.min() >= 0 and values.max() < limit:  # False for NaN.
            continue
        is_wrong = ~((values >= 0) & (values < limit))
        row = int(np.argmax(is_wrong.reshape(len(values), -1).any(axis=1)))
        where = f"{path}: record {first_record + row}"
        if np.all(values[row] == ABSENT):
            raise InputError(lacking(where, name))
        raise _out_of_range(where, name, limit, values[row][is_wrong[row]][0])


def _out_of_range(where: str, name: str, limit: float, value: float) -> InputError:
    return InputError(
        f"{where}: {FEATURE_NAMES[name][0]} must lie in [0, {limit}). Received: {value}. "
        "Was the data created with this vocabulary and these lengths?"
    )
