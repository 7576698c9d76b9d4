"""The whole road on a little text: interrupted, continued, served, and refused under other settings."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
import types

import processes
import pytest
import tensorflow as tf

from export.run import ExportSettings
from keras_bert.errors import InputError
from keras_bert.files import write_json
from tasks import flags
from tasks.classify.settings import ClassifySettings
from tasks.embed.data import read_table
from tasks.embed.task import EmbedSettings
from tasks.quickstart import pipeline
from tasks.quickstart import run as stages
from tasks.quickstart.corpus import Document
from tasks.quickstart.run import quickstart
from tasks.quickstart.settings import QuickstartSettings
from tasks.text.bad_rows import BadRows

TOPICS = {
    "ships": "ship harbour sailor anchor wave storm captain mast rope tide",
    "bread": "flour oven yeast dough baker crust butter loaf salt kitchen",
    "stars": "orbit planet comet telescope night moon light dust galaxy sun",
}


def settings(directory, **changes):
    return {"input_file": f"{directory}/text/*.txt", "output_dir": f"{directory}/run", "rows_per_label": 16, **changes}


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
    command = [sys.executable, "-u", "-m", "tasks.quickstart.run"]
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


class Commands:
    """Runs the commands: pre-training for two steps instead of minutes, and the search and the random start not at all.

    It reads the flags of these commands, and writes what they would. Their own tests run them.
    """

    RANDOM = (0.25, 0.5)
    FOUND = ["ships: the sea", "bread: the oven"]

    def __call__(self, command, **given):
        if command == "bert-pretrain":
            given |= {"time_budget_minutes": None, "num_train_steps": 2, "num_warmup_steps": 1}
        if command == "bert-embed":
            read = self._parse(EmbedSettings, given)
            for path, rows in ((read.train_file, 33), (read.dev_file, 3)):
                table = read_table(path, None, None, BadRows("refuse"))
                assert (table.num_texts, len(table.texts)) == (2, rows)
            write_json(f"{read.output_dir}/metrics.json", {"recall@10": 0.5})
        elif command == "bert-classify" and not given["load_weights"]:
            read = self._parse(ClassifySettings, {**given, "load_weights": "false"})
            assert not read.load_weights and read.num_restarts == len(self.RANDOM)
            runs = [{"metrics": {"accuracy": accuracy}} for accuracy in self.RANDOM]
            write_json(f"{read.output_dir}/sweep/sweep.json", {"runs": runs})
            write_json(f"{read.output_dir}/metrics.json", {"majority_accuracy": 0.5})
        elif "passages" in given:
            self._write_search(self._parse(ExportSettings, given).export_dir)
        else:
            pipeline.run_command(command, **given)

    def _parse(self, kind, given):
        return flags.parse(kind, [f"--{name}={value}" for name, value in given.items()])

    def _write_search(self, export_dir):
        module = tf.Module()

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def query(text):
            return {"passages": tf.repeat(tf.constant([self.FOUND]), tf.size(text), 0)}

        tf.saved_model.save(module, f"{export_dir}/1", signatures={"query": query})


def test_interrupted_then_continued_to_answers(tmp_path, monkeypatch, capfd):
    write_texts(tmp_path)
    process = start(tmp_path)
    wait_for(tmp_path / "run" / "pretrained" / "flags.json", process)  # The fourth stage has begun.
    os.killpg(process.pid, signal.SIGINT)
    status, said = process.wait(timeout=900), (tmp_path / "out.log").read_text()
    assert status == 130, said
    assert "Traceback" not in said
    assert "--time_budget_minutes=2.5" in said
    assert unfinished_files(tmp_path) == []

    # The commands of the stages are forked: each would take seconds to import TensorFlow.
    quick = functools.partial(processes.popen, is_quick=True)
    forking = types.SimpleNamespace(Popen=quick, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(pipeline, "subprocess", forking)
    monkeypatch.setattr(stages, "run_command", Commands())
    monkeypatch.setattr(stages, "_FINE_TUNING_STEPS", 3)
    monkeypatch.setattr(stages, "_NUM_SEEDS", 2)
    monkeypatch.setenv("PATH", "")  # Without g++, the export is verified in Python alone.
    quickstart(QuickstartSettings(**settings(tmp_path)))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    out = capfd.readouterr().out
    for stage in ("[1] corpus", "[2] vocabulary", "[3] pre-training data"):
        assert f"{stage}: done before, kept." in out
    assert "[4] pre-training\n$ bert-pretrain" in out
    assert metrics["corpus"]["labels"] == sorted(TOPICS)
    assert metrics["corpus"]["figure"].startswith("36 documents, 216 sentences,")
    assert metrics["pre-training"]["train_steps"] == 2
    check_gain(tmp_path / "run", metrics, out)
    assert [answer["label"] in TOPICS for answer in metrics["serving"]["answers"]] == [True] * 3
    assert metrics["search"]["recall@10"] == 0.5
    assert metrics["search export"]["answers"] == Commands.FOUND
    assert "\n  how do I compute the inverse of a matrix\n    -> ships: the sea\n    -> bread: the oven\n" in out
    for line in ("stage", *metrics, "total"):
        assert any(row.startswith(line) for row in out.splitlines()), line
    assert (tmp_path / "run" / "pretrained" / "report.html").stat().st_size > 10_000
    assert unfinished_files(tmp_path) == []

    with pytest.raises(InputError, match="random_seed was 12345, is 7"):
        quickstart(QuickstartSettings(**settings(tmp_path, random_seed=7)))


def check_gain(run, metrics, out):
    """The accuracies are those of the seeds of `bert-classify`; the summary has mean and range of their gain."""
    sweep = run / "classifier" / "sweep"
    names = [seed_run["name"] for seed_run in json.loads((sweep / "sweep.json").read_text())["runs"]]
    accuracies = [json.loads((sweep / name / "metrics.json").read_text())["accuracy"] for name in names]
    assert metrics["fine-tuning"]["accuracies"] == accuracies and len(accuracies) == 2
    assert metrics["fine-tuning, random start"]["accuracies"] == list(Commands.RANDOM)
    gains = [100 * (pretrained - random) for pretrained, random in zip(accuracies, Commands.RANDOM, strict=True)]
    spread = f"{sum(gains) / 2:+.1f} ({min(gains):+.1f} to {max(gains):+.1f})"
    assert f"What pre-training bought: {spread} points" in out


def test_one_file_has_no_labels_and_the_packages_stand_in(tmp_path, capfd, monkeypatch):
    """The classifier then tells documents of the installed packages apart, and the search is of the user's own text."""
    write_texts(tmp_path)
    packages = [
        Document(name, f"{name}.{i}", f"{name}.{i}", [f"It reads {i} {name[0]}.", f"The {name} says {i} lines."])
        for name in ("keras", "numpy")
        for i in range(20)
    ]
    monkeypatch.setattr(stages.docstrings, "collect", lambda *sizes: packages)
    monkeypatch.setattr(stages, "run_command", lambda *command, **given: pytest.fail("enough"))
    whole = "\n\n".join(path.read_text() for path in (tmp_path / "text").iterdir())
    (tmp_path / "whole.txt").write_text(whole)
    only = settings(tmp_path, input_file=f"{tmp_path}/whole.txt")
    with pytest.raises(pytest.fail.Exception, match="enough"):
        quickstart(QuickstartSettings(**only))
    assert "The text gives no two labels" in capfd.readouterr().out
    rows = (tmp_path / "run" / "corpus" / "dev.tsv").read_text()
    assert "\tkeras\n" in rows and "The keras says" not in rows
    assert "ship" in (tmp_path / "run" / "corpus" / "passages.txt").read_text()
