"""HTTP for the REST server: reads a request within limits of size and time, writes the answer as JSON.

Limited: a body's size (status 413) and the time of its transfer; the wait for each piece of a request's head, and
for the next request on an open connection; the head's size (by http.server: 64 KiB a line, 100 lines).
Not limited: the whole time of a head that comes drop by drop, and the number of connections, each of which holds a
thread. Towards clients that mean harm, put a reverse proxy in front.
"""

import contextlib
import http.server
import logging
import sys
import time
import traceback
from collections.abc import Iterator

from export import rest_api
from export.rest_api import RestError

_TIMEOUT_S = 30  # TensorFlow Serving's own REST time-out
_PIECE_BYTES = 1 << 16


def log_failure(what: str) -> None:
    """Logs the exception in hand with its stack; its message, which may quote a client, in printable ASCII only."""
    kind, error, stack = sys.exc_info()
    frames = "".join(traceback.format_tb(stack))
    logging.getLogger(__name__).error("%s %s: %s\n%s", what, kind.__name__, ascii(str(error)), frames)


class RestHandler(http.server.BaseHTTPRequestHandler):
    """Reads a request, has the server answer it, writes JSON; every error is JSON too, never a traceback.

    Its server is a `RestServer`, which gives the answers and the largest size of a body.
    """

    protocol_version = "HTTP/1.1"
    server_version = "bert-serve"
    sys_version = ""
    timeout = _TIMEOUT_S
    # Both settings together: with Nagle's algorithm on and unbuffered writes, header and body leave in two packets
    # and the second waits for the first's acknowledgement, 44 ms a call.
    disable_nagle_algorithm = True
    wbufsize = -1

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
        with self.server.request_in_progress(self.connection):
            try:
                body = self._read_body()
                status, payload = 200, self.server.respond(self.command, self.path, body)
            except RestError as error:
                status, payload = error.status, {"error": error.message}
            except OSError:  # the client went away, or was too slow
                self.close_connection = True
                return
            except Exception:
                log_failure("A request failed.")
                status, payload = 500, {"error": "Internal error; the server's log has the details."}
            if self.server.is_draining:
                self.close_connection = True
            self._send(status, payload)

    def _read_body(self) -> bytes:
        length = self._content_length()
        if length > self.server.max_request_bytes:
            self.close_connection = True
            self._discard(length)
            raise self._too_large(length)
        body = b"".join(self._pieces(length))
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

    def _pieces(self, length: int) -> Iterator[bytes]:
        """The next `length` bytes as they come, fewer if the client ends before.

        Raises:
            TimeoutError: they do not come within the time-out, all together.
        """
        deadline = time.monotonic() + self.timeout
        try:
            while length > 0:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("The request's body took too long.")
                self.connection.settimeout(left)
                piece = self.rfile.read1(min(length, _PIECE_BYTES))
                if not piece:
                    return
                length -= len(piece)
                yield piece
        finally:
            self.connection.settimeout(self.timeout)

    def _discard(self, length: int) -> None:
        """Reads a refused body, within bounds: a connection closed before that is reset, and the answer lost."""
        with contextlib.suppress(TimeoutError):
            for _ in self._pieces(min(length, 4 * self.server.max_request_bytes)):
                pass

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
        """Requests are not logged: nothing that a client sends reaches the log as it came."""
