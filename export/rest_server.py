"""A SavedModel behind TensorFlow Serving's REST API, on the standard library's HTTP server.

Needs tensorflow and tensorflow_text, nothing else of this project: whatever TensorFlow Serving answers from the same
directory, this answers. Tested behaviours are in tests/local_server_test.py.
"""

import contextlib
import http.server
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)
from google.protobuf import json_format
from tensorflow.core.protobuf import saved_model_pb2

from export import rest_api
from export.rest_api import RestError
from keras_bert.errors import InputError

_VERB_PATH = re.compile(r"(?i)/v1/models/([^/:]+)(?:/versions/(\d+))?:(predict|classify|regress)")
_MODEL_PATH = re.compile(r"(?i)/v1/models/([^/:]+)(?:/versions/(\d+))?(/metadata)?")
_SOCKET_TIMEOUT_S = 30
# TensorFlow Serving's own REST time-out; an idle or a very slow connection ends after it.
_DRAIN_TIMEOUT_S = 10


def newest_version(model_base_path: str) -> int:
    """The highest numeric sub-directory of a model's base path, as TensorFlow Serving chooses it.

    Raises:
        InputError: there is no such directory, or no version in it.
    """
    if not os.path.isdir(model_base_path):
        raise InputError(f"{model_base_path}: no such directory. Give the base path that bert-export wrote to.")
    versions = [
        int(name)
        for name in os.listdir(model_base_path)
        if name.isascii() and name.isdigit() and os.path.isfile(os.path.join(model_base_path, name, "saved_model.pb"))
    ]
    if not versions:
        raise InputError(
            f"{model_base_path}: no version found. Expected numeric directories with a saved_model.pb, such as "
            f"{os.path.join(model_base_path, '1')}; run bert-export first."
        )
    return max(versions)


