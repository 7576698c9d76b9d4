"""Finds lines or documents that repeat earlier ones, in bounded memory, with the same result on any workers.

There are three steps on hashes of 128 bits: of 10^10 lines, two that differ have the same one with a probability of
10^-19. Groups of blocks write theirs, sorted. Parts of the range of hashes, each read from all groups, tell which ones
occurred in an earlier block. Groups gather what all parts found about their blocks. The worker that reads a block then
skips what it has read before and what an earlier block holds.

H: hashes of a file, S: sections of a file.
"""

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.lib import recfunctions

from keras_bert.files import open_file
from tasks.text.blocks import Block, count_bytes, split_block
from tasks.text.steps import create_whole, run_step

# The halves of a digest, and the number of the block.
_HASH = np.dtype([("high", "<u8"), ("low", "<u8"), ("block", "<u4")])
_DIGEST_BYTES = 16
_MOST_GROUPS = 1 << 11  # Each part reads a section of each group's file.
_GROUP_BYTES = 1 << 24
_SECTIONS = 1 << 12  # By the first bits of the hashes.
_HASHES_PER_PART = 1 << 21  # 42 MB, and three times as much while they are sorted.


def find_duplicates(pool, directory: str, blocks: Sequence[Block], input_format: str, unit: str) -> tuple[int, int]:
    """Finds repeated lines or documents, and writes files for `without_duplicates` to `directory`.

    Args:
        pool: as in `run_step`.
        unit: "lines" or "documents".

    Returns:
        How many lines or documents there are, and how many of them repeat an earlier one.
    """
    mean_bytes = sum(map(count_bytes, blocks)) // len(blocks) + 1
    per_group = max(-(-len(blocks) // _MOST_GROUPS), _GROUP_BYTES // mean_bytes, 1)
    groups = [(start, blocks[start : start + per_group]) for start in range(0, len(blocks), per_group)]
    tasks = [(number, start, group, input_format, unit) for number, (start, group) in enumerate(groups)]
    num_bytes = [sum(map(count_bytes, group)) for _, group in groups]
    counted = list(run_step(pool, directory, f"hash {unit}", _hash_group, tasks, num_bytes, "B"))
    num_items, num_hashes = map(sum, zip(*counted, strict=True))
    num_parts = min(_SECTIONS, num_hashes // _HASHES_PER_PART + 1)
    bounds = [_SECTIONS * part // num_parts for part in range(num_parts + 1)]
    tasks = [(part, *bounds[part : part + 2], per_group, len(groups)) for part in range(num_parts)]
    repeats = list(run_step(pool, directory, f"find repeated {unit}", _find_in_part, tasks, [1] * num_parts, "part"))
    tasks = [(number, num_parts, start, len(group)) for number, (start, group) in enumerate(groups)]
    list(run_step(pool, directory, f"gather repeated {unit}", _gather_group, tasks, [1] * len(groups), "group"))
    return num_items, num_items - num_hashes + sum(repeats)


def without_duplicates(directory: str, number: int, texts: Iterator[str | None], unit: str) -> Iterator[str | None]:
    """Yields a block's lines, and None between documents, without those that repeat earlier ones.

    Args:
        directory: as `find_duplicates` has left it.
        number: of the block.
        texts: of `split_block`.
        unit: as in `find_duplicates`.
    """
    with open_file(_path(directory, "repeated", number)) as file:
        seen = set(iter(functools.partial(file.read, _DIGEST_BYTES), b""))
    for lines, digest in _items(texts, unit):
        if digest not in seen:
            yield from lines
            if digest:
                seen.add(digest)


def _items(texts: Iterator[str | None], unit: str) -> Iterator[tuple[list[str | None], bytes]]:
    """Yields lines or documents, each with its hash, and the end of each document, `[None]`, with b""."""
    lines: list[str] = []
    for text in texts:
        if text is not None:
            lines.append(text)
        if lines and (text is None or unit == "lines"):
            yield lines, _digest(lines)
            lines = []
        if text is None:
            yield [None], b""
    if lines:
        yield lines, _digest(lines)


def _digest(lines: list[str]) -> bytes:
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=_DIGEST_BYTES).digest()


# === Tasks of workers ===


def _hash_group(directory: str, task: tuple[int, int, Sequence[Block], str, str]) -> tuple[int, int]:
    """Writes the sorted hashes of some blocks, each once a block; returns the numbers of items and of hashes."""
    number, start, blocks, input_format, unit = task
    num_items, block_hashes = 0, []
    for block_number, block in enumerate(blocks, start):
        digests = [digest for _, digest in _items(split_block(block, input_format), unit) if digest]
        num_items += len(digests)
        hashes = np.empty(len(set(digests)), _HASH)
        halves = np.frombuffer(b"".join(set(digests)), "<u8").reshape(-1, 2)
        hashes["high"], hashes["low"], hashes["block"] = *halves.T, block_number
        block_hashes.append(hashes)
    group_hashes = np.concatenate(block_hashes)
    group_hashes = group_hashes[np.argsort(group_hashes["high"])]
    shift = np.uint64(64 - (_SECTIONS - 1).bit_length())
    _write(_path(directory, "hashes", number), group_hashes, group_hashes["high"] >> shift, _SECTIONS)
    return num_items, len(group_hashes)


def _find_in_part(directory: str, task: tuple[int, int, int, int, int]) -> int:
    """Writes the hashes of some sections that occur in an earlier block, by group; returns their number."""
    part, first, stop, per_group, num_groups = task
    hashes = np.concatenate([_read(_path(directory, "hashes", group), first, stop) for group in range(num_groups)])
    hashes = hashes[np.lexsort((hashes["block"], hashes["low"], hashes["high"]))]
    is_repeated = np.zeros(len(hashes), bool)
    is_repeated[1:] = (hashes["high"][1:] == hashes["high"][:-1]) & (hashes["low"][1:] == hashes["low"][:-1])
    hashes = hashes[is_repeated]
    hashes = hashes[np.argsort(hashes["block"], kind="stable")]
    _write(_path(directory, "repeats", part), hashes, hashes["block"] // per_group, num_groups)
    return len(hashes)


def _gather_group(directory: str, task: tuple[int, int, int, int]) -> None:
    """Writes what all parts have found for the blocks of a group, a file of digests for each block."""
    group, num_parts, start, num_blocks = task
    hashes = np.concatenate([_read(_path(directory, "repeats", part), group, group + 1) for part in range(num_parts)])
    for block in range(start, start + num_blocks):
        digests = hashes[["high", "low"]][hashes["block"] == block]
        with create_whole(_path(directory, "repeated", block)) as temporary, open(temporary, "wb") as file:
            file.write(recfunctions.repack_fields(digests).tobytes())


# === Files of hashes in sections: S + 1 numbers, where each section begins and the last one ends, then H hashes ===


def _path(directory: str, kind: str, number: int) -> str:
    return os.path.join(directory, f"{kind}-{number:06d}")


def _write(path: str, hashes: np.ndarray, sections: np.ndarray, num_sections: int) -> None:
    """Writes hashes whose `sections`, integers of shape (H,), ascend."""
    starts = np.searchsorted(sections, np.arange(num_sections + 1, dtype=sections.dtype))
    with create_whole(path) as temporary, open(temporary, "wb") as file:
        file.write((num_sections + 1).to_bytes(8, "little") + starts.astype("<i8").tobytes() + hashes.tobytes())


def _read(path: str, first: int, stop: int) -> np.ndarray:
    """Reads the hashes of the sections from `first` to before `stop`."""
    with open_file(path) as file:
        num_starts = int.from_bytes(file.read(8), "little")
        file.seek(8 + 8 * first)
        starts = np.frombuffer(file.read(8 * (stop - first + 1)), "<i8")
        file.seek(8 + 8 * num_starts + _HASH.itemsize * int(starts[0]))
        return np.frombuffer(file.read(_HASH.itemsize * int(starts[-1] - starts[0])), _HASH)
