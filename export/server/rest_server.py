"""The REST server: uvicorn in a thread, whose connections have limits of time, size and number.

A request must arrive completely within the time-out, and its answer must be read completely, so a client that sends or
reads drop by drop cannot hold a connection. A slow client costs a coroutine, not a thread.
"""

import contextlib
import functools
import logging
import socket
import threading
from collections.abc import Iterator

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from export.server.admission import Admission
from export.server.rest_app import RestApp
from export.server.rest_routes import RestRoutes, error_response
from export.server.server_settings import ServerSettings
from export.server.serving_error import ServingError, invalid
from keras_bert.errors import InputError

_MAX_HEAD_BYTES = 1 << 16
_CORS_HEADERS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "POST, GET",
    "access-control-allow-headers": "Content-Type",
}


class _Connection(HttpToolsProtocol):
    """A client's connection.

    Args:
        limited: has the limits.
        arguments: of uvicorn.
    """

    def __init__(self, limited: RestApp, **arguments):
        super().__init__(**arguments)
        self._limited = limited
        self._timer = None
        self._received, self._is_in_head = 0, False

    def connection_made(self, transport) -> None:
        """Refuses a client too many."""
        super().connection_made(transport)
        self._restart_timer()
        if len(self.connections) > self._limited.settings.max_connections:
            self._refuse(self._limited.admission.refusal("connections", "it has too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the timer."""
        super().connection_lost(exc)
        self._timer.cancel()

    def _restart_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._limited.settings.rest_api_timeout_in_ms / 1000, self._end_if_slow)

    def _end_if_slow(self) -> None:
        if self._is_computing() and not self.flow.write_paused:
            self._restart_timer()  # The client waits for its answer, which has a deadline of its own.
        else:
            self.transport.abort()

    def _is_computing(self) -> bool:
        """Tells whether a complete request is not answered yet."""
        return self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body)

    def on_message_begin(self) -> None:
        """Starts the time in which a request must arrive."""
        super().on_message_begin()
        self._received, self._is_in_head = 0, True
        self._restart_timer()

    def on_headers_complete(self) -> None:
        """Starts a request, unless it is to be parsed again."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            self._is_in_head = False

    def on_message_complete(self) -> None:
        """Ends a request, unless it is to be parsed again."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Starts the time in which an answer must be read, and the next request begin."""
        super().on_response_complete()
        self._restart_timer()

    def data_received(self, data: bytes) -> None:
        """Parses what a client sends, as long as it is not too much."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("")
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
        self._received += len(data)
        if self._is_in_head and self._received > _MAX_HEAD_BYTES:
            self._refuse(invalid(f"The head of the request is too long; the limit is {_MAX_HEAD_BYTES} bytes.", 431))
        # A refused body is read nevertheless: closing at once would reset the connection, and lose the answer.
        elif self._received > 4 * self._limited.settings.max_request_bytes + _MAX_HEAD_BYTES:
            self.transport.abort()

    def _parse_without_upgrade(self, body: bytes) -> None:
        """Takes a request that offers another protocol, as Java's HttpClient does, for what it is in HTTP/1.1.

        The parser would skip its body (https://github.com/Kludex/uvicorn/issues/2722).

        Args:
            body: what has arrived of it.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.send_400_response("")
            return
        lines = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade")
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"%s %s HTTP/%s\r\n%s\r\n%s" % (method, self.url, version, lines, body))

    def eof_received(self) -> bool:
        """Answers a request whose client has ended its own side of the connection."""
        self.shutdown()
        return self._is_computing()

    def send_400_response(self, msg: str) -> None:
        """Answers what is not HTTP, and closes the connection, since nobody may know where the next request starts."""
        self._refuse(invalid("Malformed HTTP request."))

    def _refuse(self, error: ServingError) -> None:
        response = error_response(error)
        headers = [*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close")]
        lines = b"".join(b"%s: %s\r\n" % header for header in headers)
        self.transport.write(b"%s%s\r\n%s" % (STATUS_LINE[response.status_code], lines, response.body))
        self.transport.close()


class RestServer:
    """Serves REST requests.

    Args:
        routes: answers requests.
        admission: bounds what is in progress.
        settings: address to bind and limits.

    Attributes:
        server_port: the port in use, even if the settings say 0.
        connections: those that are open.

    Raises:
        InputError: the address cannot be bound.
    """

    def __init__(self, routes: RestRoutes, admission: Admission, settings: ServerSettings):
        self.admission = admission
        address, family = (
            (settings.host, settings.rest_api_port),
            socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
        )
        try:
            self._socket = socket.create_server(address, family=family, backlog=128)
        except OSError as error:
            raise InputError(
                f"Cannot listen on {address[0]}:{address[1]} ({error.strerror}). Choose another --host or "
                "--rest_api_port."
            ) from error
        # Head and body of an answer leave in two packets; without this the second would wait for the first's
        # acknowledgement, 44 ms. asyncio's own setting misses sockets made by `create_server`.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server_port = self._socket.getsockname()[1]
        headers = {"server": "bert-serve", "x-content-type-options": "nosniff"}
        self.app = RestApp(routes, admission, settings)
        config = uvicorn.Config(
            self.app,
            http=functools.partial(_Connection, self.app),
            loop="asyncio",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[*(headers | (_CORS_HEADERS if settings.rest_api_enable_cors_support else {})).items()],
            timeout_keep_alive=settings.rest_api_timeout_in_ms // 1000 + 1,
        )
        self._server = uvicorn.Server(config)
        self.connections = self._server.server_state.connections
        routes.metrics.add_gauge("bert_serve_connections", "Open REST connections.", lambda: len(self.connections))

    def close(self) -> None:
        """Gives the address and the threads back."""
        self._socket.close()
        self.app.workers.shutdown(wait=False)

    @contextlib.contextmanager
    def running(self, drain_timeout: float = 10.0) -> Iterator[None]:
        """Answers requests in a thread while the block runs, then refuses new ones and lets the last ones finish.

        Requests not answered within `drain_timeout` seconds are abandoned, and a warning says how many.
        """
        thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.should_exit = True
            thread.join(drain_timeout)
            if thread.is_alive():
                logging.getLogger(__name__).warning(
                    "Stopped without an answer to %d connection(s): not finished within %g seconds.",
                    len(self.connections),
                    drain_timeout,
                )
