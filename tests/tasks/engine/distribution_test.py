"""One device, two logical devices and two processes: the same losses, weights and evaluation from the same batches.

Rows of the plain cases are uneven; those of the packed ones hold several examples, with masks drawn at reading.

Run as a script (`distribution_test.py here|worker DIRECTORY`) it does what needs a process of its own; a worker finds
its part in TF_CONFIG.
"""

import glob
import itertools
import json
import os
import sys

import fuzzing
import keras
import numpy as np
import processes
import pytest
import tensorflow as tf
import toy_pretraining
from toy_instances import draw_tokens, mask, masking_rules, write_records
from toy_workers import start_workers

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.models import BertPretrainer
from tasks.engine.optimization import build_optimizer
from tasks.engine.strategy import build_strategy
from tasks.engine.training import Trainer
from tasks.pretraining.data.shard_index import read_records
from tasks.pretraining.train.batches import TrainBatches, make_eval_dataset
from tasks.pretraining.train.losses import PretrainingObjective
from tasks.pretraining.train.packed_data import plan_packing

STEPS = 20
PLAIN = {"plain": {}, "accumulated": {"gradient_accumulation_steps": 4}}
PACKED = {f"packed {case}": options for case, options in PLAIN.items()}
PLAIN["rematerialized"] = {"rematerialize": True, "gradient_accumulation_steps": 2}
PLAIN["muon"] = {"optimizer": "muon", "gradient_accumulation_steps": 2}
CASES = [*PLAIN, *PACKED]
COMPILED = "compiled"  # XLA needs no second process to show what it does.
# Each strategy traces each case anew. By default either takes half of the cases.
MIRRORED_CASES = [*(CASES if fuzzing.FULL else ["plain", "muon", "rematerialized", "packed accumulated"]), COMPILED]
WORKERS_CASES = CASES if fuzzing.FULL else ["accumulated", "muon", "packed plain"]
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
    data = read_records(files, VOCABULARY, **lengths)
    plan = plan_packing(data, rules)
    sizes = {"batch_size": PACKED_BATCH, "packing": plan}
    batches = TrainBatches(data, **sizes, random_seed=1, masking=rules)
    keras.utils.set_random_seed(3)
    with strategy.scope():
        backbone = BertBackbone(
            VOCABULARY,
            num_layers=1,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=64,
            dropout=0.0,
            max_sequence_length=LENGTH,
            layout="packed",
        )
        model = BertPretrainer(backbone, compile=False)
        optimizer = build_optimizer("bert-2018", 0.01, STEPS, 2)
    trainer = Trainer(model, optimizer, PretrainingObjective(), output_dir=directory, strategy=strategy, **options)
    return run(trainer, batches, make_eval_dataset(data, **sizes))


def train(directory: str, strategy: tf.distribute.Strategy, name: str, cases: list[str]) -> None:
    """Trains every case and writes what comes of it to `<name>.npz`."""
    results = {}
    for case in cases:
        output_dir = os.path.join(directory, f"{case}_{name}")
        if case in PACKED:
            results[case] = train_packed(output_dir, strategy, PACKED[case], directory)
        else:
            results[case] = train_plain(output_dir, strategy, PLAIN.get(case, {"jit_compile": True}))
    arrays = {f"{case}_{kind}": value for case, of_case in results.items() for kind, value in of_case.items()}
    np.savez(os.path.join(directory, f"{name}.npz"), **arrays)


def here(directory: str) -> None:
    """One device, and two logical ones of this process."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    train(directory, build_strategy("one_device"), "one", [*CASES, COMPILED])
    train(directory, build_strategy("mirrored"), "mirrored", MIRRORED_CASES)


def worker(directory: str) -> None:
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = build_strategy("multi_worker_mirrored")
    assert strategy.num_replicas_in_sync == 2
    train(directory, strategy, f"worker{index}", WORKERS_CASES)


# === Tests ===


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("distribution")
    token_ids, lengths, first_lengths = draw_tokens(RECORDS, LENGTH, VOCABULARY)
    masked = mask(token_ids, lengths, masking_rules(VOCABULARY, PREDICTIONS))
    write_records(directory, masked, lengths, first_lengths, num_files=2)
    with open(directory / "log_here.txt", "w") as log:
        command = [sys.executable, __file__, "here", str(directory)]
        running = {"log_here.txt": processes.popen(command, stdout=log, stderr=log)}
    running |= {
        f"log{index}.txt": process for index, process in enumerate(start_workers(__file__, "worker", directory))
    }
    try:
        for log, process in running.items():
            assert process.wait(timeout=900) == 0, (directory / log).read_text()[-3000:]
    finally:
        for process in running.values():
            process.kill()
    return {name: np.load(directory / f"{name}.npz") for name in ("one", "mirrored", "worker0", "worker1")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [*itertools.product(["mirrored"], MIRRORED_CASES), *itertools.product(["worker0", "worker1"], WORKERS_CASES)],
)
def test_every_strategy_equals_one_device(results, name, case):
    expected, other = results["one"], results[name]
    assert len(expected[f"{case}_losses"]) == len(other[f"{case}_losses"]) == STEPS
    np.testing.assert_allclose(other[f"{case}_losses"], expected[f"{case}_losses"], rtol=1e-5)
    np.testing.assert_allclose(other[f"{case}_weights"], expected[f"{case}_weights"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(other[f"{case}_evaluation"], expected[f"{case}_evaluation"], rtol=1e-5, atol=1e-6)
    difference = np.linalg.norm(other[f"{case}_weights"] - expected[f"{case}_weights"])
    assert difference < 1e-5 * np.linalg.norm(expected[f"{case}_weights"])


@pytest.mark.slow
@pytest.mark.parametrize("case", ["accumulated", "rematerialized", COMPILED, "packed accumulated"])
def test_how_a_step_is_computed_changes_nothing(results, case):
    arrays, plain = results["one"], "packed plain" if case.startswith("packed") else "plain"
    for kind in ("losses", "weights"):
        np.testing.assert_allclose(arrays[f"{case}_{kind}"], arrays[f"{plain}_{kind}"], 1e-5, 1e-5)


@pytest.mark.slow
def test_the_toy_learns(results):
    losses = results["one"]["plain_losses"]
    assert losses[-1] < 0.8 * losses[0]


if __name__ == "__main__":
    {"here": here, "worker": worker}[sys.argv[1]](sys.argv[2])
