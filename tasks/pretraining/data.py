"""Batches of pre-training instances from TFRecord files.

B: batch, S: `max_seq_length`, P: `max_predictions_per_seq`.
"""

from collections.abc import Callable

import tensorflow as tf

from tasks.records import parse_records

# Records that are shuffled together; about 0.9 kB each at 128 tokens and 20 predictions.
_SHUFFLE_BLOCK = 16384


def train_dataset_maker(
    files: list[str],
    *,
    num_records: int,
    batch_size: int,
    max_seq_length: int,
    max_predictions_per_seq: int,
    random_seed: int,
) -> Callable[[int], tf.data.Dataset]:
    """Returns `make_dataset(start_step)`, the endless stream of training batches from a step on.

    The order of an epoch is a pure function of (`random_seed`, epoch): neither TensorFlow's global seed nor the number
    of threads has a say, so that `make_dataset(n)` continues exactly where `make_dataset(0)` stands after n batches.
    Files are shuffled, then records in blocks of `_SHUFFLE_BLOCK`. Batches run on across the end of an epoch.

    Args:
        files: TFRecord paths.
        num_records: int, records in all of them (`scan_records` counts them).
        batch_size: int, B, examples of one step on all replicas together.

    Returns:
        A function from a step (int) to a `tf.data.Dataset` of what `parse_records` returns.
    """
    lengths = {"max_seq_length": max_seq_length, "max_predictions_per_seq": max_predictions_per_seq}
    stateless_shuffle = tf.random.experimental.stateless_shuffle

    def epoch_records(epoch):
        seed = tf.stack([tf.constant(random_seed, tf.int64), epoch])

        def shuffle_block(index, block):
            return stateless_shuffle(block, tf.random.fold_in(seed, index))

        ordered = stateless_shuffle(tf.constant(files), seed)
        return tf.data.TFRecordDataset(ordered).batch(_SHUFFLE_BLOCK).enumerate().map(shuffle_block).unbatch()

    def make_dataset(start_step: int) -> tf.data.Dataset:
        first_epoch, skipped = divmod(start_step * batch_size, num_records)
        records = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_records).skip(skipped)
        return _parse_batches(records.batch(batch_size, drop_remainder=True), lengths)

    return make_dataset


def make_eval_dataset(
    files: list[str], *, num_records: int, batch_size: int, max_seq_length: int, max_predictions_per_seq: int
) -> tf.data.Dataset:
    """Every record once, in the files' order; the last batch may be smaller than the others.

    Args: as `train_dataset_maker`; `num_records` is for whoever asks the dataset how many batches it has.
    """
    lengths = {"max_seq_length": max_seq_length, "max_predictions_per_seq": max_predictions_per_seq}
    records = tf.data.TFRecordDataset(files).apply(tf.data.experimental.assert_cardinality(num_records))
    return _parse_batches(records.batch(batch_size), lengths)


def _parse_batches(batches: tf.data.Dataset, lengths: dict[str, int]) -> tf.data.Dataset:
    options = tf.data.Options()
    # Several workers share the stream record by record: sharing by file would change the order.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    parsed = batches.map(lambda serialized: parse_records(serialized, **lengths), num_parallel_calls=tf.data.AUTOTUNE)
    return parsed.prefetch(tf.data.AUTOTUNE).with_options(options)
