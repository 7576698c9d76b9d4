"""Finds lines or documents that repeat earlier ones, in bounded memory, with the same result on any workers.

Two steps work on hashes of 128 bits. (Among 10^10 lines, two different ones share a hash with a probability of 10^-19.)
In the first step, each block writes its hashes, sorted. In the second, each task reads one part of the range of hashes
from all blocks, and writes for each block which of them occurred in an earlier block. The worker that tokenizes a block
then skips these, and what repeats within the block.

H: hashes of a file, S: sections of a file.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence

import numpy as np

from keras_bert.files import open_file
from tasks.text.blocks import Block, count_bytes, split_block
from tasks.text.steps import create_whole, run_step

# The halves of a digest, and the number of the block.
_HASH = np.dtype([("high", "<u8"), ("low", "<u8"), ("block", "<u4")])
_DIGEST_BYTES = 16
_SECTIONS = 1 << 12  # Sections of a file, by the first bits of the hashes.
_HASHES_PER_PART = 1 << 21  # They take 42 MB, and three times as much while they are sorted.


def find_duplicates(
    pool, directory: str, blocks: Sequence[Block], input_format: str, unit: str
) -> tuple[int, int, int]:
    """Finds repeated lines or documents, and writes files for `without_duplicates` to `directory`.

    Args:
        pool, directory: as in `run_step`.
        blocks: blocks of the text.
        input_format: as in `split_block`.
        unit: "lines" or "documents".

    Returns:
        The numbers of lines or documents, of those that repeat an earlier one, and of parts.
    """
    tasks = [(number, block, input_format, unit) for number, block in enumerate(blocks)]
    counted = list(run_step(pool, directory, f"hash {unit}", _hash_block, tasks, list(map(count_bytes, blocks)), "B"))
    num_items, num_hashes = map(sum, zip(*counted, strict=True))
    num_parts = min(_SECTIONS, num_hashes // _HASHES_PER_PART + 1)
    bounds = [_SECTIONS * part // num_parts for part in range(num_parts + 1)]
    tasks = [(part, *bounds[part : part + 2], len(blocks)) for part in range(num_parts)]
    repeats = list(run_step(pool, directory, f"find repeated {unit}", _find_in_part, tasks, [1] * num_parts, "part"))
    return num_items, num_items - num_hashes + sum(repeats), num_parts


def without_duplicates(
    directory: str, number: int, num_parts: int, texts: Iterator[str | None], unit: str
) -> Iterator[str | None]:
    """Yields a block's lines, and None between documents, without those that repeat earlier ones.

    Args:
        directory: directory with the files of `find_duplicates`.
        number: number of the block.
        num_parts: number of parts, as returned by `find_duplicates`.
        texts: lines of the block, from `split_block`.
        unit: as in `find_duplicates`.
    """
    repeats = [_read(_path(directory, "repeats", part), number, number + 1) for part in range(num_parts)]
    digests = np.concatenate([np.stack([hashes["high"], hashes["low"]], axis=1) for hashes in repeats])
    seen = {digest.tobytes() for digest in digests}
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


def _hash_block(directory: str, task: tuple[int, Block, str, str]) -> tuple[int, int]:
    """Writes the distinct hashes of a block; returns the numbers of items and of hashes."""
    number, block, input_format, unit = task
    digests = [digest for _, digest in _items(split_block(block, input_format), unit) if digest]
    distinct = set(digests)
    hashes = np.empty(len(distinct), _HASH)
    halves = np.frombuffer(b"".join(distinct), "<u8").reshape(-1, 2)
    hashes["high"], hashes["low"], hashes["block"] = *halves.T, number
    hashes = hashes[np.argsort(hashes["high"])]
    shift = np.uint64(64 - (_SECTIONS - 1).bit_length())
    _write(_path(directory, "hashes", number), hashes, hashes["high"] >> shift, _SECTIONS)
    return len(digests), len(hashes)


def _find_in_part(directory: str, task: tuple[int, int, int, int]) -> int:
    """Writes the hashes of some sections that occur in an earlier block, by block; returns their number."""
    part, first, stop, num_blocks = task
    hashes = np.concatenate([_read(_path(directory, "hashes", block), first, stop) for block in range(num_blocks)])
    hashes = hashes[np.lexsort((hashes["block"], hashes["low"], hashes["high"]))]
    is_repeated = np.zeros(len(hashes), bool)
    is_repeated[1:] = (hashes["high"][1:] == hashes["high"][:-1]) & (hashes["low"][1:] == hashes["low"][:-1])
    hashes = hashes[is_repeated]
    hashes = hashes[np.argsort(hashes["block"], kind="stable")]
    _write(_path(directory, "repeats", part), hashes, hashes["block"], num_blocks)
    return len(hashes)


# === Files of hashes in sections: S + 1, the S + 1 offsets of the sections and their end, then H hashes ===


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
