"""Packed rows with masks drawn at reading, trained on one device, on two logical devices and in two processes.

Run as a script (`packed_distribution_test.py one|mirrored|worker DIRECTORY`) it does what needs a process of its own.
"""

import glob
import json
import os
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_instances import draw_tokens, mask, masking_rules, write_records
from toy_training import run_as_script
from toy_workers import start_workers

from keras_bert.backbone import BertBackbone
from tasks.optimization import build_optimizer
from tasks.pretraining.data import make_eval_dataset, train_dataset_maker
from tasks.pretraining.losses import PretrainingObjective
from tasks.pretraining.model import build_pretrainer
from tasks.pretraining.packed_data import plan_packing
from tasks.strategy import build_strategy
from tasks.training import Trainer

N, S, P, V = 120, 32, 5, 60
BATCH, STEPS = 8, 20
LENGTHS = {"max_seq_length": S, "max_predictions_per_seq": P}
CASES = {"plain": {}, "accumulated": {"gradient_accumulation_steps": 4}}


def build_trainer(directory: str, strategy: tf.distribute.Strategy, **options) -> Trainer:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        backbone = BertBackbone(
            V, num_layers=2, num_heads=2, hidden_dim=16, intermediate_dim=64, dropout=0.0, max_sequence_length=S,
            layout="packed",
        )  # fmt: skip
        model = build_pretrainer(backbone)
        optimizer = build_optimizer("bert-2018", 0.01, STEPS, 2)
    return Trainer(model, optimizer, PretrainingObjective(), output_dir=directory, strategy=strategy, **options)


def train(directory: str, strategy: tf.distribute.Strategy, name: str) -> None:
    files, rules = sorted(glob.glob(os.path.join(directory, "*.tfrecord"))), masking_rules(V, P)
    plan = plan_packing(files, **LENGTHS, masking=rules)
    make_dataset = train_dataset_maker(
        files, num_records=N, batch_size=BATCH, random_seed=1, masking=rules, packing=plan, **LENGTHS
    )
    evaluation = make_eval_dataset(files, num_records=N, batch_size=BATCH, packing=plan, **LENGTHS)
    results = {}
    for case, options in CASES.items():
        trainer = build_trainer(os.path.join(directory, f"{case}_{name}"), strategy, **options)
        history = trainer.fit(make_dataset, STEPS)
        results[f"{case}_losses"] = np.array([row["loss"] for row in history.training])
        results[f"{case}_weights"] = np.concatenate([weight.ravel() for weight in trainer.model.get_weights()])
        figures = trainer.evaluate(evaluation)
        results[f"{case}_evaluation"] = np.array([figures[name] for name in sorted(figures)])
    np.savez(os.path.join(directory, f"{name}.npz"), **results)


def one(directory: str) -> None:
    train(directory, build_strategy("one_device"), "one")


def mirrored(directory: str) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    train(directory, build_strategy("mirrored"), "mirrored")


def worker(directory: str) -> None:
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    train(directory, build_strategy("multi_worker_mirrored"), f"worker{index}")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("packed")
    token_ids, lengths, first_lengths = draw_tokens(N, S, V)
    write_records(directory, mask(token_ids, lengths, masking_rules(V, P)), lengths, first_lengths, num_files=2)
    for mode in ("one", "mirrored"):
        done = run_as_script(__file__, mode, directory)
        assert done.returncode == 0, done.stderr
    for number, process in enumerate(start_workers(__file__, "worker", directory)):
        assert process.wait(timeout=300) == 0, (directory / f"log{number}.txt").read_text()[-3000:]
    return {name: np.load(directory / f"{name}.npz") for name in ("one", "mirrored", "worker0", "worker1")}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["one", "mirrored", "worker0", "worker1"])
def test_every_strategy_equals_one_device(results, name, case):
    expected, found = results["one"], results[name]
    kind_of = {kind: (found[f"{case}_{kind}"], expected[f"plain_{kind}"]) for kind in ("weights", "evaluation")}
    for kind, (ours, theirs) in kind_of.items():
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5, err_msg=kind)
    if name != "worker1":  # The chief alone keeps the history.
        assert len(found[f"{case}_losses"]) == STEPS
        np.testing.assert_allclose(found[f"{case}_losses"], expected["plain_losses"], rtol=1e-5)


if __name__ == "__main__":
    {"one": one, "mirrored": mirrored, "worker": worker}[sys.argv[1]](sys.argv[2])
