"""HTTP for the REST server: reads a request within limits of size and time, writes the answer; every error is JSON.

A request's head and body must each arrive within the time-out as a whole, so that one that comes drop by drop ends; the
head's size is bounded by http.server (64 KiB a line, 100 lines).
"""

import contextlib
import http.server
import io
import socket
import time
from collections.abc import Iterator

from export.server.admission import BodyBudget
from export.server.rest_routes import Answer, error_answer
from export.server.serving_error import ServingError, log_failure

_PIECE_BYTES = 1 << 16


class _Arrivals(io.RawIOBase):
    """What comes over a connection, until a deadline that reading one more piece does not move."""

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
    """Reads requests, has the routes answer them, writes the answers. Its server is a `RestServer`."""

    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # of a request line that names none: its answer has a head all the same
    server_version = "bert-serve"
    sys_version = ""
    # Both settings together: with Nagle's algorithm on and unbuffered writes, header and body leave in two packets
    # and the second waits for the first's acknowledgement, 44 ms a call.
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
            if self.rfile.peek(1):  # the head's time begins with its first byte, not with the wait for it
                self._arrivals.deadline = time.monotonic() + self._timeout
        except TimeoutError:
            self.close_connection = True
            return
        super().handle_one_request()

    @property
    def _timeout(self) -> float:
        return self.server.limits.timeout_s

    def do_GET(self) -> None:  # noqa: N802  (http.server's naming)
        """Status, metadata, figures, the page."""
        self._answer()

    def do_HEAD(self) -> None:  # noqa: N802
        """As GET, without the body."""
        self._answer()

    def do_POST(self) -> None:  # noqa: N802
        """Predict, classify, regress."""
        self._answer()

    def _answer(self) -> None:
        with self.server.request_in_progress(self.connection), self.server.admission.body() as budget:
            try:
                answer = self._answer_of(self._read_body(budget))
            except ServingError as error:
                answer = error_answer(error)
            except OSError:  # the client went away, or was too slow
                self.close_connection = True
                return
            except Exception:
                log_failure("A request failed.")
                answer = error_answer(ServingError("INTERNAL", "Internal error; the server's log has the details."))
            if self.server.is_draining:
                self.close_connection = True
            self._send(answer)

    def _answer_of(self, body: bytes) -> Answer:
        deadline = time.monotonic() + self._timeout
        if self.command != "POST":  # status and figures shall be seen most of all when the server is full
            return self.server.routes.respond(self.command, self.path, body, deadline)
        with self.server.admission.request():
            return self.server.routes.respond(self.command, self.path, body, deadline)

    def _read_body(self, budget: BodyBudget) -> bytes:
        length = self._content_length()
        if self.headers.get("Content-Encoding", "identity").lower() != "identity":
            self.close_connection = True
            raise ServingError("INVALID_ARGUMENT", "Compressed requests are not supported.", http_status=415)
        if length > self.server.limits.max_request_bytes:
            self.close_connection = True
            self._discard(length)
            raise self._too_large(length)
        pieces = []
        received = 0
        for piece in self._pieces(length):
            pieces.append(piece)
            received += len(piece)
            try:
                budget.take(len(piece))
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
            self.close_connection = True
            raise ServingError(
                "INVALID_ARGUMENT", "Expected a Content-Length; chunked requests are not supported.", http_status=411
            )
        values = set(self.headers.get_all("Content-Length", ["0"]))
        value = values.pop().strip()
        if values or not (value.isascii() and value.isdigit() and len(value) < 20):
            self.close_connection = True
            raise ServingError("INVALID_ARGUMENT", "The Content-Length is not one whole number.")
        return int(value)

    def _too_large(self, length: int) -> ServingError:
        limit = self.server.limits.max_request_bytes
        return ServingError(
            "INVALID_ARGUMENT", f"The request is {length} bytes long; the limit is {limit}.", http_status=413
        )

    def _pieces(self, length: int) -> Iterator[bytes]:
        """The next `length` bytes as they come, fewer if the client ends before.

        Raises:
            TimeoutError: they do not come within the time-out, all together.
        """
        self._arrivals.deadline = time.monotonic() + self._timeout
        while length > 0:
            piece = self.rfile.read1(min(length, _PIECE_BYTES))
            if not piece:
                return
            length -= len(piece)
            yield piece

    def _discard(self, length: int) -> None:
        """Reads a refused body, within bounds: a connection closed before that is reset, and the answer lost."""
        with contextlib.suppress(TimeoutError):
            for _ in self._pieces(min(length, 4 * self.server.limits.max_request_bytes)):
                pass

    def handle_expect_100(self) -> bool:
        """Says at once whether a large body is welcome (curl waits for that from 1 MB on)."""
        try:
            length = self._content_length()
            if length > self.server.limits.max_request_bytes:
                self.close_connection = True
                raise self._too_large(length)
        except ServingError as error:
            self._send(error_answer(error))
            return False
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Errors of the HTTP layer itself (an unreadable request line, an unknown method) in JSON."""
        self.close_connection = True
        # A request line too broken to name a version counts as HTTP/0.9, whose answers have no head.
        self.request_version = self.protocol_version
        text = message or self.responses.get(code, ("Bad request",))[0]
        self._send(error_answer(ServingError("INVALID_ARGUMENT", text[:300], http_status=int(code))))

    def _send(self, answer: Answer) -> None:
        with contextlib.suppress(OSError):  # nobody is left to tell
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
        """Requests are not logged: nothing that a client sends reaches the log as it came."""
