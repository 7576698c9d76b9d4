"""Data creation on Apache Beam: the functions of the local run, on the workers of any Beam runner.

Each of the three steps is a pipeline that applies one function to many arguments. Each result is a file that this
process reads back, except for the records, which the workers write, one shard each. All workers must be able to read
the text and to read and write the directory of the output: a path of one machine or of a network file system, or of a
store that Beam knows (gs://, s3://, hdfs://). From such a store a worker process copies the tokenized text and the
pairs to its disk once.
"""

import contextlib
import functools
import os
import pickle
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

from keras_bert.errors import InputError
from keras_bert.files import expand_files
from tasks.pretraining.data.driver import draw_all_pairs
from tasks.pretraining.data.report import Counts, report_files
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.data.workspace import new_workspace, scratch_directory
from tasks.pretraining.data.writing import INSTANCES_PER_UNIT, build_unit

try:
    import apache_beam
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions
except ImportError as error:
    raise InputError(
        "--runner needs Apache Beam, in an environment of its own: pip install 'keras-bert-zoo[beam]'. Without "
        "--runner all cores of this machine are used."
    ) from error


def create(settings: DataSettings, prefix: str, output_files: list[str]) -> dict:
    """Creates data on a Beam runner, the same bytes as `driver.create` on this machine.

    Raises:
        InputError: the runner or an option is unknown to Beam, or as for the local run.
    """
    files = _expand(settings.input_file)
    with contextlib.ExitStack() as stack:
        scratch = FileSystems.join(stack.enter_context(_scratch(prefix)), secrets.token_hex(8))
        store = FileSystems.join(scratch, "store")
        FileSystems.mkdirs(store)
        directory = store if _is_local(store) else stack.enter_context(tempfile.TemporaryDirectory())
        pool = BeamPool(settings.runner, settings.beam_options, scratch)
        workspace = stack.enter_context(new_workspace(directory, settings.vocab_file, settings))
        documents, sentences = draw_all_pairs(workspace, files, pool, open_file)
        num_instances, num_shards = workspace.num_instances, len(output_files)
        temporary_files = [FileSystems.join(scratch, f"shard-{shard:05d}") for shard in range(num_shards)]
        shards = ((path, range(shard, num_instances, num_shards)) for shard, path in enumerate(temporary_files))
        counts = sum(pool.map(_write_shard, shards, workspace.directory), Counts())
        _delete([*report_files(prefix), *output_files])
        FileSystems.rename(temporary_files, output_files)
    return {"documents": documents, "sentences": sentences, **counts.report()}


@contextlib.contextmanager
def _scratch(prefix: str) -> Iterator[str]:
    """Gives the directory beside the output for unfinished work, cleared of what a killed run left there."""
    parent, name = FileSystems.split(os.path.abspath(prefix) if _is_local(prefix) else prefix)
    path = FileSystems.join(parent, f".{name}.scratch")
    if _is_local(prefix):
        with scratch_directory(path):
            yield path
        return
    try:
        _delete([path])
        yield path
    finally:
        _delete([path])


def _write_shard(directory: str, shard: tuple[str, range]) -> Counts:
    path, positions = shard
    total = Counts()
    with _create_whole(path) as file:
        for start in range(0, len(positions), INSTANCES_PER_UNIT):
            (content,), counts = build_unit(directory, positions[start : start + INSTANCES_PER_UNIT], num_shards=1)
            file.write(content)
            total += counts
    return total


# === Running one function on many arguments ===


