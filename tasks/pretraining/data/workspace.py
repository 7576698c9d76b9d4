"""Manages the directory that the steps and processes of data creation share."""

import functools
import os

import numpy as np

from keras_bert.files import atomic_path, make_directory, open_file, read_json, write_json
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.pretraining.data.masking import MaskingRules
from tasks.pretraining.data.plan import Plan
from tasks.pretraining.data.settings import InstanceSettings
from tasks.pretraining.data.token_store import token_dtype

_VOCABULARY, _SETTINGS, _PLAN = "vocab.txt", "settings.json", "plan.npy"


class Workspace:
    """A directory with the vocabulary and the settings, then the tokenized text, then the records.

    Attributes:
        settings, block_bytes, num_shards: as given to `fill_workspace`.
        tokenizer: tokenizer of the vocabulary.
        dtype: dtype of token ids in a store.
        masking: rules of masking, from vocabulary and settings.
    """

    def __init__(self, directory: str):
        self.directory = directory
        values = read_json(os.path.join(directory, _SETTINGS))
        self.settings = InstanceSettings(**values["settings"])
        self.block_bytes, self.num_shards = values["block_bytes"], values["num_shards"]
        self.tokenizer = PythonBertTokenizer(os.path.join(directory, _VOCABULARY), self.settings.do_lower_case)
        self.dtype = token_dtype(self.tokenizer.vocabulary_size())
        self.masking = MaskingRules.of(self.tokenizer, self.settings)

    @functools.cached_property
    def plan(self) -> Plan:
        with open_file(os.path.join(self.directory, _PLAN)) as file:
            table = np.load(file)
        return Plan(table, self.settings.random_seed, self.num_shards, self.block_bytes)

    def save_plan(self, table: np.ndarray) -> None:
        """Saves the table of `Plan`."""
        with atomic_path(os.path.join(self.directory, _PLAN)) as temporary, open(temporary, "wb") as file:
            np.save(file, table)

    def store_path(self, block: int, store: int) -> str:
        return os.path.join(self.directory, "stores", f"{block:06d}-{store}")

    def part_path(self, shard: int, block: int) -> str:
        """Returns the path of a block's records for a shard; `.npz` is added for their figures."""
        return os.path.join(self.directory, "parts", f"{shard:05d}-{block:06d}")

    def shard_path(self, shard: int) -> str:
        """Returns the path of a finished shard; `.npz` is added for its index."""
        return os.path.join(self.directory, "shards", f"{shard:05d}")


@functools.lru_cache(maxsize=1)
def open_workspace(directory: str) -> Workspace:
    """Opens a workspace. A process keeps the latest one open, since all its work depends on the path alone."""
    return Workspace(directory)


def fill_workspace(
    directory: str, vocabulary: bytes, settings: InstanceSettings, block_bytes: int, num_shards: int
) -> Workspace:
    """Makes a workspace in a directory, which may have results of an earlier run with the same arguments."""
    for name in ("stores", "parts", "shards"):
        make_directory(os.path.join(directory, name))
    with atomic_path(os.path.join(directory, _VOCABULARY)) as temporary, open(temporary, "wb") as file:
        file.write(vocabulary)
    values = {"settings": settings.identity(), "block_bytes": block_bytes, "num_shards": num_shards}
    write_json(os.path.join(directory, _SETTINGS), values)
    return Workspace(directory)
