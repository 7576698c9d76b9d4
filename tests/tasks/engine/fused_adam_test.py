"""Weight decay compiled by XLA: the same as in TensorFlow's ops, and exact where 1 - decay would round."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.engine.fused_adam import fused_adam

BETAS = [tf.constant(0.9), tf.constant(0.999), tf.constant(0.0)]


def update(compiles: bool, decay: float | None, rows: int = 1024, steps: int = 3):
    """Returns the weights, (rows, 1024), before and after some steps, and whether XLA compiled a part of them."""
    rng = np.random.default_rng(0)
    weights, gradient = rng.normal(size=(2, rows, 1024)).astype("float32")
    variables = [tf.Variable(weights), tf.Variable(tf.zeros_like(weights)), tf.Variable(tf.zeros_like(weights))]
    rate, epsilon = tf.constant(0.0), tf.constant(1e-6)

    def step():
        share = None if decay is None else tf.constant(decay)
        handles = [variable.handle for variable in variables]
        fused_adam(handles, tf.constant(gradient), rate, epsilon, share, BETAS, compiles)

    concrete = tf.function(step, autograph=False).get_concrete_function()
    for _ in range(steps):
        concrete()
    functions = concrete.graph.as_graph_def().library.function
    return weights, variables[0].numpy(), any(function.attr["_XlaMustCompile"].b for function in functions)


@pytest.mark.parametrize("decay", [0.5, 1e-3, 5e-7])
def test_compiled_decay_is_the_decay(decay):
    start, expected, plain_is_compiled = update(False, decay)
    _, weights, is_compiled = update(True, decay)
    assert is_compiled and not plain_is_compiled
    np.testing.assert_allclose(weights, expected, rtol=1.2e-7, atol=0.0)  # a rounding more or less
    exact = start.astype("float64") * (1.0 - np.float64(np.float32(decay))) ** 3
    np.testing.assert_allclose(weights, exact, rtol=2e-7, atol=0.0)
    assert np.abs(weights - start).max() > 0.0


def test_the_decay_of_a_small_variable_is_not_compiled():
    _, expected, _ = update(False, 1e-3, rows=1023)
    _, weights, is_compiled = update(True, 1e-3, rows=1023)
    assert not is_compiled
    np.testing.assert_array_equal(weights, expected)


def test_a_gradient_whose_shape_is_not_known_beforehand():
    """As of batches whose length changes."""
    variables = [tf.Variable(tf.ones([3, 4])), tf.Variable(tf.zeros([3, 4])), tf.Variable(tf.zeros([3, 4]))]

    @tf.function(input_signature=[tf.TensorSpec(None)], autograph=False)
    def step(gradient):
        handles = [variable.handle for variable in variables]
        fused_adam(handles, gradient, tf.constant(0.0), tf.constant(1e-6), tf.constant(0.5), BETAS, True)

    step(tf.ones([3, 4]))
    np.testing.assert_array_equal(variables[0], np.full([3, 4], 0.5))


def test_without_decay_nothing_is_compiled():
    start, weights, is_compiled = update(True, None)
    assert not is_compiled
    np.testing.assert_array_equal(weights, start)
