"""Draws the pairs of a block and builds their records in shuffled order; joins the records of blocks to shards."""

import array
import os
import shutil
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from keras_bert.files import exists, is_remote, open_file, remove_path
from tasks.pretraining.data import token_store
from tasks.pretraining.data.counter_random import random_order
from tasks.pretraining.data.instances import Pair, build_tokens, document_generator, draw_pairs
from tasks.pretraining.data.masking import mask_batch
from tasks.pretraining.data.record_bytes import instance_features, serialize_batch
from tasks.pretraining.data.report import count_batch
from tasks.pretraining.data.shard_index import RecordFigures, load_figures, make_index, write_arrays
from tasks.pretraining.data.token_store import Corpus, read_store
from tasks.pretraining.data.workspace import Workspace, open_workspace
from tasks.text.steps import create_whole

_INSTANCES_AT_ONCE = 512


def write_block(directory: str, block: int) -> list[int]:
    """Writes the records of all instances of a block, a file for each shard that gets some of them.

    Args:
        directory: the workspace's, with all stores.

    Returns:
        Their counts, as `count_batch` gives them.
    """
    workspace = open_workspace(directory)
    pairs, corpus = _draw_pairs(workspace, block)
    order = random_order(len(pairs), workspace.settings.random_seed, stream=block + 1)
    total = np.zeros(1, np.int64)
    for shard, first, last in workspace.plan.shares(block, len(pairs)):
        total = total + _write_part(workspace, workspace.part_path(shard, block), corpus, pairs[order[first:last]])
    return total.tolist()


def _draw_pairs(workspace: Workspace, block: int) -> tuple[np.ndarray, Corpus]:
    """Returns the pairs, int64 of shape (pairs, fields of `Pair`), and the corpus that they are ranges of."""
    settings, plan = workspace.settings, workspace.plan
    own = _read_block(workspace, block)
    sample = [_read_block(workspace, *part) for part in plan.neighbours(block)]
    corpus = token_store.join([own, *sample])
    others = range(0 if plan.is_whole or not sample else own.num_documents, corpus.num_documents)
    lengths = {"max_seq_length": settings.max_seq_length, "short_seq_prob": settings.short_seq_prob}
    first = int(plan.first_documents[block])
    drawn = array.array("q")
    for duplicate in range(settings.dupe_factor):
        for document in range(own.num_documents):
            rng = document_generator(settings.random_seed, duplicate, first + document)
            for pair in draw_pairs(corpus, document, others, rng, **lengths):
                drawn.extend(pair)
    return np.array(drawn).reshape(-1, len(Pair._fields)), corpus


def _read_block(workspace: Workspace, block: int, *part: int) -> Corpus:
    return read_store(workspace.store_path(*workspace.plan.table[block, :2]), workspace.dtype, *part)


def _write_part(workspace: Workspace, path: str, corpus: Corpus, pairs: np.ndarray) -> np.ndarray:
    rules, settings = workspace.masking, workspace.settings
    counts = []

    def write(file: BinaryIO) -> Iterator[RecordFigures]:
        for start in range(0, len(pairs), _INSTANCES_AT_ONCE):
            part = pairs[start : start + _INSTANCES_AT_ONCE]
            built = build_tokens(corpus, part, rules.cls_token_id, rules.sep_token_id, settings.max_seq_length)
            token_ids, lengths, first_lengths = built
            batch = mask_batch(token_ids, lengths, rules, part[:, 5].astype(np.uint64))
            features = instance_features(batch, lengths, first_lengths, part[:, 4])
            content, record_bytes = serialize_batch(features)
            file.write(content)
            counts.append(count_batch(batch, lengths, part[:, 4], rules.mask_token_id))
            yield RecordFigures.of(features, record_bytes)

    with create_whole(path) as temporary, open(temporary, "wb") as file:
        figures = RecordFigures.join(write(file))
    with create_whole(f"{path}.npz") as temporary:
        write_arrays(temporary, figures)
    return sum(counts)


def join_shard(directory: str, shard: int) -> None:
    """Makes a shard, and its index, of the records that blocks have for it."""
    workspace = open_workspace(directory)
    path = workspace.shard_path(shard)
    parts = [workspace.part_path(shard, block) for block in workspace.plan.blocks_of(shard)]
    if not exists(path):
        _join(parts, path)
    figures = RecordFigures.join(load_figures(f"{part}.npz") for part in parts)
    sizes = (workspace.settings.max_seq_length, workspace.settings.max_predictions_per_seq)
    with create_whole(f"{path}.npz") as temporary:
        write_arrays(temporary, make_index(path, figures, sizes))
    for part in parts:
        remove_path(part)


def _join(parts: list[str], path: str) -> None:
    if len(parts) == 1 and not is_remote(path):
        os.replace(parts[0], path)
        return
    with create_whole(path) as temporary, open(temporary, "wb") as target:
        for part in parts:
            with open_file(part) as source:
                shutil.copyfileobj(source, target, 1 << 20)
