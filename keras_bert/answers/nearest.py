"""The vectors that are nearest to a question's, exactly.

Shapes: B questions, P vectors, D embedding, K answers, N blocks of R vectors.
"""

import numpy as np
import tensorflow as tf

from keras_bert.answers.ties import settle_ties

# Vectors that are compared at once. As float32 they stay in the processor's cache; blocks of 65,536 take seven times
# as long (benchmarks/search_speed.py).
_BLOCK = 4096
# Cosines that differ by no more are equal: the earlier vector comes first.
_TIE = 1e-6
# Vectors that may be equal to the last of the nearest: which of them is among these is then settled by their order.
_SPARE = 16


def find_nearest(questions: tf.Tensor, vectors, scales, top_k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the nearest vectors, as ops.

    Args:
        questions: float32 (B, D), of length 1.
        vectors: float32 or int8 (P, D), a tensor or variable.
        scales: float32 (P,), by which each vector is multiplied, to be of length 1.
        top_k: K, from 1 to P.

    Returns:
        Cosines, float32 (B, K), the largest first, and the numbers of their vectors, int32 (B, K).
    """
    num_vectors, dim = vectors.shape
    rows, most = min(_BLOCK, num_vectors), min(top_k + _SPARE, num_vectors)

    def best_of(number):
        # The last block starts early enough to be whole, and ignores vectors that were compared before. A slice along
        # the first dimension copies nothing. tf.gather would copy, for a third of the time.
        start = tf.minimum(number * rows, num_vectors - rows)
        block = tf.cast(tf.slice(vectors, [start, 0], [rows, dim]), tf.float32)
        scores = tf.matmul(questions, block, transpose_b=True) * tf.slice(scales, [start], [rows])
        is_new = start + tf.range(rows) >= number * rows
        best = tf.math.top_k(tf.where(is_new, scores, -np.inf), min(most, rows))
        return best.values, best.indices + start

    # Two blocks at once keep two cores busy, since a product of one question uses one. Eagerly TensorFlow warns of it.
    kinds, at_once = (tf.float32, tf.int32), 1 if tf.executing_eagerly() else 2
    blocks = tf.range(-(-num_vectors // rows))
    best = tf.map_fn(best_of, blocks, fn_output_signature=kinds, parallel_iterations=at_once)
    scores, indices = (tf.reshape(tf.transpose(part, [1, 0, 2]), [tf.shape(questions)[0], -1]) for part in best)
    best = tf.math.top_k(scores, most)  # The first of equal scores comes first, as in the blocks.
    indices = tf.gather(indices, best.indices, batch_dims=1)
    order = settle_ties(best.values, indices, _TIE)[:, :top_k]
    return tuple(tf.gather(column, order, batch_dims=1) for column in (best.values, indices))
