"""The training step against torch and NumPy, two replicas against one device, evaluation, reports.

Run as a script (`training_test.py replicas DIRECTORY`) it does what needs a process of its own.
"""

import glob
import json
import os
import sys

import fuzzing
import keras
import numpy as np
import pytest
import tensorflow as tf
from bfloat16 import needs_bfloat16
from toy_training import (
    WIDTH,
    ToyObjective,
    build_trainer,
    dataset,
    draw,
    repeated,
    run_as_script,
)

from keras_bert.errors import InputError
from tasks.engine import training
from tasks.engine.strategy import build_strategy, set_mixed_precision
from tasks.engine.training import Objective, Trainer


def update(trainer: Trainer, make_dataset, num_steps: int) -> np.ndarray:
    before = np.concatenate([weight.ravel() for weight in trainer.model.get_weights()])
    trainer.fit(make_dataset, num_steps)
    return np.concatenate([weight.ravel() for weight in trainer.model.get_weights()]) - before


def test_a_batch_that_the_devices_of_hosts_cannot_split_is_refused(tmp_path, monkeypatch):
    """As on two hosts with three devices each, without the devices."""

    class Hosts:
        num_replicas_in_sync = 6

        def distribute_datasets_from_function(self, of_host):
            return of_host(tf.distribute.InputContext(num_input_pipelines=2, num_replicas_in_sync=6))

    class Batches:
        def share(self, step, index, count):
            return tf.data.Dataset.range(40).batch(self.size // count, drop_remainder=True)

    trainer, batches = build_trainer(tmp_path), Batches()
    monkeypatch.setattr(training, "_OF_SEVERAL_HOSTS", Hosts)
    monkeypatch.setattr(trainer, "strategy", Hosts())
    batches.size = 12
    assert trainer._training_batches(batches, 0).element_spec.shape == (2,)
    batches.size = 8
    with pytest.raises(InputError, match="--train_batch_size=8 cannot be split among 6 devices. Give a multiple"):
        trainer._training_batches(batches, 0)


# === One step, against torch ===


def torch_step(model: keras.Model, features, labels, clip_norm: float, rate: float):
    """One step of gradient descent in torch. Returns loss, gradient norm, and the weights after it by path."""
    import torch

    weights = {v.path: torch.nn.Parameter(torch.tensor(v.numpy())) for v in model.trainable_variables}
    table = weights["table/embeddings"]
    x = torch.nn.functional.embedding(torch.tensor(features["ids"]).long(), table)
    x = torch.nn.functional.layer_norm(x, [WIDTH], weights["norm/gamma"], weights["norm/beta"], 1e-12)
    x = torch.tanh(x @ weights["dense/kernel"] + weights["dense/bias"])
    logits = x @ table.T + weights["output/output_bias"]
    targets = torch.tensor(labels["targets"]).long()
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    mask = torch.tensor(labels["weights"])
    pair = x[:, 0] @ weights["pair/kernel"] + weights["pair/bias"]
    loss = (mask * losses).sum() / (mask.sum() + 1e-5)
    loss = loss + 0.3 * torch.nn.functional.cross_entropy(pair, torch.tensor(labels["pair"]).long())
    loss.backward()
    trained = [weight for weight in weights.values() if weight.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(trained, clip_norm)
    torch.optim.SGD(trained, lr=rate).step()
    return loss.item(), norm.item(), {path: weight.detach().numpy() for path, weight in weights.items()}


@pytest.mark.oracle
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 4}, {"jit_compile": True}], ids=str)
def test_step_is_torchs(tmp_path, monkeypatch, options):
    monkeypatch.setattr(ToyObjective, "loss_weights", {"pair": 0.3})
    trainer = build_trainer(tmp_path, optimizer=lambda: keras.optimizers.SGD(0.5), clip_norm=0.1, **options)
    loss, norm, expected = torch_step(trainer.model, *draw(16), 0.1, 0.5)
    assert norm > 0.1  # The clip acts.
    row = trainer.fit(lambda start: dataset(16, 16), 1).training[0]
    assert row["loss"] == pytest.approx(loss, rel=1e-5)
    assert row["gradient_norm"] == pytest.approx(norm, rel=1e-5)
    assert row["token_loss"] + 0.3 * row["pair_loss"] == pytest.approx(row["loss"], rel=1e-6)
    for variable in trainer.model.trainable_variables:
        np.testing.assert_allclose(variable.numpy(), expected[variable.path], rtol=1e-5, atol=1e-6)


def test_variables_without_gradient_are_left_alone(tmp_path):
    """As google-research/bert: no decay either."""
    trainer = build_trainer(tmp_path)
    pooler = trainer.model.get_layer("pooler").kernel.numpy()
    table = trainer.model.get_layer("table").embeddings.numpy()
    trainer.fit(repeated, 4)
    np.testing.assert_array_equal(trainer.model.get_layer("pooler").kernel.numpy(), pooler)
    assert not np.array_equal(trainer.model.get_layer("table").embeddings.numpy(), table)


