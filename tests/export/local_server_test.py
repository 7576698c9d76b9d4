"""bert-serve: which version it serves under which name, what it says, and how it ends."""

import ast
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import time

import pytest
import tensorflow as tf
import toy_server

from export import base_path as base_paths
from export import local_server
from export.server import config_files
from export.server.config_files import ModelSettings, aspired_versions
from export.server.runtime import memory
from export.server.servable import ServedModel
from export.server.server_settings import DRAIN_SECONDS, ServerSettings
from keras_bert.errors import InputError


@pytest.fixture(scope="module")
def base_path(tmp_path_factory) -> str:
    return toy_server.saved(tmp_path_factory.mktemp("models"))


# === Base paths and names ===


def test_base_path_errors_name_the_path(tmp_path):
    with pytest.raises(InputError, match="nowhere: no such directory"):
        base_paths.existing_versions(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="no version found"):
        base_paths.existing_versions(str(tmp_path))
    (tmp_path / "saved_model.pb").touch()
    message = f"{tmp_path}/: a version of a model. Give the directory of its versions, {tmp_path.parent}.$"
    with pytest.raises(InputError, match=message):
        base_paths.existing_versions(f"{tmp_path}/")


def test_leading_zeros_count_as_for_tensorflow_serving(tmp_path, base_path):
    shutil.copytree(os.path.join(base_path, "2"), tmp_path / "0003")
    shutil.copytree(os.path.join(base_path, "2"), tmp_path / "2")
    (tmp_path / str(2**63)).mkdir()
    (tmp_path / str(2**63) / "saved_model.pb").write_bytes(b"")  # no int64: no version
    version, directory = base_paths.existing_versions(str(tmp_path))[-1]
    assert (version, directory) == (3, str(tmp_path / "0003"))
    assert aspired_versions(ModelSettings("toy", str(tmp_path))) == [(3, directory)]


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
        ServedModel(str(directory), "toy", 7, ServerSettings())


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "a b", "a\n", "\u2003"])
def test_names_that_no_url_can_carry(name):
    with pytest.raises(InputError, match="cannot be a model's name.* Take another."):
        base_paths.check_model_name(name, "Take another.")


def test_a_name_is_quoted_in_the_address_and_unquoted_in_requests(base_path):
    name = "größe#1?%2"
    base_paths.check_model_name(name, "")
    path = "/v1/models/gr%C3%B6%C3%9Fe%231%3F%252"
    assert base_paths.model_url("localhost", 80, name) == "http://localhost:80" + path
    with toy_server.running(base_path, name=name) as server:
        body = {"instances": ["a"], "signature_name": "echo"}
        assert toy_server.ask(server, "POST", path + ":predict", body) == (200, {"predictions": ["a"]})
        assert toy_server.ask(server, "GET", path)[0] == 200
        assert toy_server.ask(server, "GET", path + "x")[0] == 404


# === The command ===

_THREADS = 60  # More than a server has without the flag.


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGINT])
def test_the_command_prints_one_line_serves_and_ends_on_a_signal(base_path, stop_signal):
    flags = [f"--model_base_path={base_path}", "--rest_api_port=0", "--port=0", "--model_name=tóy"]
    flags.append(f"--tensorflow_intra_op_parallelism={_THREADS}")
    with toy_server.run_command("-m", "export.local_server", *flags) as process:
        line = process.stdout.readline().strip()
        start, _, address = line.rpartition(" ")
        assert start == "Serving tóy (version 10) at"
        assert address.startswith("http://127.0.0.1:")
        assert address.endswith("/v1/models/t%C3%B3y")
        assert process.stdout.readline() == f"Page: http://{address.split('/')[2]}/\n"
        assert process.stdout.readline().startswith("gRPC: 127.0.0.1:")
        connection = http.client.HTTPConnection(address.split("/")[2], timeout=30)
        body = '{"instances": ["ab"], "signature_name": "echo"}'
        connection.request("POST", "/v1/models/t%C3%B3y:predict", body)
        assert json.loads(connection.getresponse().read()) == {"predictions": ["ab"]}
        # A first session without the flag must not give its pool to the model's.
        assert len(os.listdir(f"/proc/{process.pid}/task")) > _THREADS
        process.send_signal(stop_signal)
        rest, errors = process.communicate(timeout=60)
        connection.close()
        assert (process.returncode, rest, errors) == (0, "", "")


@pytest.mark.parametrize(("runtime", "onednn"), [("tensorflow", "1"), ("onnxruntime", "0")])
def test_ctrl_c_while_the_model_loads_ends_the_command(base_path, runtime, onednn):
    script = """
import os, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from export import local_server
from export.server import assembly

def load(*_):
    print("loading with", os.environ["TF_ENABLE_ONEDNN_OPTS"], flush=True)
    time.sleep(100)

assembly.ServedModel = load
local_server.console_main()
"""
    with toy_server.run_command(
        "-c", script, f"--model_base_path={base_path}", "--rest_api_port=0", "--port=0", f"--runtime={runtime}"
    ) as process:
        assert process.stdout.readline() == f"loading with {onednn}\n"
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        assert (process.returncode, rest) == (130, "")
        assert errors.splitlines() == ["-c: interrupted."]


def test_a_url_finds_memory_and_onednn_already_set(monkeypatch):
    """Reading it imports TensorFlow."""
    done = []

    def read(path):
        done.append((path, os.environ["TF_ENABLE_ONEDNN_OPTS"]))
        raise InputError("read")

    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")
    monkeypatch.setenv("GRPC_VERBOSITY", "NONE")
    monkeypatch.setattr(memory, "limit_arenas", lambda: done.append("arenas"))
    monkeypatch.setattr(config_files, "read_model_config", read)
    with pytest.raises(InputError, match="read"):
        local_server.serve(ServerSettings(model_config_file="gs://bucket/models.config", runtime="onnxruntime"))
    assert done == ["arenas", ("gs://bucket/models.config", "0")]


