"""Runs the sides of a comparison, each in a process of its own, in turns.

A side's process calls `serve`. Between two turns all sides rest, since threads that have finished a product go on
spinning for a while, and would take cores that the next side needs.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

PAUSE = 0.3  # Seconds of rest after a turn; libgomp's and oneDNN's threads spin for 0.2.


class Side:
    """A process that works when it is told to.

    Args:
        script: path of a script that calls `serve`.
        arguments: its arguments.
        environment: variables to set, or to remove if the value is None.

    Attributes:
        ready: what the process said when it was ready.
    """

    def __init__(self, script: str, *arguments: str, environment: Mapping[str, str | None] | None = None):
        changes = {"TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})}
        kept = {name: value for name, value in os.environ.items() if name not in changes}
        self._scratch = tempfile.TemporaryDirectory()  # A killed process leaves its own.
        changes["TMPDIR"] = self._scratch.name
        self._errors = tempfile.TemporaryFile(mode="w+")
        self._process = subprocess.Popen(
            [sys.executable, script, *arguments],
            env={**kept, **{name: value for name, value in changes.items() if value is not None}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.ready = self._read("ready")

    def turn(self, request: str = "") -> list[float]:
        """Does a turn's work, rests, and returns what the process measured."""
        print(request, file=self._process.stdin, flush=True)
        measured = self._read("done")
        time.sleep(PAUSE)
        return measured

    def _read(self, word: str) -> list[float]:
        for line in self._process.stdout:
            if line.split()[:1] == [word]:
                return [float(value) for value in line.split()[1:]]
        self._errors.seek(0)
        raise RuntimeError(f"{' '.join(self._process.args)} ended early:\n{self._errors.read()[-3000:]}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()
        self._scratch.cleanup()


def serve(work: Callable[[str], Sequence[float]], *ready: float) -> None:
    """Works for each line of standard input: `work` takes the request and returns what it measured."""
    print("ready", *ready, flush=True)
    for line in sys.stdin:
        print("done", *work(line.strip()), flush=True)


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds of a call, and the CPU seconds of all threads."""
    start, cpu_start = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - cpu_start


def take_turns(sides: Sequence[Side], requests: Sequence[str], warm_up: int) -> list[list[list[float]]]:
    """Gives each request to every side in turn.

    Args:
        warm_up: first requests whose measurements do not count.

    Returns:
        What each side measured for each request that counts.
    """
    rows = [[] for _ in sides]
    for number, request in enumerate(requests):
        for side, row in zip(sides, rows, strict=True):
            measured = side.turn(request)
            if number >= warm_up:
                row.append(measured)
    return rows
