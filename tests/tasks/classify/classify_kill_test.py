"""`bert-classify` killed at random moments and started again ends with the scores of a run that was never killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import processes
import pytest
from repository import ROOT
from toy_classifier import COLUMNS, TRAINING, write_preset, write_tables

KILLS = 2


def start(directory, run: str) -> subprocess.Popen:
    """Starts the command in a process of its own."""
    settings = {
        **COLUMNS,
        **TRAINING,
        "preset": directory / "preset",
        "data_dir": directory,
        "output_dir": directory / run,
        "save_checkpoints_steps": 4,
        "early_stopping_patience": 25,
    }
    command = [sys.executable, "-m", "tasks.classify.run", "--do_train", "--do_eval"]
    command += [f"--{name}={value}" for name, value in settings.items()]
    with open(directory / f"{run}.log", "a") as log:
        return processes.popen(command, cwd=ROOT, stdout=log, stderr=log)


def steps_done(directory) -> int:
    """The newest finished checkpoint's step."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return max((int(name[5:-6]) for name in names if name.startswith("ckpt-") and name.endswith(".index")), default=0)


def kill_beyond(directory, run: str, step: int, wait: float) -> int:
    """Kills a run some time after a checkpoint; returns the step of the newest one that it left."""
    process = start(directory, run)
    while steps_done(directory / run / "checkpoints") < step:
        assert process.poll() is None, (directory / f"{run}.log").read_text()
        time.sleep(0.005)
    time.sleep(wait)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return steps_done(directory / run / "checkpoints")


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_scores(tmp_path):
    write_tables(tmp_path)
    write_preset(tmp_path / "preset")
    assert start(tmp_path, "whole").wait() == 0, (tmp_path / "whole.log").read_text()
    rng, step, reached = random.Random(5), 0, []
    for _ in range(KILLS):
        step = kill_beyond(tmp_path, "killed", step + 4 * rng.randrange(1, 3), rng.uniform(0.0, 0.05))
        reached.append(step)
    assert sorted(set(reached)) == reached and reached[-1] < 101  # Each went on from where the last one was killed.
    assert start(tmp_path, "killed").wait() == 0, (tmp_path / "killed.log").read_text()
    whole, killed = (json.loads((tmp_path / run / "metrics.json").read_text()) for run in ("whole", "killed"))
    for results in (whole, killed):
        for name in ("train_seconds", "eval_seconds", "train_resumed_at"):
            results.pop(name, None)
    print(reached, killed["accuracy"], killed["loss"])
    assert killed == whole and whole["accuracy"] > 0.9
    histories = [json.loads((tmp_path / run / "history.json").read_text()) for run in ("whole", "killed")]
    assert histories[0]["evaluations"] == histories[1]["evaluations"]
