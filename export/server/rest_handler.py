"""HTTP of the REST server: reads requests within limits of size and time, and writes answers. All errors are JSON.

A request's head, its body and its answer must each pass completely within the time-out, so a client that sends or reads
byte by byte cannot hold a connection.

A head is checked line by line before http.server parses it. http.server treats a malformed line as the end of the head:
it would lose the length that follows, and read the body as the next request (request smuggling). After any such defect
the connection is closed.
"""

import contextlib
import gzip
import http.server
import io
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterator

from export.server import rest_api, search_api
from export.server.rest_routes import Answer, error_answer
from export.server.serving_error import ServingError, as_serving_error, invalid

_PIECE_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 16
_MAX_HEADERS = 100
# RFC 9112, sections 3, 5 and 7.1: no bare CR or LF, no blank before the colon, no folded line.
_REQUEST_LINE = re.compile(rb"[A-Z]{1,20} [\x21-\x7e]+ HTTP/1\.[01]\r\n")
_HEADER_LINE = re.compile(rb"[!#-'*+.^`|~\w-]+:[\t\x20-\x7e\x80-\xff]*\r\n")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:[ \t]*;[\t\x20-\x7e]*)?\r\n")
_LEAST_COMPRESSED_BYTES = 1 << 10
_CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Authorization, Content-Type",
}
# Names of headers, RFC 9110, section 5.6.2, with commas and blanks between.
_HEADER_NAMES = re.compile(r"[\w!#$%&'*+.^`|~, -]{1,1000}", re.ASCII)


class _Timed(io.RawIOBase):
    """Reads or writes a connection's bytes until a deadline, which reading and writing do not extend."""

    def __init__(self, connection: socket.socket):
        super().__init__()
        self._connection = connection
        self.deadline = time.monotonic()

    def readable(self) -> bool:
        return True

    writable = readable

    def readinto(self, buffer) -> int:
        return self._in_time().recv_into(buffer)

    def write(self, data) -> int:
        return self._in_time().send(data)

    def _in_time(self) -> socket.socket:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("The client took too long.")
        self._connection.settimeout(left)
        return self._connection


