"""Fine-tuning on one device, on two logical devices and on two processes: the same weights, scores and predictions.

Run as a script (`fine_tuning_strategies_test.py one|mirrored|workers DIRECTORY`) it trains, evaluates and predicts as a
process of its own; a worker finds its part in TF_CONFIG.
"""

import functools
import json
import pathlib
import sys

import keras
import numpy as np
import processes
import pytest
import run_tasks
import tensorflow as tf
import toy_words
from every_task import TASKS as ALL_TASKS
from every_task import TRAINING, csv
from toy_workers import start_workers

from keras_bert import BertBackbone, BertTokenizer

TASKS = {name: ALL_TASKS[name] for name in ("classification", "question_answering", "tagging")}
LONG = (
    ("text", "label"),
    *((" ".join(f"w{n % 20}" for n in range(5 * row, 11 * row)), row % 2) for row in range(1, 9)),
)
TASKS["long_texts"] = (functools.partial(run_tasks.classify, long_text="max"), "{}.csv", csv(*LONG))
STRATEGIES = {"one": "one_device", "mirrored": "mirrored", "workers": "multi_worker_mirrored"}
pytestmark = pytest.mark.slow


def main(name: str, directory: str) -> None:
    """Workers share the directory of a run, as hosts share a disk."""
    if name == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    for task, (entry, *_) in TASKS.items():
        given = {
            "distribution_strategy": STRATEGIES[name],
            "data_dir": f"{directory}/{task}",
            "output_dir": f"{directory}/{task}_{name}",
        }
        start = {"preset": f"{directory}/preset", **TRAINING, "eval_batch_size": 3}
        entry(do_train=True, do_eval=True, do_predict=task == "classification", **start, **given)
        if task != "classification":  # In another call, with the model that the training left.
            entry(do_predict=True, eval_batch_size=3, **given)


@pytest.fixture(scope="module", name="runs")
def _runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("strategies")
    for task, (_, file_name, good, *_) in TASKS.items():
        (directory / task).mkdir()
        for split in ("train", "dev", "test"):
            (directory / task / file_name.format(split)).write_text(good)
    keras.utils.set_random_seed(7)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 32, "intermediate_dim": 64, "max_sequence_length": 32}
    backbone = BertBackbone(len(toy_words.VOCABULARY), **sizes, dropout=0.0, attention_dropout=0.0)
    backbone.save_to_preset(str(directory / "preset"))
    BertTokenizer(toy_words.VOCABULARY).save_to_preset(str(directory / "preset"))
    running = {}
    for name in ("one", "mirrored"):
        with open(directory / f"log_{name}.txt", "w") as log:
            command = [sys.executable, __file__, name, str(directory)]
            running[f"log_{name}.txt"] = processes.popen(command, stdout=log, stderr=log)
    workers = start_workers(__file__, "workers", directory)
    running |= {f"log{index}.txt": worker for index, worker in enumerate(workers)}
    try:
        for log, process in running.items():
            assert process.wait(timeout=500) == 0, (directory / log).read_text()[-3000:]
    finally:
        for process in running.values():
            process.kill()
    return directory


def weights_of(run: pathlib.Path) -> list[np.ndarray]:
    return keras.saving.load_model(run / "model" / "model.keras", compile=False).get_weights()


def numbers_in(path: pathlib.Path) -> list[float]:
    """What a file of predictions holds that is a number."""
    numbers = []
    for word in path.read_text().replace(",", " ").replace(":", " ").split():
        try:
            numbers.append(float(word))
        except ValueError:
            continue
    return numbers


@pytest.mark.parametrize("name", ["mirrored", "workers"])
@pytest.mark.parametrize("task", TASKS)
def test_every_strategy_fine_tunes_scores_and_predicts_as_one_device(runs, task, name):
    reference, other = runs / f"{task}_one", runs / f"{task}_{name}"
    for expected, weight in zip(weights_of(reference), weights_of(other), strict=True):
        np.testing.assert_allclose(weight, expected, rtol=1e-4, atol=1e-5)
    metrics, other_metrics = (json.loads((run / "metrics.json").read_text()) for run in (reference, other))
    for figure, value in metrics.items():
        if isinstance(value, float) and not figure.endswith("_seconds"):
            assert other_metrics[figure] == pytest.approx(value, rel=1e-4, nan_ok=True), figure
    paths = sorted(path.name for path in reference.glob("*predictions*"))
    assert paths and paths == sorted(path.name for path in other.glob("*predictions*"))
    for path in paths:
        assert numbers_in(other / path) == pytest.approx(numbers_in(reference / path), abs=1e-4)
    assert (other / "report.html").is_file()


if __name__ == "__main__":
    main(*sys.argv[1:])
