"""One device, two logical devices and two processes: the same losses, weights and evaluation from the same batches.

Run as a script (`distribution_test.py one|mirrored|worker DIRECTORY`) it does what needs a process of its own; a worker
finds its part in TF_CONFIG.
"""

import json
import os
import sys

import numpy as np
import pytest
import tensorflow as tf
import toy_pretraining
from toy_pretraining import BATCH, batches, build_trainer
from toy_training import run_as_script
from toy_workers import start_workers

from tasks.strategy import build_strategy

STEPS = 20
CASES = {"plain": {}, "accumulated": {"gradient_accumulation_steps": 4}, "compiled": {"jit_compile": True}}


def train(directory: str, strategy: tf.distribute.Strategy, name: str) -> None:
    """Trains every case and writes its losses, final weights and an evaluation to `<name>.npz`."""
    results = {}
    ragged = tf.data.Dataset.from_tensor_slices(toy_pretraining.draw(BATCH + 3)).batch(BATCH)
    for case, options in CASES.items():
        trainer = build_trainer(os.path.join(directory, f"{case}_{name}"), strategy, **options)
        history = trainer.fit(batches, STEPS, evaluate=lambda trainer=trainer: trainer.evaluate(ragged))
        results[f"{case}_losses"] = np.array([row["loss"] for row in history.training])
        results[f"{case}_weights"] = np.concatenate([weight.ravel() for weight in trainer.model.get_weights()])
        [row] = history.evaluations
        results[f"{case}_evaluation"] = np.array([row[name] for name in sorted(row)])
    np.savez(os.path.join(directory, f"{name}.npz"), **results)


def one(directory: str) -> None:
    train(directory, build_strategy("one_device"), "one")


def mirrored(directory: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    train(directory, build_strategy("mirrored"), "mirrored")


def worker(directory: str) -> None:
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = build_strategy("multi_worker_mirrored")
    assert strategy.num_replicas_in_sync == 2
    train(directory, strategy, f"worker{index}")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("distribution")
    for mode in ("one", "mirrored"):
        done = run_as_script(__file__, mode, directory)
        assert done.returncode == 0, done.stderr
    for number, process in enumerate(start_workers(__file__, "worker", directory)):
        assert process.wait(timeout=300) == 0, (directory / f"log{number}.txt").read_text()[-3000:]
    return {name: np.load(directory / f"{name}.npz") for name in ("one", "mirrored", "worker0", "worker1")}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["mirrored", "worker0", "worker1"])
def test_every_strategy_equals_one_device(results, name, case):
    one, other = results["one"], results[name]
    assert len(one[f"{case}_losses"]) == STEPS and one[f"{case}_losses"][-1] < 0.8 * one[f"{case}_losses"][0]
    np.testing.assert_allclose(other[f"{case}_losses"], one[f"{case}_losses"], rtol=1e-5)
    np.testing.assert_allclose(other[f"{case}_weights"], one[f"{case}_weights"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other[f"{case}_evaluation"], one[f"{case}_evaluation"], rtol=1e-5)
    difference = np.linalg.norm(other[f"{case}_weights"] - one[f"{case}_weights"])
    assert difference < 1e-5 * np.linalg.norm(one[f"{case}_weights"])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["accumulated", "compiled"])
def test_how_a_step_is_computed_changes_nothing(results, case):
    for kind in ("losses", "weights"):
        np.testing.assert_allclose(results["one"][f"{case}_{kind}"], results["one"][f"plain_{kind}"], 1e-5, 1e-5)


if __name__ == "__main__":
    {"one": one, "mirrored": mirrored, "worker": worker}[sys.argv[1]](sys.argv[2])
