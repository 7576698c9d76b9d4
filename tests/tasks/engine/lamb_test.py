"""LAMB against NumPy, Model Garden's LAMB over separate matrices, and Keras's."""

import keras
import numpy as np
import pytest
from toy_optimizer import draw, run_steps

from tasks.engine.optimization import BertLamb, build_optimizer

FUSED = "query_key_value/kernel"
SHAPES = {"kernel": (4, 3), FUSED: (4, 12), "norm/gamma": (3,), "bias": (3,)}


def numpy_lamb(weight, gradients, rates, decay: float, has_ratio: bool):
    """Algorithm 2 of the paper, for one matrix."""
    weight, m, v = weight.astype("float64"), 0.0, 0.0
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), start=1):
        gradient = gradient.astype("float64")
        m = 0.9 * m + 0.1 * gradient
        v = 0.999 * v + 0.001 * gradient**2
        update = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-6) + decay * weight
        ratio = np.linalg.norm(weight) / np.linalg.norm(update) if has_ratio else 1.0
        weight = weight - rate * ratio * update
    return weight


def test_lamb_is_the_papers():
    start, gradients = draw(SHAPES)
    got = run_steps(build_optimizer("lamb", 0.1, 8, 2), start, gradients)
    rates = [0.1 * step / 2 if step < 2 else 0.1 * (1 - step / 8) for step in range(6)]
    for path in ("norm/gamma", "bias"):
        expected = numpy_lamb(start[path], [step[path] for step in gradients], rates, 0.0, has_ratio=False)
        np.testing.assert_allclose(got[path], expected, rtol=1e-5, atol=1e-6)
    expected = numpy_lamb(start["kernel"], [step["kernel"] for step in gradients], rates, 0.01, has_ratio=True)
    np.testing.assert_allclose(got["kernel"], expected, rtol=1e-5, atol=1e-6)
    matrices = [
        numpy_lamb(start[FUSED][:, part], [step[FUSED][:, part] for step in gradients], rates, 0.01, has_ratio=True)
        for part in (slice(0, 4), slice(4, 8), slice(8, 12))
    ]
    np.testing.assert_allclose(got[FUSED], np.concatenate(matrices, axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.oracle
def test_lamb_is_model_gardens_over_separate_matrices():
    lamb = pytest.importorskip("official.modeling.optimization.lamb")
    import tensorflow as tf

    start, gradients = draw(SHAPES, seed=1)
    start[FUSED][:, 4:8] *= 10.0  # So that a ratio of the whole would be another.
    got = run_steps(BertLamb(0.05, weight_decay=0.01), start, gradients)

    def split(values):
        matrices = np.split(values[FUSED], 3, axis=1)
        return {**values, **dict(zip(("query", "key", "value"), matrices, strict=True))}

    variables = {path: tf.Variable(value, name=path) for path, value in split(start).items() if path != FUSED}
    oracle = lamb.LAMB(0.05, weight_decay_rate=0.01, epsilon=1e-6, exclude_from_weight_decay=["gamma", "bias"])
    for step in gradients:
        step_gradients = split(step)
        oracle.apply_gradients([(tf.constant(step_gradients[path]), variable) for path, variable in variables.items()])
    for path, variable in variables.items():
        np.testing.assert_allclose(split(got)[path], variable.numpy(), rtol=1e-5, atol=1e-5)


def test_without_decay_lamb_is_kerass():
    """Keras subtracts the decay beside the trust ratio, not inside it: only without decay the two agree."""
    start, gradients = draw({"kernel": (4, 3)}, seed=2)
    got = run_steps(BertLamb(0.1, weight_decay=None), start, gradients)
    expected = run_steps(keras.optimizers.Lamb(0.1, epsilon=1e-6), start, gradients)
    np.testing.assert_allclose(got["kernel"], expected["kernel"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 2.0])
@pytest.mark.parametrize("gradient", [0.0, 3.0])
def test_ratio_with_a_norm_of_zero_is_one(weight, gradient):
    start = {"kernel": np.full((2, 2), weight, "float32")}
    optimizer = BertLamb(0.5, weight_decay=0.0)
    got = run_steps(optimizer, start, [{"kernel": np.full((2, 2), gradient, "float32")}])["kernel"]
    # The corrected first update is 1 everywhere where there is a gradient; the ratio is then the weight's 2.
    expected = {(0.0, 0.0): 0.0, (0.0, 3.0): -0.5, (2.0, 0.0): 2.0, (2.0, 3.0): 1.0}[weight, gradient]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
