"""Runs the steps of data creation, here or on a cluster: tokenizes blocks, writes their records, joins them to shards.

Each task depends on the text, the settings, and the files that the previous step has left in the scratch directory. No
text, token or record passes through this process.
"""

import hashlib
import os
import time

import numpy as np

from keras_bert import files
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.pretraining.data.corpus import check_documents, tokenize_block
from tasks.pretraining.data.publishing import REPORT_ENDING, publish
from tasks.pretraining.data.report import describe_counts
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.data.workspace import Workspace, fill_workspace
from tasks.pretraining.data.writing import join_shard, write_block
from tasks.text.blocks import block_bytes, count_bytes, spool_pipes, text_blocks
from tasks.text.steps import check_outputs, run_step, scratch_directory, work_identity


def create(settings: DataSettings, prefix: str, output_files: list[str]) -> dict:
    """Creates data; see `create_data.create_pretraining_data`.

    Args:
        settings: settings of the run.
        prefix: path that the report's name begins with. An earlier report is removed before its data are replaced.
        output_files: files to write.
    """
    start = time.monotonic()
    prefix, paths = files.absolute(prefix), list(map(files.absolute, files.expand_files(settings.input_file)))
    read = [("vocab_file", settings.vocab_file), *(("input_file", path) for path in paths)]
    check_outputs([("output_file", path) for path in output_files], read)
    PythonBertTokenizer(settings.vocab_file, settings.do_lower_case)  # Its error names the user's file, not a copy.
    with files.open_file(settings.vocab_file) as file:
        vocabulary = file.read()
    scratch = os.path.join(os.path.dirname(prefix), f".{os.path.basename(prefix)}.scratch")
    identity = work_identity(paths, settings.identity(), hashlib.sha256(vocabulary).hexdigest(), output_files)
    with scratch_directory(scratch, identity) as directory:
        paths = spool_pipes(paths, directory)
        block_size = block_bytes(sum(map(files.file_size, paths)), settings.dupe_factor)
        workspace = fill_workspace(directory, vocabulary, settings, block_size, len(output_files))
        report = _run(settings, workspace, paths, block_size)
        report_file = prefix + REPORT_ENDING
        files.remove_path(report_file)
        publish([workspace.shard_path(shard) for shard in range(len(output_files))], output_files)
        report |= {
            "seconds": round(time.monotonic() - start, 1),
            "output_files": output_files,
            "settings": settings.identity(),
        }
        files.write_json(report_file, report)
    return report


def _run(settings: DataSettings, workspace: Workspace, paths: list[str], block_size: int) -> dict:
    directory, num_shards = workspace.directory, workspace.num_shards
    with settings.open_pool(paths, directory, settings.dupe_factor) as pool:
        blocks = text_blocks(paths, block_size)
        sizes = list(map(count_bytes, blocks))
        tokenized = run_step(pool, directory, "tokenize", tokenize_block, list(enumerate(blocks)), sizes, "B")
        stores = [
            (block, number, *store) for block, of_block in enumerate(tokenized) for number, store in enumerate(of_block)
        ]
        table = np.array(stores, np.int64).reshape(-1, 6)
        documents = int(table[:, 4].sum() - table[:, 5].sum())
        check_documents(paths, documents, settings.input_format)
        workspace.save_plan(table[:, [0, 1, 2, 4]])
        written = run_step(pool, directory, "write", write_block, range(len(table)), table[:, 2].tolist(), "token")
        counts = sum(map(np.array, written))
        list(run_step(pool, directory, "join", join_shard, range(num_shards), [1] * num_shards, "file"))
    return {"documents": documents, "sentences": int(table[:, 3].sum()), **describe_counts(counts)}
