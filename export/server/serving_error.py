"""Errors of requests, which both protocols translate, and the time that a request has left."""

import logging
import math
import sys
import traceback
from collections.abc import Callable

import grpc

# Seconds for which the answer to a request is still wanted: 0 or less once its time is over, `GONE` once its client is.
TimeLeft = Callable[[], float]
GONE = -math.inf
# The time of a request without a deadline. gRPC says 9e18 seconds, and locks of Python wait for no more than 9e9.
MOST_SECONDS = 3600.0

# Code -> HTTP status, as TensorFlow Serving's http_server.cc maps them; all other codes are 500. TensorFlow Serving
# answers 429 to RESOURCE_EXHAUSTED. Here that code means a full server, not one client that asks too often, hence 503.
_HTTP_STATUS = {
    **dict.fromkeys(("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"), 400),
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    **dict.fromkeys(("ALREADY_EXISTS", "ABORTED"), 409),
    "CANCELLED": 499,
    "UNIMPLEMENTED": 501,
    **dict.fromkeys(("RESOURCE_EXHAUSTED", "UNAVAILABLE"), 503),
    "DEADLINE_EXCEEDED": 504,
}

# The same codes by number, as TensorFlow's errors and `StatusProto` carry them.
CODE_NUMBERS = {code.name: code.value[0] for code in grpc.StatusCode}
CODE_NAMES = {number: name for name, number in CODE_NUMBERS.items()}


class ServingError(Exception):
    """A request that cannot be answered.

    Args:
        code: name of a canonical status code, one of `CODE_NUMBERS`.
        message: one line for the client.
        http_status: REST's answer, if HTTP has its own status for the error (411, 413, ...).
    """

    def __init__(self, code: str, message: str, http_status: int | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = http_status or _HTTP_STATUS.get(code, 500)


def invalid(message: str, http_status: int | None = None) -> ServingError:
    """Returns the error of a request that is wrong in itself; the arguments are those of `ServingError`."""
    return ServingError("INVALID_ARGUMENT", message, http_status)


def too_late(seconds: float) -> ServingError:
    """Returns the error of a request whose client no longer waits for the answer; `seconds` as in `TimeLeft`."""
    if seconds == GONE:
        return ServingError("CANCELLED", "The client has cancelled the request.")
    return ServingError("DEADLINE_EXCEEDED", "The request's deadline passed before it was answered.")


def unlimited() -> float:
    """Returns the seconds left to a request without a deadline; a `TimeLeft`."""
    return MOST_SECONDS


def as_serving_error(error: Exception) -> ServingError:
    """Returns what to tell the client; the log alone gets the details of an unexpected error."""
    if isinstance(error, ServingError):
        return error
    log_failure("A request failed.")
    return ServingError("INTERNAL", "Internal error; the server's log has the details.")


def log_failure(what: str) -> None:
    """Logs the current exception with its stack. Its message may quote a client, so only printable ASCII is logged."""
    kind, error, stack = sys.exc_info()
    frames = "".join(traceback.format_tb(stack))
    logging.getLogger(__name__).error("%s %s: %s\n%s", what, kind.__name__, ascii(str(error))[:1000], frames)
