"""Admits requests of both protocols: checks their keys, and limits requests, bytes of bodies, and concurrent runs."""

import concurrent.futures
import contextlib
import hashlib
import hmac
import threading
from collections.abc import Callable, Iterator

import grpc

from export.server.config_files import read_keys
from export.server.monitoring import Metrics
from export.server.serving_error import ServingError, TimeLeft, too_late
from tasks.settings import available_cores

# Largest size in bytes of a short run's inputs: a text or two.
SHORT_BYTES = 4096
_RUNS_OF_A_THREAD = 8
# Accessible without a key: health checks, and the page itself, which asks for the key.
_OPEN_PATHS, _OPEN_METHODS = ("/health", "/"), "/grpc.health.v1.Health/"


class Admission:
    """Admits what fits and refuses the rest at once, since a queue that only grows delays every request.

    Args:
        max_requests: largest number of requests in progress.
        max_bytes: largest number of bytes that their bodies may take, once parsed.
        metrics: counts refusals.

    Attributes:
        in_progress: number of requests in progress.
    """

    def __init__(self, max_requests: int, max_bytes: int, metrics: Metrics):
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.in_progress = 0
        self._bytes = 0
        self._metrics = metrics
        self._lock = threading.Lock()
        metrics.add_gauge("bert_serve_requests_in_progress", "Requests in progress.", lambda: self.in_progress)
        metrics.add_gauge("bert_serve_body_bytes", "Bytes of request bodies held.", lambda: self._bytes)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Counts the block as a request in progress.

        Raises:
            ServingError: (RESOURCE_EXHAUSTED) `max_requests` are already in progress.
        """
        with self._lock:
            is_full = self.in_progress >= self.max_requests
            self.in_progress += not is_full
        if is_full:
            raise self.refusal("requests", f"{self.max_requests} requests are in progress")
        try:
            yield
        finally:
            with self._lock:
                self.in_progress -= 1

    @contextlib.contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Yields a function that must be called before a piece of a body is kept, with its size once parsed.

        The bytes count until the block ends. The function raises `ServingError` (RESOURCE_EXHAUSTED) if all requests
        together would hold more than allowed.
        """
        held = 0

        def take(amount: int) -> None:
            nonlocal held
            with self._lock:
                fits = self._bytes + amount <= self.max_bytes
                self._bytes += amount if fits else 0
            if not fits:
                raise self.refusal("bytes", "it holds too many large requests")
            held += amount

        try:
            yield take
        finally:
            with self._lock:
                self._bytes -= held

    def refusal(self, reason: str, why: str) -> ServingError:
        """Counts a refusal, and returns its error.

        Args:
            reason: label of the metric.
            why: what exceeds its limit, for the client.
        """
        self._metrics.refused.labels(reason).inc()
        return ServingError("RESOURCE_EXHAUSTED", f"The server is full: {why}. Try again.")


class Turns:
    """Limits how many graphs run at once, since each takes memory, and has threads for those that TensorFlow computes.

    Long runs have separate turns, so that short ones never wait for them. There are two turns per core for short runs,
    and one per two cores for long runs.

    TensorFlow keeps what oneDNN compiled for the shapes of a thread's products, up to 1,024 times about 130 KB, until
    the thread ends. Texts of varying length keep producing new shapes, and a server has a thread for each connection.
    So graphs run in threads that end after some runs (benchmarks/soak.py). With the encoder in ONNX Runtime, few shapes
    are left, and the graph runs in the thread that asks: waking another costs a text of 128 tokens a tenth of its time.
    """

    def __init__(self):
        cores = available_cores()
        self._short, self._long = threading.Semaphore(2 * cores), threading.Semaphore(max(cores // 2, 1))
        self._num_threads = 2 * cores + max(cores // 2, 1)
        self._pool, self._runs_left = None, 0
        self._lock = threading.Lock()  # Guards both.

    @contextlib.contextmanager
    def turn(self, num_bytes: int, time_left: TimeLeft) -> Iterator[None]:
        """Waits for a turn, and holds it for the block.

        Args:
            num_bytes: size of the run's inputs.
            time_left: see `serving_error.TimeLeft`.

        Raises:
            ServingError: (DEADLINE_EXCEEDED) no turn was free in time.
        """
        turns = self._short if num_bytes <= SHORT_BYTES else self._long
        seconds = time_left()
        if seconds <= 0 or not turns.acquire(timeout=seconds):
            raise too_late(seconds)
        try:
            if (seconds := time_left()) <= 0:  # The client has gone in the meantime.
                raise too_late(seconds)
            yield
        finally:
            turns.release()

    def run(self, function: Callable, *arguments):
        """Runs a function in one of the threads, and returns or raises what it does; the caller must hold a turn."""
        with self._lock:
            if not self._runs_left:
                if self._pool:
                    self._pool.shutdown(wait=False)
                self._pool = concurrent.futures.ThreadPoolExecutor(self._num_threads, thread_name_prefix="graph")
                self._runs_left = _RUNS_OF_A_THREAD * self._num_threads
            self._runs_left -= 1
            call = self._pool.submit(function, *arguments)
        return call.result()


class Keys(grpc.ServerInterceptor):
    """Checks that each request carries one of the server's keys, `Authorization: Bearer KEY`; without keys, all pass.

    Args:
        source: the source of the keys, as in `config_files.read_keys`; None: no keys.

    Raises:
        InputError: as `config_files.read_keys`.
    """

    def __init__(self, source: str | None):
        self._digests = [hashlib.sha256(key.encode()).digest() for key in read_keys(source)]

    def check_path(self, path: str, authorization: str | None) -> None:
        """Raises ServingError (UNAUTHENTICATED) if a REST request for a path lacks its key."""
        if path.partition("?")[0] not in _OPEN_PATHS and not self._admits(authorization):
            raise ServingError("UNAUTHENTICATED", "Expected a header 'Authorization: Bearer KEY' with a valid key.")

    def intercept_service(self, continuation, details):
        """Refuses gRPC requests whose metadata lack the key."""
        metadata = dict(details.invocation_metadata)
        if details.method.startswith(_OPEN_METHODS) or self._admits(metadata.get("authorization")):
            return continuation(details)

        def refuse(_, context: grpc.ServicerContext) -> None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Expected metadata 'authorization: Bearer KEY'.")

        # A unary handler would wait for the message first, in a thread, for as long as the client likes.
        return grpc.stream_unary_rpc_method_handler(refuse)

    def _admits(self, authorization: str | None) -> bool:
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        # Every key is compared in full, so that the time reveals nothing about them.
        matches = [hmac.compare_digest(digest, key_digest) for key_digest in self._digests]
        return not matches or (scheme.lower() == "bearer" and any(matches))
