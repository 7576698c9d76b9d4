"""SIGTERM: saved at the next step, status 42, and the same weights in the end.

Run as a script (`preemption_test.py train|evaluate DIRECTORY`) it sends itself the signal.
"""

import os
import signal
import sys

import numpy as np
import pytest
import tensorflow as tf
from toy_training import build_trainer, dataset, repeated, run_as_script, state

from tasks.engine.preemption import PREEMPTED_STATUS, Preempted, Preemption


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def train(directory: str) -> None:
    """The signal comes while the data of step 9 is read; checkpoints would be every 5 steps."""

    def hit(step):
        if step == 8:
            terminate()
        return step

    def make_dataset(start_step):
        steps = tf.data.Dataset.range(start_step, 100).map(lambda step: tf.numpy_function(hit, [step], tf.int64))
        return tf.data.Dataset.zip(repeated(start_step), steps).map(lambda batch, step: batch)

    build_trainer(directory, dropout=0.5, random_seed=7, steps_per_call=1).fit(
        make_dataset, 20, save_checkpoints_steps=5, evaluate=lambda: {"loss": 1.0}
    )


def evaluate(directory: str) -> None:
    """The signal comes during the evaluation after step 5."""
    trainer = build_trainer(directory, dropout=0.5, random_seed=7)

    def slow_evaluation():
        terminate()
        return trainer.evaluate(dataset(48, 16))

    trainer.fit(repeated, 20, save_checkpoints_steps=5, evaluate=slow_evaluation)


@pytest.mark.slow(keep=["train"])
@pytest.mark.parametrize("mode", ["train", "evaluate"])
def test_saved_and_resumed_equals_undisturbed(tmp_path, mode):
    done = run_as_script(__file__, mode, tmp_path / "here")
    assert done.returncode == PREEMPTED_STATUS, done.stderr
    resumed = build_trainer(tmp_path / "here", dropout=0.5, random_seed=7)
    saved = resumed.restore()
    # tf.data reads ahead, so that the signal may come a few steps before step 9.
    assert saved == 5 if mode == "evaluate" else 1 <= saved <= 9
    assert f"Stopped by SIGTERM after step {saved}. The checkpoint is saved" in done.stderr
    assert "Traceback" not in done.stderr
    history = resumed.fit(repeated, 20, save_checkpoints_steps=5, evaluate=lambda: {"loss": 1.0})
    assert [row["step"] for row in history.evaluations] == [5, 10, 15, 20]
    undisturbed = build_trainer(tmp_path / "undisturbed", dropout=0.5, random_seed=7)
    undisturbed.fit(repeated, 20)
    for expected, value in zip(state(undisturbed), state(resumed), strict=True):
        np.testing.assert_array_equal(expected, value)


def test_a_training_without_checkpoints_does_not_claim_one(tmp_path, capsys):
    trainer = build_trainer(tmp_path, keep_checkpoints=0)

    def make_dataset(start_step):
        terminate()
        return repeated(start_step)

    with pytest.raises(Preempted):
        trainer.fit(make_dataset, 3)
    assert not (tmp_path / "checkpoints").exists()
    assert "after step 1. No checkpoint is saved: the same command starts anew." in capsys.readouterr().err


def test_signals_are_noted_inside_only():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("outside"))
    try:
        with Preemption() as preemption:
            terminate()
            assert preemption.requested and not heard
            terminate()  # The second is the command's own.
            assert heard == ["outside"]
            with pytest.raises(Preempted) as error:
                preemption.stop(3)
            assert error.value.code == PREEMPTED_STATUS
        assert not preemption.requested
        terminate()
        assert heard == ["outside"] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    {"train": train, "evaluate": evaluate}[sys.argv[1]](sys.argv[2])