class ServedModel:
    """One loaded version of a model.

    Args:
        directory: a version directory (holds `saved_model.pb`).
        name: the model's name in URLs.
        version: the version's number.
    """

    def __init__(self, directory: str, name: str, version: int):
        self.name = name
        self.version = version
        self._loaded = tf.saved_model.load(directory)
        with open(os.path.join(directory, "saved_model.pb"), "rb") as file:
            graph = saved_model_pb2.SavedModel.FromString(file.read())
        self._signature_defs = graph.meta_graphs[0].signature_def

    def input_specs(self, signature_name: str) -> dict[str, tf.TensorSpec]:
        """Input name -> specification of one signature.

        Raises:
            RestError: (400) the model has no such signature.
        """
        return self._function(signature_name).structured_input_signature[1]

    def predict(self, signature_name: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature.

        Raises:
            RestError: (400) the graph refuses the values, such as a token id outside the vocabulary; (500) it failed.
        """
        function = self._function(signature_name)
        specs = self.input_specs(signature_name)
        try:
            outputs = function(**{name: tf.constant(array, specs[name].dtype) for name, array in arrays.items()})
            return {name: tensor.numpy() for name, tensor in outputs.items()}
        except (tf.errors.InvalidArgumentError, tf.errors.OutOfRangeError) as error:
            raise RestError(400, _reason(error)) from error
        except tf.errors.OpError as error:
            raise RestError(500, _reason(error)) from error

    def _function(self, signature_name: str):
        if signature_name not in self._loaded.signatures:
            raise RestError(
                400,
                f"Serving signature name: {signature_name!r} not found in signature def. "
                f"Expected one of {sorted(self._loaded.signatures)}.",
            )
        return self._loaded.signatures[signature_name]

    def status(self) -> dict:
        """TensorFlow Serving's answer to a status request."""
        status = {"error_code": "OK", "error_message": ""}
        return {"model_version_status": [{"version": str(self.version), "state": "AVAILABLE", "status": status}]}

    def metadata(self) -> dict:
        """TensorFlow Serving's answer to a metadata request: the signatures with names, types and shapes."""
        signatures = {
            name: json_format.MessageToDict(
                signature, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            for name, signature in sorted(self._signature_defs.items())
        }
        return {
            "model_spec": {"name": self.name, "signature_name": "", "version": str(self.version)},
            "metadata": {"signature_def": {"signature_def": signatures}},
        }


def _reason(error: tf.errors.OpError) -> str:
    """The line that says what was wrong, out of a message that also names graph nodes and the exporter's stack."""
    lines = [line.strip() for line in str(error.message).splitlines() if line.strip()]
    before_nodes = [line for line, following in zip(lines, lines[1:], strict=False) if following.startswith("[[{{node")]
    return (before_nodes + lines + ["The graph failed."])[0]


class RestServer(http.server.ThreadingHTTPServer):
    """Serves one model on `(host, port)`; port 0 takes a free one, told by `server_port`.

    Args:
        model: the model to serve.
        host: address to bind.
        port: TCP port, or 0.
        max_request_bytes: a longer request body is refused with status 413.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, model: ServedModel, host: str, port: int, max_request_bytes: int):
        self.model = model
        self.max_request_bytes = max_request_bytes
        self._busy = 0
        self._idle = threading.Condition()
        super().__init__((host, port), RestHandler)

    def server_bind(self) -> None:
        """Binds without the look-up of the host's full name that `http.server` makes (seconds where DNS is slow)."""
        super(http.server.HTTPServer, self).server_bind()
        self.server_name, self.server_port = self.server_address[:2]

    @contextlib.contextmanager
    def request_in_progress(self) -> Iterator[None]:
        """Marks a request, so that `drain` waits for its answer."""
        with self._idle:
            self._busy += 1
        try:
            yield
        finally:
            with self._idle:
                self._busy -= 1
                self._idle.notify_all()

    def drain(self, timeout: float = _DRAIN_TIMEOUT_S) -> bool:
        """Waits until no request is in progress; False when `timeout` seconds did not suffice."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._busy, timeout)

    def respond(self, method: str, path: str, body: bytes) -> dict:
        """The answer to one request.

        Raises:
            RestError: with the HTTP status and the message for the client.
        """
        path = path.partition("?")[0]
        verb = _VERB_PATH.fullmatch(path) if method == "POST" else None
        if verb:
            self._check_model(verb[1], verb[2])
            return {"predict": self._predict, "classify": self._classify, "regress": self._regress}[verb[3].lower()](
                rest_api.parse_json(body)
            )
        asked = _MODEL_PATH.fullmatch(path) if method in ("GET", "HEAD") else None
        if asked:
            self._check_model(asked[1], asked[2])
            return self.model.metadata() if asked[3] else self.model.status()
        if not path.lower().startswith("/v1/"):
            raise RestError(404, f"Not found. This server answers under /v1/models/{self.model.name}.")
        raise RestError(400, f"Malformed request: {method} {path[:200]}")

    def _check_model(self, name: str, version: str | None) -> None:
        if name != self.model.name:
            raise RestError(404, f"Servable not found for request: Latest({name[:200]})")
        # Compared as text: int() refuses what thousands of digits a client may send.
        if version is not None and version.lstrip("0") != str(self.model.version).lstrip("0"):
            raise RestError(404, f"Servable not found for request: Specific({name}, {version[:200]})")

    def _predict(self, document: dict) -> dict:
        request = rest_api.parse_predict(document)
        arrays = rest_api.predict_arrays(request, self.model.input_specs(request.signature_name))
        outputs = self.model.predict(request.signature_name, arrays)
        return rest_api.predict_response(outputs, request.row_format)

    def _classify(self, document: dict) -> dict:
        signature_name = rest_api.signature_name_of(document)
        inputs = self.model.input_specs(signature_name)
        examples = rest_api.parse_examples(document)
        if set(inputs) != {"inputs"}:
            raise RestError(
                400,
                f"Expected a classification signature (one input named 'inputs'). Received: {signature_name!r} with "
                f"inputs {sorted(inputs)}. Name another by 'signature_name'.",
            )
        outputs = self.model.predict(signature_name, {"inputs": np.array(examples, dtype=object)})
        if set(outputs) != {"classes", "scores"}:
            raise RestError(400, f"Expected outputs 'classes' and 'scores'. Received: {sorted(outputs)}")
        return rest_api.classify_response(outputs["classes"], outputs["scores"])

    def _regress(self, document: dict) -> dict:
        raise RestError(501, "This server has no :regress; ask the signature with :predict.")


class RestHandler(http.server.BaseHTTPRequestHandler):
    """Reads a request, has the server answer it, writes JSON; every error is JSON too, never a traceback."""

    protocol_version = "HTTP/1.1"
    server_version = "bert-serve"
    sys_version = ""
    timeout = _SOCKET_TIMEOUT_S
    # Both settings together: with Nagle's algorithm on and unbuffered writes, header and body leave in two packets
    # and the second waits for the first's acknowledgement, 44 ms a call.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: RestServer

    def do_GET(self) -> None:  # noqa: N802  (http.server's naming)
        """Status and metadata."""
        self._answer()

    def do_HEAD(self) -> None:  # noqa: N802
        """As GET, without the body."""
        self._answer()

    def do_POST(self) -> None:  # noqa: N802
        """Predict and classify."""
        self._answer()

    def _answer(self) -> None:
        with self.server.request_in_progress():
            try:
                body = self._read_body()
                status, payload = 200, self.server.respond(self.command, self.path, body)
            except RestError as error:
                status, payload = error.status, {"error": error.message}
            except OSError:  # the client went away, or was too slow
                self.close_connection = True
                return
            except Exception:
                logging.getLogger(__name__).exception("A request failed.")
                status, payload = 500, {"error": "Internal error; the server's log has the details."}
            self._send(status, payload)

    def _read_body(self) -> bytes:
        length = self._content_length()
        if length > self.server.max_request_bytes:
            self.close_connection = True
            self._discard(length)
            raise self._too_large(length)
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionError("The request ended before its body did.")
        return body

    def _content_length(self) -> int:
        if "Transfer-Encoding" in self.headers:
            self.close_connection = True
            raise RestError(411, "Expected a Content-Length; chunked requests are not supported.")
        values = set(self.headers.get_all("Content-Length", ["0"]))
        value = values.pop().strip()
        if values or not (value.isascii() and value.isdigit() and len(value) < 20):
            self.close_connection = True
            raise RestError(400, "The Content-Length is not one whole number.")
        return int(value)

    def _too_large(self, length: int) -> RestError:
        return RestError(413, f"The request is {length} bytes long; the limit is {self.server.max_request_bytes}.")

    def _discard(self, length: int) -> None:
        """Reads a refused body, within bounds: a connection closed before that is reset, and the answer lost."""
        left = min(length, 4 * self.server.max_request_bytes)
        deadline = time.monotonic() + _SOCKET_TIMEOUT_S
        while left > 0 and time.monotonic() < deadline:
            piece = self.rfile.read(min(left, 1 << 16))
            if not piece:
                return
            left -= len(piece)

    def handle_expect_100(self) -> bool:
        """Says at once whether a large body is welcome (curl waits for that from 1 MB on)."""
        try:
            length = self._content_length()
            if length > self.server.max_request_bytes:
                self.close_connection = True
                raise self._too_large(length)
        except RestError as error:
            self._send(error.status, {"error": error.message})
            return False
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors of the HTTP layer itself (an unreadable request line, an unknown method) in JSON."""
        self.close_connection = True
        # A request line too broken to name a version counts as HTTP/0.9, whose answers have no head.
        self.request_version = self.protocol_version
        self._send(int(code), {"error": message or self.responses.get(code, ("Bad request",))[0]})

    def _send(self, status: int, payload: dict) -> None:
        data = rest_api.dump(payload)
        with contextlib.suppress(OSError):  # nobody is left to tell
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)
            self.wfile.flush()

    def log_message(self, format: str, *args) -> None:
        """Requests are not logged: nothing that a client sends reaches the log."""


@contextlib.contextmanager
def running(server: RestServer) -> Iterator[RestServer]:
    """Answers requests in a thread for as long as the block runs, then lets the last ones finish."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        server.drain()
        thread.join()


def open_server(model: ServedModel, host: str, port: int, max_request_bytes: int) -> RestServer:
    """A server bound to its port.

    Raises:
        InputError: the address cannot be bound.
    """
    try:
        return RestServer(model, host, port, max_request_bytes)
    except OSError as error:
        raise InputError(
            f"Cannot listen on {host}:{port} ({error.strerror}). Choose another --host or --rest_api_port."
        ) from error
