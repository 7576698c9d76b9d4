"""bert-pretrain as a process: on two workers, and stopped."""

import json
import os
import signal
import sys
import time

import processes
import pytest
from repository import ROOT
from toy_run import NO_ARCHITECTURE, run, settings
from toy_workers import join

from tasks.engine.preemption import PREEMPTED_STATUS

STEPS = {"num_train_steps": 3, "num_warmup_steps": 1, "save_checkpoints_steps": 3, "max_eval_steps": 2}
SIZES = {"train_batch_size": 8, "eval_batch_size": 16}


def start(given: dict, **environment: str) -> processes.Popen:
    flags = [f"--{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in given.items()]
    command = [sys.executable, "-m", "tasks.pretraining.run", *flags]
    environment = {**os.environ, **environment}
    return processes.popen(command, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True)


@pytest.mark.slow
def test_two_workers_equal_one_device(data, tmp_path):
    """From records to metrics, without dropout, whose masks differ between one replica and two."""
    sizes = {"vocab_size": 17, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 16}
    config = {**sizes, "intermediate_size": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = {**NO_ARCHITECTURE, **STEPS, **SIZES, "bert_config_file": str(tmp_path / "config.json")}
    expected = run(data, tmp_path / "one", **given)
    workers = []
    for index, tf_config in enumerate(join(2)):
        disk = tmp_path / f"disk{index}"
        shared = settings(data, disk, **given, distribution_strategy="multi_worker_mirrored")
        workers.append(start({name: value for name, value in shared.items() if value is not None}, TF_CONFIG=tf_config))
    for worker in workers:
        output, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors
        assert "masked_lm_loss" in output and "train_command" in output
    metrics = json.loads((tmp_path / "disk0" / "metrics.json").read_text())
    for name in ("masked_lm_loss", "next_sentence_loss", "masked_lm_accuracy", "next_sentence_accuracy"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-5)
    assert not (tmp_path / "disk1").exists()
    assert {"preset", "checkpoints", "flags.json", "training.json"} <= set(os.listdir(tmp_path / "disk0"))


@pytest.mark.slow
def test_sigterm_ends_the_command_with_its_status(data, tmp_path):
    long = {"num_train_steps": 100000, "save_checkpoints_steps": 100000}
    given = settings(data, tmp_path / "out", deterministic_ops=True, mixed_precision="float16", **long)
    with start(given) as command:
        while not list(tmp_path.glob("out/events/*")):
            assert command.poll() is None, command.stderr.read()
            time.sleep(0.1)
        command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=120) == PREEMPTED_STATUS
        assert "the same command continues" in command.stderr.read()
    assert list(tmp_path.glob("out/checkpoints/ckpt-*.index"))
