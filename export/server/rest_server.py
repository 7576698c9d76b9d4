"""The REST server's connections: how many there are, which of them wait for an answer, and how they end.

On the standard library's HTTP server, a thread for each connection.
"""

import contextlib
import http.server
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from export.server.admission import Admission
from export.server.rest_handler import RestHandler
from export.server.rest_routes import RestRoutes, error_answer
from export.server.serving_error import ServingError, log_failure
from keras_bert.errors import InputError


class RestLimits(NamedTuple):
    """What one client may ask of the server.

    Attributes:
        max_request_bytes: a longer body is refused with status 413.
        max_connections: further ones get status 503 and are closed.
        timeout_s: for a request to arrive, and from then for its answer to begin (status 504); and how long a
            connection may be idle.
    """

    max_request_bytes: int = 16 * 2**20
    max_connections: int = 1024
    timeout_s: float = 30.0  # TensorFlow Serving's


class RestServer(http.server.ThreadingHTTPServer):
    """Serves REST requests on `(host, port)`; port 0 takes a free one, told by `server_port`.

    Args:
        routes: gives the answers.
        admission: bounds what is in progress.
        host: address to bind.
        port: TCP port, or 0.
        limits: see `RestLimits`.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, routes: RestRoutes, admission: Admission, host: str, port: int, limits: RestLimits):
        self.routes = routes
        self.admission = admission
        self.limits = limits
        self.is_draining = False
        self._busy_by_connection: dict[socket.socket, bool] = {}
        self._changed = threading.Condition()
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), RestHandler)
        routes.metrics.add_gauge("bert_serve_connections", (), lambda: self.open_connections)

    def server_bind(self) -> None:
        """Binds without the look-up of the host's full name that `http.server` makes (seconds where DNS is slow)."""
        super(http.server.HTTPServer, self).server_bind()
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request, client_address) -> None:
        """Says nothing of a client that went away, and logs anything else; the base class prints a traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            log_failure("A connection failed.")

    def process_request(self, request: socket.socket, client_address) -> None:
        """Notes the connection, in the accepting thread, and answers its requests in one of its own."""
        if self.open_connections >= self.limits.max_connections:
            self._turn_away(request)
            return
        with self._changed:
            self._busy_by_connection[request] = False
        super().process_request(request, client_address)

    def _turn_away(self, connection: socket.socket) -> None:
        self.routes.metrics.refused.add(("connections",))
        error = ServingError("RESOURCE_EXHAUSTED", "The server is full: it has too many connections. Try again.")
        body = error_answer(error).body
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        with contextlib.suppress(OSError):
            connection.setblocking(False)  # a fresh connection's buffer takes it; nobody waits here for a client
            connection.send(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        self.shutdown_request(connection)

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


def _end_reading(connection: socket.socket) -> None:
    """Whoever waits for the connection's next request finds it ended; what has come already can still be read."""
    with contextlib.suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RD)


@contextlib.contextmanager
def running(server: RestServer, drain_timeout: float = 10.0) -> Iterator[RestServer]:
    """Answers requests in a thread for as long as the block runs, then takes no more and lets the last ones finish.

    Those that are not answered within `drain_timeout` seconds are given up, and a warning says how many.
    """
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        end = time.monotonic() + drain_timeout
        server.shutdown()
        server.server_close()
        left = server.drain(max(0.0, end - time.monotonic()))
        if left:
            logging.getLogger(__name__).warning(
                "Stopped without an answer to %d connection(s): not finished within %g seconds.", left, drain_timeout
            )
        thread.join()


def open_server(routes: RestRoutes, admission: Admission, host: str, port: int, limits: RestLimits) -> RestServer:
    """A server bound to its port.

    Raises:
        InputError: the address cannot be bound.
    """
    try:
        return RestServer(routes, admission, host, port, limits)
    except OSError as error:
        raise InputError(
            f"Cannot listen on {host}:{port} ({error.strerror}). Choose another --host or --rest_api_port."
        ) from error
