"""Serializes instances as TFRecord, a batch at a time, without TensorFlow.

A record is a `tf.train.Example` (protocol buffers' wire format) with google-research/bert's feature names
(create_pretraining_data.py:105-141), in the frame of TFRecord: length, checksum, bytes, checksum. Both are written
column by column: the same byte of all records of the batch at once.

B: records of the batch, S: `max_seq_length`, P: `max_predictions_per_seq`.
"""

import functools
from typing import NamedTuple

import numpy as np

from tasks.pretraining.data.masking import MaskedBatch
from tasks.pretraining.data.record_names import FEATURE_NAMES

_LENGTH_DELIMITED = 2  # A wire type.
_INT64_LIST, _FLOAT_LIST = 3, 2  # Fields of `tf.train.Feature`.
_CRC32C = 0x82F63B78  # Castagnoli's polynomial, lowest bit first.
_MASK_DELTA = np.uint32(0xA282EAD8)  # tensorflow/core/lib/hash/crc32c.h


class _Columns(NamedTuple):
    """Bytes of the records of a batch, uint8 and bool of shape (B, width); only those `used` are written."""

    values: np.ndarray
    used: np.ndarray

    def sizes(self) -> np.ndarray:
        return self.used.sum(axis=1)


def instance_features(
    batch: MaskedBatch, lengths: np.ndarray, first_lengths: np.ndarray, is_random_next: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the features of instances under our names, as training reads them.

    Args:
        batch: MaskedBatch.
        lengths, first_lengths: int64, shape (B,), as `writing.build_tokens` returns them.
        is_random_next: int64, shape (B,); label 1 means a random second segment, 0 the actual next one.

    Returns:
        A dict of `token_ids`, `padding_mask`, `segment_ids` (B, S), `mask_positions`, `mask_ids`, `mask_weights`
        (B, P) and `next_sentence_labels` (B,): int32, but float32 for `mask_weights`.
    """
    columns = np.arange(batch.token_ids.shape[1])
    is_real = columns < lengths[:, np.newaxis]
    is_masked = np.arange(batch.mask_ids.shape[1]) < batch.num_masked[:, np.newaxis]
    return {
        "token_ids": batch.token_ids,
        "padding_mask": is_real.astype(np.int32),
        "segment_ids": (is_real & (columns >= first_lengths[:, np.newaxis])).astype(np.int32),
        "mask_positions": batch.mask_positions,
        "mask_ids": batch.mask_ids,
        "mask_weights": is_masked.astype("<f4"),
        "next_sentence_labels": is_random_next.astype(np.int32),
    }


def serialize_batch(features: dict[str, np.ndarray]) -> tuple[bytes, np.ndarray]:
    """Serializes instances as framed records.

    Args:
        features: return value of `instance_features`.

    Returns:
        The bytes of the records, one after another, and the size of each without its frame: int64, shape (B,).
    """
    columns = []
    for name in FEATURE_NAMES:
        numbers = features[name].reshape(len(features[name]), -1)
        if name == "mask_weights":
            weights = numbers.view(np.uint8)
            columns.append(_feature(name, _FLOAT_LIST, _Columns(weights, np.ones_like(weights, bool))))
        else:
            columns.append(_feature(name, _INT64_LIST, _varints(numbers)))
    records = _message(1, _join(columns))
    framed = _frame(records)
    return framed.values[framed.used].tobytes(), records.sizes()


# === Protocol buffers ===


def _varints(numbers: np.ndarray) -> _Columns:
    """Encodes numbers that are not negative: base 128, lowest digit first, the high bit set on all but the last."""
    width = max(1, -(-int(numbers.max()).bit_length() // 7))
    shifts = 7 * np.arange(width)
    digits = numbers.astype(np.int64)[..., np.newaxis] >> shifts
    used = (digits > 0) | (shifts == 0)
    has_more = np.concatenate([used[..., 1:], np.zeros_like(used[..., :1])], axis=-1)
    values = ((digits & 0x7F) | (has_more << 7)).astype(np.uint8)
    return _Columns(values.reshape(len(numbers), -1), used.reshape(len(numbers), -1))


def _join(columns: list[_Columns]) -> _Columns:
    values, used = zip(*columns, strict=True)
    return _Columns(np.concatenate(values, axis=1), np.concatenate(used, axis=1))


def _constant(content: bytes, num_rows: int) -> _Columns:
    values = np.broadcast_to(np.frombuffer(content, np.uint8), (num_rows, len(content)))
    return _Columns(values, np.ones_like(values, bool))


def _message(field: int, content: _Columns) -> _Columns:
    """Encodes a field that holds other fields, or packed numbers: its tag, its length, its content."""
    tag = _constant(bytes([field << 3 | _LENGTH_DELIMITED]), len(content.values))
    return _join([tag, _varints(content.sizes()[:, np.newaxis]), content])


def _feature(name: str, kind: int, numbers: _Columns) -> _Columns:
    """Encodes an entry of the map `Features.feature`: field 1 is the name, field 2 the list of numbers."""
    key = _message(1, _constant(FEATURE_NAMES[name][0].encode(), len(numbers.values)))
    return _message(1, _join([key, _message(2, _message(kind, _message(1, numbers)))]))


# === TFRecord ===


def _frame(records: _Columns) -> _Columns:
    sizes = records.sizes()
    width = (int(sizes.max()) + 3) // 2 * 2  # Even, and room for the four bytes that `_masked_crc` changes.
    used = np.arange(width) >= width - sizes[:, np.newaxis]
    aligned = np.zeros((len(sizes), width), np.uint8)
    aligned[used] = records.values[records.used]
    length = sizes.astype("<u8").view(np.uint8).reshape(-1, 8)
    fields = [length, _masked_crc(length, np.full_like(sizes, 8)), aligned, _masked_crc(aligned, sizes)]
    used = [used if field is aligned else np.ones_like(field, bool) for field in fields]
    return _join([_Columns(*pair) for pair in zip(fields, used, strict=True)])


def _masked_crc(aligned: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Computes the masked CRC-32C of records of at least four bytes: uint8, shape (B, 4).

    The records end at the right edge, with zeros before them. Zeros leave a register of zero unchanged, and starting
    from all ones, as CRC-32C does, equals flipping the first four bytes.

    Args:
        aligned: uint8, shape (B, width), width even.
        sizes: int64, shape (B,).
    """
    flipped = aligned.copy()
    first = aligned.shape[1] - sizes
    flipped[np.arange(len(aligned))[:, np.newaxis], first[:, np.newaxis] + np.arange(4)] ^= 0xFF
    pairs = np.ascontiguousarray(flipped.view("<u2").T)
    table = _crc_table()
    crc = np.zeros(len(aligned), np.uint32)
    for pair in pairs:
        crc = table[(crc ^ pair) & np.uint32(0xFFFF)] ^ (crc >> np.uint32(16))
    crc = ~crc
    masked = ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK_DELTA
    return masked.astype("<u4").view(np.uint8).reshape(-1, 4)


@functools.lru_cache(maxsize=1)
def _crc_table() -> np.ndarray:
    """Returns the change of the register for each value of two bytes: uint32, shape (65536,)."""
    table = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        table = (table >> np.uint32(1)) ^ (np.uint32(_CRC32C) * (table & np.uint32(1)))
    return table
