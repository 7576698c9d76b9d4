"""A served toy model with signatures of every kind that the REST rules tell apart, and ways to ask it."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from unittest import mock

import fuzzing
import processes
import tensorflow as tf
from repository import ROOT

from export.server import rest_routes, rest_server, servable
from export.server.admission import Admission
from export.server.assembly import running_server
from export.server.config_files import ModelSettings
from export.server.model_manager import ModelManager
from export.server.monitoring import Metrics
from export.server.servable import Signature
from export.server.server_settings import ServerSettings

REPOSITORY = ROOT


def _save_versions(base: str, versions: tuple[int, ...]) -> None:
    """One input or two or none, one output or two, examples."""
    text = tf.TensorSpec([None], tf.string, name="text")
    numbers = tf.TensorSpec([None, 2], tf.int32, name="numbers")
    factor = tf.TensorSpec([None], tf.float32, name="factor")

    @tf.function(input_signature=[text])
    def length(text):
        return {"label": tf.strings.upper(text), "score": tf.cast(tf.strings.length(text), tf.float32) / 10.0}

    @tf.function(input_signature=[text])
    def echo(text):
        return {"echo": text}

    @tf.function(input_signature=[text])
    def echo_bytes(text):
        return {"echo_bytes": text}

    @tf.function(input_signature=[numbers, factor])
    def scale(numbers, factor):
        with tf.control_dependencies([tf.debugging.assert_less(numbers, 100, message="number too large")]):
            return {"scaled": tf.cast(numbers, tf.float32) * factor[:, tf.newaxis]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def ratio(x):
        return {"y": 1.0 / x}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="inputs")])
    def classify(inputs):
        features = {"text": tf.io.FixedLenFeature([], tf.string), "weight": tf.io.FixedLenFeature([], tf.float32, 1.0)}
        parsed = tf.io.parse_example(inputs, features)
        scores = tf.stack([parsed["weight"], tf.cast(tf.strings.length(parsed["text"]), tf.float32)], axis=1)
        return {"classes": tf.tile([["weight", "length"]], [tf.size(inputs), 1]), "scores": scores}

    @tf.function(input_signature=[text])
    def total(text):
        return {"total": tf.size(text)}

    @tf.function(input_signature=[])
    def constant():
        return {"y": tf.constant([1.0, 2.0])}

    signatures = {"serving_default": length, "echo": echo, "echo_bytes": echo_bytes, "scale": scale, "ratio": ratio}
    for version in versions:
        module = tf.Module()
        all_signatures = signatures | {"classify": classify, "total": total, "constant": constant}
        tf.saved_model.save(module, os.path.join(base, str(version)), signatures=all_signatures)


def saved(directory) -> str:
    """Writes versions 2 and 10 of the model `toy` below `directory`, and what is no version; returns the base path."""
    base = os.path.join(directory, "toy")
    _save_versions(base, (2, 10))
    os.makedirs(os.path.join(base, "notes"))
    os.makedirs(os.path.join(base, "11"))  # no saved_model.pb: a half-copied version is not served
    return base


def running(base_path: str, *, batching=None, name: str = "toy", **settings):
    """Serves the newest version while its `with` block runs; gives the server, with free ports."""
    settings = ServerSettings(**{"rest_api_port": 0, "port": -1, "max_request_megabytes": 1, **settings})
    return running_server([ModelSettings(name, base_path)], settings, batching)


@contextlib.contextmanager
def quick_sessions() -> Iterator[None]:
    """Lets models that are loaded meanwhile run without TensorFlow's optimizer.

    It takes seconds for each signature, longer than all requests of a test. Without it an error of a graph names
    functions before its message. Commands, and all tests with `FUZZ=full`, optimize.
    """

    def without_optimizer(settings):
        config = make(settings)
        config.graph_options.rewrite_options.disable_meta_optimizer = not fuzzing.FULL
        return config

    make = servable._session_config
    with mock.patch.object(servable, "_session_config", without_optimizer):
        yield


def serving(version, base_path: str):
    """Serves what stands for a loaded version, under the name of a model that is there."""
    metrics = Metrics()
    # An idle connection must not end by itself.
    open_to = ServerSettings(rest_api_port=0, rest_api_timeout_in_ms=300_000)
    manager = ModelManager(lambda *_: version, open_to)
    manager.apply([ModelSettings("toy", base_path)])
    admission = Admission(100, 100 * 2**20, metrics)
    rest = rest_server.RestServer(rest_routes.RestRoutes(manager, metrics), admission, open_to)
    return rest_server.running(rest)


class SlowServable:
    """Stands for a loaded version: echoes texts, as soon as it is allowed to."""

    name, version = "toy", 1

    def __init__(self, version: int = 1):
        self.version = version
        self.asked, self.allowed = threading.Event(), threading.Event()

    def signature(self, *_) -> Signature:
        """One input, one output."""
        specs = [{name: tf.TensorSpec([None], tf.string)} for name in ("text", "echo")]
        return Signature(*specs)

    def check_rows(self, _) -> None:
        """Allows any number."""

    def close(self) -> None:
        """Holds nothing."""

    def run(self, _, arrays, *__) -> dict:
        """Waits, and echoes."""
        self.asked.set()
        assert self.allowed.wait(60)
        return {"echo": arrays["text"]}


def empty_version(directory) -> str:
    """A base path whose one version holds nothing but what a look at it finds."""
    (directory / "toy" / "1").mkdir(parents=True)
    (directory / "toy" / "1" / "saved_model.pb").write_bytes(b"")
    return str(directory / "toy")


def _port(server) -> int:
    return getattr(server, "rest", server).server_port


def figure_name(name: str, **labels: str) -> str:
    """How Prometheus's text format names a figure."""
    braces = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{braces}}}" if labels else name


