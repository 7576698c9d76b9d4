"""HTTP of the REST server: reads requests within limits of size and time, and writes answers. All errors are JSON.

A request's head and its body must each arrive completely within the time-out, so a client that sends drop by drop
cannot hold a connection. http.server bounds the head's size (64 KiB a line, 100 lines).
"""

import contextlib
import http.server
import io
import socket
import time
from collections.abc import Callable, Iterator

from export.server.rest_routes import Answer, error_answer
from export.server.serving_error import ServingError, as_serving_error, invalid

_PIECE_BYTES = 1 << 16


class _Arrivals(io.RawIOBase):
    """Reads a connection's bytes until a deadline, which reading does not extend."""

    def __init__(self, connection: socket.socket):
        super().__init__()
        self._connection = connection
        self.deadline = time.monotonic()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("The request took too long to arrive.")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class RestHandler(http.server.BaseHTTPRequestHandler):
    """Reads requests, lets the routes answer them, and writes the answers. Its server is a `RestServer`."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # For a request line that names none, so that its answer has a head.
    server_version = "bert-serve"
    sys_version = ""
    # These two settings belong together. With Nagle's algorithm and unbuffered writes, header and body leave in two
    # packets, and the second waits for the first's acknowledgement: 44 ms a call.
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        """Prepares to read with deadlines."""
        super().setup()
        self.rfile.close()
        self._arrivals = _Arrivals(self.connection)
        self.rfile = io.BufferedReader(self._arrivals, _PIECE_BYTES)

    def handle_one_request(self) -> None:
        """Waits for a request and answers it."""
        self._arrivals.deadline = time.monotonic() + self._timeout
        try:
            if self.rfile.peek(1):  # The head's time starts with its first byte, not with the wait for it.
                self._arrivals.deadline = time.monotonic() + self._timeout
        except TimeoutError:
            self.close_connection = True
            return
        super().handle_one_request()

    @property
    def _timeout(self) -> float:
        return self.server.settings.rest_api_timeout_in_ms / 1000

    def _answer(self) -> None:
        """Answers a request of any method."""
        with self.server.request_in_progress(self.connection), self.server.admission.body() as take:
            try:
                body, deadline = self._read_body(take), time.monotonic() + self._timeout
                # Status and metrics, which matter most when the server is full, are always admitted.
                with self.server.admission.request() if self.command == "POST" else contextlib.nullcontext():
                    answer = self.server.routes.respond(self.command, self.path, body, deadline)
            except OSError:  # The client went away or was too slow.
                self.close_connection = True
                return
            except Exception as error:
                answer = error_answer(as_serving_error(error))
            if self.server.is_draining:
                self.close_connection = True
            self._send(answer)

    do_GET = do_HEAD = do_POST = _answer  # noqa: N815  (http.server's naming)

    def _read_body(self, take: Callable[[int], None]) -> bytes:
        length = self._content_length()
        if self.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise self._refusal("Compressed requests are not supported.", 415)
        if refusal := self._too_large(length):
            self._discard(length)
            raise refusal
        pieces, received = [], 0
        for piece in self._pieces(length):
            pieces.append(piece)
            received += len(piece)
            try:
                take(len(piece))
            except ServingError:
                self.close_connection = True
                pieces.clear()
                self._discard(length - received)
                raise
        if received < length:
            raise ConnectionError("The request ended before its body did.")
        return b"".join(pieces)

    def _content_length(self) -> int:
        if "Transfer-Encoding" in self.headers:
            raise self._refusal("Expected a Content-Length; chunked requests are not supported.", 411)
        values = set(self.headers.get_all("Content-Length", ["0"]))
        value = values.pop().strip()
        if values or not (value.isascii() and value.isdigit() and len(value) < 20):
            raise self._refusal("The Content-Length is not one whole number.")
        return int(value)

    def _too_large(self, length: int) -> ServingError | None:
        limit = self.server.settings.max_request_bytes
        if length <= limit:
            return None
        return self._refusal(f"The request is {length} bytes long; the limit is {limit}.", 413)

    def _refusal(self, message: str, http_status: int | None = None) -> ServingError:
        """Returns an error that closes the connection, since nobody may know where the next request starts."""
        self.close_connection = True
        return invalid(message, http_status)

    def _pieces(self, length: int) -> Iterator[bytes]:
        """Yields the next `length` bytes as they come, fewer if the client stops early.

        Raises:
            TimeoutError: they do not all arrive within the time-out.
        """
        self._arrivals.deadline = time.monotonic() + self._timeout
        while length > 0:
            piece = self.rfile.read1(min(length, _PIECE_BYTES))
            if not piece:
                return
            length -= len(piece)
            yield piece

    def _discard(self, length: int) -> None:
        """Reads a refused body, within bounds: closing first would reset the connection and lose the answer."""
        with contextlib.suppress(TimeoutError):
            for _ in self._pieces(min(length, 4 * self.server.settings.max_request_bytes)):
                pass

    def handle_expect_100(self) -> bool:
        """Tells a client that asks before it sends a large body whether to send it (curl asks from 1 MB on)."""
        try:
            length = self._content_length()
            if refusal := self._too_large(length):
                raise refusal
        except ServingError as error:
            self._send(error_answer(error))
            return False
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers errors of the HTTP layer, such as an unreadable request line or an unknown method, in JSON."""
        self.close_connection = True
        # A request line too broken to name a version counts as HTTP/0.9, whose answers have no head.
        self.request_version = self.protocol_version
        text = message or self.responses.get(code, ("Bad request",))[0]
        self._send(error_answer(invalid(text[:300], http_status=int(code))))

    def _send(self, answer: Answer) -> None:
        with contextlib.suppress(OSError):  # The client is gone.
            self.connection.settimeout(self._timeout)
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            for name, value in {"X-Content-Type-Options": "nosniff", **answer.headers}.items():
                self.send_header(name, value)
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            self.wfile.flush()

    def log_message(self, format: str, *args) -> None:
        """Logs nothing: what a client sends must not reach the log unchanged."""
