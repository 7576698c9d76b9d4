"""Maps a function over many arguments in one or several processes, and yields the results in order."""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tqdm import tqdm

from keras_bert.errors import InputError
from keras_bert.files import file_size
from tasks.settings import available_cores

_BYTES_PER_WORKER = 1 << 23  # Text for about a second of work, twice the time that a process takes to start.


def workers_for(files: list[str], num_workers: int | None, passes: int = 1) -> int:
    """Returns `num_workers` or, if None, a worker per core, but no more than the files can keep busy.

    Args:
        files: paths of the text, none of which is a pipe.
        num_workers: number of processes, if the user gave it.
        passes: number of times that each byte is processed.
    """
    if num_workers is not None:
        return num_workers
    return max(1, min(available_cores(), sum(map(file_size, files)) * passes // _BYTES_PER_WORKER))


class WorkerLostError(InputError):
    """A worker process was killed. The same work may succeed when it is run again."""


class LocalPool(contextlib.AbstractContextManager):
    """A pool of processes on this machine, started by the first `map` and ended with the context.

    Args:
        num_workers: at least 1; with 1 the calling process does all work itself.
    """

    def __init__(self, num_workers: int):
        self.num_workers = num_workers
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def __exit__(self, *error) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def map(self, function: Callable, arguments: Iterable, *shared: Any) -> Iterator:
        """Yields `function(*shared, argument)` for each argument, in order.

        Args:
            function: a function of a module, which other processes can import.
            arguments: last argument of each call.
            shared: first arguments of all calls, such as the directory that they read.

        Raises:
            WorkerLostError: a process was killed.
            InputError: `function` raised it.
        """
        if self.num_workers == 1:
            yield from map(functools.partial(function, *shared), arguments)
            return
        if self._executor is None:
            context = multiprocessing.get_context("spawn")  # Forking a process with TensorFlow's threads can hang.
            self._executor = concurrent.futures.ProcessPoolExecutor(self.num_workers, context, _start_worker)
        try:
            with _signals_held_back():
                results = self._executor.map(functools.partial(function, *shared), arguments)
            yield from results
        except concurrent.futures.process.BrokenProcessPool as error:
            raise WorkerLostError(
                "A worker process was killed, perhaps for lack of memory. Lower --num_workers."
            ) from error


def progress_bar(description: str, unit: str, total: int | None = None, initial: int = 0) -> tqdm:
    """Returns a progress bar whose thread leaves all signals to the main thread.

    Args:
        description: title of the bar.
        unit: unit of the count; "B" is scaled to kB and MB.
        total: final count; None or 0 if unknown.
        initial: count of what was done before.
    """
    with _signals_held_back():
        return tqdm(
            total=total or None, initial=initial, desc=description, unit=unit, unit_scale=unit == "B", mininterval=0.5
        )


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Blocks Ctrl-C and SIGTERM, which could leave a process half started.

    Threads and processes that start within this context inherit the blocked signals. So signals reach the main thread,
    the only one that can act on them, and Ctrl-C in a terminal ends the parent, which then ends its processes.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """Unblocks SIGTERM in a new process, and ends the process when its parent dies, since nobody else would."""

    def wait():
        multiprocessing.parent_process().join()
        os._exit(1)

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()
