"""Packs several instances into one row of `max_seq_length` tokens (Krell et al. 2021).

Rows are planned at the start, over windows of consecutive records, which are in shuffled order in the files. The plan
is the same in every epoch. Attention keeps the instances of a row apart, so a row only decides which instances share a
batch, and rows are shuffled every epoch. So all epochs have the same number of rows, and resuming remains a matter of
counting. The plan takes 2 bytes per record, and half a second for a million.

N: records, R: rows, S: `max_seq_length`, P: `max_predictions_per_seq`, K: instances of a row at most, Q: masked
positions of a row at most, n: instances of a batch of rows.
"""

import dataclasses
import math

import numpy as np
import tensorflow as tf

from tasks.pretraining.data.masking import MaskingRules, num_to_mask
from tasks.pretraining.data.shard_index import GROUP, Records
from tasks.text.parallel import progress_bar

# Records that are packed together. From a few hundred on, rows are 99% full. A multiple of `GROUP` that fits int16.
WINDOW = 4 * GROUP
# Most masked positions of a row, relative to a row of average instances. Without this bound, a row of the shortest
# instances, which have one masked token in five, would widen the masked-LM logits of every row.
_MASKED_SLACK = 1.04


@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """The records that share a row, and the sizes that follow.

    Attributes:
        row_of_record: int16, shape (N,), index of the record's row within its window, in the files' order. A file's
            last window may be smaller.
        rows_per_window: int64, shape (windows,), number of rows of each window.
        examples_per_row: int, K.
        predictions_per_row: int, Q.
    """

    row_of_record: np.ndarray
    rows_per_window: np.ndarray
    examples_per_row: int
    predictions_per_row: int

    @property
    def num_rows(self) -> int:
        """Rows of an epoch."""
        return int(self.rows_per_window.sum())


# === Planning ===


def plan_packing(records: Records, masking: MaskingRules | None = None) -> PackingPlan:
    """Decides which records share a row, by their sizes alone.

    Args:
        records: the files with their indexes.
        masking: rules of dynamic masking, if any. Rows then have room for these masks and for the stored ones.
    """
    rows, figures = [], []
    with progress_bar("plan rows", "record", records.num_records) as progress:
        for index in records.indexes:
            most = index.masked if masking is None else np.maximum(index.masked, num_to_mask(index.lengths, masking))
            for start in range(0, len(most), WINDOW):
                window = slice(start, start + WINDOW)
                row_of_record = _pack_window(index.lengths[window], most[window], records.lengths["max_seq_length"])
                num_examples, num_masked = np.bincount(row_of_record), np.bincount(row_of_record, most[window])
                rows.append(row_of_record)
                figures.append((len(num_examples), num_examples.max(), num_masked.max()))
                progress.update(len(row_of_record))
    rows_per_window, examples, predictions = np.array(figures, np.int64).T
    return PackingPlan(
        row_of_record=np.concatenate(rows),
        rows_per_window=rows_per_window,
        examples_per_row=int(examples.max()),
        predictions_per_row=int(predictions.max()),
    )


def _pack_window(lengths: np.ndarray, masked: np.ndarray, max_seq_length: int) -> np.ndarray:
    mean_share = masked.sum() / lengths.sum()
    bound = max(int(masked.max()), math.ceil(max_seq_length * mean_share * _MASKED_SLACK))
    return pack_window(lengths, masked, max_seq_length, bound)


def pack_window(lengths: np.ndarray, masked: np.ndarray, max_length: int, max_masked: int) -> np.ndarray:
    """Packs by best fit: the longest record first, each into the fullest row with room for its tokens and masks.

    Args:
        lengths, masked: int, shape (w,), tokens and masked positions of each record; at most the bounds.
        max_length, max_masked: maximum tokens and masked positions of a row.

    Returns:
        int16, shape (w,), the row of each record; rows are numbered in the order of their first records.
    """
    rows = np.empty(len(lengths), np.int64)
    with_space: list[list[int]] = [[] for _ in range(max_length + 1)]  # Rows by number of free tokens.
    has_any = 0  # Bit s: with_space[s] is not empty.
    masked_room: list[int] = []  # Number of free masked positions of each row.
    for record in np.argsort(-lengths.astype(np.int64), kind="stable").tolist():
        length, num_masked = int(lengths[record]), int(masked[record])
        candidates = has_any >> length << length
        while candidates:
            space = (candidates & -candidates).bit_length() - 1
            if masked_room[with_space[space][-1]] >= num_masked:
                row = with_space[space].pop()
                has_any ^= 0 if with_space[space] else 1 << space
                break
            candidates &= candidates - 1
        else:
            row, space = len(masked_room), max_length
            masked_room.append(max_masked)
        rows[record] = row
        masked_room[row] -= num_masked
        with_space[space - length].append(row)
        has_any |= 1 << (space - length)
    _, firsts, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts))[inverse].astype(np.int16)


