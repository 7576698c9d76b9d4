"""Measures time and memory of a command and all of its processes."""

import os
import subprocess
import tempfile
import threading
import time
from typing import NamedTuple

import psutil

from keras_bert.errors import InputError


class Cost(NamedTuple):
    """Time and memory of a command: the largest sum of the resident sets of its processes, and that of the largest."""

    cpu_seconds: float
    seconds: float
    peak_megabytes: float
    largest_megabytes: float
    last_line: str = ""


def measure(command: list[str]) -> Cost:
    """Runs a command, waits for it, and returns its cost and the last line that it printed.

    Raises:
        InputError: it failed.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        peaks = [0]
        watcher = threading.Thread(target=_watch, args=(process.pid, peaks), daemon=True)
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        watcher.join()
        if process.returncode:
            errors.seek(0)
            raise InputError(f"{' '.join(command)} failed: {errors.read().decode()[-2000:]}")
        output.seek(0)
        last_line = output.read().decode().rstrip().rpartition("\n")[2]
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Cost(cpu_seconds, seconds, peaks[0] / 1e6, usage.ru_maxrss / 1e3, last_line)


def _watch(process_id: int, peaks: list[int]) -> None:
    """Records the largest sum of resident sets of a process and its descendants, until it ends."""
    try:
        process = psutil.Process(process_id)
        while process.status() != psutil.STATUS_ZOMBIE:
            resident = 0
            for member in [process, *process.children(recursive=True)]:
                try:
                    resident += member.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            peaks[0] = max(peaks[0], resident)
            time.sleep(0.05)
    except psutil.NoSuchProcess:
        return
