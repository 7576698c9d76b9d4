"""One device, two logical devices and two processes: the same losses, weights and evaluation from the same batches.

Rows of the plain cases are uneven; those of the packed ones hold several examples, with masks drawn at reading.

Run as a script (`distribution_test.py here|worker DIRECTORY`) it does what needs a process of its own; a worker finds
its part in TF_CONFIG.
"""

import glob
import itertools
import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_pretraining
from toy_instances import draw_tokens, mask, masking_rules, write_records
from toy_workers import start_workers

from keras_bert.backbone import BertBackbone
from tasks.optimization import build_optimizer
from tasks.pretraining.data import make_eval_dataset, train_dataset_maker
from tasks.pretraining.losses import PretrainingObjective
from tasks.pretraining.model import build_pretrainer
from tasks.pretraining.packed_data import plan_packing
from tasks.strategy import build_strategy
from tasks.training import Trainer

STEPS = 20
PLAIN = {"plain": {}, "accumulated": {"gradient_accumulation_steps": 4}}
PACKED = {f"packed {case}": options for case, options in PLAIN.items()}
CASES = [*PLAIN, *PACKED]
COMPILED = "compiled"  # XLA needs no second process to show what it does.
RECORDS, LENGTH, PREDICTIONS, VOCABULARY, PACKED_BATCH = 120, 32, 5, 60, 8  # of the packed cases


# === Trainings ===


def run(trainer: Trainer, batches, evaluation) -> dict[str, np.ndarray]:
    """Trains; returns losses, final weights and the evaluation."""
    history = trainer.fit(batches, STEPS, evaluate=lambda: trainer.evaluate(evaluation))
    [row] = history.evaluations
    return {
        "losses": np.array([row["loss"] for row in history.training]),
        "weights": np.concatenate([weight.ravel() for weight in trainer.model.get_weights()]),
        "evaluation": np.array([row[name] for name in sorted(row)]),
    }


def train_plain(directory: str, strategy: tf.distribute.Strategy, options: dict) -> dict[str, np.ndarray]:
    batch = toy_pretraining.BATCH
    ragged = tf.data.Dataset.from_tensor_slices(toy_pretraining.draw(batch + 3)).batch(batch)
    return run(toy_pretraining.build_trainer(directory, strategy, **options), toy_pretraining.batches, ragged)


def train_packed(directory: str, strategy: tf.distribute.Strategy, options: dict, records: str) -> dict:
    files, rules = sorted(glob.glob(os.path.join(records, "*.tfrecord"))), masking_rules(VOCABULARY, PREDICTIONS)
    lengths = {"max_seq_length": LENGTH, "max_predictions_per_seq": PREDICTIONS}
    sizes = {"num_records": RECORDS, "batch_size": PACKED_BATCH}
    plan = plan_packing(files, **lengths, masking=rules)
    batches = train_dataset_maker(files, **sizes, random_seed=1, masking=rules, packing=plan, **lengths)
    keras.utils.set_random_seed(3)
    with strategy.scope():
        backbone = BertBackbone(
            VOCABULARY, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=64, dropout=0.0,
            max_sequence_length=LENGTH, layout="packed",
        )  # fmt: skip
        model = build_pretrainer(backbone)
        optimizer = build_optimizer("bert-2018", 0.01, STEPS, 2)
    trainer = Trainer(model, optimizer, PretrainingObjective(), output_dir=directory, strategy=strategy, **options)
    return run(trainer, batches, make_eval_dataset(files, **sizes, packing=plan, **lengths))


def train(directory: str, strategy: tf.distribute.Strategy, name: str, with_xla: bool) -> None:
    """Trains every case and writes what comes of it to `<name>.npz`."""
    results, plain = {}, PLAIN | ({COMPILED: {"jit_compile": True}} if with_xla else {})
    for case, options in plain.items():
        results[case] = train_plain(os.path.join(directory, f"{case}_{name}"), strategy, options)
    for case, options in PACKED.items():
        results[case] = train_packed(os.path.join(directory, f"{case}_{name}"), strategy, options, directory)
    arrays = {f"{case}_{kind}": value for case, of_case in results.items() for kind, value in of_case.items()}
    np.savez(os.path.join(directory, f"{name}.npz"), **arrays)


def here(directory: str) -> None:
    """One device, and two logical ones of this process."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    train(directory, build_strategy("one_device"), "one", with_xla=True)
    train(directory, build_strategy("mirrored"), "mirrored", with_xla=True)


def worker(directory: str) -> None:
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = build_strategy("multi_worker_mirrored")
    assert strategy.num_replicas_in_sync == 2
    train(directory, strategy, f"worker{index}", with_xla=False)


# === Tests ===


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("distribution")
    token_ids, lengths, first_lengths = draw_tokens(RECORDS, LENGTH, VOCABULARY)
    masked = mask(token_ids, lengths, masking_rules(VOCABULARY, PREDICTIONS))
    write_records(directory, masked, lengths, first_lengths, num_files=2)
    environment = dict(os.environ, PYTHONPATH=os.getcwd(), TF_CPP_MIN_LOG_LEVEL="3")
    with open(directory / "log_here.txt", "w") as log:
        command = [sys.executable, __file__, "here", str(directory)]
        processes = {"log_here.txt": subprocess.Popen(command, env=environment, stdout=log, stderr=log)}
    processes |= {f"log{index}.txt": one for index, one in enumerate(start_workers(__file__, "worker", directory))}
    try:
        for log, process in processes.items():
            assert process.wait(timeout=900) == 0, (directory / log).read_text()[-3000:]
    finally:
        for process in processes.values():
            process.kill()
    return {name: np.load(directory / f"{name}.npz") for name in ("one", "mirrored", "worker0", "worker1")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [*itertools.product(["mirrored", "worker0", "worker1"], CASES), ("mirrored", COMPILED)],
)
def test_every_strategy_equals_one_device(results, name, case):
    one, other = results["one"], results[name]
    assert len(one[f"{case}_losses"]) == len(other[f"{case}_losses"]) == STEPS
    np.testing.assert_allclose(other[f"{case}_losses"], one[f"{case}_losses"], rtol=1e-5)
    np.testing.assert_allclose(other[f"{case}_weights"], one[f"{case}_weights"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other[f"{case}_evaluation"], one[f"{case}_evaluation"], rtol=1e-5, atol=1e-6)
    difference = np.linalg.norm(other[f"{case}_weights"] - one[f"{case}_weights"])
    assert difference < 1e-5 * np.linalg.norm(one[f"{case}_weights"])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["accumulated", COMPILED, "packed accumulated"])
def test_how_a_step_is_computed_changes_nothing(results, case):
    one, plain = results["one"], "packed plain" if case.startswith("packed") else "plain"
    for kind in ("losses", "weights"):
        np.testing.assert_allclose(one[f"{case}_{kind}"], one[f"{plain}_{kind}"], 1e-5, 1e-5)


@pytest.mark.slow
def test_the_toy_learns(results):
    losses = results["one"]["plain_losses"]
    assert losses[-1] < 0.8 * losses[0]


if __name__ == "__main__":
    {"here": here, "worker": worker}[sys.argv[1]](sys.argv[2])
