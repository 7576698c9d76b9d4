"""Batches of pre-training instances from TFRecord files.

B: batch, S: `max_seq_length`, P: `max_predictions_per_seq`, K: instances of a packed row at most.
"""

from collections.abc import Callable

import tensorflow as tf

from tasks.pretraining.data.masking import MaskingRules
from tasks.pretraining.data.records import parse_records
from tasks.pretraining.train.dynamic_masking import mask_again, record_seeds
from tasks.pretraining.train.packed_data import PackingPlan, pack_instances, row_dataset_maker

# Records that are shuffled together; about 0.9 kB each at 128 tokens and 20 predictions.
_SHUFFLE_BLOCK = 16384


def train_dataset_maker(
    files: list[str],
    *,
    num_records: int,
    batch_size: int,
    random_seed: int,
    masking: MaskingRules | None = None,
    packing: PackingPlan | None = None,
    **lengths: int,
) -> Callable[[int], tf.data.Dataset]:
    """Returns `make_dataset(start_step)`, the endless stream of training batches from a step on.

    The order of an epoch is a pure function of (`random_seed`, epoch), independent of TensorFlow's global seed and of
    the number of threads. So `make_dataset(n)` continues exactly where `make_dataset(0)` stands after n batches. Files
    are shuffled, then records, or packed rows of them, in blocks. Batches cross the end of an epoch.

    Args:
        files: TFRecord paths.
        num_records: int, records in all of them (`scan_records` counts them).
        batch_size: int, B, examples of one step on all replicas together; packed: rows.
        masking: the rules of dynamic masking; None: the masks that the records hold. A record's masks are a function
            of (`random_seed`, epoch, its place in the epoch's order).
        packing: the plan of these files; None: one instance a row.
        **lengths: `max_seq_length` and `max_predictions_per_seq` of the records.

    Returns:
        A function from a step (int) to a `tf.data.Dataset` of what `parse_records`, or `pack_instances`, returns.

    Raises:
        ValueError: `packing` was planned without `masking`, or for other rules: rows may lack room for masks.
    """
    if packing and not packing.has_room_for(masking):
        raise ValueError(f"`packing` must be planned for `masking`. Received: {packing.masking} and {masking}")
    read = _reader(packing, masking, random_seed, **lengths)
    make_units = _unit_maker(files, packing)
    stateless_shuffle = tf.random.experimental.stateless_shuffle
    units_per_epoch = packing.num_rows if packing else num_records
    block_size = max(1, _SHUFFLE_BLOCK * units_per_epoch // num_records)

    @tf.autograph.experimental.do_not_convert
    def epoch_units(epoch):
        seed = tf.stack([tf.constant(random_seed, tf.int64), epoch])

        def shuffle_block(index, block):
            return stateless_shuffle(block, tf.random.fold_in(seed, index))

        ordered = make_units(stateless_shuffle(tf.range(len(files)), seed))
        return ordered.batch(block_size).enumerate().map(shuffle_block).unbatch()

    def make_dataset(start_step: int) -> tf.data.Dataset:
        first = start_step * batch_size
        first_epoch, skipped = divmod(first, units_per_epoch)
        units = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_units).skip(skipped)
        return _map(read, units.enumerate(first).batch(batch_size, drop_remainder=True))

    return make_dataset


def make_eval_dataset(
    files: list[str], *, num_records: int, batch_size: int, packing: PackingPlan | None = None, **lengths: int
) -> tf.data.Dataset:
    """Returns every record once, in the files' order, with its stored masks; the last batch may be smaller.

    Args: as in `train_dataset_maker`; `num_records` makes the dataset's cardinality known.
    """
    units = _unit_maker(files, packing)(tf.range(len(files)))
    units = units.apply(tf.data.experimental.assert_cardinality(packing.num_rows if packing else num_records))
    return _map(_reader(packing, **lengths), units.enumerate().batch(batch_size))


def _unit_maker(files: list[str], packing: PackingPlan | None) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """Returns a function from an order of the files, int32 of shape (files,), to serialized records or rows of them."""
    if packing:
        return row_dataset_maker(files, packing)
    paths = tf.constant(files)
    return lambda order: tf.data.TFRecordDataset(tf.gather(paths, order))


def _reader(
    packing: PackingPlan | None, masking: MaskingRules | None = None, random_seed: int = 0, **lengths: int
) -> Callable[[tf.Tensor, tf.Tensor], tuple[dict, dict]]:
    """Returns a graph function from serialized units and their numbers in the stream to features and labels."""

    def instances(numbers, serialized):
        features, labels = parse_records(serialized, **lengths)
        if masking is None:
            return features, labels
        return mask_again(features, labels, masking, record_seeds(random_seed, numbers))

    def rows(numbers, serialized):
        slots = tf.where(serialized != "")  # [n, 2], row and place in it; an empty record ends a row
        numbers = tf.gather(numbers, slots[:, 0]) * packing.examples_per_row + slots[:, 1]
        features, labels = instances(numbers, tf.gather_nd(serialized, slots))
        return pack_instances(features, labels, slots[:, 0], serialized.shape[0] or tf.shape(serialized)[0], packing)

    return instances if packing is None else rows


def _map(read: Callable, batches: tf.data.Dataset) -> tf.data.Dataset:
    read = tf.autograph.experimental.do_not_convert(read)
    return batches.map(read, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
