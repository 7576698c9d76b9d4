"""Reads and writes the index of a TFRecord file of pre-training instances: what a training must know before it starts.

An index is stored beside its file, as `.NAME.index.npz`. bert-create-pretraining-data writes it with the data. For
other files, the first training makes it, on all cores, and checks every record. With an index, a training starts at
once, at any record.

N: records, G: groups of `GROUP` records, V: vocabulary.
"""

import concurrent.futures
import contextlib
import functools
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, open_file
from tasks.pretraining.data.record_names import FEATURE_NAMES
from tasks.settings import available_cores
from tasks.text.parallel import progress_bar

GROUP = 128
_SCAN_BATCH_SIZE = 8 * GROUP
_FRAME_BYTES = 16  # Bytes around the content of a TFRecord.
_SAMPLE_BYTES = 4096
_HIGHEST_ID = 1 << 22  # More than any vocabulary has. It bounds the memory of the counts, which grows with the ids.
_VOCABULARY_FEATURES = ("token_ids", "mask_ids")


class ShardIndex(NamedTuple):
    """The index of a file. Scalars are int64 arrays of shape ().

    Attributes:
        fingerprint: int64, shape (3,), size of the file, CRC-32 of samples of it, and `GROUP`: these tell whether the
            index still fits the file.
        sizes: int64, shape (2,), `max_seq_length` and `max_predictions_per_seq` of the records.
        checksum: CRC-32 of the CRC-32 of each record's numbers.
        highest: int64, shape (2, 2), the highest `token_ids` and `mask_ids`, each with its record, from 1.
        answer_counts: int64, shape (highest answer + 1,), how often each WordPiece is the answer at a masked position.
        next_sentence_counts: int64, shape (2,), how often the second segment is the actual next one, and a random one.
        offsets: int64, shape (G,), offset of each group in the file, in bytes.
        lengths: int32, shape (N,), number of tokens of each record that are not padding.
        masked: int32, shape (N,), number of masked positions of each record.
        vocabulary: CRC-32 of the vocabulary, as in `tokenizer_identity`; -1 if the writer of the file did not say it.
    """

    fingerprint: np.ndarray
    sizes: np.ndarray
    checksum: np.ndarray
    highest: np.ndarray
    answer_counts: np.ndarray
    next_sentence_counts: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray
    masked: np.ndarray
    vocabulary: np.ndarray = np.int64(-1)


class Records(NamedTuple):
    """Files of records, with their indexes and sums over them.

    Attributes:
        files: TFRecord paths.
        indexes: indexes of these files.
        lengths: `max_seq_length` and `max_predictions_per_seq`, by name.
        num_records, num_real_tokens: numbers of records and of tokens that are not padding.
        answer_counts, next_sentence_counts: as in `ShardIndex`, the former of shape (V,).
        checksum: int, CRC-32 of the files' checksums.
    """

    files: list[str]
    indexes: list[ShardIndex]
    lengths: dict[str, int]
    num_records: int
    num_real_tokens: int
    answer_counts: np.ndarray
    next_sentence_counts: np.ndarray
    checksum: int


