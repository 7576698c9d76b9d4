"""bert-serve: which version it serves under which name, what it says, and how it ends."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading

import pytest
import tensorflow as tf
import toy_server

from export import base_path as base_paths
from export.served_model import ServedModel
from keras_bert.errors import InputError

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@pytest.fixture(scope="module")
def base_path(tmp_path_factory) -> str:
    return toy_server.saved(tmp_path_factory.mktemp("models"))


# === Base paths and names ===


def test_base_path_errors_name_the_path(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such directory"):
        base_paths.newest_version(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="no version found"):
        base_paths.newest_version(str(tmp_path))


def test_leading_zeros_count_as_for_tensorflow_serving(tmp_path, base_path):
    shutil.copytree(os.path.join(base_path, "2"), tmp_path / "0003")
    shutil.copytree(os.path.join(base_path, "2"), tmp_path / "2")
    (tmp_path / str(2**63)).mkdir()
    (tmp_path / str(2**63) / "saved_model.pb").write_bytes(b"")  # no int64: no version
    version, directory = base_paths.newest_version(str(tmp_path))
    assert (version, directory) == (3, str(tmp_path / "0003"))
    assert ServedModel(directory, "toy", version).status()["model_version_status"][0]["version"] == "3"


def _damage(directory, what: str) -> None:
    graph, variables = directory / "saved_model.pb", directory / "variables"
    data = variables / "variables.data-00000-of-00001"
    if what == "variables":
        shutil.rmtree(variables)
    elif what == "data":
        data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    else:
        size = {"half": graph.stat().st_size // 2, "byte": 1, "empty": 0}[what]
        graph.write_bytes(graph.read_bytes()[:size])


@pytest.mark.parametrize("what", ["half", "byte", "empty", "variables", "data"])
def test_a_damaged_directory_is_named(tmp_path, what):
    module = tf.Module()
    module.weight = tf.Variable([1.0] * 100)
    traced = tf.function(lambda x: {"y": x * module.weight[0]}).get_concrete_function(tf.TensorSpec([None], tf.float32))
    directory = tmp_path / "7"
    tf.saved_model.save(module, str(directory), signatures=traced)
    _damage(directory, what)
    with pytest.raises(InputError, match="7: cannot be loaded as a SavedModel .* again"):
        ServedModel(str(directory), "toy", 7)


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "a b", "a\n", "\u2003"])
def test_names_that_no_url_can_carry(name):
    with pytest.raises(InputError, match="cannot be a model's name.* Take another."):
        base_paths.check_model_name(name, "Take another.")


def test_a_name_is_quoted_in_the_address_and_unquoted_in_requests(base_path):
    name = "größe#1?%2"
    base_paths.check_model_name(name, "")
    path = "/v1/models/gr%C3%B6%C3%9Fe%231%3F%252"
    assert base_paths.model_url("localhost", 80, name) == "http://localhost:80" + path
    version, directory = base_paths.newest_version(base_path)
    with toy_server.serving(ServedModel(directory, name, version)) as server:
        body = {"instances": ["a"], "signature_name": "echo"}
        assert toy_server.ask(server, "POST", path + ":predict", body) == (200, {"predictions": ["a"]})
        assert toy_server.ask(server, "GET", path)[0] == 200
        assert toy_server.ask(server, "GET", path + "x")[0] == 404


# === The command ===


@contextlib.contextmanager
def _process(*command: str):
    """Runs a command in the repository; a timer ends it, so that no read waits for ever."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Without the tests' own log level, so that the command's counts.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}
    process = subprocess.Popen([sys.executable, *command], cwd=REPOSITORY, text=True, env=environment, **pipes)
    timer = threading.Timer(120, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_one_line_serves_and_ends_on_a_signal(base_path, stop_signal):
    flags = [f"--model_base_path={base_path}", "--rest_api_port=0", "--model_name=tóy"]
    with _process("-m", "export.local_server", *flags) as process:
        line = process.stdout.readline().strip()
        start, _, address = line.rpartition(" ")
        assert start == "Serving tóy (version 10) at"
        assert address.startswith("http://127.0.0.1:")
        assert address.endswith("/v1/models/t%C3%B3y")
        connection = http.client.HTTPConnection(address.split("/")[2], timeout=30)
        body = '{"instances": ["ab"], "signature_name": "echo"}'
        connection.request("POST", "/v1/models/t%C3%B3y:predict", body)
        assert json.loads(connection.getresponse().read()) == {"predictions": ["ab"]}
        process.send_signal(stop_signal)
        rest, errors = process.communicate(timeout=60)
        connection.close()
        assert (process.returncode, rest, errors) == (0, "", "")


def test_ctrl_c_while_the_model_loads_ends_the_command(base_path):
    script = """
import os, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from export import local_server, served_model

def load(*_):
    print("loading", flush=True)
    time.sleep(100)

served_model.ServedModel = load
local_server.console_main()
"""
    with _process("-c", script, f"--model_base_path={base_path}", "--rest_api_port=0") as process:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        assert (process.returncode, rest) == (130, "")
        assert errors.splitlines() == ["-c: interrupted."]


def test_a_wrong_name_is_one_line(base_path):
    with _process("-m", "export.local_server", f"--model_base_path={base_path}", "--model_name=a b") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "'a b' cannot be a model's name" in errors
    assert "--model_name" in errors
    assert len(errors.splitlines()) == 1
