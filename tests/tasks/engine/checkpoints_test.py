"""Training that was stopped: resuming, broken checkpoints, and what a run that ends between two files leaves out.

Run as a script (`checkpoints_test.py killed DIRECTORY`) it does what needs a process of its own.
"""

import glob
import json
import os
import signal
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_training import ToyObjective, build_trainer, repeated, run_as_script, state

from keras_bert.errors import InputError
from tasks.engine.checkpoints import Checkpoints, keep_settings
from tasks.engine.training import Trainer


def killed(directory: str) -> None:
    """Trains with a checkpoint every 5 steps, and is killed while the data of step 9 is read."""

    def kill(*example):
        os.kill(os.getpid(), signal.SIGKILL)

    def make_dataset(start_step):
        head = repeated(start_step).take(8)
        tail = repeated(start_step).map(lambda *example: (tf.py_function(kill, [], []), example)[1])
        return head.concatenate(tail)

    build_trainer(directory, dropout=0.5, random_seed=7).fit(make_dataset, 12, save_checkpoints_steps=5)


def test_killed_and_resumed_equals_undisturbed(tmp_path):
    undisturbed = build_trainer(tmp_path / "a", dropout=0.5, random_seed=7, steps_per_call=3)
    history = undisturbed.fit(repeated, 12, save_checkpoints_steps=5)
    done = run_as_script(__file__, "killed", tmp_path / "b")
    assert done.returncode == -signal.SIGKILL, done.stderr
    starts = []
    resumed = build_trainer(tmp_path / "b", dropout=0.5, random_seed=7)
    resumed_history = resumed.fit(lambda start: starts.append(start) or repeated(start), 12, save_checkpoints_steps=5)
    assert starts == [5]
    for expected, value in zip(state(undisturbed), state(resumed), strict=True):
        np.testing.assert_array_equal(expected, value)
    assert resumed_history.training == history.training
    other_seed = build_trainer(tmp_path / "c", dropout=0.5, random_seed=8)
    other_seed.fit(repeated, 12)
    assert not np.array_equal(state(other_seed)[0], state(resumed)[0])  # Dropout is on, and follows the seed.


def test_finished_run_is_left_alone(tmp_path):
    history = build_trainer(tmp_path).fit(repeated, 3)
    again = build_trainer(tmp_path)
    assert again.fit(lambda start: pytest.fail("no data is needed"), 3).training == history.training
    assert int(again.step.numpy()) == 3


BREAKS = {
    "data cut": lambda path: os.truncate(f"{path}.data-00000-of-00001", 100),
    "data gone": lambda path: os.remove(f"{path}.data-00000-of-00001"),
    "data flipped": lambda path: flip(f"{path}.data-00000-of-00001"),
    "index cut": lambda path: os.truncate(f"{path}.index", 10),
    "index empty": lambda path: os.truncate(f"{path}.index", 0),
}


def flip(path: str) -> None:
    with open(path, "r+b") as file:
        file.seek(200)
        byte = file.read(1)
        file.seek(200)
        file.write(bytes([byte[0] ^ 255]))


def test_broken_checkpoints(tmp_path, capfd):
    trainer = build_trainer(tmp_path)
    values = {}
    for step in (2, 4):
        trainer.fit(repeated, step)
        values[step] = state(trainer)
    (tmp_path / "checkpoints" / "checkpoint").unlink()  # TensorFlow's list; a crash may lose it.
    newest = str(tmp_path / "checkpoints" / "ckpt-4")
    contents = {path: open(path, "rb").read() for path in glob.glob(f"{newest}.*")}
    fresh = build_trainer(tmp_path)
    assert fresh.restore() == 4
    for name, damage in BREAKS.items():
        damage(newest)
        capfd.readouterr()
        assert fresh.restore() == 2, name
        message = capfd.readouterr().err
        assert f"{newest}: broken checkpoint" in message and message.count("\n") == 1, name
        for value, expected in zip(state(fresh), values[2], strict=True):
            np.testing.assert_array_equal(value, expected)
        for path, content in contents.items():
            with open(path, "wb") as file:
                file.write(content)
    for path in glob.glob(str(tmp_path / "checkpoints" / "*.index")):
        os.truncate(path, 0)
    with pytest.raises(InputError, match="every checkpoint is broken"):
        fresh.restore()