def index_path(path: str) -> str:
    """Returns the path of a file's index."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.index.npz")


def read_indexes(files: list[str], **lengths: int) -> list[ShardIndex]:
    """Reads the indexes of files, and makes those that are missing or belong to other files.

    Args:
        files: TFRecord paths.
        **lengths: `max_seq_length` and `max_predictions_per_seq` of the records.

    Raises:
        InputError: a file cannot be opened; or a record is corrupt, lacks a feature, differs in its lengths from
            `lengths`, or has a number out of range or padding before a token. The message names file and record, from
            1.
    """
    indexes = {path: _load(path) for path in files}
    if missing := [path for path, index in indexes.items() if index is None]:
        with (
            progress_bar("check records", "record") as progress,
            concurrent.futures.ThreadPoolExecutor(min(len(missing), available_cores())) as pool,
        ):
            scan = functools.partial(_scan, lengths=lengths, report=progress.update)
            for path, index in zip(missing, pool.map(scan, missing), strict=True):
                indexes[path] = index
                # Without the permission to write it, every training makes it again.
                with contextlib.suppress(InputError, PermissionError):
                    write_arrays(index_path(path), index)
    for path, index in indexes.items():
        if index.sizes.tolist() != list(lengths.values()):
            raise InputError(
                f"{path}: its records have {index.sizes[0]} tokens and {index.sizes[1]} masked positions. Give "
                "--max_seq_length and --max_predictions_per_seq these values."
            )
    return [indexes[path] for path in files]


def write_arrays(path: str, arrays: NamedTuple) -> None:
    """Writes an index, or figures of records, atomically."""
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays._asdict())


def read_arrays(path: str, kind: type[NamedTuple]) -> NamedTuple:
    """Reads the arrays that `write_arrays` has written, of a `ShardIndex` or `RecordFigures`."""
    with open_file(path) as file, np.load(file) as stored:
        return kind(**{name: stored[name] for name in kind._fields if name in stored})


def read_records(files: list[str], vocabulary_size: int, **lengths: int) -> Records:
    """Reads the indexes of files, and adds up their figures.

    Args:
        files, lengths: as in `read_indexes`.
        vocabulary_size: int, V.

    Raises:
        InputError: as in `read_indexes`; or there is no record at all, or a record has an id outside the vocabulary. (A
            graph on GPU or TPU does not check ids: one outside the table gives NaN or another row, without an error.)
    """
    indexes, answer_counts = read_indexes(files, **lengths), np.zeros(vocabulary_size, np.int64)
    for path, index in zip(files, indexes, strict=True):
        for name, (highest, record) in zip(_VOCABULARY_FEATURES, index.highest.tolist(), strict=True):
            if highest >= vocabulary_size:
                raise _out_of_range(f"{path}: record {record}", name, vocabulary_size, highest)
        answer_counts[: len(index.answer_counts)] += index.answer_counts
    num_records = sum(len(index.lengths) for index in indexes)
    if not num_records:
        raise InputError(f"{', '.join(files)}: no record. Create the data again with bert-create-pretraining-data.")
    return Records(
        files=files,
        indexes=indexes,
        lengths=lengths,
        num_records=num_records,
        num_real_tokens=sum(int(index.lengths.sum(dtype=np.int64)) for index in indexes),
        answer_counts=answer_counts,
        next_sentence_counts=sum(index.next_sentence_counts for index in indexes),
        checksum=zlib.crc32(np.array([index.checksum for index in indexes], "<u4")),
    )


def _load(path: str) -> ShardIndex | None:
    """Returns the index of a file; None if there is none, or if it is damaged or belongs to another file."""
    try:
        index = read_arrays(index_path(path), ShardIndex)
        return index if index.fingerprint.tolist() == _fingerprint(path) else None
    except (OSError, ValueError, TypeError, EOFError, zlib.error, zipfile.BadZipFile):
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


class RecordFigures(NamedTuple):
    """Figures of consecutive records, from which an index is made.

    Attributes:
        record_bytes, lengths, masked: int32, shape (N,), the numbers of bytes (without the frame), of tokens that are
            not padding, and of masked positions of each record.
        checksums: uint32, shape (N,), CRC-32 of the numbers of each record.
        highest, answer_counts, next_sentence_counts: as in `ShardIndex`.
    """

    record_bytes: np.ndarray
    lengths: np.ndarray
    masked: np.ndarray
    checksums: np.ndarray
    highest: np.ndarray
    answer_counts: np.ndarray
    next_sentence_counts: np.ndarray

    @classmethod
    def of(cls, batch: dict[str, np.ndarray], record_bytes: np.ndarray) -> "RecordFigures":
        """Describes a batch of records.

        Args:
            batch: all features of the records, as `record_bytes.instance_features` returns them.
            record_bytes: int, shape (N,), size of each record without its frame.
        """
        is_masked, lengths = batch["mask_weights"] > 0, batch["padding_mask"].sum(axis=1, dtype=np.int32)
        most = [batch[name].max(axis=1) for name in _VOCABULARY_FEATURES]
        features = [np.ascontiguousarray(batch[name]).reshape(len(lengths), -1) for name in FEATURE_NAMES]
        rows = np.concatenate([feature.view(np.uint8) for feature in features], axis=1)
        return cls(
            record_bytes=record_bytes.astype(np.int32),
            lengths=lengths,
            masked=is_masked.sum(axis=1, dtype=np.int32),
            checksums=np.fromiter(map(zlib.crc32, rows), np.uint32, len(rows)),
            highest=np.array([[ids.max(), 1 + np.argmax(ids)] for ids in most], np.int64),
            answer_counts=np.bincount(batch["mask_ids"][is_masked], minlength=1),
            next_sentence_counts=np.bincount(batch["next_sentence_labels"], minlength=2),
        )

    @classmethod
    def join(cls, parts: Iterable["RecordFigures"]) -> "RecordFigures":
        """Joins the figures of consecutive parts of a file."""
        highest = np.zeros((len(_VOCABULARY_FEATURES), 2), np.int64)
        answer_counts, next_sentence_counts = np.zeros(1, np.int64), np.zeros(2, np.int64)
        count = 0
        arrays = [(np.zeros(0, np.int32),) * 3 + (np.zeros(0, np.uint32),)]
        for part in parts:
            of_part = part.highest + [0, count]
            highest = np.where(of_part[:, :1] > highest[:, :1], of_part, highest)
            answer_counts = np.pad(answer_counts, (0, max(0, len(part.answer_counts) - len(answer_counts))))
            answer_counts[: len(part.answer_counts)] += part.answer_counts
            next_sentence_counts = next_sentence_counts + part.next_sentence_counts
            arrays.append(part[:4])
            count += len(part.lengths)
        joined = map(np.concatenate, zip(*arrays, strict=True))
        return cls(*joined, highest, answer_counts, next_sentence_counts)


def make_index(path: str, figures: RecordFigures, sizes: tuple[int, int], vocabulary: int = -1) -> ShardIndex:
    """Returns the index of a file from the figures of its records. Reads only the file's fingerprint."""
    ends = np.cumsum(figures.record_bytes + _FRAME_BYTES, dtype=np.int64)
    return ShardIndex(
        fingerprint=np.array(_fingerprint(path), np.int64),
        sizes=np.array(sizes, np.int64),
        checksum=np.int64(zlib.crc32(figures.checksums.astype("<u4"))),
        offsets=np.concatenate([np.zeros(1, np.int64), ends])[:-1][::GROUP],
        vocabulary=np.int64(vocabulary),
        **{name: value for name, value in figures._asdict().items() if name in ShardIndex._fields},
    )


