"""Makes batches of pre-training instances from TFRecord files.

**Order.** The records of a file are read in blocks. Each epoch permutes the blocks of all files, and within each block
the units, which are records or packed rows of records. The permuted units are cut into B equal runs, and every batch
takes the next unit of each run. So a batch draws from B places of the data, and a worker that computes some rows of all
batches reads only its runs: each of N workers reads 1/N of the data.

B: batch, S: `max_seq_length`, P: `max_predictions_per_seq`, K: instances of a packed row at most, U: units of an epoch.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from keras_bert.errors import InputError
from tasks.pretraining.data import shard_index
from tasks.pretraining.data.masking import MaskingRules
from tasks.pretraining.data.records import parse_records
from tasks.pretraining.data.shard_index import Records
from tasks.pretraining.train import packed_data
from tasks.pretraining.train.dynamic_masking import mask_again
from tasks.pretraining.train.packed_data import PackingPlan, pack_instances, rows_of_window

_READ_BYTES = 1 << 17
_SHUFFLE = tf.random.experimental.stateless_shuffle


class TrainBatches:
    """The endless stream of training batches.

    The order of an epoch is a pure function of (`random_seed`, epoch, `batch_size`), independent of TensorFlow's global
    seed, of the number of threads and of the number of workers. Batches cross the end of an epoch.

    Args:
        records: the files with their indexes.
        batch_size: int, B, examples of a step on all replicas together; with packing, rows.
        random_seed: int, seed of the order and of dynamic masks.
        masking: rules of dynamic masking; None: the masks stored in the records. A record's masks are a function of
            (`random_seed`, its position in the stream).
        packing: packing plan of these files, with room for the masks of `masking`; None: one instance per row.
    """

    def __init__(
        self,
        records: Records,
        *,
        batch_size: int,
        random_seed: int,
        masking: MaskingRules | None = None,
        packing: PackingPlan | None = None,
    ):
        self._batch_size = batch_size
        self._seed = random_seed
        self._read = _reader(records, packing, masking, random_seed)
        self._blocks, self._units = _blocks(records, packing)
        self._load = _loader(records, packing)
        self._num_units = int(tf.reduce_sum(self._units))

    def __call__(self, start_step: int) -> tf.data.Dataset:
        """Returns the batches from a step on, as `parse_records` or, with packing, `pack_instances` returns them.

        `batches(n)` equals `batches(0).skip(n)`, but does not read the data of the skipped batches.
        """
        return self.share(start_step, 0, 1)

    def share(self, start_step: int, index: int, count: int) -> tf.data.Dataset:
        """Returns the rows `[index * B / count, (index + 1) * B / count)` of each of these batches.

        Raises:
            InputError: B is not a multiple of `count`.
        """
        if self._batch_size % count:
            raise InputError(
                f"--train_batch_size={self._batch_size} cannot be split among {count} workers. Give a multiple of that."
            )
        size = self._batch_size // count
        first_epoch, skipped = divmod(start_step * self._batch_size, self._num_units)
        rows = tf.range(index * size, (index + 1) * size, dtype=tf.int64)

        @tf.autograph.experimental.do_not_convert
        def epoch_units(epoch):
            return self._epoch(epoch, rows, tf.where(epoch == first_epoch, tf.constant(skipped, tf.int64), 0))

        @tf.autograph.experimental.do_not_convert
        def read(step, units):
            return self._read(step * self._batch_size + rows, units)

        units = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_units)
        batches = units.batch(size, drop_remainder=True).enumerate(start_step)
        return batches.map(read, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)

    def _epoch(self, epoch: tf.Tensor, rows: tf.Tensor, skipped: tf.Tensor) -> tf.data.Dataset:
        """Returns the units of an epoch in some rows of the batches, without the epoch's first `skipped` units."""
        units, num_units, batch_size = self._units, self._num_units, self._batch_size
        seed = tf.stack([tf.constant(self._seed, tf.int64), epoch])
        order = _SHUFFLE(tf.range(len(units)), seed)
        ends = tf.cumsum(tf.gather(units, order))
        # Unit i of the epoch is in row (U * epoch + i) % B, and belongs to run i % B.
        runs = (rows - epoch * num_units) % batch_size
        runs = tf.gather(runs, tf.argsort((runs - skipped) % batch_size))  # In the order of their next units.

        def units_of_run(run):
            whole, longer = num_units // batch_size, num_units % batch_size
            start = run * whole + tf.minimum(run, longer)
            end = start + whole + tf.cast(run < longer, tf.int64)
            start += tf.maximum(skipped - run + batch_size - 1, 0) // batch_size
            first, last = tf.unstack(tf.searchsorted(ends, [start, end - 1], side="right", out_type=tf.int64))
            last = tf.where(start < end, last, first - 1)
            return tf.data.Dataset.range(first, last + 1).flat_map(lambda place: units_of_block(place, start, end))

        def units_of_block(place, start, end):
            block = order[place]
            count = units[block]
            before = ends[place] - count
            chosen = _SHUFFLE(tf.range(count), tf.random.fold_in(seed, block))
            chosen = chosen[tf.maximum(start - before, 0) : tf.minimum(end - before, count)]
            loaded = self._load(*(field[block] for field in self._blocks))
            return loaded.map(lambda all_units: tf.gather(all_units, chosen)).unbatch()

        convert = tf.autograph.experimental.do_not_convert
        return tf.data.Dataset.from_tensor_slices(runs).interleave(convert(units_of_run), cycle_length=len(rows))


