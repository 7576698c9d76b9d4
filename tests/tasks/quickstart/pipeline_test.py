"""Stages of a run: kept when done, repeated when not, refused under other settings."""

import os
import subprocess
import sys

import pytest

from keras_bert.errors import InputError
from tasks.text.stages import StageRun, clock


def test_a_finished_stage_is_kept_and_a_failed_one_repeated(tmp_path, capsys):
    directory, calls = str(tmp_path / "run"), []

    def work(name, fails=False):
        calls.append(name)
        if fails:
            raise RuntimeError("stopped")
        return {"figure": f"{name} {len(calls)}"}

    first = StageRun(directory, {"steps": 1})
    first.stage("text", lambda: work("text"))
    with pytest.raises(RuntimeError):
        first.stage("training, random", lambda: work("training", fails=True))
    second = StageRun(directory, {"steps": 1})
    second.stage("text", lambda: work("text"))
    assert second.records["text"]["figure"] == "text 1"
    second.stage("training, random", lambda: work("training"))
    second.stage("serving", lambda: work("serving"), keep=False)
    assert calls == ["text", "training", "training", "serving"]
    assert "[1] text: done before, kept." in capsys.readouterr().out
    third = StageRun(directory, {"steps": 1})
    third.stage("training, random", lambda: work("training"))
    third.stage("serving", lambda: work("serving"), keep=False)
    assert calls[4:] == ["serving"]


def test_other_settings_are_refused_until_overwrite(tmp_path):
    directory = str(tmp_path / "run")
    StageRun(directory, {"steps": 1, "size": 2}).stage("text", lambda: {"figure": ""})
    with pytest.raises(InputError, match=r"other settings \(steps was 1, is 3\). Pass --overwrite"):
        StageRun(directory, {"steps": 3, "size": 2})
    StageRun(directory, {"steps": 3, "size": 2}, overwrite=True)
    assert sorted(os.listdir(directory)) == ["flags.json", "stages"]
    assert os.listdir(os.path.join(directory, "stages")) == []


@pytest.mark.parametrize("name", ["run/thesis.txt", "link/thesis.txt"])
def test_what_a_run_reads_is_not_overwritten(tmp_path, name):
    directory = str(tmp_path / "run")
    StageRun(directory, {"steps": 1})
    (tmp_path / "run" / "thesis.txt").write_text("Years of work.")
    (tmp_path / "link").symlink_to(directory)
    beside = [str(tmp_path), f"{directory} beside"]
    with pytest.raises(InputError, match=f"{name}: lies in {directory}, which --overwrite empties. Move it elsewhere"):
        StageRun(directory, {"steps": 1}, True, [*beside, str(tmp_path / name)])
    assert (tmp_path / "run" / "thesis.txt").exists()
    StageRun(directory, {"steps": 1}, True, beside)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.txt", "flags.json"])  # every training command writes a flags.json
def test_a_directory_of_something_else_is_never_touched(tmp_path, name, overwrite):
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match="holds files, but no run"):
        StageRun(str(tmp_path), {"steps": 1}, overwrite)
    assert os.listdir(tmp_path) == [name]


def test_the_table_adds_up(tmp_path):
    run = StageRun(str(tmp_path / "run"), {})
    run.records = {"text": {"seconds": 59.6, "figure": "3 files"}, "training": {"seconds": 61.0, "figure": "80%"}}
    lines = run.table().splitlines()
    assert lines[1].split() == ["stage", "time", "figure"]
    assert lines[3].split() == ["text", "0:59", "3", "files"]
    assert lines[-2].split() == ["total", "2:00"]
    assert clock(3725) == "62:05"


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