def test_a_second_signal_does_not_wait_for_requests(base_path):
    script = """
import concurrent.futures, threading
from export import local_server
from export.server import rest_routes

graphs = concurrent.futures.ThreadPoolExecutor()  # A normal exit waits for its threads.

def answer(*_):
    print("answering", flush=True)
    graphs.submit(threading.Event().wait).result()

rest_routes.RestRoutes.respond = answer
local_server.console_main()
"""
    with toy_server.run_command(
        "-c", script, f"--model_base_path={base_path}", "--rest_api_port=0", "--port=-1"
    ) as process:
        process.stdout.readline()
        port = process.stdout.readline().rpartition(":")[2].strip("/\n")
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert process.stdout.readline() == "answering\n"
            process.send_signal(signal.SIGTERM)
            with pytest.raises(OSError):  # It drains as soon as it takes no more connections.
                while True:
                    socket.create_connection(("127.0.0.1", int(port))).close()
                    time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "-c: interrupted.\n")
    assert time.monotonic() - begun < DRAIN_SECONDS / 2


@pytest.mark.parametrize("hard", [None, 428])
def test_connections_may_exceed_the_usual_number_of_files(base_path, hard):
    script = f"""
import resource
from export import local_server

hard = {hard} or resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
local_server.console_main()
"""
    number = 500 if hard else 300  # More than 428 files allow are refused, too, instead of accepted without an answer.
    flags = (f"--model_base_path={base_path}", "--rest_api_port=0", "--port=-1", f"--max_connections={number}")
    with toy_server.run_command("-c", script, *flags) as process, contextlib.ExitStack() as stack:
        process.stdout.readline()
        address = ("127.0.0.1", int(process.stdout.readline().rpartition(":")[2].strip("/\n")))
        for _ in range(299):
            stack.enter_context(socket.create_connection(address, timeout=10))
        answers = []
        for _ in range(2):
            connection = stack.enter_context(socket.create_connection(address, timeout=10))
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answers.append(connection.recv(12))
        assert answers == [b"HTTP/1.1 200", b"HTTP/1.1 503"]  # The last one is one too many.
        process.kill()
        assert ("at most 300 REST connections instead of --max_connections=500" in process.stderr.read()) == bool(hard)


def test_a_wrong_name_is_one_line(base_path):
    with toy_server.run_command(
        "-m", "export.local_server", f"--model_base_path={base_path}", "--model_name=a b"
    ) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "'a b' cannot be a model's name" in errors
    assert "--model_name" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "Expected --model_base_path or --model_config_file."),
        (("--model_config_file=no.config", "--model_name=a"), "no.config: cannot be read"),
        (("--use_alts_credentials=true",), "bert-serve does not offer this"),
        (("--model_base_path={}", "--monitoring_config_file=no.conf"), "no.conf: cannot be read"),
        (("--model_base_path={}", "--grpc_channel_arguments=a"), "expected name=value, with commas between"),
        (("--model_base_path={}", "--batching_parameters_file=b"), "Batching parameters need --enable_batching."),
        (("--model_base_path={}", "--precision=int8", "--runtime=tensorflow"), "Leave out --runtime=tensorflow."),
        (("--model_base_path={}", "--precision=bfloat16", "--runtime=onnxruntime"), "Leave out --runtime=onnxruntime."),
        (("--model_base_path={}", "--ssl_config_file=ssl.config", "--port=-1"), "which --port=-1 turns off"),
        (("--model_base_path={}", "--precision=bfloat16"), "has no versions in bfloat16. Export the model by"),
        (("--model_base_path={}", "--enable_batching", "--batching_parameters_file=no.pbtxt"), "no.pbtxt: cannot be"),
    ],
)
def test_wrong_settings_are_one_line(base_path, flags, message):
    with toy_server.run_command("-m", "export.local_server", *(flag.format(base_path) for flag in flags)) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert message in errors and len(errors.splitlines()) == 1


@pytest.mark.slow(keep=["rest_api_port"])
@pytest.mark.parametrize("which", ["port", "rest_api_port"])
def test_a_taken_port_is_one_line(base_path, which):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = {"port": 0, "rest_api_port": 0, which: port}
        flags = [f"--{name}={value}" for name, value in flags.items()]
        command = ("-m", "export.local_server", f"--model_base_path={base_path}", *flags)
        # gRPC reads how much it is to say when it is imported, so that a fork would say more.
        with toy_server.run_command(*command, is_forked=which == "rest_api_port") as process:
            _, errors = process.communicate(timeout=110)
    assert process.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{port}" in errors and f"--{which}." in errors
    assert len(errors.splitlines()) == 1


def test_the_server_loads_no_model_code():
    """Nor libraries of models, which a fork has from the start."""
    script = """
import sys
is_model_code = lambda name: name.startswith(("keras_", "tasks"))
for name in filter(is_model_code, [*sys.modules]):
    del sys.modules[name]
sys.modules.pop("keras", None)  # With it, keras_bert brings its models.
import export.server.assembly
print(sorted(filter(is_model_code, sys.modules)))
"""
    with toy_server.run_command("-c", script) as process:
        output, _ = process.communicate(timeout=110)
    assert ast.literal_eval(output) == [
        *("keras_bert", "keras_bert.errors", "keras_bert.files"),
        *("keras_bert.tokenization", "keras_bert.tokenization.normalizer", "keras_bert.tokenization.python_tokenizer"),
        "keras_bert.vocabulary",
        *("tasks", "tasks.settings"),
    ]
