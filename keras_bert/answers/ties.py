"""Orders equal scores by a rule, so that rounding, which differs between processors and runtimes, does not order them.

Shapes: K scores of a list.
"""

import tensorflow as tf

_MOST = 1 << 32  # Above every number in `order`.


def settle_ties(scores: tf.Tensor, order: tf.Tensor, tie: float, rows: tf.Tensor | None = None) -> tf.Tensor:
    """Sorts neighbours with equal scores by `order`.

    Args:
        scores: float (..., K), descending.
        order: int (..., K), distinct numbers of at least 0; among equals the lowest comes first.
        tie: the largest difference between neighbours that count as equal.
        rows: int (K,), ascending; scores are compared within a row. None: all are in one row.

    Returns:
        int32 (..., K), the indices of the scores in their new order.
    """

    def before(values):
        return tf.concat([values[..., :1], values[..., :-1]], axis=-1)

    is_lower = before(scores) - scores > tie
    if rows is not None:
        is_lower |= rows != before(rows)
    group = tf.cumsum(tf.cast(is_lower, tf.int64), axis=-1)
    return tf.argsort(group * _MOST + tf.cast(order, tf.int64), axis=-1)
