"""Which variables are decayed, and at which rate: as listed, as done, after reloading, and on two replicas.

Run as a script (`update_rules_test.py replicas DIRECTORY`) it does what needs a process of its own.
"""

import os
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_optimizer import build_toy
from toy_training import run_as_script

from tasks.engine.checkpoints import Checkpoints
from tasks.engine.optimization import PROFILES, UpdateRule, build_optimizer, update_rules

# Path, decayed, rate multiplier as a power of `layer_decay`, trust ratios: the whole list for two layers.
MATRIX, FUSED, OTHER = (True, 1), (True, 3), (False, 0)
LAYER = {
    "self_attention/query_key_value/kernel": FUSED,
    "self_attention/query_key_value/bias": OTHER,
    "self_attention/output_dense/kernel": MATRIX,
    "self_attention/output_dense/bias": OTHER,
    "self_attention_layer_norm/gamma": OTHER,
    "self_attention_layer_norm/beta": OTHER,
    "intermediate_dense/kernel": MATRIX,
    "intermediate_dense/bias": OTHER,
    "output_dense/kernel": MATRIX,
    "output_dense/bias": OTHER,
    "output_layer_norm/gamma": OTHER,
    "output_layer_norm/beta": OTHER,
}
EMBEDDINGS = {
    "token_embedding/embeddings": MATRIX,
    "segment_embedding/embeddings": MATRIX,
    "position_embedding/embeddings": MATRIX,
    "layer_norm/gamma": OTHER,
    "layer_norm/beta": OTHER,
}
HEADS = {
    "pooled_dense/kernel": MATRIX,
    "pooled_dense/bias": OTHER,
    "masked_lm/output_bias": OTHER,
    "masked_lm/transform_dense/kernel": MATRIX,
    "masked_lm/transform_dense/bias": OTHER,
    "masked_lm/transform_layer_norm/gamma": OTHER,
    "masked_lm/transform_layer_norm/beta": OTHER,
    "next_sentence/kernel": MATRIX,
    "next_sentence/bias": OTHER,
}
EXPECTED = {
    **{f"embeddings/{path}": (*kind, 3) for path, kind in EMBEDDINGS.items()},
    **{f"transformer_layer_0/{path}": (*kind, 2) for path, kind in LAYER.items()},
    **{f"transformer_layer_1/{path}": (*kind, 1) for path, kind in LAYER.items()},
    **{path: (*kind, 0) for path, kind in HEADS.items()},
}


def expected_rules(weight_decay: float, layer_decay: float) -> set[UpdateRule]:
    return {
        UpdateRule(
            path,
            weight_decay if is_decayed else 0.0,
            layer_decay**power,
            ratios,
            is_orthogonal=is_decayed and path.startswith("transformer_layer_"),
        )
        for path, (is_decayed, ratios, power) in EXPECTED.items()
    }


def apply_everywhere(optimizer, gradients: list[np.ndarray], times: int = 1) -> None:
    """Applies the gradients on every replica of the current strategy, which sums them."""
    strategy = tf.distribute.get_strategy()

    @tf.function(autograph=False)
    def step():
        strategy.run(lambda: optimizer.apply([tf.constant(gradient) for gradient in gradients]))

    for _ in range(times):
        step()


def moved(model: keras.Model, optimizer) -> dict[str, float]:
    """Sets every weight to 1 and applies zero gradients, which leaves the decay alone; how far each variable moved."""
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones_like(variable))
    apply_everywhere(optimizer, [np.zeros(variable.shape, "float32") for variable in model.trainable_variables])
    return {v.path: float(1 - v.numpy().mean()) for v in model.trainable_variables if (v.numpy() != 1).any()}


# Rate 0.5, decay 0.01. LAMB stretches the update to the length of the weights: 0.5 instead of 0.5 * 0.01.
def expected_moves(name: str) -> dict[str, float]:
    size = 0.5 if name == "lamb" else 0.005
    return {path: size * 0.5**power for path, (is_decayed, _, power) in EXPECTED.items() if is_decayed}


def test_without_layer_decay_all_rates_are_one():
    assert set(update_rules(build_toy().trainable_variables)) == expected_rules(0.01, 1.0)


@pytest.mark.slow(keep=["bert-2018"])
@pytest.mark.parametrize("name", sorted(PROFILES))
def test_rules_are_listed_and_applied(name):
    model = build_toy()
    optimizer = build_optimizer(name, 0.5, 10, layer_decay=0.5)
    optimizer.build(model.trainable_variables)
    assert len(optimizer.rules) == len(EXPECTED)
    assert set(optimizer.rules) == expected_rules(0.01, 0.5)
    assert [rule.path for rule in optimizer.rules] == [variable.path for variable in model.trainable_variables]
    assert moved(model, optimizer) == pytest.approx(expected_moves(name), rel=1e-3)


