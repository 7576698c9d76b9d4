"""How much is fuzzed: a tenth or a thirtieth, and with FUZZ=full in the environment (`make test-all`) everything."""

import os

FULL = os.environ.get("FUZZ") == "full"


def some(count: int) -> int:
    """Returns how many of `count` cases run: a tenth, at least one."""
    return count if FULL else max(1, count // 10)


def few(count: int) -> int:
    """Returns how many of `count` cases run where each takes long: a thirtieth, at least one."""
    return count if FULL else max(1, count // 30)
