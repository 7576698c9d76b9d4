"""A SavedModel behind TensorFlow Serving's REST API, on the standard library's HTTP server.

Needs tensorflow and tensorflow_text; the project's model code is not loaded. What TensorFlow Serving answers to
status, metadata, predict and classify requests on one directory, this answers; regress is refused with status 501.
"""

import contextlib
import http.server
import logging
import re
import socket
import sys
import threading
import urllib.parse
from collections.abc import Iterator

import numpy as np

from export import rest_api
from export.rest_api import RestError
from export.rest_handler import RestHandler, log_failure
from export.served_model import ServedModel
from keras_bert.errors import InputError

_VERB_PATH = re.compile(r"(?i)/v1/models/([^/:]+)(?:/versions/(\d+))?:(predict|classify|regress)")
_MODEL_PATH = re.compile(r"(?i)/v1/models/([^/:]+)(?:/versions/(\d+))?(/metadata)?")
_DRAIN_TIMEOUT_S = 10


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
        self.is_draining = False
        self._busy_by_connection: dict[socket.socket, bool] = {}
        self._changed = threading.Condition()
        super().__init__((host, port), RestHandler)

    def server_bind(self) -> None:
        """Binds without the look-up of the host's full name that `http.server` makes (seconds where DNS is slow)."""
        super(http.server.HTTPServer, self).server_bind()
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request, client_address) -> None:
        """Says nothing of a client that went away, and logs anything else; the base class prints a traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            log_failure("A connection failed.")

    # === Connections ===

    def process_request(self, request: socket.socket, client_address) -> None:
        """Notes the connection, in the accepting thread, and answers its requests in one of its own."""
        with self._changed:
            self._busy_by_connection[request] = False
        super().process_request(request, client_address)

    def shutdown_request(self, request: socket.socket) -> None:
        """Ends a connection."""
        super().shutdown_request(request)
        with self._changed:
            self._busy_by_connection.pop(request, None)
            self._changed.notify_all()

    @property
    def open_connections(self) -> int:
        """How many connections clients have to this server."""
        return len(self._busy_by_connection)

    @contextlib.contextmanager
    def request_in_progress(self, connection: socket.socket) -> Iterator[None]:
        """Marks a connection from which a request has come that is not yet answered."""
        with self._changed:
            self._busy_by_connection[connection] = True
        try:
            yield
        finally:
            with self._changed:
                self._busy_by_connection[connection] = False
                if self.is_draining:
                    _end_reading(connection)

    def drain(self, timeout: float) -> int:
        """Waits for the answers to what has been asked; open connections without a request are closed at once.

        Returns:
            How many connections still waited for an answer after `timeout` seconds.
        """
        with self._changed:
            self.is_draining = True
            for connection, is_busy in self._busy_by_connection.items():
                if not is_busy:
                    _end_reading(connection)
            self._changed.wait_for(lambda: not self.open_connections, timeout)
            return self.open_connections

    # === Answers ===

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

    def _check_model(self, quoted_name: str, version: str | None) -> None:
        name = urllib.parse.unquote(quoted_name)
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


def _end_reading(connection: socket.socket) -> None:
    """Whoever waits for the connection's next request finds it ended; what has come already can still be read."""
    with contextlib.suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RD)


@contextlib.contextmanager
def running(server: RestServer, drain_timeout: float = _DRAIN_TIMEOUT_S) -> Iterator[RestServer]:
    """Answers requests in a thread for as long as the block runs, then takes no more and lets the last ones finish.

    Those that are not answered within `drain_timeout` seconds are given up, and a warning says how many.
    """
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        left = server.drain(drain_timeout)
        if left:
            logging.getLogger(__name__).warning(
                "Stopped without an answer to %d connection(s): not finished within %g seconds.", left, drain_timeout
            )
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
