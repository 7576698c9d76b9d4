"""The schedule against google-research/bert's formula, Adam against NumPy and torch: eagerly and in XLA."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_optimizer import draw, run_steps

from tasks.engine.optimization import PROFILES, BertAdam, BertAdamW, build_optimizer
from tasks.engine.schedules import SCHEDULES, WarmupLinearDecay

SHAPES = {"kernel": (4, 3), "query_key_value/kernel": (2, 6), "bias": (3,)}


def google_rate(step: int, peak: float, num_train_steps: int, num_warmup_steps: int) -> float:
    """optimization.py:29-53: a polynomial decay of power 1 to 0, replaced by the warm-up while step < warm-up."""
    decayed = peak * (1 - min(step, num_train_steps) / num_train_steps)
    if num_warmup_steps:
        is_warmup = 1.0 if step < num_warmup_steps else 0.0
        return (1.0 - is_warmup) * decayed + is_warmup * peak * (step / num_warmup_steps)
    return decayed


@pytest.mark.parametrize("num_warmup_steps", [0, 1, 100, 1000])
def test_schedule_is_googles(num_warmup_steps):
    schedule = WarmupLinearDecay(2e-5, 1000, num_warmup_steps)
    for step in [0, 1, 50, 99, 100, 101, 500, 999, 1000, 1500]:
        expected = google_rate(step, 2e-5, 1000, num_warmup_steps)
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-5, abs=1e-12)


def test_schedule_jumps_after_the_warmup():
    schedule = WarmupLinearDecay(1.0, 1000, 100)
    assert float(schedule(0)) == 0.0
    assert float(schedule(99)) == pytest.approx(0.99)
    assert float(schedule(100)) == pytest.approx(0.90)


@pytest.mark.parametrize(
    ("name", "expected"),
    [  # Peak 1, 20 steps, of which 4 warm up.
        ("linear", {0: 0.0, 3: 0.75, 4: 0.8, 10: 0.5, 19: 0.05, 20: 0.0, 25: 0.0}),
        ("constant_then_linear", {0: 0.0, 3: 0.75, 4: 1.0, 10: 1.0, 12: 0.8, 19: 0.1, 20: 0.0, 25: 0.0}),
    ],
)
def test_schedules_by_name(name, expected):
    schedule = SCHEDULES[name](1.0, 20, 4)
    for step, rate in expected.items():
        assert float(schedule(step)) == pytest.approx(rate, abs=1e-6)
    assert float(SCHEDULES[name](1.0, 20, 0)(0)) == 1.0  # Without a warm-up.


def test_bert_2018_is_googles_adam():
    start, gradients = draw(SHAPES)
    got = run_steps(build_optimizer("bert-2018", 0.1, 8, 2), start, gradients)
    beta_2 = float(np.float32(0.999))  # TensorFlow's kernel takes 1 - beta_2 of the rounded one: 0.99999 of 0.001.
    for name, decay in {"kernel": 0.01, "bias": 0.0}.items():
        weight, m, v = start[name].astype("float64"), 0.0, 0.0
        for step, gradient in enumerate(gradients):
            m = 0.9 * m + 0.1 * gradient[name]
            v = beta_2 * v + (1 - beta_2) * np.square(gradient[name].astype("float64"))
            weight = weight - google_rate(step, 0.1, 8, 2) * (m / (np.sqrt(v) + 1e-6) + decay * weight)
        np.testing.assert_allclose(got[name], weight, rtol=2e-6, atol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
def test_adamw_is_torchs(epsilon):
    torch = pytest.importorskip("torch")
    start, gradients = draw(SHAPES, seed=1)
    schedule = WarmupLinearDecay(0.1, 8, 2)
    optimizer = BertAdamW(schedule, weight_decay=0.01)
    optimizer.epsilon = epsilon
    got = run_steps(optimizer, start, gradients)
    tensors = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    groups = [
        {"params": [tensor for name, tensor in tensors.items() if name != "bias"], "weight_decay": 0.01},
        {"params": [tensors["bias"]], "weight_decay": 0.0},
    ]
    oracle = torch.optim.AdamW(groups, lr=0.1, eps=epsilon)
    for step, gradient in enumerate(gradients):
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(gradient[name])
        for group in oracle.param_groups:
            group["lr"] = google_rate(step, 0.1, 8, 2)
        oracle.step()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(got[name], tensor.detach().numpy(), rtol=1e-5, atol=5e-6)


def test_size_of_updates_without_bias_correction():
    """FIDELITY D: the corrected update is 0.32 times as large at step 1, 0.15 at 10, 0.80 at 1000."""
    sizes = {}
    for kind in (BertAdam, BertAdamW):
        variable = keras.Variable([0.0], name="bias")
        optimizer = kind(learning_rate=1.0, weight_decay=0.0)
        optimizer.build([variable])
        apply, gradient, values = tf.function(optimizer.apply, autograph=False), tf.ones([1]), [0.0]
        for _ in range(1000):
            apply([gradient])
            values.append(float(variable.numpy()[0]))
        sizes[kind] = np.abs(np.diff(values))
    ratio = sizes[BertAdamW] / sizes[BertAdam]
    np.testing.assert_allclose(ratio[[0, 9, 999]], [0.316, 0.153, 0.795], atol=2e-3)


def test_small_decays_add_up():
    """At rate 1e-5 and decay 0.01 the weight's factor 1 - 1e-7 is no float32: 1 - 1.19e-7 is the nearest one."""
    values = np.random.default_rng(0).normal(size=10_000).astype("float32")
    variable = keras.Variable(values, name="kernel")
    optimizer = BertAdam(learning_rate=1e-5, weight_decay=0.01)
    optimizer.build([variable])
    for _ in range(100):
        optimizer.apply([keras.ops.zeros_like(variable)])
    lost = 1 - np.sum(np.abs(variable.numpy()), dtype="float64") / np.sum(np.abs(values), dtype="float64")
    assert lost == pytest.approx(1e-5, rel=0.1)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_xla_and_graph_give_what_eager_steps_give(name):
    start, gradients = draw({f"transformer_layer_0/{path}": shape for path, shape in SHAPES.items()}, seed=2)
    expected = run_steps(build_optimizer(name, 0.1, 8), start, gradients)
    for jit_compile in (False, True):
        optimizer = build_optimizer(name, 0.1, 8)
        optimizer.apply = tf.function(optimizer.apply, jit_compile=jit_compile, autograph=False)
        got = run_steps(optimizer, start, gradients)
        for path, value in expected.items():
            np.testing.assert_allclose(got[path], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_slices_of_a_table_count_as_zeros_elsewhere(name):
    """Keras's `fit` passes the gradient of a looked-up table as slices; a row may come twice."""
    start, _ = draw({"table": (5, 2)}, seed=3)
    slices = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tf.constant([1, 3, 1]), (5, 2))
    results = []
    for gradient in (slices, tf.convert_to_tensor(slices)):
        variable = keras.Variable(start["table"], name="table")
        optimizer = build_optimizer(name, 0.1, 8)
        optimizer.build([variable])
        for _ in range(3):
            optimizer.apply([gradient], [variable])
        results.append(variable.numpy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)
    assert np.abs(results[0][0] - start["table"][0]).max() > 0  # Decay reaches the rows without gradient.
