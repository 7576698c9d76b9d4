"""Stages of a run: kept when done, repeated when not, refused under other settings."""

import os
import subprocess
import sys

import pytest

from keras_bert.errors import InputError
from tasks.text.stages import StageRun


def test_a_finished_stage_is_kept_and_a_failed_one_repeated(tmp_path, capsys):
    directory, calls = str(tmp_path / "run"), []

    def work(name, fails=False):
        calls.append(name)
        if fails:
            raise RuntimeError("stopped")
        return {"figure": f"{name} {len(calls)}"}

    first = StageRun(directory, {"steps": 1}, {})
    first.stage("text", lambda: work("text"))
    with pytest.raises(RuntimeError):
        first.stage("training, random", lambda: work("training", fails=True))
    second = StageRun(directory, {"steps": 1}, {})
    second.stage("text", lambda: work("text"))
    assert second.records["text"]["figure"] == "text 1"
    second.stage("training, random", lambda: work("training"))
    second.stage("serving", lambda: work("serving"), keep=False)
    assert calls == ["text", "training", "training", "serving"]
    assert "[1] text: done before, kept." in capsys.readouterr().out
    third = StageRun(directory, {"steps": 1}, {})
    third.stage("training, random", lambda: work("training"))
    third.stage("serving", lambda: work("serving"), keep=False)
    assert calls[4:] == ["serving"]


def test_other_settings_and_texts_are_refused(tmp_path):
    directory, text = str(tmp_path / "run"), "text (--input_file)"
    StageRun(directory, {"steps": 1, "size": 2}, {text: 5}).stage("text", lambda: {"figure": ""})
    with pytest.raises(InputError, match=r"run: .* cannot continue: steps was 1, is 3\. Choose another"):
        StageRun(directory, {"steps": 3, "size": 2}, {text: 5})
    with pytest.raises(InputError, match=r"the text \(--input_file\) has changed since it began\. Choose another"):
        StageRun(directory, {"steps": 1, "size": 2}, {text: 6})


@pytest.mark.parametrize("name", ["thesis.txt", "flags.json"])  # every training command writes a flags.json
def test_a_directory_of_something_else_is_never_touched(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match="holds files, but no run"):
        StageRun(str(tmp_path), {"steps": 1}, {})
    assert os.listdir(tmp_path) == [name]


def test_the_table_adds_up(tmp_path):
    run = StageRun(str(tmp_path / "run"), {}, {})
    run.records = {"text": {"seconds": 59.6, "figure": "3 files"}, "training": {"seconds": 61.0, "figure": "80%"}}
    lines = run.table().splitlines()
    assert lines[1].split() == ["stage", "time", "figure"]
    assert lines[3].split() == ["text", "00:59", "3", "files"]
    assert lines[-2].split() == ["total", "02:00"]


def test_a_failing_command_passes_its_status_on(tmp_path):
    script = (
        "from tasks.quickstart.pipeline import run_command\n"
        "run_command('bert-train-vocab', "
        f"input_file={str(tmp_path / 'nowhere.txt')!r}, vocab_file='v', vocab_size=9, min_frequency=None)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.startswith("$ bert-train-vocab --input_file=")
    assert "min_frequency" not in done.stdout
    assert "nowhere.txt: no such file" in done.stderr
    assert "Traceback" not in done.stderr
