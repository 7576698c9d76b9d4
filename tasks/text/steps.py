"""Steps of long work on text: many tasks whose results are kept, so that a run which was killed can go on.

Each task leaves its result in a file, whole or not at all. The workers of a step may be processes of this machine or of
others, as long as all of them reach the directory.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from tqdm import tqdm

import keras_bert
from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.files import absolute, file_state, is_file, is_remote, list_directory, make_directory, remove_path
from keras_bert.tokenization.normalizer import UNICODE_VERSION
from tasks.text.parallel import LocalPool, WorkerLostError, progress_bar

_FINISHED = "-finished"
_FILES_AT_ONCE = 32
_SECONDS_BETWEEN_LOOKS = 5


def run_step(
    pool, directory: str, name: str, function: Callable, tasks: Sequence, weights: Sequence[int], unit: str
) -> Iterator:
    """Yields `function(directory, task)` for each task, in order; what an earlier run has finished is not done again.

    Args:
        pool: `tasks.text.parallel.LocalPool`, or what maps like it.
        directory: where the results are kept, in a directory `name`.
        function: a function of a module; it returns what JSON can hold.
        weights: of each task, for the progress bar, in `unit`.

    Raises:
        InputError: raised by `function`.
    """
    results = os.path.join(directory, name)
    make_directory(results)
    done = set(list_directory(results))
    waiting = [number for number in range(len(tasks)) if _result_name(number) not in done]
    if len(waiting) < len(tasks):
        print(f"{name}: {len(tasks) - len(waiting)} of {len(tasks)} tasks are finished already.", file=sys.stderr)
    left = {_result_name(number): weights[number] for number in waiting}
    with (
        progress_bar(name, unit, sum(weights), sum(weights) - sum(left.values())) as progress,
        _watched(results, left, progress) if waiting and not isinstance(pool, LocalPool) else contextlib.nullcontext(),
    ):
        arguments = ((number, tasks[number]) for number in waiting)
        run = functools.partial(_run_task, function, results)
        for number, _ in zip(waiting, pool.map(run, arguments, directory), strict=True):
            progress.update(left.pop(_result_name(number), 0))
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as readers:
        paths = [os.path.join(results, _result_name(number)) for number in range(len(tasks))]
        yield from readers.map(functools.partial(files.read_json, most_bytes=None), paths)


@contextlib.contextmanager
def _watched(results: str, left: dict[str, int], progress: tqdm) -> Iterator[None]:
    """Moves a progress bar on as results appear, since a cluster says nothing before the end of the step."""
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(_SECONDS_BETWEEN_LOOKS):
            for name in list_directory(results):
                progress.update(left.pop(name, 0))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_over.set()
        watcher.join()


def _result_name(number: int) -> str:
    return f"{number:06d}.json"


def _run_task(function: Callable, results: str, directory: str, task: tuple) -> None:
    number, argument = task
    path = os.path.join(results, _result_name(number))
    if not files.exists(path):  # A cluster repeats what a lost worker had finished.
        result = function(directory, argument)
        with create_whole(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
            json.dump(result, file)


@contextlib.contextmanager
def create_whole(path: str) -> Iterator[str]:
    """Gives a local path; what is written there appears at `path`, whole or not at all.

    Unlike `files.atomic_path` it lets several machines do the same work at the same time, as clusters do.
    """
    if is_remote(path):
        with files.atomic_path(path) as temporary:
            yield temporary
        return
    temporary = f"{path}.partial-{secrets.token_hex(8)}"
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)


# === Scratch directories ===


def work_identity(paths: list[str], *settings: object) -> str:
    """Returns a name for some work: of its text it takes paths, sizes and times, and all of `settings`, as JSON."""

    def describe(path: str) -> object:
        return (absolute(path), *file_state(path)) if is_file(path) else secrets.token_hex(8)  # A pipe gives anything.

    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:  # A bucket takes long to answer.
        states = list(pool.map(describe, paths))
    found = json.dumps([keras_bert.__version__, UNICODE_VERSION, states, *settings])
    return hashlib.sha256(found.encode()).hexdigest()[:16]


@contextlib.contextmanager
def scratch_directory(path: str, identity: str) -> Iterator[str]:
    """Gives a directory for unfinished work that no other run uses: what a killed run of the same work has left.

    It lies in `path`, which is removed at the end, and on an InputError, which the same work would meet again. Whatever
    else ends the run leaves it. The owner holds a lock on it, which the system drops with the process. Remote
    directories have no lock.

    Args:
        identity: what the work depends on. What a run of another identity has left is removed.

    Raises:
        InputError: another run holds the directory, or it cannot be created.
    """
    with contextlib.ExitStack() as stack:
        if is_remote(path):
            make_directory(path)
        else:
            path = os.path.abspath(path)
            stack.callback(os.close, _lock(path))
        for name in list_directory(path):
            if name != identity:
                remove_path(os.path.join(path, name))
                if not name.endswith(_FINISHED):
                    print(f"{path} was made from other text or flags. Starting over.", file=sys.stderr)
        directory = os.path.join(path, identity)
        make_directory(directory)
        try:
            yield directory
        except WorkerLostError:
            raise
        except InputError:
            _remove(path, directory)
            raise
        _remove(path, directory)


def _remove(path: str, directory: str) -> None:
    if not is_remote(directory):
        os.rename(directory, f"{directory}{_FINISHED}")  # A half removed one must not be found.
    remove_path(path)


def _lock(path: str) -> int:
    import fcntl

    while True:
        try:
            os.makedirs(path, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # Its owner removed it between the two calls.
        except OSError as error:
            raise InputError(f"{path}: cannot be created ({error.strerror}). Choose another output path.") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise InputError(f"{path}: another run is writing there. Wait for it, or choose another path.") from error
        except FileNotFoundError:
            pass
        os.close(descriptor)  # The lock is on a directory that its owner has removed meanwhile.
