"""Everything in a bucket: whole runs with a URL for every path, on ram:// and on an emulated gs://."""

import ast
import json
import os
import signal
import subprocess
import sys

import processes
import pytest
import remote_run
import toy_server

from keras_bert import files
from keras_bert.errors import InputError
from tasks.engine.checkpoints import Checkpoints

STEPS = list(range(1, remote_run.NUM_STEPS + 1))


class Killed(BaseException):
    """In place of a signal, which would end the tests, too."""


def save_and_die(self, keep, save=Checkpoints.save):
    save(self, keep)
    raise Killed


def test_a_whole_run(monkeypatch):
    root = "ram://whole_run"
    assert remote_run.create_data(root)["instances"] > 50
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Checkpoints, "save", save_and_die)
        remote_run.pre_train(root)
    checkpoints = f"{root}/pretrained/checkpoints"
    assert "ckpt-4.index" in files.list_directory(checkpoints)
    files.write_lines(f"{checkpoints}/ckpt-7.data-00000-of-00001", ["What a killed run left, without its index."])
    assert remote_run.pre_train(root)["train_steps"] == remote_run.NUM_STEPS
    history = files.read_json(f"{root}/pretrained/history.json")
    assert [row["step"] for row in history["training"]] == STEPS
    assert not any(name.startswith("ckpt-7") for name in files.list_directory(checkpoints))
    metrics = remote_run.fine_tune(root)
    assert metrics["rows"] == 20 and files.read_json(f"{root}/tuned/metrics.json") == json.loads(json.dumps(metrics))
    for name in ("report.html", "predictions.tsv"):
        assert files.file_size(f"{root}/tuned/{name}") > 20
    assert files.list_directory(f"{root}/tuned/events")
    with toy_server.quick_sessions():
        assert set(remote_run.serve(root)) <= {"animal", "tool"}
    files.write_lines(f"{root}/pretrained/preset/{files.INCOMPLETE}", ["Somebody writes here."])
    with pytest.raises(InputError, match="ram://whole_run/pretrained/preset: half written, since it holds INCOMPLETE"):
        remote_run.fine_tune(root)


# === gs://, of an emulator that TensorFlow's own client asks ===


@pytest.fixture(scope="module", name="bucket")
def _bucket(tmp_path_factory):
    """Environment variables for processes that find gs://bucket and gs://closed."""
    pytest.importorskip("gcp_storage_emulator")
    import bucket

    with bucket.emulated(tmp_path_factory.mktemp("emulator"), "bucket") as environment:
        yield {**os.environ, **environment}


def ask(environment: dict, *command: str) -> subprocess.CompletedProcess:
    return processes.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_whole_run_in_a_bucket(bucket):
    def run(*stages: str) -> list:
        done = ask(bucket, "-m", "remote_run", "gs://bucket/run", *stages)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    assert run("create_data")[0]["instances"] > 50
    assert ask(bucket, "-m", "remote_run", "gs://bucket/run", "pre_train_and_die").returncode == -signal.SIGKILL
    trained, tuned, labels = run("pre_train", "fine_tune", "serve")
    assert trained["train_steps"] == STEPS[-1] and tuned["rows"] == 20 and set(labels) <= {"animal", "tool"}
    program = (
        "from keras_bert import files; print(files.read_json('gs://bucket/run/pretrained/history.json')['training'])"
    )
    rows = ast.literal_eval(ask(bucket, "-c", program).stdout)
    assert [row["step"] for row in rows] == STEPS


def test_a_missing_and_a_closed_bucket_are_named_with_the_cure(bucket):
    program = """
import sys
from keras_bert import files
for call in (files.open_file, files.expand_files, lambda path: files.write_json(path, 1)):
    for name in ("missing", "closed"):
        try:
            call(f"gs://{name}/in/a.txt")
        except (OSError, files.InputError) as error:
            print(f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error)
"""
    log_in = "permission denied; run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS"
    assert ask(bucket, "-c", program).stdout.splitlines() == [
        "gs://missing/in/a.txt: no such file or bucket",
        f"gs://closed/in/a.txt: {log_in}",
        "gs://missing/in/a.txt: no such file or bucket",
        f"gs://closed/in/a.txt: {log_in}",
        "gs://missing/in: cannot be created (no such bucket). Choose another output path.",
        f"gs://closed/in: cannot be created ({log_in}). Choose another output path.",
    ]


def test_a_file_that_is_written_again_is_read_again(bucket):
    program = """
from keras_bert import files
for value in ([1], "text", list(range(1000)), {}):
    files.write_json("gs://bucket/again/value.json", value)
    assert files.read_json("gs://bucket/again/value.json") == value
print(files.list_directory("gs://bucket/again"), files.is_directory("gs://bucket/again"), files.exists("gs://bucket/ag"))
"""
    done = ask(bucket, "-c", program)
    assert done.stdout.split("\n")[0] == "['value.json'] True False", done.stderr