# === Reading ===


def rows_of_window(records: tf.Tensor, rows: tf.Tensor, plan: PackingPlan) -> tf.Tensor:
    """Groups the serialized records of a window by their rows.

    Args:
        records: string, shape (w,).
        rows: int16, shape (w,), the row of each record.
        plan: the plan, for K.

    Returns:
        string, shape (rows, K): the records of each row, then empty strings.
    """
    rows = tf.cast(rows, tf.int64)
    by_row = tf.argsort(rows, stable=True)
    ragged = tf.RaggedTensor.from_value_rowids(tf.gather(records, by_row), tf.gather(rows, by_row))
    return ragged.to_tensor("", shape=[None, plan.examples_per_row])


def pack_instances(
    features: dict[str, tf.Tensor], labels: dict[str, tf.Tensor], rows: tf.Tensor, num_rows, plan: PackingPlan
) -> tuple[dict, dict]:
    """Concatenates instances into rows, in tf.data on the host.

    Args:
        features, labels: features and labels of n instances, as `parse_records` returns them, ordered by row.
        rows: int64, shape (n,), the row of each instance, ascending from 0; no row is empty.
        num_rows: int or int scalar tensor, R.
        plan: the plan, for K and Q.

    Returns:
        features: dict of int32 tensors: `token_ids`, `segment_ids` and `padding_mask` (R, S), of which the latter has
            the number of each token's instance in its row, from 1; `mask_positions` (R, Q); `first_positions` (R, K).
        labels: dict of `mask_ids` int32 and `mask_weights` float32 (R, Q); `next_sentence_labels` int32 and
            `next_sentence_weights` float32 (R, K), 0.0 where a row has fewer than K.
    """
    is_real = features["padding_mask"] > 0
    lengths = tf.reduce_sum(tf.cast(is_real, tf.int64), axis=1)  # [n]
    per_row = tf.math.bincount(tf.cast(rows, tf.int32), minlength=num_rows, maxlength=num_rows, dtype=tf.int64)  # [R]
    numbers = tf.ragged.range(per_row).flat_values  # [n], which instance of its row
    ends = tf.cumsum(lengths)
    row_starts = tf.gather(tf.cumsum(tf.math.segment_sum(lengths, rows), exclusive=True), rows)
    firsts = tf.cast(ends - lengths - row_starts, tf.int32)  # [n], where each begins in its row
    is_masked = labels["mask_weights"] > 0
    masked_counts = tf.reduce_sum(tf.cast(is_masked, tf.int64), axis=1)  # [n]

    def lay(values, width, counts=None):
        """Lays out values as `[R, width]`: one value per instance, or `counts` `[n]` values in one flat tensor."""
        counts = per_row if counts is None else tf.math.segment_sum(counts, rows)
        return tf.RaggedTensor.from_row_lengths(values, counts).to_tensor(shape=[num_rows, width])

    def lay_tokens(values):
        return lay(tf.boolean_mask(values, is_real), is_real.shape[1], lengths)

    def lay_masked(values):
        return lay(tf.boolean_mask(values, is_masked), plan.predictions_per_row, masked_counts)

    packed_features = {
        "token_ids": lay_tokens(features["token_ids"]),
        "segment_ids": lay_tokens(features["segment_ids"]),
        "padding_mask": lay_tokens(features["padding_mask"] * tf.cast(numbers + 1, tf.int32)[:, tf.newaxis]),
        "mask_positions": lay_masked(features["mask_positions"] + firsts[:, tf.newaxis]),
        "first_positions": lay(firsts, plan.examples_per_row),
    }
    packed_labels = {
        "mask_ids": lay_masked(labels["mask_ids"]),
        "mask_weights": lay_masked(labels["mask_weights"]),
        "next_sentence_labels": lay(labels["next_sentence_labels"], plan.examples_per_row),
        "next_sentence_weights": lay(tf.ones_like(rows, tf.float32), plan.examples_per_row),
    }
    return packed_features, packed_labels
