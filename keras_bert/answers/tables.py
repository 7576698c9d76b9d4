"""Lays out the values of several texts as a padded table, in the graph.

Shapes: B texts, X values of all texts, M columns of the table.
"""

import tensorflow as tf

from keras_bert.tokenization.exact_normalizer import bisect


class Table:
    """Lays values out in rows, one for each text.

    Args:
        rows: int64 [X], the text of each value, ascending.
        num_rows: int64, B.
        width: int, M; None: the most values of a text, at least 1.

    Attributes:
        counts: int32 [B], values of each text.
    """

    def __init__(self, rows: tf.Tensor, num_rows: tf.Tensor, width: int | None = None):
        self.counts = tf.math.unsorted_segment_sum(tf.ones_like(rows, tf.int32), rows, num_rows)
        self._shape = tf.stack([tf.size(self.counts), width or tf.maximum(tf.reduce_max(self.counts), 1)])
        place = tf.range(tf.size(rows, tf.int64)) - bisect(rows, rows)
        self._places = tf.stack([rows, place], axis=1)

    def __call__(self, values: tf.Tensor, padding) -> tf.Tensor:
        """Returns `values` [X] as [B, M], each row padded with `padding`."""
        padding = tf.constant(padding, values.dtype)
        return tf.tensor_scatter_nd_update(tf.fill(self._shape, padding), self._places, values)
