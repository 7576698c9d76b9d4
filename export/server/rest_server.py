"""The REST server: uvicorn in a thread, with limits on the time, size and number of connections.

A request must arrive completely within the time-out, and its answer must be read completely within it, so a client that
sends or reads drop by drop cannot hold a connection. A slow client costs a coroutine, not a thread.
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


class _JoiningTransport:
    """Sends the head of an answer with its body, which saves 0.1 ms a request beside two packets."""

    def __init__(self, transport):
        self._transport = transport
        self._held: list[bytes] = []

    def __getattr__(self, name: str):
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Sends a body with what is held, and `100 Continue` at once; holds anything else."""
        self._held.append(data)
        if len(self._held) > 1 or data.startswith(b"HTTP/1.1 100 "):
            self.flush()

    def flush(self) -> None:
        """Sends what is held."""
        if self._held:
            self._transport.write(b"".join(self._held))
            self._held.clear()

    def close(self) -> None:
        """Closes the connection once everything is sent."""
        self.flush()
        self._transport.close()


class _Connection(HttpToolsProtocol):
    """A client's connection.

    Args:
        rest_app: has the limits.
        arguments: uvicorn's.
    """

    def __init__(self, rest_app: RestApp, **arguments):
        super().__init__(**arguments)
        self._rest_app = rest_app
        self._timer = None
        self._num_received, self._is_in_head = 0, False

    def connection_made(self, transport) -> None:
        """Refuses a connection beyond the limit."""
        super().connection_made(_JoiningTransport(transport))
        self._restart_timer()
        if len(self.connections) > self._rest_app.settings.max_connections:
            self._refuse(self._rest_app.admission.refusal("connections", "it has too many connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        super().connection_lost(exc)
        self._timer.cancel()

    def _restart_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._rest_app.settings.rest_api_timeout_in_ms / 1000, self._end_if_slow)

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
        self._num_received, self._is_in_head = 0, True
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
        self.transport.flush()  # An answer to HEAD has no body.
        super().on_response_complete()
        self._restart_timer()

    def data_received(self, data: bytes) -> None:
        """Parses bytes from the client within the limits of size."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.send_400_response("")
            return
        except httptools.HttpParserUpgrade as upgrade:
            self._parse_without_upgrade(data[upgrade.args[0] :])
        self._num_received += len(data)
        if self._is_in_head and self._num_received > _MAX_HEAD_BYTES:
            self._refuse(invalid(f"The head of the request is too long; the limit is {_MAX_HEAD_BYTES} bytes.", 431))
        # A refused body is read nevertheless: closing at once would reset the connection, and lose the answer.
        elif self._num_received > 4 * self._rest_app.settings.max_request_bytes + _MAX_HEAD_BYTES:
            self.transport.abort()

    def _parse_without_upgrade(self, body: bytes) -> None:
        """Parses a request again without its offer of another protocol, such as HTTP/2 by Java's HttpClient.

        With the offer, the parser skips the body (https://github.com/Kludex/uvicorn/issues/2722).

        Args:
            body: the bytes that have arrived of it.
        """
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            self.send_400_response("")
            return
        lines = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade")
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"%s %s HTTP/%s\r\n%s\r\n%s" % (method, self.url, version, lines, body))

    def eof_received(self) -> bool:
        """Keeps a connection that its client has closed for writing until the answer is sent."""
        self.shutdown()
        return self._is_computing()

    def send_400_response(self, msg: str) -> None:
        """Answers malformed HTTP and closes the connection, since the start of the next request is unknown."""
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
        host, port = settings.host, settings.rest_api_port
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            raise InputError(
                f"Cannot listen on {host}:{port} ({error.strerror}). Choose another --host or --rest_api_port."
            ) from error
        # Without this option the last packet of a long answer waits for an acknowledgement, 44 ms. asyncio sets it
        # only on sockets that name their protocol.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.server_port = self._socket.getsockname()[1]
        self.app = RestApp(routes, admission, settings)
        headers = {"server": "bert-serve", "x-content-type-options": "nosniff"}
        headers |= _CORS_HEADERS if settings.rest_api_enable_cors_support else {}
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
            headers=list(headers.items()),
            timeout_keep_alive=settings.rest_api_timeout_in_ms // 1000 + 1,
        )
        self._server = uvicorn.Server(config)
        self.connections = self._server.server_state.connections
        routes.metrics.add_gauge("bert_serve_connections", "Open REST connections.", lambda: len(self.connections))

    def close(self) -> None:
        """Frees the address and the threads."""
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