def test_what_killed_runs_left_is_removed(tmp_path):
    build_trainer(tmp_path, keep_checkpoints=2).fit(repeated, 3, save_checkpoints_steps=1)
    directory = tmp_path / "checkpoints"
    expected = sorted(os.listdir(directory))
    assert "ckpt-3.index" in expected and "ckpt-1.index" not in expected
    foreign = ["notes.txt", "ckpt-best.index"]
    for name in ("checkpoint.tmp34fd84", "ckpt-1.index", "ckpt-1.data-00000-of-00001", *foreign):
        (directory / name).write_bytes(b"")
    (directory / "ckpt-4_temp").mkdir()
    build_trainer(tmp_path, keep_checkpoints=2).fit(repeated, 3)  # Finished before: only tidies up.
    assert sorted(os.listdir(directory)) == sorted([*expected, *foreign])


def test_the_checkpoint_of_a_step_is_restored(tmp_path):
    trainer = build_trainer(tmp_path, keep_checkpoints=2)
    trainer.fit(repeated, 2, save_checkpoints_steps=1)
    assert trainer._checkpoints.restore(1) == 1
    with pytest.raises(InputError, match="every checkpoint is broken"):
        trainer._checkpoints.restore(3)


def test_settings_are_compared_as_json(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    keep_settings(str(tmp_path), {"dims": [8, 4], "none": []})
    keep_settings(str(tmp_path), {"dims": (8, 4), "none": ()})
    with pytest.raises(InputError, match=r"holds a training with dims=\[8, 4\]. It cannot continue with \[8\]"):
        keep_settings(str(tmp_path), {"dims": (8,), "none": ()})


def test_a_training_with_other_settings_has_time_of_its_own(tmp_path):
    """As after Ctrl-C before the first checkpoint, and another flag; the same settings continue with what is left."""
    clock = tmp_path / "time_budget.json"
    keep_settings(str(tmp_path), {"learning_rate": 1e-3})
    clock.write_text('{"seconds": 60.0}')
    keep_settings(str(tmp_path), {"learning_rate": 1e-3})
    keep_settings(str(tmp_path), {"learning_rate": 1e-4}, writes=False)
    assert clock.exists()
    keep_settings(str(tmp_path), {"learning_rate": 1e-4})
    assert not clock.exists()


def test_checkpoint_of_another_model(tmp_path):
    build_trainer(tmp_path).fit(repeated, 1)
    other = build_trainer(tmp_path, optimizer=lambda: keras.optimizers.SGD(0.1))
    with pytest.raises(InputError, match="ckpt-1: a checkpoint of another model or optimizer"):
        other.fit(repeated, 2)
    wider = keras.Sequential([keras.Input([3]), keras.layers.Dense(4)])
    trainer = Trainer(wider, keras.optimizers.SGD(0.1), ToyObjective(), output_dir=str(tmp_path))
    with pytest.raises(InputError, match="ckpt-1: a checkpoint of another model or optimizer"):
        trainer.restore()


def test_stopped_between_the_last_checkpoint_and_its_evaluation(tmp_path, monkeypatch):
    save = Checkpoints.save

    def save_and_stop(checkpoints, keep):
        save(checkpoints, keep)
        raise KeyboardInterrupt

    no_data = lambda start: pytest.fail("no data is needed")  # noqa: E731
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoints, "save", save_and_stop)
        build_trainer(tmp_path).fit(repeated, 3, evaluate=lambda: pytest.fail("stopped before"))
    history = build_trainer(tmp_path).fit(no_data, 3, evaluate=lambda: {"loss": 2.0})
    assert [row["step"] for row in history.training] == [1, 2, 3]
    assert history.evaluations == [{"step": 3, "loss": 2.0}]
    written = json.loads((tmp_path / "history.json").read_text())
    assert written == {"training": history.training, "evaluations": history.evaluations}
    again = build_trainer(tmp_path).fit(no_data, 3, evaluate=lambda: pytest.fail("evaluated already"))
    assert again == history


def test_stopped_in_the_middle_and_resumed_evaluates_all_that_is_due(tmp_path):
    def stop():
        raise KeyboardInterrupt

    intervals = {"save_checkpoints_steps": 2, "evaluation_steps": 3}
    with pytest.raises(KeyboardInterrupt):
        build_trainer(tmp_path).fit(repeated, 7, **intervals, evaluate=stop)
    history = build_trainer(tmp_path).fit(repeated, 7, **intervals, evaluate=lambda: {"loss": 1.0})
    assert [row["step"] for row in history.evaluations] == [4, 7]
    assert [row["step"] for row in history.training] == [1, 2, 3, 4, 5, 6, 7]


def test_a_finished_run_whose_report_was_lost(tmp_path):
    build_trainer(tmp_path).fit(repeated, 2)
    (tmp_path / "history.json").unlink()
    history = build_trainer(tmp_path).fit(repeated, 2)
    assert history.training == history.evaluations == []


if __name__ == "__main__":
    {"killed": killed}[sys.argv[1]](sys.argv[2])
