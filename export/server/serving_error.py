"""The error of a request: a canonical status code and a message, which both protocols translate."""

import logging
import sys
import traceback

import grpc

# Name of the code -> HTTP status, as TensorFlow Serving's http_server.cc maps it; those left out are 500. It answers
# 429 to RESOURCE_EXHAUSTED, which here means that the server is full, not that this one client asked too often.
_HTTP_STATUS = {
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 503,
    "FAILED_PRECONDITION": 400,
    "ABORTED": 409,
    "OUT_OF_RANGE": 400,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
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


class InvalidArgumentError(ServingError):
    """A request that is wrong in itself; the arguments are those of `ServingError`."""

    def __init__(self, message: str, http_status: int | None = None):
        super().__init__("INVALID_ARGUMENT", message, http_status)


def log_failure(what: str) -> None:
    """Logs the current exception with its stack; the message, which may quote a client, in printable ASCII only."""
    kind, error, stack = sys.exc_info()
    frames = "".join(traceback.format_tb(stack))
    logging.getLogger(__name__).error("%s %s: %s\n%s", what, kind.__name__, ascii(str(error))[:1000], frames)