def make_eval_dataset(
    records: Records, *, batch_size: int, packing: PackingPlan | None = None, is_static: bool = False
) -> tf.data.Dataset:
    """Returns every record once, in the files' order, with its stored masks.

    Args:
        records, batch_size, packing: as in `TrainBatches`.
        is_static: whether the last batch is filled up with rows of zeros, whose answers have weight 0; otherwise it may
            be smaller.
    """
    (blocks, counts), load = _blocks(records, packing), _loader(records, packing)
    read = tf.autograph.experimental.do_not_convert(_reader(records, packing))
    units = tf.data.Dataset.from_tensor_slices(blocks).flat_map(lambda *block: load(*block).unbatch())
    units = units.apply(tf.data.experimental.assert_cardinality(int(tf.reduce_sum(counts))))
    batches = units.enumerate().batch(batch_size).map(read, num_parallel_calls=tf.data.AUTOTUNE)
    if is_static:
        batches = batches.map(tf.autograph.experimental.do_not_convert(lambda *batch: fill_batch(*batch, batch_size)))
    return batches.prefetch(tf.data.AUTOTUNE)


def fill_batch(features: dict[str, tf.Tensor], labels: dict[str, tf.Tensor], batch_size: int) -> tuple[dict, dict]:
    """Adds rows of zeros, weights included, up to `batch_size`."""
    weights = {"next_sentence_weights": tf.ones_like(labels["next_sentence_labels"], tf.float32)}

    def fill(rows):
        missing = batch_size - tf.shape(rows)[0]
        filled = tf.pad(rows, [[0, missing], *[[0, 0]] * (len(rows.shape) - 1)])
        return tf.ensure_shape(filled, [batch_size, *rows.shape[1:]])

    return tf.nest.map_structure(fill, (features, weights | labels))


def _blocks(records: Records, packing: PackingPlan | None) -> tuple[tuple[tf.Tensor, ...], tf.Tensor]:
    """Cuts the files into blocks of records, each of which is read at once.

    Returns:
        fields: for each block, the index of its file, int32; and, int64, its offset in that file in bytes, the index of
            its first record among those of all files, and its number of records.
        units: number of units of each block, int64.
    """
    # A worker holds a block of each of its runs in memory, about 0.9 kB per record of 128 tokens.
    size = packed_data.WINDOW if packing else shard_index.GROUP
    tables = []
    first = 0
    for number, index in enumerate(records.indexes):
        num_records = len(index.lengths)
        starts = np.arange(0, num_records, size)
        offsets = index.offsets[starts // shard_index.GROUP]
        sizes = np.minimum(num_records - starts, size)
        tables.append(np.stack([np.full_like(starts, number), offsets, first + starts, sizes]))
        first += num_records
    file, offset, first, sizes = np.concatenate(tables, axis=1)
    units = packing.rows_per_window if packing else sizes
    # Eager constants, since constants inside a graph would count towards its limit of 2 GB.
    return (tf.constant(file, tf.int32), *map(tf.constant, (offset, first, sizes))), tf.constant(units)


def _loader(records: Records, packing: PackingPlan | None) -> Callable[..., tf.data.Dataset]:
    """Returns a function that maps a block's fields to a dataset of one element, its units in order.

    Without packing, these are serialized records, shape (units,). Packed rows have the shape (units, K): the serialized
    records of a row, then empty strings.
    """
    paths = tf.constant(records.files)
    row_of_record = tf.constant(packing.row_of_record) if packing else None

    @tf.autograph.experimental.do_not_convert
    def load(file, offset, first, count):
        # The op can start to read at an offset, but `tf.data.TFRecordDataset` has no argument for it.
        variant = tf.raw_ops.TFRecordDatasetV2(
            filenames=[paths[file]], compression_type="", buffer_size=_READ_BYTES, byte_offsets=[offset]
        )
        block = tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).take(count).batch(count)
        if packing is None:
            return block
        return block.map(lambda block: rows_of_window(block, row_of_record[first : first + count], packing))

    return load


def _reader(
    records: Records, packing: PackingPlan | None, masking: MaskingRules | None = None, random_seed: int = 0
) -> Callable[[tf.Tensor, tf.Tensor], tuple[dict, dict]]:
    """Returns a graph function that maps the units' positions in the stream, and units, to features and labels."""

    def instances(numbers, serialized):
        features, labels = parse_records(serialized, **records.lengths)
        if masking is None:
            return features, labels
        return mask_again(features, labels, masking, random_seed, numbers)

    def rows(numbers, serialized):
        slots = tf.where(serialized != "")  # [n, 2], row and place in it; an empty record ends a row
        numbers = tf.gather(numbers, slots[:, 0]) * packing.examples_per_row + slots[:, 1]
        features, labels = instances(numbers, tf.gather_nd(serialized, slots))
        return pack_instances(features, labels, slots[:, 0], serialized.shape[0] or tf.shape(serialized)[0], packing)

    return instances if packing is None else rows
