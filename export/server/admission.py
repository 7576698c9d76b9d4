"""Bounds what the server holds at once, over both protocols: requests, and bytes of request bodies."""

import contextlib
import threading
from collections.abc import Iterator

from export.server.monitoring import Metrics
from export.server.serving_error import ServingError


class Admission:
    """Admits what fits and refuses the rest at once, since a queue that only grows helps nobody.

    Args:
        max_requests: most requests in progress.
        max_bytes: most bytes of their bodies held.
        metrics: counts refusals.
    """

    def __init__(self, max_requests: int, max_bytes: int, metrics: Metrics):
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self._metrics = metrics
        self._lock = threading.Lock()
        self._requests = 0
        self._bytes = 0
        metrics.add_gauge("bert_serve_requests_in_progress", "Requests in progress.", lambda: self._requests)
        metrics.add_gauge("bert_serve_body_bytes", "Bytes of request bodies held.", lambda: self._bytes)

    @property
    def in_progress(self) -> int:
        """Number of requests in progress."""
        return self._requests

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Counts the block as a request in progress.

        Raises:
            ServingError: (RESOURCE_EXHAUSTED) as many as allowed are in progress.
        """
        with self._lock:
            is_full = self._requests >= self.max_requests
            self._requests += not is_full
        if is_full:
            self._metrics.refused.labels("requests").inc()
            raise ServingError(
                "RESOURCE_EXHAUSTED", f"The server is full: {self.max_requests} requests are in progress. Try again."
            )
        try:
            yield
        finally:
            with self._lock:
                self._requests -= 1

    @contextlib.contextmanager
    def body(self) -> Iterator["BodyBudget"]:
        """Yields the budget that counts a request's body while it is read and held."""
        budget = BodyBudget(self)
        try:
            yield budget
        finally:
            self._hold(-budget.held)

    def _hold(self, amount: int) -> bool:
        with self._lock:
            if amount > 0 and self._bytes + amount > self.max_bytes:
                return False
            self._bytes += amount
            return True


class BodyBudget:
    """The share of one request's body; see `Admission.body`."""

    def __init__(self, admission: Admission):
        self._admission = admission
        self.held = 0

    def take(self, amount: int) -> None:
        """Counts `amount` bytes more.

        Raises:
            ServingError: (RESOURCE_EXHAUSTED) all requests together would hold more than allowed.
        """
        if not self._admission._hold(amount):
            self._admission._metrics.refused.labels("bytes").inc()
            raise ServingError("RESOURCE_EXHAUSTED", "The server is full: it holds too many large requests. Try again.")
        self.held += amount