class RestHandler(http.server.BaseHTTPRequestHandler):
    """Reads requests, lets the routes answer them, and writes the answers. Its server is a `RestServer`."""

    protocol_version = "HTTP/1.1"
    server_version = "bert-serve"
    sys_version = ""
    # Needs buffered writes: if header and body were sent in two packets, the second would wait 44 ms for the
    # acknowledgement of the first.
    disable_nagle_algorithm = True

    def setup(self) -> None:
        """Prepares to read and write with deadlines."""
        super().setup()
        self.rfile.close()
        self._arrivals, self._departures = _Timed(self.connection), _Timed(self.connection)
        self.rfile = io.BufferedReader(self._arrivals, _PIECE_BYTES)
        self.wfile = io.BufferedWriter(self._departures, _PIECE_BYTES)

    def handle_one_request(self) -> None:
        """Waits for a request and answers it."""
        self._arrivals.deadline = time.monotonic() + self._timeout
        with contextlib.suppress(TimeoutError):  # The base class gets it again, and ends the connection.
            self.rfile.peek(1)  # The head's time starts with its first byte, not with the wait for it.
            self._arrivals.deadline = time.monotonic() + self._timeout
        super().handle_one_request()

    def parse_request(self) -> bool:
        """Reads the head; answers one that is malformed, and returns False."""
        self.command, self.requestline = None, ""  # Needed for answers to errors in the head.
        if not _REQUEST_LINE.fullmatch(self.raw_requestline):
            self.send_error(400, "Malformed request line.")
            return False
        lines = [b""]
        while lines[-1] != b"\r\n":
            lines.append(self.rfile.readline(_MAX_LINE_BYTES + 1))
            if not lines[-1]:  # The client went away.
                self.close_connection = True
                return False
            if len(lines[-1]) > _MAX_LINE_BYTES or len(lines) > _MAX_HEADERS + 2:
                limits = f"{_MAX_HEADERS} header lines of {_MAX_LINE_BYTES} bytes"
                self.send_error(431, f"The head of the request is too long; the limit is {limits}.")
                return False
            if lines[-1] != b"\r\n" and not _HEADER_LINE.fullmatch(lines[-1]):
                self.send_error(400, f"Malformed header in line {len(lines)} of the request.")
                return False
        arrivals, self.rfile = self.rfile, io.BytesIO(b"".join(lines))
        try:
            return super().parse_request()
        finally:
            self.rfile = arrivals

    @property
    def _timeout(self) -> float:
        return self.server.settings.rest_api_timeout_in_ms / 1000

    def _answer(self) -> None:
        """Answers a request of any method. An OSError, of a client that is gone or too slow, ends the connection."""
        with self.server.request_in_progress(self.connection):
            answer = self._respond()
            if self.server.is_draining:
                self.close_connection = True
            self._send(answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _answer  # noqa: N815  (http.server's)

    def _respond(self) -> Answer:
        """Reads and answers a request. Its body is released on return, before a slow client reads the answer."""
        with self.server.admission.body() as take:
            try:
                body, end = self._read_body(take), time.monotonic() + self._timeout
                self._check_host()
                path = self.path.partition("?")[0]
                is_asked_for = path.lower().startswith("/v1/") or search_api.RERANK.fullmatch(path)
                if self.command == "OPTIONS" and is_asked_for:
                    return self._preflight()
                # Status and metrics are always admitted, since they matter most when the server is full.
                with self.server.admission.request() if self.command == "POST" else contextlib.nullcontext():
                    return self.server.routes.respond(
                        self.command, self.path, body, lambda: end - time.monotonic(), self.headers
                    )
            except OSError:
                raise
            except Exception as error:
                return error_answer(as_serving_error(error), self.path)

    def _preflight(self) -> Answer:
        """Answers a browser that asks whether a page of another origin may send a request."""
        if not re.search("https?://", self.headers.get("Origin", "")):
            raise ServingError("FAILED_PRECONDITION", "Origin header is missing in CORS preflight")
        asked = self.headers.get("Access-Control-Request-Headers", "")
        # OpenAI's JavaScript client sends several headers of its own.
        is_allowed = self.server.settings.rest_api_enable_cors_support and _HEADER_NAMES.fullmatch(asked)
        return Answer(200, "application/json", b"", {"Access-Control-Allow-Headers": asked} if is_allowed else {})

    def _check_host(self) -> None:
        """Refuses names that a web page may have made to point at this machine (DNS rebinding)."""
        hosts = self.headers.get_all("Host", [""])
        if len(hosts) > 1:  # A proxy before this server may have gone by another one.
            raise self._refusal("Expected one Host header.")
        host = hosts[0].strip().lower()
        name = host.rpartition(":")[0] if re.search(r":\d*$", host) and not host.endswith("]") else host
        if not self.server.settings.answers_to(name.strip("[]")):
            name = name[:200]
            message = f"{name!r} is no name of this machine. If it is, start bert-serve with --allowed_hosts={name}"
            raise ServingError("PERMISSION_DENIED", message)

    def _read_body(self, take: Callable[[int], None]) -> bytes:
        """Reads the whole body, uncompressed; calls `take` with the bytes that each piece may take.

        Raises:
            ServingError: the key is missing; the length is given twice, malformed or too large; a chunk or gzip data
                is malformed; or `take` raises it.
            OSError: the body does not arrive completely within the time-out.
        """
        self._arrivals.deadline = time.monotonic() + self._timeout
        length, limit = self._content_length(), self.server.settings.max_request_bytes
        wire = self._chunks() if length is None else self._exactly(length)
        body = self._uncompressed(wire)  # Kept until the end, since closing it would close `wire`.
        content, received = bytearray(), 0  # With tiny chunks, a list of pieces would take more memory than the body.
        try:
            if self.command != "OPTIONS":  # A browser's preflight has no key.
                self.server.keys.check_path(self.path, self.headers.get("Authorization"))
            self._check_size(length or 0)
            for piece in body:
                received += len(piece)
                self._check_size(received)
                take(rest_api.parsed_size(piece))
                content += piece
        except ServingError:
            self.close_connection = True
            content.clear()
            # Closing at once would reset the connection, and lose the answer.
            with contextlib.suppress(OSError, ServingError):
                for piece in wire:
                    received += len(piece)
                    if received > 4 * limit:
                        break
            raise
        return bytes(content)

    def _check_size(self, size: int) -> None:
        limit = self.server.settings.max_request_bytes
        if size > limit:
            message = f"The request has {size} bytes or more; the limit is {limit} (--max_request_megabytes)."
            raise self._refusal(message, 413)

    def _chunks(self) -> Iterator[bytes]:
        """Yields the body of a chunked request, and reads the headers after it."""
        while size := int(self._line(_CHUNK_LINE)[1], 16):
            yield from self._exactly(size)
            if self.rfile.read(2) != b"\r\n":
                raise self._refusal("A chunk of the body is longer than it says.")
        for _ in range(_MAX_HEADERS):
            if self.rfile.peek(2)[:2] == b"\r\n":
                self.rfile.read(2)
                return
            self._line(_HEADER_LINE)
        raise self._refusal("Too many headers behind the body.")

    def _exactly(self, length: int) -> Iterator[bytes]:
        while length > 0:
            piece = self.rfile.read1(min(length, _PIECE_BYTES))
            if not piece:
                raise ConnectionError("The request ended before its body did.")
            length -= len(piece)
            yield piece

    def _line(self, pattern: re.Pattern) -> re.Match:
        if match := pattern.fullmatch(self.rfile.readline(_MAX_LINE_BYTES + 1)):
            return match
        raise self._refusal("Malformed chunks.")

    def _uncompressed(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        encoding = self.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding == "identity":
            yield from pieces
            return
        if encoding not in ("gzip", "x-gzip"):
            raise self._refusal("Expected a Content-Encoding of gzip or none.", 415)
        unpack = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        try:
            for piece in pieces:
                while piece:
                    yield unpack.decompress(piece, _PIECE_BYTES)  # At most so many bytes at once.
                    if unpack.unused_data:
                        raise self._refusal("Something follows the gzip data of the body.")
                    piece = unpack.unconsumed_tail
            while piece := unpack.decompress(b"", _PIECE_BYTES):
                yield piece
        except zlib.error:
            raise self._refusal("The body is not gzip data.") from None
        if not unpack.eof:
            raise self._refusal("The gzip data of the body is cut short.")

    def _content_length(self) -> int | None:
        """Returns the length of the body, None if it comes in chunks."""
        lengths, codings = (self.headers.get_all(name, []) for name in ("Content-Length", "Transfer-Encoding"))
        if codings:
            is_chunked = [coding.strip(" \t").lower() for coding in codings] == ["chunked"]
            if lengths or not is_chunked or self.request_version == "HTTP/1.0":
                raise self._refusal("Expected a Content-Length, or a Transfer-Encoding of chunked alone.")
            return None
        value = lengths[0].strip(" \t") if lengths else "0"  # Not the blanks of Latin-1, which a proxy would refuse.
        if len(lengths) > 1 or not (value.isascii() and value.isdigit() and len(value) < 20):
            raise self._refusal("The Content-Length is not one whole number.")
        return int(value)

    def _refusal(self, message: str, http_status: int | None = None) -> ServingError:
        """Returns an error that closes the connection, since the start of the next request may be unknown."""
        self.close_connection = True
        return invalid(message, http_status)

    def handle_expect_100(self) -> bool:
        """Tells a client that asks before it sends a large body whether to send it (curl asks from 1 MB on)."""
        try:
            self.server.keys.check_path(self.path, self.headers.get("Authorization"))
            self._check_size(self._content_length() or 0)
        except ServingError as error:
            self.close_connection = True
            self._send(error_answer(error, self.path))
            return False
        self._departures.deadline = time.monotonic() + self._timeout
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
        body, common = answer.body, _CORS_HEADERS if self.server.settings.rest_api_enable_cors_support else {}
        headers = {"X-Content-Type-Options": "nosniff", **common, **answer.headers}
        if len(body) >= _LEAST_COMPRESSED_BYTES and self._takes_gzip():
            body = gzip.compress(body, compresslevel=1)
            headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        self._departures.deadline = time.monotonic() + self._timeout
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _takes_gzip(self) -> bool:
        accepted = getattr(self, "headers", {}).get("Accept-Encoding", "").lower().replace(" ", "").split(",")
        return any(re.match("gzip(;|$)", coding) and not re.search(r";q=0(\.0*)?$", coding) for coding in accepted)

    def log_message(self, format: str, *args) -> None:
        """Logs nothing: what a client sends must not reach the log unchanged."""
