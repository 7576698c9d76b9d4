"""The three steps of data creation: tokenize the text, draw pairs, build records; and their run on this machine."""

import contextlib
import functools
import os
import secrets
import shutil
from collections.abc import Callable

from tqdm import tqdm

from keras_bert.files import atomic_path, expand_files, remove_path
from keras_bert.python_tokenizer import PythonBertTokenizer
from tasks.pretraining.corpus import VOCABULARY, TextRules, create_store, open_tokenizer
from tasks.pretraining.data_report import Counts, report_files
from tasks.pretraining.parallel import LocalPool, available_cores
from tasks.pretraining.scratch import scratch_directory
from tasks.pretraining.token_store import open_store
from tasks.pretraining.writing import (
    INSTANCES_PER_UNIT,
    PAIR_BYTES,
    PAIRS,
    Settings,
    build_unit,
    draw_unit,
    open_context,
    pair_units,
)

_BYTES_PER_WORKER = 1 << 23  # Text times `dupe_factor`: about a second's work, twice what a process takes to start.


def create(
    input_file: str | list[str],
    prefix: str,
    output_files: list[str],
    vocab_file: str,
    rules: TextRules,
    settings: Settings,
    num_workers: int | None,
) -> dict:
    """Creates data on this machine; see `create_data.create_pretraining_data`.

    Args:
        prefix: what the names of the reports begin with; an earlier run's go before its data are replaced.

    Returns:
        The first part of the report: what was read and written.
    """
    files = expand_files(input_file)
    num_bytes = sum(os.path.getsize(path) for path in files)
    if num_workers is None:
        num_workers = max(1, min(available_cores(), num_bytes * settings.dupe_factor // _BYTES_PER_WORKER))
    with contextlib.ExitStack() as stack:
        temporary_files = _temporary_files(stack, prefix, output_files)
        directory = os.path.join(os.path.dirname(temporary_files[0]), secrets.token_hex(8))
        os.mkdir(directory)
        pool = stack.enter_context(LocalPool(num_workers))
        creation = stack.enter_context(Creation(directory, vocab_file, rules, settings, pool))
        documents, sentences = creation.draw(files, num_bytes)
        counts = creation.write(temporary_files)
        for path in report_files(prefix):
            remove_path(path)
        for temporary, path in zip(temporary_files, output_files, strict=True):
            os.replace(temporary, path)
    return {"documents": documents, "sentences": sentences, **counts.report()}


def _temporary_files(stack: contextlib.ExitStack, prefix: str, output_files: list[str]) -> list[str]:
    """Names a temporary file for each output, on the same disk: in a scratch directory beside it."""
    parents = [os.path.dirname(os.path.abspath(path)) for path in output_files]
    name = f".{os.path.basename(prefix)}.scratch"
    scratch = {
        parent: stack.enter_context(scratch_directory(os.path.join(parent, name))) for parent in dict.fromkeys(parents)
    }
    return [os.path.join(scratch[parent], f"{number:05d}") for number, parent in enumerate(parents)]


def save(path: str, content: bytes) -> None:
    """Writes a file, whole or not at all."""
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(content)


class Creation:
    """One creation of data in a directory of its own, which holds the vocabulary, the store and the pairs.

    Args:
        directory: empty, with a name that this process has not used before.
        vocab_file: path.
        rules, settings: what to do with the text.
        pool: runs functions; `LocalPool` or `beam.BeamPool`.
        open_file: opens text, as `open` does.

    Raises:
        InputError: the vocabulary cannot be used.
    """

    def __init__(
        self, directory: str, vocab_file: str, rules: TextRules, settings: Settings, pool, open_file: Callable = open
    ):
        self.directory, self.rules, self.settings, self.pool = directory, rules, settings, pool
        self._open_file = open_file
        self._vocabulary_size = PythonBertTokenizer(vocab_file, rules.do_lower_case).vocabulary_size()
        shutil.copyfile(vocab_file, os.path.join(directory, VOCABULARY))

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        """Lets go of the files of this directory, if this process has opened them."""
        open_context.cache_clear()
        open_tokenizer.cache_clear()

    def draw(self, files: list[str], num_bytes: int | None) -> tuple[int, int]:
        """Tokenizes the text and draws all pairs; returns (documents, sentences)."""
        with _progress("tokenize", "B", num_bytes) as progress:
            store = create_store(
                self.directory,
                files,
                self.rules,
                self._vocabulary_size,
                self.pool,
                open_file=self._open_file,
                progress=progress,
            )
        dupe_factor = self.settings.dupe_factor
        function = functools.partial(draw_unit, **self.common())
        units = pair_units(open_store(self.directory, self._vocabulary_size), dupe_factor)
        with (
            open(os.path.join(self.directory, PAIRS), "wb") as file,
            _progress("draw pairs", "document", store.num_documents * dupe_factor) as progress,
        ):
            for drawn in self.pool.map(function, self.directory, units):
                file.write(drawn.pairs)
                progress.update(drawn.num_documents)
        return store.num_documents, store.num_sentences

    def write(self, paths: list[str]) -> Counts:
        """Writes the records of all pairs, round-robin over files of this machine."""
        num_instances = self.num_instances()
        step = max(len(paths), INSTANCES_PER_UNIT // len(paths) * len(paths))
        units = (range(start, min(start + step, num_instances)) for start in range(0, num_instances, step))
        function = functools.partial(build_unit, num_instances=num_instances, num_shards=len(paths), **self.common())
        total = Counts(self.settings.max_seq_length)
        for path in paths:
            open(path, "wb").close()
        with _progress("write instances", "instance", num_instances) as progress:
            for unit in self.pool.map(function, self.directory, units):
                for path, records in zip(paths, unit.records, strict=True):
                    with open(path, "ab") as file:
                        file.write(records)
                total.merge([unit.counts])
                progress.update(int(unit.counts.lengths.sum()))
        return total

    def num_instances(self) -> int:
        """How many pairs were drawn."""
        return os.path.getsize(os.path.join(self.directory, PAIRS)) // PAIR_BYTES

    def common(self) -> dict:
        """Keyword arguments of every function that draws."""
        return {"settings": self.settings, "do_lower_case": self.rules.do_lower_case}


def _progress(name: str, unit: str, total: int | None) -> tqdm:
    return tqdm(total=total or None, desc=name, unit=unit, unit_scale=unit == "B", mininterval=0.5)
