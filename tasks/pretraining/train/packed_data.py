"""Packing: several instances in one row of `max_seq_length` tokens (Krell et al. 2021).

Which instances share a row is decided once, over windows of records as they follow each other in the files, where
they are shuffled. It stays the same in every epoch: attention keeps the instances of a row apart, so a row only decides
which of them share a batch, and rows are shuffled every epoch. An epoch thus has the same number of rows
every time, and resuming stays a matter of counting. The plan keeps 2 bytes a record.

N: records, R: rows, S: `max_seq_length`, P: `max_predictions_per_seq`, K: instances of a row at most, Q: masked
positions of a row at most, n: instances of a batch of rows.
"""

import dataclasses
import math
import operator
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tasks.pretraining.data.masking import MaskingRules, num_to_mask
from tasks.pretraining.data.records import RecordSizes
from tasks.text.parallel import progress_bar

# Records that are packed together: from a few hundred on, rows are 99% full; the number fits int16.
WINDOW = 4096
# A row's masked positions over those of a row of average instances. Without a bound on them a row of the shortest
# instances, which have one masked token in five, would widen every row's masked-LM logits.
_MASKED_SLACK = 1.04


@dataclasses.dataclass(frozen=True)
class PackingPlan:
    """The records that share a row, and the sizes that follow.

    Attributes:
        row_of_record: int16, shape (N,), number of the record's row within its window, in the files' order.
        records_per_file: tuple of int.
        num_rows: int, rows of an epoch.
        num_real_tokens: int.
        max_seq_length: int, S.
        examples_per_row: int, K.
        predictions_per_row: int, Q.
        masking: the rules of dynamic masking that rows have room for; None: they have room for the stored masks only.
    """

    row_of_record: np.ndarray
    records_per_file: tuple[int, ...]
    num_rows: int
    num_real_tokens: int
    max_seq_length: int
    examples_per_row: int
    predictions_per_row: int
    masking: MaskingRules | None = None

    @property
    def num_records(self) -> int:
        return len(self.row_of_record)

    def has_room_for(self, masking: MaskingRules | None) -> bool:
        """Returns whether rows have room for masks drawn by these rules, or without rules for the stored ones."""
        amount = operator.attrgetter("masked_lm_prob", "max_predictions_per_seq")
        return masking is None or (self.masking is not None and amount(masking) == amount(self.masking))

    @property
    def real_token_share_before(self) -> float:
        """Share of the positions that hold a real token when every instance has a row of its own."""
        return self.num_real_tokens / (self.num_records * self.max_seq_length)

    @property
    def real_token_share_after(self) -> float:
        """The same, packed."""
        return self.num_real_tokens / (self.num_rows * self.max_seq_length)


# === Planning ===


def plan_packing(sizes: list[RecordSizes], *, max_seq_length: int, masking: MaskingRules | None = None) -> PackingPlan:
    """Decides which records share a row: a function of their sizes alone.

    Args:
        sizes: of the records of each file, in the files' order; at least one record.
        masking: the rules of dynamic masking, if any: rows get room for whichever masks more, these or the stored ones.
    """
    if masking is not None:
        sizes = [RecordSizes(one.lengths, np.maximum(one.masked, num_to_mask(one.lengths, masking))) for one in sizes]
    num_real_tokens, num_masked = (sum(int(part.sum()) for part in parts) for parts in zip(*sizes, strict=True))
    most_masked = max(int(one.masked.max(initial=0)) for one in sizes)
    bound = max(most_masked, math.ceil(max_seq_length * num_masked / num_real_tokens * _MASKED_SLACK))
    parts, num_rows, examples, predictions = [], 0, 1, 1
    records_per_file = tuple(len(one.lengths) for one in sizes)
    with progress_bar("plan rows", "record", sum(records_per_file)) as progress:
        for lengths, masked in sizes:
            for start in range(0, len(lengths), WINDOW):
                window = slice(start, start + WINDOW)
                rows = pack_window(lengths[window], masked[window], max_seq_length, bound)
                parts.append(rows)
                num_rows += int(rows.max()) + 1
                examples = max(examples, int(np.bincount(rows).max()))
                predictions = max(predictions, int(np.bincount(rows, masked[window]).max()))
                progress.update(len(rows))
    return PackingPlan(
        row_of_record=np.concatenate(parts),
        records_per_file=records_per_file,
        num_rows=num_rows,
        num_real_tokens=num_real_tokens,
        max_seq_length=max_seq_length,
        examples_per_row=examples,
        predictions_per_row=predictions,
        masking=masking,
    )