@needs_bfloat16
def test_bfloat16_is_close(tmp_path):
    exact = update(build_trainer(tmp_path / "a", optimizer=lambda: keras.optimizers.SGD(0.1)), repeated, 1)
    set_mixed_precision("bfloat16")
    try:
        trainer = build_trainer(tmp_path / "b", optimizer=lambda: keras.optimizers.SGD(0.1))
        rounded = update(trainer, repeated, 1)
        assert trainer.model.get_layer("dense").compute_dtype == "bfloat16"
        assert {variable.dtype for variable in trainer.model.weights} == {"float32"}
    finally:
        set_mixed_precision("float32")
    assert 0 < np.linalg.norm(rounded - exact) < 0.05 * np.linalg.norm(exact)


# === Two replicas ===


class DropoutSum(Objective):
    def weights(self, features, labels):
        return {"sum": tf.constant(0.5)}  # Two replicas: 1.

    def sums(self, outputs, labels):
        return {"sum": tf.reduce_sum(outputs)}


def dropout_masks(directory: str, strategy, steps: int) -> np.ndarray:
    """Which of 200 units each step's gradient reached, summed over the replicas; float [steps, 200]."""
    with strategy.scope():
        x = keras.Input([200], name="x")
        scaled = keras.layers.Normalization(axis=None, mean=0.0, variance=1.0)(x)
        kept = keras.layers.Dropout(0.5)(scaled)
        model = keras.Model({"x": x}, keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(kept))
        optimizer = keras.optimizers.SGD(1.0)
    trainer = Trainer(model, optimizer, DropoutSum(), output_dir=directory, strategy=strategy, clip_norm=None)
    ones = tf.data.Dataset.from_tensors(({"x": tf.ones([2, 200])}, {"y": tf.zeros([2])})).repeat()
    weights = [np.zeros(200)]
    for step in range(1, steps + 1):
        trainer.fit(lambda start: ones, step)
        weights.append(model.get_weights()[-1].ravel())
    return -np.diff(weights, axis=0)


# Each is traced anew for one device and for two.
CASES = ["bert_ragged", *(["bert_accumulated", "sgd_ragged", "bert", "sgd", "sgd_compiled"] if fuzzing.FULL else [])]