def figure(server, name: str, **labels: str) -> float:
    """The value of one of TensorFlow Serving's figures."""
    start = figure_name(f":tensorflow:serving:{name}", **labels) + " "
    (line,) = (line for line in server.rest.routes.metrics.text().decode().splitlines() if line.startswith(start))
    return float(line.removeprefix(start))


def ask(server, method: str, path: str, body=None) -> tuple[int, object]:
    """Status and document of the answer; `body` is bytes, or a document."""
    connection = http.client.HTTPConnection("127.0.0.1", _port(server), timeout=30)
    try:
        raw = body if isinstance(body, bytes | type(None)) else json.dumps(body).encode()
        connection.request(method, path, raw)
        response = connection.getresponse()
        assert response.headers["Content-Type"] == "application/json"
        body = response.read()
        return response.status, json.loads(body) if method != "HEAD" else body
    finally:
        connection.close()


def fits(document: dict, content: dict, value) -> bool:
    """Tells whether a JSON value has the schema of a request or an answer."""
    import jsonschema  # here: make test-versions serves in environments without it

    schema = content["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator(schema | {"components": document["components"]})
    validator.check_schema(schema)
    return validator.is_valid(value)


def predict(server, body) -> tuple[int, object]:
    """As `ask`, of the model's `:predict`."""
    return ask(server, "POST", "/v1/models/toy:predict", body)


def connect(server, timeout: float = 30) -> socket.socket:
    """A connection of one's own."""
    return socket.create_connection(("127.0.0.1", _port(server)), timeout=timeout)


def request(body: dict) -> bytes:
    """A whole `:predict` request."""
    raw = json.dumps(body).encode()
    return b"POST /v1/models/toy:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(raw), raw)


def exchange(server, request: bytes) -> bytes:
    """Sends a request; returns everything that the server sends back until it closes the connection."""
    with connect(server) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    """Everything that comes until the connection ends."""
    pieces = []
    while piece := connection.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition that another thread brings about."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def run_command(*command: str, seconds: float = 120, is_forked: bool = True) -> Iterator[subprocess.Popen]:
    """Runs a command in the repository; a timer ends it, so that no read waits for ever."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # Without the tests' own log level, so that the command's counts.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TF_CPP")}
    popen = processes.popen if is_forked else subprocess.Popen
    process = popen([sys.executable, *command], cwd=REPOSITORY, text=True, env=environment, **pipes)
    timer = threading.Timer(seconds, process.kill)
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        process.kill()
        process.communicate()