def pack_window(lengths: np.ndarray, masked: np.ndarray, max_length: int, max_masked: int) -> np.ndarray:
    """Packs best fit: the longest record first, each into the fullest row with room for its tokens and masks.

    Args:
        lengths, masked: int, shape (w,), tokens and masked positions of each record; at most the bounds.

    Returns:
        int16, shape (w,), the row of each record; rows are numbered in the order of their first records.
    """
    rows = np.empty(len(lengths), np.int64)
    with_space: list[list[int]] = [[] for _ in range(max_length + 1)]  # Rows by the tokens that they have room for.
    has_any = 0  # Bit s: with_space[s] is not empty.
    masked_left: list[int] = []
    for record in np.argsort(-lengths.astype(np.int64), kind="stable").tolist():
        length, num_masked = int(lengths[record]), int(masked[record])
        candidates = has_any >> length << length
        while candidates:
            space = (candidates & -candidates).bit_length() - 1
            if masked_left[with_space[space][-1]] >= num_masked:
                row = with_space[space].pop()
                has_any ^= 0 if with_space[space] else 1 << space
                break
            candidates &= candidates - 1
        else:
            row, space = len(masked_left), max_length
            masked_left.append(max_masked)
        rows[record] = row
        masked_left[row] -= num_masked
        with_space[space - length].append(row)
        has_any |= 1 << (space - length)
    _, firsts, inverse = np.unique(rows, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts))[inverse].astype(np.int16)


# === Reading ===


def row_dataset_maker(files: list[str], plan: PackingPlan) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Returns `make_rows(order)`: the rows of an epoch, window by window.

    Args:
        files: as planned.

    Returns:
        A function from the order of the files, int32 of shape (files,), to a dataset of string tensors of shape (K,):
        the serialized records of a row, then empty strings.
    """
    # Eager constants: inside a graph they would count towards its limit of 2 GB.
    paths, row_of_record = tf.constant(files), tf.constant(plan.row_of_record)
    starts = tf.constant(np.cumsum([0, *plan.records_per_file[:-1]]))

    @tf.autograph.experimental.do_not_convert
    def rows_of_file(number):
        def rows_of_window(index, records):
            start = starts[number] + index * WINDOW
            rows = tf.cast(row_of_record[start : start + tf.size(records, tf.int64)], tf.int64)
            by_row = tf.argsort(rows, stable=True)
            ragged = tf.RaggedTensor.from_value_rowids(tf.gather(records, by_row), tf.gather(rows, by_row))
            return ragged.to_tensor("", shape=[None, plan.examples_per_row])

        return tf.data.TFRecordDataset(paths[number]).batch(WINDOW).enumerate().map(rows_of_window).unbatch()

    return lambda order: tf.data.Dataset.from_tensor_slices(order).flat_map(rows_of_file)


def pack_instances(
    features: dict[str, tf.Tensor], labels: dict[str, tf.Tensor], rows: tf.Tensor, num_rows, plan: PackingPlan
) -> tuple[dict, dict]:
    """Concatenates instances into rows, in tf.data on the host.

    Args:
        features, labels: of n instances, as `parse_records` returns them, ordered by row.
        rows: int64, shape (n,), the row of each, ascending from 0; none is empty.
        num_rows: int or int scalar tensor, R.

    Returns:
        features: dict of int32 tensors: `token_ids`, `segment_ids` and `padding_mask` (R, S), where the latter holds
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
        """Values `[n]`, or `counts` `[n]` of them for each instance in one flat tensor, to `[R, width]`."""
        counts = per_row if counts is None else tf.math.segment_sum(counts, rows)
        return tf.RaggedTensor.from_row_lengths(values, counts).to_tensor(shape=[num_rows, width])

    def lay_tokens(values):
        return lay(tf.boolean_mask(values, is_real), plan.max_seq_length, lengths)

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
