"""The schedule against google-research/bert's formula, the optimizers against NumPy and torch, what is decayed."""

import json

import keras
import numpy as np
import pytest
import torch

from keras_bert.errors import InputError
from tasks.optimization import BertAdam, BertAdamW, WarmupLinearDecay, build_optimizer


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


def test_schedule_refuses_what_makes_no_sense():
    with pytest.raises(InputError, match="num_warmup_steps=11, num_train_steps=10"):
        WarmupLinearDecay(1e-3, 10, 11)
    with pytest.raises(ValueError, match="Received: num_train_steps=0"):
        WarmupLinearDecay(1e-3, 0)
    with pytest.raises(ValueError, match="Received: learning_rate=nan"):
        WarmupLinearDecay(float("nan"), 10)


def run_steps(optimizer, start: dict[str, np.ndarray], gradients: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    variables = {name: keras.Variable(value, name=name) for name, value in start.items()}
    optimizer.build(list(variables.values()))
    for step in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(step[name]) for name in variables], list(variables.values()))
    return {name: variable.numpy() for name, variable in variables.items()}


def draw(seed: int = 0, steps: int = 6) -> tuple[dict, list[dict]]:
    rng = np.random.default_rng(seed)
    shapes = {"kernel": (4, 3), "bias": (3,)}
    draws = [{n: rng.normal(size=s).astype("float32") for n, s in shapes.items()} for _ in range(steps + 1)]
    return draws[0], draws[1:]


def test_bert_2018_is_googles_adam():
    start, gradients = draw()
    got = run_steps(build_optimizer("bert-2018", 0.1, 8, 2), start, gradients)
    for name, decay in {"kernel": 0.01, "bias": 0.0}.items():
        weight, m, v = start[name].astype("float64"), 0.0, 0.0
        for step, gradient in enumerate(gradients):
            m = 0.9 * m + 0.1 * gradient[name]
            v = 0.999 * v + 0.001 * np.square(gradient[name].astype("float64"))
            weight = weight - google_rate(step, 0.1, 8, 2) * (m / (np.sqrt(v) + 1e-6) + decay * weight)
        np.testing.assert_allclose(got[name], weight, rtol=2e-5, atol=1e-6)


def test_adamw_is_torchs():
    start, gradients = draw(1)
    got = run_steps(build_optimizer("adamw", 0.1, 8, 2), start, gradients)
    tensors = {name: torch.nn.Parameter(torch.tensor(value)) for name, value in start.items()}
    groups = [
        {"params": [tensors["kernel"]], "weight_decay": 0.01},
        {"params": [tensors["bias"]], "weight_decay": 0.0},
    ]
    oracle = torch.optim.AdamW(groups, lr=0.1, eps=1e-8)
    for step, gradient in enumerate(gradients):
        for name, tensor in tensors.items():
            tensor.grad = torch.tensor(gradient[name])
        for group in oracle.param_groups:
            group["lr"] = google_rate(step, 0.1, 8, 2)
        oracle.step()
    # Keras adds epsilon before the correction, torch after it: at gradients of about 1 that is a relative 3e-5.
    for name, tensor in tensors.items():
        np.testing.assert_allclose(got[name], tensor.detach().numpy(), rtol=3e-4, atol=1e-5)


def test_size_of_updates_without_bias_correction():
    """FIDELITY D: the corrected update is 0.32 times as large at step 1, 0.15 at 10, 0.80 at 1000."""
    sizes = {}
    for kind in (BertAdam, BertAdamW):
        variable = keras.Variable([0.0], name="bias")
        optimizer = kind(learning_rate=1.0, weight_decay=0.0, epsilon=1e-6)
        optimizer.build([variable])
        gradient, values = keras.ops.ones([1]), [0.0]
        for _ in range(1000):
            optimizer.apply([gradient], [variable])
            values.append(float(variable.numpy()[0]))
        sizes[kind] = np.abs(np.diff(values))
    ratio = sizes[BertAdamW] / sizes[BertAdam]
    np.testing.assert_allclose(ratio[[0, 9, 999]], [0.316, 0.153, 0.795], atol=2e-3)


class Head(keras.layers.Layer):
    """Has an `output_bias`, as a masked-LM head."""

    def build(self, shape):
        self.output_bias = self.add_weight(shape=(shape[-1],), name="output_bias", initializer="ones")

    def call(self, x):
        return x + self.output_bias


def build_model() -> keras.Model:
    """Layers whose own names contain "bias", "gamma" and "beta" are there to mislead a pattern on paths."""
    ids = keras.Input([5], dtype="int32")
    x = keras.layers.Embedding(7, 4, name="token_embedding")(ids)
    x = keras.layers.LayerNormalization(name="norm")(x)
    x = keras.layers.MultiHeadAttention(2, 2, name="attention")(x, x)
    x = keras.layers.Dense(4, name="bias_gamma_beta")(x)
    x = keras.layers.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d", name="beta")(x)
    return keras.Model(ids, Head(name="head")(x))


DECAYED = {
    "token_embedding/embeddings",
    "attention/query/kernel",
    "attention/key/kernel",
    "attention/value/kernel",
    "attention/attention_output/kernel",
    "bias_gamma_beta/kernel",
    "beta/kernel",
}


@pytest.mark.parametrize("name", ["bert-2018", "adamw"])
@pytest.mark.parametrize("reloaded", [False, True])
def test_decay_leaves_out_norms_and_biases(name, reloaded):
    """With zero gradients only the decay moves a variable."""
    model = build_model()
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones_like(variable))
    optimizer = build_optimizer(name, 0.5, 10)
    if reloaded:
        config = json.dumps(keras.optimizers.serialize(optimizer))
        optimizer = keras.optimizers.deserialize(json.loads(config))
        assert json.dumps(keras.optimizers.serialize(optimizer)) == config
    optimizer.build(model.trainable_variables)
    optimizer.apply([keras.ops.zeros_like(variable) for variable in model.trainable_variables])
    moved = {variable.path for variable in model.trainable_variables if not (variable.numpy() == 1.0).all()}
    assert moved == DECAYED
    kernel = model.get_layer("beta").kernel.numpy()
    np.testing.assert_allclose(kernel, 1 - 0.5 * 0.01, rtol=1e-6)


def test_unknown_profile_is_named():
    with pytest.raises(ValueError, match=r"\['adamw', 'bert-2018'\]. Received: name='sgd'"):
        build_optimizer("sgd", 1e-3, 10)