def checkpoints(directory, model, optimizer) -> Checkpoints:
    variables = ([v.value for v in model.weights], [v.value for v in optimizer.variables])
    return Checkpoints(str(directory), tf.Variable(0, dtype=tf.int64), *variables)


@pytest.mark.slow(keep=["lamb", "muon"])
@pytest.mark.parametrize("name", sorted(PROFILES))
def test_rules_and_moments_survive_a_checkpoint(name, tmp_path):
    """A step after restoring is the step that would have come."""
    results = []
    for is_restored in (False, True):
        model = build_toy()
        optimizer = build_optimizer(name, 0.5, 10, layer_decay=0.5)
        optimizer.build(model.trainable_variables)
        gradients = [0.1 * keras.ops.ones_like(variable) for variable in model.trainable_variables]
        store = checkpoints(tmp_path, model, optimizer)
        if is_restored:
            store.restore()
        else:
            optimizer.apply(gradients)
            store.save(keep=1)
            tf.train.Checkpoint(optimizer=optimizer).write(str(tmp_path / "object"))  # Raises if it cannot be saved.
        optimizer.apply(gradients)
        assert set(optimizer.rules) == expected_rules(0.01, 0.5)
        results.append([variable.numpy() for variable in [*model.weights, *optimizer.variables]])
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def replicas(directory: str) -> None:
    """Writes, for one device and for two mirrored ones, what decay alone moves and where ten real steps end."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    results = {}
    strategies = (tf.distribute.OneDeviceStrategy("CPU:0"), tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    for count, strategy in enumerate(strategies, 1):
        assert strategy.num_replicas_in_sync == count
        for name in PROFILES:
            with strategy.scope():
                keras.utils.set_random_seed(1)
                model = build_toy()
                optimizer = build_optimizer(name, 0.01, 20, 2, layer_decay=0.5)
                optimizer.build(model.trainable_variables)
                rng = np.random.default_rng(0)
                sums = [rng.normal(size=variable.shape).astype("float32") for variable in model.trainable_variables]
                apply_everywhere(optimizer, [total / count for total in sums], times=10)
            results[f"{name} {count}"] = np.concatenate([v.numpy().ravel() for v in model.trainable_variables])
            with strategy.scope():
                optimizer = build_optimizer(name, 0.5, 10, layer_decay=0.5)
                optimizer.build(model.trainable_variables)
                moves = moved(model, optimizer)
            assert set(optimizer.rules) == expected_rules(0.01, 0.5)
            assert moves == pytest.approx(expected_moves(name), rel=1e-3)
    np.savez(os.path.join(directory, "results"), **results)


@pytest.mark.slow
def test_two_replicas_follow_the_same_rules(tmp_path):
    done = run_as_script(__file__, "replicas", tmp_path)
    assert done.returncode == 0, done.stderr
    results = np.load(tmp_path / "results.npz")
    for name in PROFILES:
        np.testing.assert_allclose(results[f"{name} 2"], results[f"{name} 1"], rtol=1e-5, atol=1e-7)


class Head(keras.layers.Layer):
    """Has an `output_bias`, as a masked-LM head."""

    def build(self, shape):
        self.output_bias = self.add_weight(shape=(shape[-1],), name="output_bias", initializer="ones")

    def call(self, x):
        return x + self.output_bias


def build_misleading() -> keras.Model:
    """Layers whose own names contain "bias", "gamma" and "beta" are there to mislead a pattern on paths."""
    ids = keras.Input([5], dtype="int32")
    x = keras.layers.Embedding(7, 4, name="bias_table")(ids)
    x = keras.layers.LayerNormalization(name="norm")(x)
    x = keras.layers.MultiHeadAttention(2, 2, name="attention")(x, x)
    x = keras.layers.Dense(4, name="bias_gamma_beta")(x)
    x = keras.layers.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d", name="beta")(x)
    return keras.Model(ids, Head(name="head")(x))


def test_a_layers_name_does_not_mislead():
    rules = update_rules(build_misleading().trainable_variables)
    assert {rule.path for rule in rules if rule.weight_decay} == {
        "bias_table/embeddings",
        "attention/query/kernel",
        "attention/key/kernel",
        "attention/value/kernel",
        "attention/attention_output/kernel",
        "bias_gamma_beta/kernel",
        "beta/kernel",
    }


if __name__ == "__main__":
    {"replicas": replicas}[sys.argv[1]](sys.argv[2])