def replicas(directory: str) -> None:
    """Trains on two logical CPUs and on one, and writes what came out."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategies = {"one": build_strategy("one_device"), "two": build_strategy("mirrored")}
    replica_counts = {name: strategy.num_replicas_in_sync for name, strategy in strategies.items()}
    ragged = lambda start: dataset(37, 16, drop_remainder=False)  # noqa: E731 (16, 16, 5)
    cases = {
        "sgd": (repeated, {"optimizer": lambda: keras.optimizers.SGD(0.5)}),
        "bert": (repeated, {}),
        "bert_accumulated": (repeated, {"gradient_accumulation_steps": 4}),
        "sgd_compiled": (
            repeated,
            {"optimizer": lambda: keras.optimizers.SGD(0.5), "gradient_accumulation_steps": 2, "jit_compile": True},
        ),
        "bert_ragged": (ragged, {"gradient_accumulation_steps": 4}),
        "sgd_ragged": (ragged, {"optimizer": lambda: keras.optimizers.SGD(0.5), "gradient_accumulation_steps": 4}),
    }
    results = {}
    for case in CASES:
        make_dataset, options = cases[case]
        for name, strategy in strategies.items():
            output_dir = os.path.join(directory, f"{case}_{name}")
            trainer = build_trainer(output_dir, strategy, clip_norm=0.1, **options)
            results[f"{case}_{name}"] = update(trainer, make_dataset, 3)
    for name, strategy in strategies.items():
        trainer = build_trainer(os.path.join(directory, f"evaluate_{name}"), strategy, dropout=0.5)
        figures = trainer.evaluate(dataset(17, 4, drop_remainder=False))  # The last batch: one example, one replica.
        results[f"evaluate_{name}"] = np.array([figures[key] for key in sorted(figures)])
        results[f"masks_{name}"] = dropout_masks(os.path.join(directory, f"masks_{name}"), strategy, 2)
    np.savez(os.path.join(directory, "results.npz"), **results)
    with open(os.path.join(directory, "counts.json"), "w") as file:
        json.dump(replica_counts, file)


@pytest.fixture(scope="module")
def replica_results(tmp_path_factory):
    directory = tmp_path_factory.mktemp("replicas")
    done = run_as_script(__file__, "replicas", directory)
    assert done.returncode == 0, done.stderr
    with open(directory / "counts.json") as file:
        assert json.load(file) == {"one": 1, "two": 2}
    return np.load(directory / "results.npz")


@pytest.mark.parametrize("case", CASES)
def test_two_replicas_equal_one_device(replica_results, case):
    one_device, mirrored = replica_results[f"{case}_one"], replica_results[f"{case}_two"]
    assert np.linalg.norm(one_device) > 0.01
    difference = np.linalg.norm(mirrored - one_device) / np.linalg.norm(one_device)
    print(case, difference)
    assert difference < 1e-5


def test_replicas_evaluate_as_one_device(replica_results):
    np.testing.assert_allclose(replica_results["evaluate_two"], replica_results["evaluate_one"], rtol=1e-6)


def test_dropout_differs_between_replicas_and_steps(replica_results):
    """A kept unit counts 2 (1 / 0.5): with equal masks the sum over two replicas would be 0 or 4 of them, never 2."""
    units = {name: replica_results[f"masks_{name}"] for name in ("one", "two")}
    for masks in units.values():
        values, counts = np.unique(np.round(masks / masks.max() * 4), return_counts=True)
        assert values.tolist() == [0, 2, 4]
        assert 130 < counts[1] < 270  # Half of 2 x 200 units, give or take seven standard deviations.
        assert not np.array_equal(masks[0], masks[1])


# === Evaluation, reports and refusals ===


def test_evaluation_counts_every_example_once(tmp_path):
    trainer = build_trainer(tmp_path, dropout=0.5)
    features, labels = draw(17)
    outputs = {name: logits.astype("float64") for name, logits in trainer.model.predict(features, verbose=0).items()}

    def cross_entropy(logits, targets):
        log_sums = np.log(np.exp(logits).sum(-1))
        return log_sums - np.take_along_axis(logits, targets[..., None], -1)[..., 0]

    weights = labels["weights"].astype("float64")
    right = outputs["token"].argmax(-1) == labels["targets"]
    expected = {
        "token_loss": (weights * cross_entropy(outputs["token"], labels["targets"])).sum() / weights.sum(),
        "pair_loss": cross_entropy(outputs["pair"], labels["pair"]).mean(),
        "token_accuracy": (weights * right).sum() / weights.sum(),
        "nothing": 0.0,
    }
    expected["loss"] = expected["token_loss"] + expected["pair_loss"]
    for batch_size in (5, 17, 4):
        assert trainer.evaluate(dataset(17, batch_size, drop_remainder=False)) == pytest.approx(expected, rel=1e-5)


def test_what_a_run_leaves(tmp_path, capfd):
    trainer = build_trainer(tmp_path / "run", keep_checkpoints=2, steps_per_call=3)
    data = dataset(17, 5, drop_remainder=False)
    history = trainer.fit(
        repeated, 10, save_checkpoints_steps=4, evaluate=lambda: trainer.evaluate(data), description="toy"
    )
    assert [row["step"] for row in history.evaluations] == [4, 8, 10]
    assert [row["step"] for row in history.training] == list(range(1, 11))
    rates = [row["learning_rate"] for row in history.training]
    assert rates == pytest.approx([0.0, 0.005] + [0.01 * (1 - step / 20) for step in range(2, 10)], rel=1e-5)
    assert history.training[-1]["loss"] < history.training[0]["loss"]
    with open(tmp_path / "run" / "history.json") as file:
        assert json.load(file) == {"training": history.training, "evaluations": history.evaluations}
    index_files = glob.glob(str(tmp_path / "run" / "checkpoints" / "*.index"))
    assert sorted(os.path.basename(path) for path in index_files) == ["ckpt-10.index", "ckpt-8.index"]
    [events] = glob.glob(str(tmp_path / "run" / "events" / "*"))
    values = [value for event in tf.compat.v1.train.summary_iterator(events) for value in event.summary.value]
    assert {value.metadata.plugin_data.plugin_name for value in values} == {"scalars"}
    tags = {value.tag for value in values}
    assert {"train/loss", "train/learning_rate", "train/token_loss", "eval/loss", "eval/token_accuracy"} <= tags
    assert "train/examples_per_second" in tags and "train/real_tokens_per_second" not in tags  # No padding mask here.
    error_output = capfd.readouterr().err
    assert "toy: 100%" in error_output and "examples/s" in error_output and "toy: step 10: loss" in error_output
    assert trainer._train.experimental_get_tracing_count() == 1  # One trace, whatever the number of steps a call.


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="training data ended after step 3"):
        build_trainer(tmp_path / "a").fit(lambda start: dataset(48, 16), 5)
    with pytest.raises(InputError, match="16 examples, cannot be split into gradient_accumulation_steps=5"):
        build_trainer(tmp_path / "c", gradient_accumulation_steps=5).fit(repeated, 1)


if __name__ == "__main__":
    {"replicas": replicas}[sys.argv[1]](sys.argv[2])
