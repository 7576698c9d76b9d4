"""The one error for bad input: wrong files, wrong text, wrong settings."""


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
