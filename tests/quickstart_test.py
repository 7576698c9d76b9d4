"""The whole road on a little text: interrupted, continued, served, and refused under other settings."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

TOPICS = {
    "ships": "ship harbour sailor anchor wave storm captain mast rope tide",
    "bread": "flour oven yeast dough baker crust butter loaf salt kitchen",
    "stars": "orbit planet comet telescope night moon light dust galaxy sun",
}
FLAGS = (
    "--num_train_steps=12", "--num_train_epochs=1", "--vocab_size=200", "--train_batch_size=8", "--max_seq_length=32",
    "--num_labels=3",
)  # fmt: skip


def write_texts(directory):
    """One file a topic: 40 documents of 6 sentences of 8 words."""
    rng = random.Random(0)
    (directory / "text").mkdir()
    for topic, words in TOPICS.items():
        documents = [
            "\n".join("the " + " ".join(rng.choices(words.split(), k=7)) + "." for _ in range(6)) for _ in range(40)
        ]
        (directory / "text" / f"{topic}.txt").write_text("\n\n".join(documents) + "\n")


def start(directory, *flags):
    command = [sys.executable, "-u", "-m", "tasks.quickstart", f"--input_file={directory}/text/*.txt"]
    command += [f"--output_dir={directory}/run", *FLAGS, *flags]
    # A session of its own: Ctrl-C in a terminal reaches the whole group, and so does the test's. Files, not pipes:
    # a pipe that nobody reads fills up.
    with open(directory / "out.log", "w") as out, open(directory / "err.log", "w") as err:
        return subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)


def finish(process, directory):
    status = process.wait(timeout=900)
    return status, (directory / "out.log").read_text(), (directory / "err.log").read_text()


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, f"ended before {path.name} was there"
        time.sleep(0.1)


def unfinished_files(directory):
    return [name for _, names, files in os.walk(directory) for name in [*names, *files] if ".partial" in name]


@pytest.mark.slow
def test_interrupted_then_continued_to_answers(tmp_path):
    write_texts(tmp_path)
    process = start(tmp_path)
    wait_for(tmp_path / "run" / "pretrained" / "flags.json", process)  # the fourth stage has begun
    os.killpg(process.pid, signal.SIGINT)
    status, _, err = finish(process, tmp_path)
    assert status == 130, err
    assert "Traceback" not in err
    assert unfinished_files(tmp_path) == []

    status, out, err = finish(start(tmp_path), tmp_path)
    assert status == 0, err
    for stage in ("[1] corpus", "[2] vocabulary", "[3] pre-training data"):
        assert f"{stage}: done before, kept." in out
    assert "[4] pre-training\n$ bert-pretrain" in out
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["corpus"]["labels"] == sorted(TOPICS)
    assert metrics["corpus"]["documents"] == 120
    for name in ("fine-tuning", "fine-tuning, random start"):
        assert 0 <= metrics[name]["accuracy"] <= 1
    assert [answer["label"] in TOPICS for answer in metrics["serving"]["answers"]] == [True] * 3
    for line in ("stage", "corpus", "pre-training", "serving", "total"):
        assert any(row.startswith(line) for row in out.splitlines())
    assert (tmp_path / "run" / "pretrained" / "curve.png").stat().st_size > 10_000
    assert unfinished_files(tmp_path) == []

    status, _, err = finish(start(tmp_path, "--random_seed=7"), tmp_path)
    assert (status, err.count("\n")) == (1, 1)
    assert "random_seed was 12345, is 7" in err