def _scan(path: str, lengths: dict[str, int], report: Callable[[int], object]) -> ShardIndex:
    """Reads and checks every record of a file."""
    # Exclusive upper bound of each feature.
    limits = {"token_ids": _HIGHEST_ID, "padding_mask": 2, "segment_ids": 2, "mask_ids": _HIGHEST_ID}
    limits |= {"mask_positions": lengths["max_seq_length"], "mask_weights": np.inf, "next_sentence_labels": 2}

    def describe() -> Iterator[RecordFigures]:
        count = 0
        for batch in _parsed_batches(path, lengths):
            _check_values(path, count + 1, batch, limits)
            yield RecordFigures.of(batch, batch["bytes"])
            count += len(batch["bytes"])
            report(len(batch["bytes"]))

    return make_index(path, RecordFigures.join(describe()), tuple(lengths.values()))


def _parsed_batches(path: str, lengths: dict[str, int]) -> Iterator[dict[str, np.ndarray]]:
    import tensorflow as tf

    from tasks.pretraining.data.records import explain_failure, feature_lengths, parse_records

    @tf.autograph.experimental.do_not_convert
    def parse(serialized):
        features, labels = parse_records(serialized, **lengths)
        return {"bytes": tf.strings.length(serialized), **features, **labels}

    dataset = tf.data.TFRecordDataset(path).batch(_SCAN_BATCH_SIZE).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    try:
        yield from dataset.prefetch(2).as_numpy_iterator()
    # UnicodeDecodeError, since TensorFlow quotes a record's bytes as text.
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        explain_failure(path, feature_lengths(**lengths))
        raise InputError(f"{path}: cannot be read as TFRecord ({error}). Create or copy it again.") from error


def _check_values(path: str, first_record: int, batch: dict[str, np.ndarray], limits: dict[str, float]) -> None:
    from tasks.pretraining.data.records import ABSENT, lacking

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
    has_hole = (np.diff(batch["padding_mask"], axis=1) > 0).any(axis=1)
    if has_hole.any():
        where = f"{path}: record {first_record + np.argmax(has_hole)}"
        raise InputError(f"{where}: input_mask must be ones, then zeros. Create the data again, with padding last.")


def _out_of_range(where: str, name: str, limit: float, value: float) -> InputError:
    return InputError(
        f"{where}: {FEATURE_NAMES[name][0]} must lie in [0, {limit}). Received: {value}. "
        "Was the data created with this vocabulary and these lengths?"
    )
