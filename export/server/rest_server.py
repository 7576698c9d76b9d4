"""The REST server: counts its connections, knows which of them wait for an answer, and shuts down in order.

It is the standard library's HTTP server, with a thread for each connection.
"""

import contextlib
import http.server
import logging
import socket
import sys
import threading
from collections.abc import Iterator

from export.server.admission import Admission, Keys
from export.server.rest_handler import RestHandler
from export.server.rest_routes import RestRoutes, error_answer
from export.server.server_settings import DRAIN_SECONDS, ServerSettings
from export.server.serving_error import log_failure
from keras_bert.errors import InputError


class RestServer(http.server.ThreadingHTTPServer):
    """Serves REST requests. Its attribute `server_port` is the port in use, even if the settings say 0.

    Args:
        routes: answers requests.
        admission: limits the requests in progress.
        settings: address to bind and limits.

    Raises:
        InputError: the address cannot be bound, or the file of keys is wrong.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, routes: RestRoutes, admission: Admission, settings: ServerSettings):
        self.routes = routes
        self.admission = admission
        self.settings = settings
        self.keys = Keys(settings.api_key)
        self.is_draining = False
        self._busy_by_connection: dict[socket.socket, bool] = {}
        self._changed = threading.Condition()
        if ":" in settings.host:
            self.address_family = socket.AF_INET6
        address = (settings.host, settings.rest_api_port)
        try:
            super().__init__(address, RestHandler)
        except OSError as error:
            raise InputError(
                f"Cannot listen on {address[0]}:{address[1]} ({error.strerror}). Choose another --host or "
                "--rest_api_port."
            ) from error
        routes.metrics.add_gauge("bert_serve_connections", "Open REST connections.", lambda: self.open_connections)

    def server_bind(self) -> None:
        """Binds without looking up the host's full name as the base class does, which takes seconds if DNS is slow."""
        super(http.server.HTTPServer, self).server_bind()
        self.server_name, self.server_port = self.server_address[:2]

    def handle_error(self, request, client_address) -> None:
        """Logs errors other than a client that went away; the base class would print a traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            log_failure("A connection failed.")

    def process_request(self, request: socket.socket, client_address) -> None:
        """Registers a connection in the accepting thread, and answers its requests in a thread of its own."""
        if self.open_connections >= self.settings.max_connections:
            self._turn_away(request)
            return
        with self._changed:
            self._busy_by_connection[request] = False
        super().process_request(request, client_address)

    def _turn_away(self, connection: socket.socket) -> None:
        body = error_answer(self.admission.refusal("connections", "it has too many connections")).body
        head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        with contextlib.suppress(OSError):
            connection.setblocking(False)  # A fresh connection's buffer takes it; this thread must not wait.
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
        """Number of open connections."""
        return len(self._busy_by_connection)

    @contextlib.contextmanager
    def request_in_progress(self, connection: socket.socket) -> Iterator[None]:
        """Marks a connection as waiting for its answer while the block runs."""
        with self._changed:
            self._busy_by_connection[connection] = True
        try:
            yield
        finally:
            with self._changed:
                self._busy_by_connection[connection] = False
                if self.is_draining:
                    _end_reading(connection)

    def drain(self) -> int:
        """Waits until all requests are answered; closes idle connections at once.

        Returns:
            Number of connections that still wait for an answer after `DRAIN_SECONDS`.
        """
        with self._changed:
            self.is_draining = True
            for connection, is_busy in self._busy_by_connection.items():
                if not is_busy:
                    _end_reading(connection)
            self._changed.wait_for(lambda: not self.open_connections, DRAIN_SECONDS)
            return self.open_connections


def _end_reading(connection: socket.socket) -> None:
    """Ends the wait for a connection's next request; what has arrived can still be read."""
    with contextlib.suppress(OSError):  # It is closed already.
        connection.shutdown(socket.SHUT_RD)


@contextlib.contextmanager
def running(server: RestServer) -> Iterator[RestServer]:
    """Answers requests in a thread while the block runs, then refuses new ones and lets the last ones finish.

    Requests not answered within `DRAIN_SECONDS` are abandoned, and a warning says how many.
    """
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        left = server.drain()
        if left:
            logging.getLogger(__name__).warning(
                "Stopped without an answer to %d connection(s): not finished within %g seconds.", left, DRAIN_SECONDS
            )
        thread.join()
