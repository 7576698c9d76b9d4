"""Runs long work on text in steps, whose results stay on disk, so that a killed run can be resumed.

A step is a function and its tasks: "tokenize", for example, has a task for each block of the text. Each task writes its
result atomically to a file in the scratch directory of the work, where a second run of the same work finds it:

    .data.scratch/            locked by the run that owns it; removed at the end
        4f1c6a2e9b0d7358/     `work_identity`: the text and the settings that the results depend on
            tokenize/         a step
                000000.json   the result of its first task; tasks without such a file are still to do
                000001.json

The workers of a step may be processes of this machine or of others, as long as all of them reach the directory.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import keras_bert
from keras_bert import files
from keras_bert.errors import InputError
from keras_bert.tokenization.normalizer import UNICODE_VERSION
from tasks.text.parallel import WorkerLostError, progress_bar

_FINISHED = "-finished"
_FILES_AT_ONCE = 32


def run_step(
    pool, directory: str, name: str, function: Callable, tasks: Sequence, weights: Sequence[int], unit: str
) -> Iterator:
    """Yields `function(directory, task)` for each task, in order, and runs only the tasks that are not yet finished.

    Args:
        pool: `tasks.text.parallel.LocalPool`, or a pool with the same `map`.
        directory: directory of the work. The results go to its subdirectory `name`.
        name: name of the step.
        function: a function of a module, which other processes can import. It returns JSON values.
        tasks: second argument of each call.
        weights: amount of work of each task in `unit`, for the progress bar.
        unit: unit of the weights.

    Raises:
        InputError: raised by `function`.
    """
    results = os.path.join(directory, name)
    files.make_directory(results)
    done = set(files.list_directory(results))
    names = [f"{number:06d}.json" for number in range(len(tasks))]
    waiting = [step for step in zip(names, tasks, weights, strict=True) if step[0] not in done]
    if len(waiting) < len(tasks):
        print(f"{name}: {len(tasks) - len(waiting)} of {len(tasks)} tasks are finished already.", file=sys.stderr)
    total, left = sum(weights), sum(weight for *_, weight in waiting)
    with progress_bar(name, unit, total, total - left) as progress:
        for (*_, weight), _ in zip(waiting, pool.map(_run_task, waiting, function, results, directory), strict=True):
            progress.update(weight)
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as readers:
        paths = [os.path.join(results, result) for result in names]
        yield from readers.map(functools.partial(files.read_json, most_bytes=None), paths)


def _run_task(function: Callable, results: str, directory: str, waiting: tuple) -> None:
    name, task, _ = waiting
    path = os.path.join(results, name)
    if not files.exists(path):  # A cluster repeats the tasks that a lost worker had finished.
        files.write_lines(path, [json.dumps(function(directory, task))])


# === Scratch directories ===


def check_outputs(outputs: Iterable[tuple[str, str]], inputs: Iterable[tuple[str, str]]) -> None:
    """Refuses outputs that could not be written at the end, perhaps hours later, or that would replace an input.

    Args:
        outputs, inputs: pairs of a flag's name and a path.

    Raises:
        InputError: an output is a directory, is also an input or another output, or cannot be written.
    """
    taken = {files.real_path(path): name for name, path in inputs}
    for name, path in outputs:
        if not files.is_remote(path) and files.is_directory(path):
            raise InputError(f"{path}: --{name} is a directory. Name a file in it.")
        if (other := taken.setdefault(files.real_path(path), name)) != name:
            raise InputError(f"{path}: is given both as --{name} and as --{other}. Choose another path for the output.")
        files.check_writable(os.path.dirname(files.absolute(path)))


def work_identity(paths: list[str], *settings: object) -> str:
    """Returns a hash that identifies some work: of the paths, sizes and times of its text, and of `settings` as JSON.

    The text of a pipe is unknown, and may differ from run to run, so that work on a pipe is never resumed.
    """

    def describe(path: str) -> object:
        return (files.absolute(path), *files.file_state(path)) if files.is_file(path) else secrets.token_hex(8)

    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:  # Remote storage is slow to answer.
        states = list(pool.map(describe, paths))
    description = json.dumps([keras_bert.__version__, UNICODE_VERSION, states, *settings])
    return hashlib.sha256(description.encode()).hexdigest()[:16]


@contextlib.contextmanager
def scratch_directory(path: str, identity: str) -> Iterator[str]:
    """Yields a directory for unfinished work, with the results that a killed run of the same work left there.

    The directory is `path/identity`. `path` is removed at the end, and on an InputError, which the same work would
    raise again. If anything else ends the run, such as a `WorkerLostError`, the directory stays. The run holds a lock
    on `path`, which the system releases with the process. Remote directories have no lock.

    Args:
        path: directory for this work alone, such as a hidden one beside the output.
        identity: `work_identity`. Results of work with another identity are removed.

    Raises:
        InputError: another run holds the directory, or it cannot be created.
    """
    with contextlib.ExitStack() as stack:
        if files.is_remote(path):
            files.make_directory(path)
        else:
            path = os.path.abspath(path)
            stack.callback(os.close, _lock(path))
        for name in files.list_directory(path):
            if name != identity:
                files.remove_path(os.path.join(path, name))
                if not name.endswith(_FINISHED):
                    print(f"{path} was made from other text or flags. Starting over.", file=sys.stderr)
        directory = os.path.join(path, identity)
        files.make_directory(directory)
        try:
            yield directory
        except InputError as error:
            if not isinstance(error, WorkerLostError):
                _remove(path, directory)
            raise
        _remove(path, directory)


def _remove(path: str, directory: str) -> None:
    if not files.is_remote(directory):
        os.rename(directory, f"{directory}{_FINISHED}")  # A later run must not resume from a half-removed directory.
    files.remove_path(path)


def _lock(path: str) -> int:
    import fcntl

    while True:
        try:
            os.makedirs(path, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # The owner removed it between the two calls.
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
        os.close(descriptor)  # The lock is on a directory that its owner removed meanwhile.
