"""Maps a function over many arguments, in this process or in several, with the results in order."""

import collections
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

_BYTES_PER_WORKER = 1 << 23  # Of text: about a second's work, twice what a process takes to start.


def available_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers_for(files: list[str], num_workers: int | None, passes: int = 1) -> int:
    """Returns `num_workers`; if it is None, one for each core, as far as the files hold work for them.

    Args:
        files: paths of the text.
        passes: how often each byte is worked on.
    """
    if num_workers is not None:
        return num_workers
    cores = available_cores()
    if not all(map(os.path.isfile, files)):
        return cores  # The size of a pipe is not known.
    return max(1, min(cores, sum(map(os.path.getsize, files)) * passes // _BYTES_PER_WORKER))


class LocalPool:
    """Processes on this machine, which start with the first work and end with the context.

    Args:
        num_workers: int, at least 1; with 1 the calling process does all work.
    """

    reads_text = True  # The caller reads what has to be read in order, such as gzip data.

    def __init__(self, num_workers: int):
        self.num_workers = num_workers
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def map(self, function: Callable, arguments: Iterable, *shared: Any) -> Iterator:
        """Yields `function(*shared, argument)` in the order of `arguments`, which are drawn only a few ahead.

        Args:
            function: defined in a module, so that another process can import it; or a `functools.partial` of one.
            shared: first arguments of every call, such as the directory that all of them read.

        Raises:
            InputError: a process was killed; or raised by `function`.
        """
        if self.num_workers == 1:
            yield from map(functools.partial(function, *shared), arguments)
            return
        if self._executor is None:
            context = multiprocessing.get_context("spawn")  # A fork of a process with threads (TensorFlow's) can hang.
            self._executor = concurrent.futures.ProcessPoolExecutor(self.num_workers, context, _start_worker)
        pending = collections.deque()
        try:
            for argument in arguments:
                with _signals_held_back():
                    pending.append(self._executor.submit(function, *shared, argument))
                if len(pending) > 2 * self.num_workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise InputError("A worker process was killed, perhaps for lack of memory. Lower --num_workers.") from error
        finally:
            for future in pending:
                future.cancel()


def progress_bar(description: str, unit: str, total: int | None = None) -> tqdm:
    """Makes a progress bar whose thread leaves all signals to the main thread.

    Args:
        unit: what is counted; "B" is scaled to kB and MB.
        total: None or 0 if it is not known.
    """
    with _signals_held_back():
        return tqdm(total=total or None, desc=description, unit=unit, unit_scale=unit == "B", mininterval=0.5)


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM back, which would leave a process half started.

    Threads and processes that start in this context never get them. So no thread takes a signal in place of the main
    one, which alone can act on it; and Ctrl-C in a terminal ends the parent, which ends its processes.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """Lets this process be terminated, and ends it when its parent was killed and sends neither work nor an end."""

    def wait():
        multiprocessing.parent_process().join()
        os._exit(1)

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()
