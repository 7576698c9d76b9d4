"""The one error for bad input: wrong files, wrong text, wrong settings."""

import reprlib

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 2, 200, 200


class InputError(ValueError):
    """Input from the user is wrong; the message says what is wrong, where, and how to fix it.

    The commands print the message as one line and exit with status 1, without a traceback; library users
    may catch it as a `ValueError`. A message names the file and, where there is one, the line or record
    (`path:line`), what was expected, what was found, and the fix.
    """


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, or the name of its type if it has none."""
    message = str(getattr(error, "message", error)).strip()
    lines = message.removeprefix("Graph execution error:").strip().splitlines()  # TensorFlow says what it is below.
    return lines[0] if lines else type(error).__name__


def shown(value) -> str:
    """Returns a shortened repr of a value from a file; its full repr may take exponential time and space.

    >>> shown({"sizes": [1, [2, [3]]]})
    "{'sizes': [1, [...]]}"
    """
    return _REPR.repr(value)
