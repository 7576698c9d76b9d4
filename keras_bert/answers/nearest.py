"""Finds the vectors nearest to a question's, by exact search.

Shapes: B questions, P vectors, D embedding, K answers, N blocks of R vectors.
"""

import numpy as np
import tensorflow as tf

from keras_bert.answers.ties import settle_ties

# Number of vectors compared at once. As float32 they fit into the processor's cache; blocks of 65,536 take seven times
# as long (benchmarks/search_speed.py).
_BLOCK = 4096
# Cosines that differ by at most this count as equal: the earlier vector comes first.
_TIE = 1e-6
# Vectors kept beyond the K nearest, since they may tie with the last of these; the order decides among them.
_SPARE = 16


def find_nearest(questions: tf.Tensor, vectors, scales, top_k: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the nearest vectors, as ops.

    Args:
        questions: float32 (B, D), of length 1.
        vectors: float32 or int8 (P, D), a tensor or variable.
        scales: float32 (P,), factors that bring the vectors to length 1.
        top_k: K, from 1 to P.

    Returns:
        Cosines, float32 (B, K), the largest first, and the indices of their vectors, int32 (B, K).
    """
    num_vectors, dim = vectors.shape
    rows, most = min(_BLOCK, num_vectors), min(top_k + _SPARE, num_vectors)

    def best_of(number):
        # The last block starts early enough to be whole, and ignores vectors that were compared before. A slice along
        # the first dimension copies nothing. The copy of tf.gather would take a third of the time.
        start = tf.minimum(number * rows, num_vectors - rows)
        block = tf.cast(tf.slice(vectors, [start, 0], [rows, dim]), tf.float32)
        scores = tf.matmul(questions, block, transpose_b=True) * tf.slice(scales, [start], [rows])
        is_new = start + tf.range(rows) >= number * rows
        best = tf.math.top_k(tf.where(is_new, scores, -np.inf), min(most, rows))
        return best.values, best.indices + start

    # Two blocks at once keep two cores busy, since the product for one question uses one. In eager mode TensorFlow
    # would warn about the setting.
    kinds, at_once = (tf.float32, tf.int32), 1 if tf.executing_eagerly() else 2
    blocks = tf.range(-(-num_vectors // rows))
    best = tf.map_fn(best_of, blocks, fn_output_signature=kinds, parallel_iterations=at_once)
    scores, indices = (tf.reshape(tf.transpose(part, [1, 0, 2]), [tf.shape(questions)[0], -1]) for part in best)
    best = tf.math.top_k(scores, most)  # The first of equal scores comes first, as within a block.
    indices = tf.gather(indices, best.indices, batch_dims=1)
    order = settle_ties(best.values, indices, _TIE)[:, :top_k]
    return tuple(tf.gather(column, order, batch_dims=1) for column in (best.values, indices))
