"""A directory for the temporary files of a run, and for its results until they are complete."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from keras_bert.errors import InputError
from keras_bert.files import remove_path


@contextlib.contextmanager
def scratch_directory(path: str) -> Iterator[str]:
    """Gives an empty directory at `path` that no other run uses, and removes it at the end, also on an error.

    The owner holds a lock on the directory. The system drops it with the process, so that the next run knows what a
    killed one left, and clears it.

    Raises:
        InputError: another run holds the directory, or it cannot be created.
    """
    path = os.path.abspath(path)
    descriptor = _lock(path)
    try:
        for name in os.listdir(path):
            remove_path(os.path.join(path, name))
        yield path
    finally:
        remove_path(path)
        os.close(descriptor)


def _lock(path: str) -> int:
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
            raise InputError(
                f"{path}: another run is writing there. Wait for its end, or choose another output path."
            ) from error
        except FileNotFoundError:
            pass
        os.close(descriptor)  # The lock is on a directory that its owner has removed meanwhile.
