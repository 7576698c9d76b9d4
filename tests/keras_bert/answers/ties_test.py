"""Equal scores: their order is a rule's, not that of rounding."""

import numpy as np
import pytest
import tensorflow as tf

from keras_bert.answers.nearest import find_nearest
from keras_bert.answers.ties import settle_ties


@pytest.mark.parametrize("run", [lambda function: function, tf.function], ids=["eagerly", "in a graph"])
def test_equals_are_ordered_by_number(run):
    settle = run(lambda scores, order: settle_ties(scores, order, 0.25))
    scores = tf.constant([[5.0, 4.875, 4.625, 4.0], [5.0, 4.0, 3.0, 2.0]])  # 4.625 equals its neighbour.
    order = tf.constant([[9, 7, 8, 0], [3, 2, 1, 0]])
    assert settle(scores, order).numpy().tolist() == [[1, 2, 0, 3], [0, 1, 2, 3]]
    assert settle(scores[:, :0], order[:, :0]).shape == (2, 0)


def test_rows_are_ordered_alone():
    scores = tf.constant([2.0, 1.0, 1.0, 1.0, 1.0])
    order, rows = tf.constant([9, 8, 7, 6, 5], tf.int64), tf.constant([0, 0, 0, 1, 1])
    assert settle_ties(scores, order, 0.5, rows).numpy().tolist() == [0, 2, 1, 4, 3]


@pytest.mark.parametrize("seed", range(5))
def test_rounding_does_not_change_the_order(seed):
    generator = np.random.default_rng(seed)
    exact = np.repeat(generator.permutation(40), 5).astype(np.float32)
    orders = []
    for _ in range(2):
        scores = exact + generator.uniform(-1e-5, 1e-5, exact.shape).astype(np.float32)
        best = tf.math.top_k(scores, 200)
        orders.append(tf.gather(best.indices, settle_ties(best.values, best.indices, 1e-4)).numpy().tolist())
    assert orders[0] == orders[1] == np.argsort(-exact, kind="stable").tolist()


def test_of_equal_vectors_beyond_the_last_place_the_earlier_are_found():
    """The later ones lead by what rounding may be, which differs between one question and many."""
    vectors = np.array([[0.5], *([1 - (8 - number) * 2**-24] for number in range(8))], np.float32)
    _, indices = find_nearest(tf.ones([2, 1]), tf.constant(vectors), tf.ones(9), 3)
    assert indices.numpy().tolist() == [[1, 2, 3]] * 2
