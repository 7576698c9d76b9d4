"""The whole road on a little text: interrupted, continued, served, and refused under other settings."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import types

import processes
import pytest

from keras_bert.errors import InputError
from tasks import flags
from tasks.classification.task import ClassificationSettings
from tasks.quickstart import pipeline
from tasks.quickstart import run as stages
from tasks.quickstart.run import quickstart
from tasks.quickstart.settings import QuickstartSettings

TOPICS = {
    "ships": "ship harbour sailor anchor wave storm captain mast rope tide",
    "bread": "flour oven yeast dough baker crust butter loaf salt kitchen",
    "stars": "orbit planet comet telescope night moon light dust galaxy sun",
}
SIZES = {
    "num_train_steps": 2,
    "num_train_epochs": 1,
    "vocab_size": 200,
    "train_batch_size": 8,
    "max_seq_length": 16,
    "num_labels": 3,
    "rows_per_label": 16,
}


def settings(directory, **changes):
    files = {"input_file": f"{directory}/text/*.txt", "output_dir": f"{directory}/run"}
    return {**files, **SIZES, **changes}


def write_texts(directory):
    """One file a topic: 12 documents of 6 sentences of 8 words."""
    rng = random.Random(0)
    (directory / "text").mkdir()
    for topic, words in TOPICS.items():
        documents = [
            "\n".join("the " + " ".join(rng.choices(words.split(), k=7)) + "." for _ in range(6)) for _ in range(12)
        ]
        (directory / "text" / f"{topic}.txt").write_text("\n\n".join(documents) + "\n")


def start(directory):
    command = [sys.executable, "-u", "-m", "tasks.quickstart"]
    command += [f"--{name}={value}" for name, value in settings(directory).items()]
    # A session of its own: Ctrl-C in a terminal reaches the whole group, and so does the test's. A file, not a pipe:
    # a pipe that nobody reads fills up.
    with open(directory / "out.log", "w") as out:
        return processes.popen(command, stdout=out, stderr=out, start_new_session=True)


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, f"ended before {path.name} was there"
        time.sleep(0.1)


def unfinished_files(directory):
    return [name for _, names, files in os.walk(directory) for name in [*names, *files] if ".partial" in name]


def test_interrupted_then_continued_to_answers(tmp_path, monkeypatch, capfd):
    write_texts(tmp_path)
    process = start(tmp_path)
    wait_for(tmp_path / "run" / "pretrained" / "flags.json", process)  # The fourth stage has begun.
    os.killpg(process.pid, signal.SIGINT)
    status, said = process.wait(timeout=900), (tmp_path / "out.log").read_text()
    assert status == 130, said
    assert "Traceback" not in said
    assert unfinished_files(tmp_path) == []

    # The commands of the stages are forked: each would take seconds to import TensorFlow.
    forking = types.SimpleNamespace(Popen=processes.popen, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(pipeline, "subprocess", forking)

    def run_command(command, **given):
        """Takes the first classifier for the one of a random start, whose command line differs in two flags."""
        if given.get("load_weights") is not False:
            return pipeline.run_command(command, **given)
        read = flags.parse(ClassificationSettings, [f"--{name}={value}" for name, value in given.items()])
        assert command == "bert-classify" and not read.load_weights
        shutil.copytree(tmp_path / "run" / "classifier", read.output_dir)

    monkeypatch.setattr(stages, "run_command", run_command)
    monkeypatch.setenv("PATH", "")  # Without g++, the export is verified in Python alone.
    metrics = quickstart(QuickstartSettings(**settings(tmp_path)))
    out = capfd.readouterr().out
    for stage in ("[1] corpus", "[2] vocabulary", "[3] pre-training data"):
        assert f"{stage}: done before, kept." in out
    assert "[4] pre-training\n$ bert-pretrain" in out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == metrics
    assert metrics["corpus"]["labels"] == sorted(TOPICS)
    assert metrics["corpus"]["documents"] == 36
    for name in ("fine-tuning", "fine-tuning, random start"):
        assert 0 <= metrics[name]["accuracy"] <= 1
    assert [answer["label"] in TOPICS for answer in metrics["serving"]["answers"]] == [True] * 3
    for line in ("stage", "corpus", "pre-training", "serving", "total"):
        assert any(row.startswith(line) for row in out.splitlines())
    assert (tmp_path / "run" / "pretrained" / "curve.png").stat().st_size > 10_000
    assert unfinished_files(tmp_path) == []

    with pytest.raises(InputError, match="random_seed was 12345, is 7"):
        quickstart(QuickstartSettings(**settings(tmp_path, random_seed=7)))
