"""Why a request was not answered: a canonical status code and a message. Both protocols translate it."""

import logging
import sys
import traceback

# Name of the code -> HTTP status, as TensorFlow Serving's http_server.cc maps it, but for RESOURCE_EXHAUSTED (there
# 429): it means here that the server is full, not that this one client asked too often.
HTTP_STATUS = {
    "CANCELLED": 499,
    "UNKNOWN": 500,
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
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DATA_LOSS": 500,
    "UNAUTHENTICATED": 401,
}

# The same codes by number, as TensorFlow's errors and `StatusProto` carry them.
CODE_NUMBERS = {
    "OK": 0,
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}
CODE_NAMES = {number: name for name, number in CODE_NUMBERS.items()}


class ServingError(Exception):
    """A request that cannot be answered.

    Args:
        code: name of a canonical status code, a key of `HTTP_STATUS`.
        message: one line for the client.
        http_status: what REST answers, where HTTP has a status of its own for it (411, 413, ...).
    """

    def __init__(self, code: str, message: str, http_status: int | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.http_status = http_status or HTTP_STATUS[code]


def log_failure(what: str) -> None:
    """Logs the exception in hand with its stack; its message, which may quote a client, in printable ASCII only."""
    kind, error, stack = sys.exc_info()
    frames = "".join(traceback.format_tb(stack))
    logging.getLogger(__name__).error("%s %s: %s\n%s", what, kind.__name__, ascii(str(error))[:1000], frames)