class BeamPool:
    """Maps like `tasks.text.parallel.LocalPool`, by one pipeline for each map.

    Args:
        runner: name of a Beam runner.
        options: Beam's own command-line options.
        scratch: directory that this process and all workers can reach.
    """

    reads_text = False  # A worker reads a gzip file whole.

    def __init__(self, runner: str, options: list[str], scratch: str):
        self._scratch = scratch
        self._num_maps = 0
        self._copied: dict[str, int] = {}
        try:
            self._options = PipelineOptions([f"--runner={runner}", *options])
            apache_beam.Pipeline(options=self._options)
        except (ValueError, SystemExit) as error:
            raise InputError(f"--runner={runner} --beam_options={options}: Beam refuses them ({error}).") from error

    def map(self, function: Callable, arguments: Iterator, directory: str) -> Iterator:
        """Yields `function(directory, argument)` in the order of `arguments`.

        Raises:
            InputError: raised by `function`.
        """
        self._num_maps += 1
        results = FileSystems.join(self._scratch, f"results-{self._num_maps}")
        FileSystems.mkdirs(results)
        elements = list(enumerate(arguments))
        store = self._share(directory)
        with apache_beam.Pipeline(options=self._options) as pipeline:
            _ = (
                pipeline
                | apache_beam.Create(elements)
                | apache_beam.Reshuffle()
                | apache_beam.Map(_run, function, store, tuple(self._copied.items()), results)
            )
        for index, _ in elements:
            path = FileSystems.join(results, f"{index:08d}")
            with open_file(path) as file:
                result = pickle.load(file)  # Of this run's own workers.
            FileSystems.delete([path])
            if isinstance(result, InputError):
                raise result
            yield result

    def _share(self, directory: str) -> str:
        """Copies new files of `directory` to where workers can read them; returns that place."""
        if _is_local(self._scratch):
            return directory
        store = FileSystems.join(self._scratch, "store")
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if self._copied.get(name) != os.path.getsize(path):
                _copy_file(path, FileSystems.join(store, name))
                self._copied[name] = os.path.getsize(path)
        return store


def _run(element: tuple, function: Callable, store: str, copied: tuple, results: str) -> None:
    index, argument = element
    try:
        result = function(_local_copy(store, copied), argument)
    except InputError as error:
        result = error  # A pipeline would bury it in an error of its own, and try again.
    with _create_whole(FileSystems.join(results, f"{index:08d}")) as file:
        file.write(pickle.dumps(result))


_copying = threading.Lock()


def _local_copy(store: str, copied: tuple[tuple[str, int], ...]) -> str:
    """Returns the path of the store for this process, which copies a remote one to its disk once."""
    if _is_local(store):
        return store
    with _copying:
        return _copy(store, copied).name


@functools.lru_cache(maxsize=1)
def _copy(store: str, copied: tuple[tuple[str, int], ...]) -> tempfile.TemporaryDirectory:
    directory = tempfile.TemporaryDirectory()
    for name, _ in copied:
        _copy_file(FileSystems.join(store, name), os.path.join(directory.name, name))
    return directory


# === Files, wherever they lie ===


def open_file(path: str, mode: str = "rb") -> BinaryIO:
    """Opens a file for reading bytes, as they are."""
    del mode
    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def _copy_file(source: str, target: str) -> None:
    with open_file(source) as file, _create_whole(target) as copy:
        shutil.copyfileobj(file, copy)


def save(path: str, content: bytes) -> None:
    """Writes a file, whole or not at all."""
    with _create_whole(path) as file:
        file.write(content)


@contextlib.contextmanager
def _create_whole(path: str) -> Iterator[BinaryIO]:
    """Writes under a name of its own first: runners may do the same work twice, at the same time."""
    temporary = f"{path}.partial-{secrets.token_hex(8)}"
    with FileSystems.create(temporary, compression_type=CompressionTypes.UNCOMPRESSED) as file:
        yield file
    FileSystems.rename([temporary], [path])


def _delete(paths: list[str]) -> None:
    present = [path for path in paths if FileSystems.exists(path)]
    if present:
        FileSystems.delete(present)


def _is_local(path: str) -> bool:
    return "://" not in path


def _expand(input_file: str | list[str]) -> list[str]:
    patterns = input_file.split(",") if isinstance(input_file, str) else input_file
    if all(map(_is_local, patterns)):
        return [os.path.abspath(path) for path in expand_files(input_file)]
    found: dict[str, None] = {}
    for pattern in patterns:
        (match,) = FileSystems.match([pattern.strip()])
        if not match.metadata_list:
            raise InputError(f"{pattern}: no file matches it. Check the path.")
        found.update(dict.fromkeys(sorted(metadata.path for metadata in match.metadata_list)))
    return list(found)
