"""Trainings, each killed by SIGKILL at random moments and during a checkpoint's writing, end like one never killed.

Run as a script (`kill_test.py DIRECTORY`) it forks them: TensorFlow is imported once.
"""

import json
import os
import random
import shutil
import signal
import sys
import time

import fuzzing
import numpy as np
import processes
import pytest

RUNS = 10 if fuzzing.FULL else 4
STEPS, SAVE_STEPS = 24, 2


def train(directory: str) -> None:
    """Trains to the end, from where an earlier call was killed, and writes the final state."""
    import tensorflow as tf
    from toy_pretraining import batches, build_trainer

    tf.config.experimental.enable_op_determinism()
    trainer = build_trainer(directory, dropout=0.1, random_seed=7, num_steps=STEPS, steps_per_call=1)
    history = trainer.fit(batches, STEPS, save_checkpoints_steps=SAVE_STEPS)
    variables = [*trainer.model.weights, *trainer.optimizer.variables, trainer.step]
    np.savez(os.path.join(directory, "state.npz"), *[variable.numpy() for variable in variables])
    with open(os.path.join(directory, "losses.json"), "w") as file:
        json.dump([row["loss"] for row in history.training], file)


def start(directory: str) -> int:
    """Forks a training, which leaves a line at its start, and returns its process."""
    process = os.fork()
    if process:
        return process
    try:
        with open(os.path.join(directory, "log.txt"), "a") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        train(directory)
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def write_has_begun(directory: str, finished: int) -> bool:
    """Whether a checkpoint is being written, with `finished` or more before it."""
    try:
        names = os.listdir(os.path.join(directory, "checkpoints"))
    except FileNotFoundError:
        return False
    steps = [int(name[5:-6]) for name in names if name.startswith("ckpt-") and name.endswith(".index")]
    return max(steps, default=0) >= finished and any("temp" in name for name in names)


def has_finished(directory: str, step: int) -> bool:
    """Whether the checkpoint of a step or a later one is there."""
    try:
        names = os.listdir(os.path.join(directory, "checkpoints"))
    except FileNotFoundError:
        return False
    return any(name.endswith(".index") and int(name[5:-6]) >= step for name in names if name.startswith("ckpt-"))


def kill(directory: str, process: int, rng: random.Random, in_write: bool) -> str | None:
    """Waits for a random moment of the training, kills it, and says what it was doing; None: it ended before that."""
    step = rng.randrange(0, STEPS - SAVE_STEPS)
    reached = write_has_begun if in_write else has_finished
    while not reached(directory, step):
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            assert status == 0, f"{directory} ended with {status} before step {step}"
            return None
        time.sleep(0.0002)
    time.sleep(rng.uniform(0.0, 0.004 if in_write else 0.1))
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if status == 0:
        return None
    names = os.listdir(os.path.join(directory, "checkpoints"))
    writing = any("temp" in name for name in names)
    return f"killed {status} {'writing' if writing else 'training'}: {' '.join(sorted(names))}"


def killed_run(here: str, run: int, rng: random.Random) -> list[str]:
    """A training killed once or twice and then finished; begun anew where it ended before it could be killed."""
    for _ in range(5):
        shutil.rmtree(here, ignore_errors=True)
        os.mkdir(here)
        events = [kill(here, start(here), rng, in_write=(run + number) % 2 == 0) for number in range(1 + run % 2)]
        if None not in events:
            _, status = os.waitpid(start(here), 0)
            assert status == 0, here
            return events
    raise AssertionError(f"{here}: ended five times before it could be killed")


def main(directory: str) -> None:
    import tensorflow as tf  # noqa: F401  Before the first fork.
    import toy_pretraining  # noqa: F401

    rng = random.Random(20)
    undisturbed = os.path.join(directory, "undisturbed")
    os.mkdir(undisturbed)
    _, status = os.waitpid(start(undisturbed), 0)
    assert status == 0
    events = []
    for run in range(RUNS):
        events += killed_run(os.path.join(directory, str(run)), run, rng)
    with open(os.path.join(directory, "events.json"), "w") as file:
        json.dump(events, file)


@pytest.mark.slow
def test_killed_runs_end_bit_identical(tmp_path):
    done = processes.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "events.json") as file:
        events = json.load(file)
    print("\n".join(events))
    assert len(events) == RUNS + RUNS // 2 and all(event.startswith("killed 9 ") for event in events)
    assert (
        sum("writing" in event for event in events) > RUNS // 5
        and sum("training" in event for event in events) > RUNS // 5
    )
    expected = np.load(tmp_path / "undisturbed" / "state.npz")
    losses = (tmp_path / "undisturbed" / "losses.json").read_text()
    for run in range(RUNS):
        state = np.load(tmp_path / str(run) / "state.npz")
        assert state.files == expected.files
        for name in expected.files:
            np.testing.assert_array_equal(state[name], expected[name])
        assert (tmp_path / str(run) / "losses.json").read_text() == losses
        left = sorted(os.listdir(tmp_path / str(run) / "checkpoints"))
        assert left == sorted(os.listdir(tmp_path / "undisturbed" / "checkpoints")) and len(left) == 7


if __name__ == "__main__":
    main(sys.argv[1])
