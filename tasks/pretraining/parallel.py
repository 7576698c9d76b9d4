"""One function on many arguments: in this process, or in processes of their own, results in order."""

import collections
import concurrent.futures
import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator

from keras_bert.errors import InputError


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalPool:
    """Processes on this machine, started with the first work and ended with the context.

    Args:
        num_workers: int, at least 1; with 1 all work is done in the calling process.
    """

    reads_text = True  # What has to be read in order is read by the caller.

    def __init__(self, num_workers: int):
        self.num_workers = num_workers
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def map(self, function: Callable, directory: str, arguments: Iterator) -> Iterator:
        """Yields `function(directory, argument)` in the order of `arguments`, which are drawn a few ahead only.

        Args:
            function: defined in a module, so that another process finds it; or a `functools.partial` of such a one.
            directory: what the function reads from.

        Raises:
            InputError: a process was killed; or raised by `function`.
        """
        if self.num_workers == 1:
            yield from map(function, itertools.repeat(directory), arguments)
            return
        if self._executor is None:
            context = multiprocessing.get_context("spawn")  # A fork of a process with threads (TensorFlow's) can hang.
            self._executor = concurrent.futures.ProcessPoolExecutor(self.num_workers, context, _end_with_parent)
        pending = collections.deque()
        try:
            for argument in arguments:
                with _interrupt_held_back():
                    pending.append(self._executor.submit(function, directory, argument))
                if len(pending) > 2 * self.num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise InputError("A worker process was killed, perhaps for lack of memory. Lower --num_workers.") from error
        finally:
            for future in pending:
                future.cancel()


@contextlib.contextmanager
def _interrupt_held_back() -> Iterator[None]:
    """Holds Ctrl-C back: a process started in this context never gets it, and leaves it to its parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Ends this process when its parent is killed: nobody would send it work, or the end of work."""

    def wait():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
