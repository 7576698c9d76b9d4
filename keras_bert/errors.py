"""The one error for bad input: wrong files, wrong text, wrong settings."""

import reprlib

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 2, 200, 200


class InputError(ValueError):
    """Something that a user gave is wrong, and the message says what, where and how to cure it.

    The commands print the message as one line and exit with status 1, without a traceback; library users
    may catch it as a `ValueError`. A message names the file and, where there is one, the line or record
    (`path:line`), what was expected, what came, and the cure.
    """


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, or the name of its type if it has none."""
    lines = str(getattr(error, "message", error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def shown(value) -> str:
    """Returns the repr of a value that a file holds, cut: one list that holds another twice, and so on, has no end.

    >>> shown({"sizes": [1, [2, [3]]]})
    "{'sizes': [1, [...]]}"
    """
    return _REPR.repr(value)
