"""The REST server's ASGI application: reads and admits requests, and answers them in worker threads.

All errors are JSON. ASGI: https://asgi.readthedocs.io/en/latest/specs/www.html
"""

import asyncio
import concurrent.futures
import contextlib
import gzip
import re
import time
import zlib
from collections.abc import Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from export.server import rest_api
from export.server.admission import Admission
from export.server.rest_routes import RestRoutes, error_response
from export.server.server_settings import ServerSettings
from export.server.serving_error import ServingError, as_serving_error, invalid

_PIECE_BYTES = 1 << 16
_LEAST_COMPRESSED_BYTES = 1 << 10
_SPARE_THREADS = 16  # For status and metrics, and for requests that are only told that the server is full.


class RestApp:
    """Answers requests. The event loop reads and writes; worker threads compute.

    Args:
        routes: answers complete requests.
        admission: bounds what is in progress.
        settings: limits.
    """

    def __init__(self, routes: RestRoutes, admission: Admission, settings: ServerSettings):
        self.routes = routes
        self.admission = admission
        self.settings = settings
        self.workers = concurrent.futures.ThreadPoolExecutor(admission.max_requests + _SPARE_THREADS, "rest")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, as ASGI specifies."""
        request = Request(scope, receive)
        with contextlib.suppress(ClientDisconnect):
            response = await self._respond(request)
            await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        """Reads and answers a request. What it holds is released on return, before a slow client reads the answer."""
        try:
            self._check_host(request.headers.get("host", ""))
            if request.method == "OPTIONS" and request.scope["path"].lower().startswith("/v1/"):
                return _preflight(request)
            with self.admission.body() as take:
                body = await self._read_body(request, take)
                deadline = time.monotonic() + self.settings.rest_api_timeout_in_ms / 1000
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self.workers, self._compute, request, body, take, deadline)
        except ServingError as error:
            return error_response(error)

    def _check_host(self, host: str) -> None:
        """Refuses names that a web page may have pointed at this machine (DNS rebinding)."""
        host = host.strip().lower()
        name = host.rpartition(":")[0] if re.search(r":\d*$", host) and not host.endswith("]") else host
        if not self.settings.answers_to(name.strip("[]")):
            name = name[:200]
            message = f"{name!r} is no name of this machine. If it is, start bert-serve with --allowed_hosts={name}"
            raise ServingError("PERMISSION_DENIED", message)

    async def _read_body(self, request: Request, take: Callable[[int], None]) -> bytes:
        """Reads the body without decoding it; `take` gets the size of each piece once parsed."""
        if request.headers.get("transfer-encoding", "chunked").lower() != "chunked":
            raise invalid("Expected a Content-Length, or a Transfer-Encoding of chunked alone.")
        self._check_size(int(request.headers.get("content-length", 0)))
        pieces, size = [], 0
        async for piece in request.stream():
            size += len(piece)
            self._check_size(size)
            take(rest_api.parsed_size(piece))
            pieces.append(piece)
        return b"".join(pieces)

    def _check_size(self, size: int) -> None:
        limit = self.settings.max_request_bytes
        if size > limit:
            raise invalid(f"The request has {size} bytes or more; the limit is {limit}.", 413)

    def _compute(self, request: Request, body: bytes, take: Callable[[int], None], deadline: float) -> Response:
        """Answers a complete request, in a worker thread."""
        target = request.scope["raw_path"].decode("latin-1")
        if query := request.scope["query_string"]:
            target += "?" + query.decode("latin-1")
        try:
            # Status and metrics, which matter most when the server is full, are always admitted.
            with self.admission.request() if request.method == "POST" else contextlib.nullcontext():
                body = self._decoded(body, request.headers.get("content-encoding", "identity"), take)
                response = self.routes.respond(request.method, target, body, deadline)
        except Exception as error:
            response = error_response(as_serving_error(error))
        if len(response.body) >= _LEAST_COMPRESSED_BYTES and _takes_gzip(request.headers.get("accept-encoding", "")):
            response.body = gzip.compress(response.body, compresslevel=1)
            response.headers["content-length"] = str(len(response.body))
            response.headers.update({"content-encoding": "gzip", "vary": "accept-encoding"})
        return response

    def _decoded(self, body: bytes, encoding: str, take: Callable[[int], None]) -> bytes:
        """Returns the uncompressed body, piece by piece, since a small body may grow beyond the limit."""
        encoding = encoding.strip().lower()
        if encoding == "identity":
            return body
        if encoding not in ("gzip", "x-gzip"):
            raise invalid("Expected a Content-Encoding of gzip or none.", 415)
        unpack, pieces, size = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS), [], 0
        try:
            while piece := unpack.decompress(body, _PIECE_BYTES):
                size += len(piece)
                self._check_size(size)
                take(rest_api.parsed_size(piece))
                pieces.append(piece)
                body = unpack.unconsumed_tail
        except zlib.error:
            raise invalid("The body is not gzip data.") from None
        if not unpack.eof or unpack.unused_data:
            raise invalid("The gzip data of the body is cut short, or something follows it.")
        return b"".join(pieces)


def _preflight(request: Request) -> Response:
    """Answers a browser that asks whether a page of another origin may send a request."""
    if not re.search("https?://", request.headers.get("origin", "")):
        raise ServingError("FAILED_PRECONDITION", "Origin header is missing in CORS preflight")
    return Response(media_type="application/json")


def _takes_gzip(accepted: str) -> bool:
    codings = accepted.lower().replace(" ", "").split(",")
    return any(re.fullmatch(r"gzip(;(?!q=0(\.0*)?$).*)?", coding) for coding in codings)
