"""Two processes that train together: SIGTERM to one saves both, a lost one ends both, and they continue as if nothing
had happened.

Run as a script (`workers_test.py train|told DIRECTORY`) it does what needs a process of its own.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
from toy_pretraining import BATCH, PREDICTIONS, batches, build_trainer
from toy_workers import start_workers

from keras_bert.errors import InputError
from tasks.engine.preemption import PREEMPTED_STATUS
from tasks.engine.strategy import build_strategy
from tasks.engine.workers import LOST_STATUS, Workers

STEPS, SAVE_STEPS = 40, 5
NOT_NUMBERS = np.full((BATCH, PREDICTIONS), np.nan, np.float32)


def index() -> int:
    return json.loads(os.environ["TF_CONFIG"])["task"]["index"]


def train(directory: str) -> None:
    """Trains slowly, with dropout; every worker writes the weights that it ends with."""

    def slow(start_step):
        return batches(start_step).map(lambda *batch: (tf.numpy_function(lambda: time.sleep(0.1), [], []), batch)[1])

    # Each worker has a disk of its own, and only the chief's gets a checkpoint.
    output_dir = os.path.join(directory, f"disk{index()}")
    strategy = build_strategy("multi_worker_mirrored")
    trainer = build_trainer(output_dir, strategy, dropout=0.1, num_steps=STEPS, steps_per_call=2)
    trainer.fit(slow, STEPS, save_checkpoints_steps=SAVE_STEPS, evaluate=lambda: {"loss": 1.0})
    np.savez(os.path.join(directory, f"weights{index()}.npz"), *trainer.model.get_weights())


def train_and_evaluate(trainer) -> dict[str, list[float]]:
    history = trainer.fit(batches, 2)
    figures = trainer.evaluate(batches(0).take(1))
    return {
        "losses": [row["loss"] for row in history.training],
        "evaluation": [figures[name] for name in sorted(figures)],
    }


def diverge(trainer) -> str:
    """Trains on with a batch that is not numbers; returns what is said of it."""

    def poisoned(start_step):
        return batches(start_step).map(lambda features, labels: (features, {**labels, "mask_weights": NOT_NUMBERS}))

    with pytest.raises(InputError) as caught:
        trainer.fit(poisoned, 4)
    return str(caught.value)


def refusal(workers: Workers) -> str:
    """What is said of files that differ."""
    workers.check_equal({"a.tfrecord": 5, "vocab.txt": ["a", "b"]})
    with pytest.raises(InputError) as caught:
        workers.check_equal({"a.tfrecord": 5, "vocab.txt": ["a", "b", str(workers.index)]})
    return str(caught.value)


def told(directory: str) -> None:
    """What the workers tell each other, and what a training of them gives."""
    strategy = build_strategy("multi_worker_mirrored")
    workers = Workers(strategy)
    mine = tf.Variable([1.0 + workers.index, np.nan if workers.index else 3.0])
    count = tf.Variable(7 + workers.index, dtype=tf.int64)
    workers.share([mine, count])
    trainer = build_trainer(os.path.join(directory, f"disk{workers.index}"), strategy, num_layers=1)
    heard = {
        "chief": workers.is_chief,
        "gathered": workers.gather(10.0 + workers.index).tolist(),
        "from_chief": workers.from_chief(workers.index),
        "refused": refusal(workers),
        "shared": [*mine.numpy().tolist(), int(count.numpy())],
        **train_and_evaluate(trainer),
        "diverged": diverge(trainer),
    }
    with open(os.path.join(directory, f"told{workers.index}.json"), "w") as file:
        json.dump(heard, file)
    if workers.index:
        os.kill(os.getpid(), signal.SIGKILL)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr("tasks.engine.workers._LINGER_SECONDS", 0.5)
    with workers.naming_lost_ones():
        workers.wait()


def wait(processes: list[subprocess.Popen], directory, seconds: float = 200.0) -> list[int]:
    """Returns the exit statuses; ends what still runs in the end."""
    end = time.monotonic() + seconds
    try:
        return [process.wait(max(1.0, end - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        pytest.fail("".join((directory / f"log{number}.txt").read_text()[-2000:] for number in range(len(processes))))
    finally:
        for process in processes:
            process.kill()


def wait_for(path, processes, directory) -> None:
    while not path.exists():
        if any(process.poll() is not None for process in processes):
            statuses = wait(processes, directory, 1.0)
            pytest.fail(f"{statuses}: {(directory / 'log0.txt').read_text()[-2000:]}")
        time.sleep(0.05)


def finished_steps(directory) -> set[int]:
    return {int(path.stem[5:]) for path in (directory / "disk0" / "checkpoints").glob("ckpt-*.index")}


def test_workers_tell_each_other_train_as_one_device_and_leave_together(tmp_path):
    expected = train_and_evaluate(build_trainer(tmp_path / "one", num_layers=1))
    assert wait(start_workers(__file__, "told", tmp_path), tmp_path) == [LOST_STATUS, -signal.SIGKILL]
    lost = r"^This training has lost worker 1 \(127.0.0.1:\d+\). No checkpoint is saved yet. Start all 2 workers"
    assert re.search(lost, (tmp_path / "log0.txt").read_text(), re.MULTILINE)
    for number in range(2):
        heard = json.loads((tmp_path / f"told{number}.json").read_text())
        assert heard["chief"] == (number == 0)
        assert heard["gathered"] == [10.0, 11.0] and heard["from_chief"] == 0.0
        refusal = r"vocab.txt: differs between worker 1 \(.+:\d+\) and worker 0 \(.+:\d+\)\. All workers need the same"
        assert re.match(refusal, heard["refused"])
        assert heard["shared"] == [1.0, 3.0, 7]
        assert heard["losses"] == pytest.approx(expected["losses"], rel=1e-5)
        assert heard["evaluation"] == pytest.approx(expected["evaluation"], rel=1e-5)
        assert heard["diverged"].startswith("Training diverged at step 3: loss nan")
    assert (tmp_path / "disk0" / "checkpoints").is_dir() and not (tmp_path / "disk1").exists()


def test_one_process_tells_itself():
    workers = Workers(tf.distribute.get_strategy())
    variable = tf.Variable(3.0)
    workers.share([variable])
    assert (workers.is_chief, workers.gather(2.0).tolist(), workers.from_chief(True)) == (True, [2.0], 1.0)
    assert float(variable.numpy()) == 3.0


@pytest.mark.slow
def test_a_stopped_and_then_killed_pair_ends_like_an_undisturbed_one(tmp_path):
    here, undisturbed = tmp_path / "here", tmp_path / "undisturbed"
    for directory in (here, undisturbed):
        directory.mkdir()
    assert wait(start_workers(__file__, "train", undisturbed), undisturbed) == [0, 0]

    pair = start_workers(__file__, "train", here)
    wait_for(here / "disk0" / "checkpoints" / f"ckpt-{SAVE_STEPS}.index", pair, here)
    pair[1].send_signal(signal.SIGTERM)
    assert wait(pair, here) == [PREEMPTED_STATUS] * 2
    saved = max(finished_steps(here))
    assert SAVE_STEPS <= saved < STEPS - SAVE_STEPS
    for number in range(2):
        assert f"Stopped by SIGTERM after step {saved}." in (here / f"log{number}.txt").read_text()

    pair = start_workers(__file__, "train", here)
    wait_for(here / "disk0" / "checkpoints" / f"ckpt-{(saved // SAVE_STEPS + 1) * SAVE_STEPS}.index", pair, here)
    pair[1].kill()
    statuses = wait(pair, here)
    assert statuses == [LOST_STATUS, -signal.SIGKILL]
    assert re.search(
        r"has lost worker 1 \(.+:\d+\). The checkpoint of step \d+ is kept.", (here / "log0.txt").read_text()
    )
    assert max(finished_steps(here)) < STEPS

    assert wait(start_workers(__file__, "train", here), here) == [0, 0]
    expected = np.load(undisturbed / "weights0.npz")
    for number in range(2):
        weights = np.load(here / f"weights{number}.npz")
        for name in expected.files:
            np.testing.assert_array_equal(weights[name], expected[name])
    assert not (here / "disk1").exists()
    history = json.loads((here / "disk0" / "history.json").read_text())
    assert {row["step"] for row in history["evaluations"]} == set(range(SAVE_STEPS, STEPS + 1, SAVE_STEPS))


if __name__ == "__main__":
    {"train": train, "told": told}[sys.argv[1]](sys.argv[2])
