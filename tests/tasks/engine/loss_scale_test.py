"""float16: the loss scale is decided on the sum of all replicas, whichever of them overflows.

Run as a script (`loss_scale_test.py replicas DIRECTORY`) it does what needs two logical devices.
"""

import json
import os
import sys

import keras
import numpy as np
import tensorflow as tf
from toy_training import build_trainer, repeated, run_as_script

from tasks.engine.divergence import find_divergence
from tasks.engine.strategy import build_strategy, set_mixed_precision, wrap_loss_scale
from tasks.engine.training import Objective, Trainer


@keras.saving.register_keras_serializable(package="tests")
class Poison(keras.layers.Layer):
    """Passes its input on; the gradient is multiplied by `factor`."""

    def call(self, x, factor):
        @tf.custom_gradient
        def pass_on(x):
            return tf.identity(x), lambda upstream: upstream * factor

        return pass_on(x)


class Mean(Objective):
    def weights(self, features, labels):
        return {"mean": tf.cast(tf.shape(labels)[0], tf.float32)}

    def sums(self, outputs, labels):
        return {"mean": tf.reduce_sum(outputs)}


def poisoned_trainer(directory: str, strategy: tf.distribute.Strategy, jit_compile: bool = False) -> Trainer:
    with strategy.scope():
        keras.utils.set_random_seed(1)
        inputs = {"x": keras.Input([3], name="x"), "factor": keras.Input([1], name="factor")}
        x = Poison(dtype="float32")(keras.layers.Dense(2, name="dense")(inputs["x"]), inputs["factor"])
        model = keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(x))
        optimizer = wrap_loss_scale(keras.optimizers.Adam(0.1), "float16")
    return Trainer(
        model, optimizer, Mean(), output_dir=directory, strategy=strategy, clip_norm=0.1, jit_compile=jit_compile
    )


def stream(factors: list[list[float]]):
    """Batches of two examples, one for each replica, with the factors of their gradients."""
    steps = np.array(factors, np.float32)
    x = np.tile(np.array([[[0.25, 0.5, 1.0]]], np.float32), (len(steps), 2, 1))
    data = tf.data.Dataset.from_tensor_slices(({"x": x, "factor": steps[..., None]}, np.zeros((len(steps), 2), "f4")))
    return lambda start_step: data.skip(start_step)


def overflow(directory: str, strategy: tf.distribute.Strategy, **options) -> dict:
    """A good step, one in which the second example's gradient is infinite, and a good one."""
    trainer = poisoned_trainer(directory, strategy, **options)
    data = stream([[1.0, 1.0], [1.0, np.inf], [1.0, 1.0]])
    weights, scales = [], []
    for step in range(4):
        if step:
            history = trainer.fit(data, step)
        local = strategy.experimental_local_results(trainer.model.get_layer("dense").kernel.value)
        weights.append([value.numpy().tolist() for value in local])
        scales.append(float(trainer.optimizer.dynamic_scale.numpy()))
    iterations = int(trainer.optimizer.iterations.numpy())
    return {"weights": weights, "scales": scales, "iterations": iterations, "rows": history.training}


def check(result: dict) -> None:
    before, good, skipped, last = (np.array(weights) for weights in result["weights"])
    assert not np.array_equal(before, good) and not np.array_equal(skipped, last)
    np.testing.assert_array_equal(skipped, good)
    for weights in (good, last):
        np.testing.assert_array_equal(weights[0], weights[-1])  # Every replica's.
    assert result["scales"] == [2.0**15, 2.0**15, 2.0**14, 2.0**14]
    assert result["iterations"] == 2  # The skipped step counts for the schedule of data, not of rates.
    assert [row["skipped"] for row in result["rows"]] == [0.0, 1.0, 0.0]
    assert [row["loss_scale"] for row in result["rows"]] == [2.0**15, 2.0**15, 2.0**14]
    # Two outputs, whose mean over examples has the gradient x: sqrt(2) |x|.
    norm = np.sqrt(2 * (0.0625 + 0.25 + 1) + 2)
    np.testing.assert_allclose([row["gradient_norm"] for row in result["rows"]], [norm, 0.0, norm], rtol=1e-3)


def replicas(directory: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    set_mixed_precision("float16")
    with open(os.path.join(directory, "result.json"), "w") as file:
        json.dump(overflow(os.path.join(directory, "run"), build_strategy("mirrored")), file)


def test_an_overflow_on_the_second_replica_is_skipped_by_both(tmp_path):
    done = run_as_script(__file__, "replicas", tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["weights"][0]) == 2
    check(result)


def test_an_overflow_on_one_device_is_skipped_compiled_too(tmp_path):
    set_mixed_precision("float16")
    try:
        for jit_compile in (False, True):
            check(overflow(str(tmp_path / str(jit_compile)), build_strategy("one_device"), jit_compile=jit_compile))
    finally:
        set_mixed_precision("float32")


def test_float16_is_close_and_keeps_its_scale_in_checkpoints(tmp_path):
    def update(trainer):
        before = np.concatenate([weight.ravel() for weight in trainer.model.get_weights()])
        trainer.fit(repeated, 1)
        return np.concatenate([weight.ravel() for weight in trainer.model.get_weights()]) - before

    exact = update(build_trainer(tmp_path / "exact", optimizer=lambda: keras.optimizers.SGD(0.1)))
    set_mixed_precision("float16")
    try:
        scaled = lambda: wrap_loss_scale(keras.optimizers.SGD(0.1), "float16")  # noqa: E731
        trainer = build_trainer(tmp_path / "half", optimizer=scaled)
        rounded = update(trainer)
        assert trainer.model.get_layer("dense").compute_dtype == "float16"
        assert 0 < np.linalg.norm(rounded - exact) < 0.02 * np.linalg.norm(exact)
        trainer.optimizer.dynamic_scale.assign(8.0)
        trainer.save()
        again = build_trainer(tmp_path / "half", optimizer=scaled)
        assert again.restore() == 1 and float(again.optimizer.dynamic_scale.numpy()) == 8.0
    finally:
        set_mixed_precision("float32")


def test_a_scale_below_one_is_a_divergence():
    names = ["loss", "loss_scale"]
    assert find_divergence(names, np.array([[1.0, 1.0]])) is None
    assert find_divergence(names, np.array([[1.0, 1.0], [1.0, 0.5]])) == (
        1,
        "loss scale 0.5, gradients overflow float16",
    )


if __name__ == "__main__":
    {"replicas": replicas}[sys.argv[1]](sys.argv[2])
