"""The three steps of data creation, tokenize, draw pairs, build records, and their run on this machine."""

import contextlib
import functools
import os
import secrets
from collections.abc import Callable

from keras_bert.files import atomic_path, expand_files, remove_path
from tasks.pretraining.data.corpus import create_store
from tasks.pretraining.data.report import Counts, report_files
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.data.workspace import Workspace, new_workspace, scratch_directory
from tasks.pretraining.data.writing import INSTANCES_PER_UNIT, build_unit, draw_unit, pair_units
from tasks.text.parallel import LocalPool, progress_bar, workers_for


def create(settings: DataSettings, prefix: str, output_files: list[str]) -> dict:
    """Creates data on this machine; see `create_data.create_pretraining_data`.

    Args:
        prefix: what the names of the reports begin with; an earlier run's are removed before its data are replaced.

    Returns:
        The first part of the report: what was read and written.
    """
    files = expand_files(settings.input_file)
    with contextlib.ExitStack() as stack:
        temporary_files = _temporary_files(stack, prefix, output_files)
        directory = os.path.join(os.path.dirname(temporary_files[0]), secrets.token_hex(8))
        os.mkdir(directory)
        num_workers = workers_for(files, settings.num_workers, passes=settings.dupe_factor)
        pool = stack.enter_context(LocalPool(num_workers))
        workspace = stack.enter_context(new_workspace(directory, settings.vocab_file, settings))
        documents, sentences = draw_all_pairs(workspace, files, pool)
        counts = _write_records(workspace, pool, temporary_files)
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


def draw_all_pairs(workspace: Workspace, files: list[str], pool, open_file: Callable = open) -> tuple[int, int]:
    """Tokenizes the text and draws all pairs into the workspace.

    Args:
        pool: runs the functions; `LocalPool` or `beam.BeamPool`.
        open_file: opens text, as `open` does.

    Returns:
        The numbers of documents and sentences.
    """
    store = create_store(workspace, files, pool, open_file=open_file)
    dupe_factor = workspace.settings.dupe_factor
    with (
        open(workspace.pairs_file, "wb") as file,
        progress_bar("draw pairs", "document", store.num_documents * dupe_factor) as progress,
    ):
        for pairs, num_documents in pool.map(draw_unit, pair_units(workspace.corpus, dupe_factor), workspace.directory):
            file.write(pairs)
            progress.update(num_documents)
    return store.num_documents, store.num_sentences


def _write_records(workspace: Workspace, pool: LocalPool, paths: list[str]) -> Counts:
    """Writes the records of all pairs, round-robin over the files."""
    num_instances, num_shards = workspace.num_instances, len(paths)
    step = max(num_shards, INSTANCES_PER_UNIT // num_shards * num_shards)
    units = (range(start, min(start + step, num_instances)) for start in range(0, num_instances, step))
    build = functools.partial(build_unit, num_shards=num_shards)
    total = Counts()
    for path in paths:
        open(path, "wb").close()
    with progress_bar("write instances", "instance", num_instances) as progress:
        for contents, counts in pool.map(build, units, workspace.directory):
            for path, content in zip(paths, contents, strict=True):
                with open(path, "ab") as file:
                    file.write(content)
            total += counts
            progress.update(int(counts.lengths.sum()))
    return total
