"""Cuts text files into pieces of about `BLOCK_BYTES`, at blanks, for processes that read them side by side.

A blank is a tab, line feed, carriage return or space: no character of UTF-8 and no word goes across one. Where a
plain file is cut depends on the file alone; gzip data and pipes can be read in order only and are cut on the way.
"""

import gzip
import os
import re
import stat
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from keras_bert.errors import InputError
from tasks.pretraining.reading import readable

# Larger pieces hold fewer words twice, but take more memory: a process that counts pieces of 4 MiB peaks at 60 MB.
BLOCK_BYTES = 1 << 22
_LONGEST_CHUNK = 1 << 26  # Bytes without a blank, beyond which a file is no text.
_STEP = 1 << 16  # Bytes read at once from a stream, and behind the end of a piece until there is a blank.

BLANK = re.compile(rb"[ \t\r\n]")


class Piece(NamedTuple):
    """Bytes `start` to `end` of a file, either moved on to the next blank; or `data` that was read already."""

    path: str
    start: int
    end: int
    num_bytes: int  # What it takes of the file, in compressed bytes for gzip: for the progress bar.
    data: bytes | None = None

    def read(self) -> bytes:
        """Reads from behind the first blank at or after byte `start - 1` to that at or after byte `end - 1`.

        Raises:
            InputError: the file cannot be read, or holds no blank for too long.
        """
        if self.data is not None:
            return self.data
        with readable(self.path), open(self.path, "rb") as file:
            file.seek(max(0, self.start - 1))
            data = file.read(self.end - file.tell())
            if self.start:
                first = BLANK.search(data)
                data = data[first.end() :] if first else b""  # Without one: amid a chunk that begins earlier.
            if not data or BLANK.match(data, len(data) - 1):
                return data
            return data + self._read_on(file)

    def _read_on(self, file: BinaryIO) -> bytes:
        rest = b""
        while more := file.read(_STEP):
            end = BLANK.search(more)
            if end:
                return rest + more[: end.end()]
            rest += more
            _check_chunk(self.path, self.start, rest)
        return rest


def batches(files: list[str]) -> Iterator[list[Piece]]:
    """Yields the pieces of all files in their order, small ones together: half a block to one and a half.

    Raises:
        InputError: a file that cannot be read, or damaged gzip data.
    """
    batch, size = [], 0
    for path in files:
        for piece in _pieces(path):
            batch.append(piece)
            size += piece.end - piece.start
            if 2 * size >= BLOCK_BYTES:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _pieces(path: str) -> Iterator[Piece]:
    with readable(path), open(path, "rb") as file:
        is_gzip = file.peek(2)[:2] == b"\x1f\x8b"  # No UTF-8 text begins so.
        status = os.fstat(file.fileno())
        if is_gzip or not stat.S_ISREG(status.st_mode):
            yield from _read_stream(path, file, is_gzip)
            return
    for start in range(0, status.st_size, BLOCK_BYTES):
        end = min(start + BLOCK_BYTES, status.st_size)
        yield Piece(path, start, end, num_bytes=end - start)


def _read_stream(path: str, file: BinaryIO, is_gzip: bool) -> Iterator[Piece]:
    source = gzip.GzipFile(fileobj=file) if is_gzip else file
    start = position = 0
    rest = b""
    is_end = False
    while not is_end:
        data = _read_block(source)
        is_end = not data
        cut = max(map(data.rfind, (b" ", b"\t", b"\r", b"\n"))) + 1
        ready, rest = (rest + data[:cut], data[cut:]) if cut or is_end else (b"", rest + data)
        _check_chunk(path, start, rest)
        before, position = position, file.tell() if file.seekable() else start + len(ready)
        yield Piece(path, start, start + len(ready), position - before, ready)
        start += len(ready)


def _read_block(source: BinaryIO) -> bytes:
    """Reads in short steps: within one read of a pipe, Python does not see to Ctrl-C as long as data comes."""
    parts, missing = [], BLOCK_BYTES
    while missing and (part := source.read1(min(missing, _STEP))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _check_chunk(path: str, start: int, chunk: bytes) -> None:
    if len(chunk) > _LONGEST_CHUNK:
        raise InputError(
            f"{path}: no blank in {len(chunk):,} bytes, from about byte {start:,} on. "
            "Expected text, one sentence a line."
        )
