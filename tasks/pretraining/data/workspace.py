"""The directory in which instances are created: what its steps, and their processes, share."""

import contextlib
import dataclasses
import fcntl
import functools
import os
import shutil
from collections.abc import Iterator

from keras_bert.errors import InputError
from keras_bert.files import read_json, remove_path, write_json
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.pretraining.data.instances import Pair
from tasks.pretraining.data.masking import MaskingRules
from tasks.pretraining.data.settings import InstanceSettings
from tasks.pretraining.data.token_store import Corpus, open_store

PAIR_BYTES = 8 * len(Pair._fields)
_VOCABULARY, _SETTINGS = "vocab.txt", "settings.json"


class Workspace:
    """A directory with the vocabulary and the settings, then the tokenized text, then the pairs.

    Each part is opened when it is used first, and once.
    """

    def __init__(self, directory: str):
        self.directory = directory
        self.pairs_file = os.path.join(directory, "pairs.bin")  # int64, shape (instances, fields of `Pair`).

    @functools.cached_property
    def settings(self) -> InstanceSettings:
        return InstanceSettings(**read_json(os.path.join(self.directory, _SETTINGS)))

    @functools.cached_property
    def tokenizer(self) -> PythonBertTokenizer:
        return PythonBertTokenizer(os.path.join(self.directory, _VOCABULARY), self.settings.do_lower_case)

    @functools.cached_property
    def corpus(self) -> Corpus:
        return open_store(self.directory, self.tokenizer.vocabulary_size())

    @functools.cached_property
    def masking(self) -> MaskingRules:
        return MaskingRules.of(self.tokenizer, self.settings)

    @property
    def num_instances(self) -> int:
        return os.path.getsize(self.pairs_file) // PAIR_BYTES


@functools.lru_cache(maxsize=1)
def open_workspace(directory: str) -> Workspace:
    """Opens a workspace; a process keeps the latest one open. No two may have the same path."""
    return Workspace(directory)


@contextlib.contextmanager
def new_workspace(directory: str, vocab_file: str, settings: InstanceSettings) -> Iterator[Workspace]:
    """Makes a workspace of an empty directory; this process closes it with the context.

    Raises:
        InputError: the vocabulary cannot be used.
    """
    PythonBertTokenizer(vocab_file, settings.do_lower_case)  # Its error names the user's file, not the copy.
    shutil.copyfile(vocab_file, os.path.join(directory, _VOCABULARY))
    names = (field.name for field in dataclasses.fields(InstanceSettings))
    write_json(os.path.join(directory, _SETTINGS), {name: getattr(settings, name) for name in names})
    try:
        yield open_workspace(directory)
    finally:
        open_workspace.cache_clear()  # Lets go of the files.


# === Scratch directories ===


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
            raise InputError(f"{path}: another run is writing there. Wait for it, or choose another path.") from error
        except FileNotFoundError:
            pass
        os.close(descriptor)  # The lock is on a directory that its owner has removed meanwhile.
