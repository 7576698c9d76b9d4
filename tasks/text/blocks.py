r"""Cuts text into blocks that workers read independently of each other, in bounded memory.

Blocks depend only on the files and the flags, never on the workers, and so do all results. Files are first cut at equal
distances in bytes, without reading them, so that a cut may fall anywhere, even within a character. The reader of a
block moves each of its ends to the next beginning of a document. The reader of the neighbouring block moves the cut
between them to the same place. So each document is read exactly once, as in this text of 30 bytes and three documents:

    text      one\ntwo\nsix\n\nfour\nfive\n\nseven\n
    cuts                  ^            ^
    moved to                   ^             ^

If no document begins within `_LOOK_AHEAD` bytes, the cut moves on to the next line only.
"""

import concurrent.futures
import contextlib
import gzip
import io
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from keras_bert import files
from keras_bert.errors import InputError

_MEBIBYTE = 1 << 20
_BLOCKS = 64  # The number of blocks of a small text: enough for all cores to finish at about the same time.
_LOOK_AHEAD = 1 << 20  # Bytes behind a cut that are searched for the beginning of a document.
_LONGEST_RUN = 1 << 26  # A file without a blank in this many bytes is not text.
_CHUNK = 1 << 20
_FILES_AT_ONCE = 32
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"  # No UTF-8 text starts with these bytes.
# By --input_format: the end of a match is the beginning of a document. Documents may begin elsewhere too, at the start
# of a file, for example.
_BEGINNINGS = {
    "sentences": re.compile(rb"\n[ \t\r]*\n"),
    "wikitext": re.compile(rb"\n(?=[ \t]*= (?!= )[^\n]*[^\n= ][^\n]* =[ \t\r]*\n)"),
}


class FileRange(NamedTuple):
    """The bytes `[start, end)` of a file, before both ends move to the start of a document. Never a part of a gzip."""

    path: str
    start: int
    end: int
    is_gzip: bool = False


Block = tuple[FileRange, ...]


# === Cutting ===


def block_bytes(num_bytes: int, passes: int = 1) -> int:
    """Returns the size of a text's blocks: 1 to 16 MiB, and less than 16 if each is processed several times."""
    most = max(1, 16 // passes) * _MEBIBYTE
    return min(max(num_bytes // _BLOCKS, _MEBIBYTE), most)


def text_blocks(paths: list[str], size: int) -> list[Block]:
    """Cuts files into blocks of half to one and a half times `size` bytes, in the order of the text.

    Small files share a block. A gzip file is never cut.

    Raises:
        InputError: a file cannot be read.
    """
    blocks, block, filled = [], [], 0
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        for path, (num_bytes, is_gzip) in zip(paths, pool.map(_look_at, paths), strict=True):
            num_ranges = 1 if is_gzip else -(-num_bytes // size)
            for number in range(num_ranges):
                start, end = (num_bytes * limit // num_ranges for limit in (number, number + 1))
                block.append(FileRange(path, start, end, is_gzip))
                filled += end - start
                if filled >= size // 2:
                    blocks.append(tuple(block))
                    block, filled = [], 0
    return [*blocks, tuple(block)] if block else blocks


def count_bytes(block: Block) -> int:
    """Returns the size of a block on disk, for progress bars."""
    return sum(span.end - span.start for span in block)


def spool_pipes(paths: list[str], directory: str) -> list[str]:
    """Copies pipes, which can be read only once, to a directory; returns the paths, with pipes replaced by copies."""
    copied = []
    for number, path in enumerate(paths):
        if not files.is_remote(path) and os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            copy = os.path.join(directory, f"pipe-{number}")
            with readable(path), open(path, "rb") as source, files.atomic_path(copy) as new, open(new, "wb") as target:
                shutil.copyfileobj(source, target)
            path = copy
        copied.append(path)
    return copied


def _look_at(path: str) -> tuple[int, bool]:
    with readable(path), files.open_file(path) as file:
        return files.file_size(path), file.read(2) == _GZIP


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turns errors in opening and reading a plain or gzip-compressed file into an InputError that names it.

    Raises:
        InputError: `path` is damaged or cannot be read.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip data ({error}). Get or compress the file again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}). Check the path.") from error


@contextlib.contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """Opens a plain or gzip-compressed file to read its bytes, with the errors of `readable`."""
    with readable(path), files.open_file(path) as file:
        yield gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file


def _cut(path: str, file: BinaryIO, offset: int, input_format: str) -> tuple[int, bool]:
    """Moves a cut forward from an offset; returns the new offset, and whether a document begins there.

    The search starts one byte earlier, so that a cut which already is at the beginning of a line stays there.
    """
    if not offset:
        return 0, True
    file.seek(offset - 1)
    data = file.read(_LOOK_AHEAD)
    if input_format in _BEGINNINGS and (match := _BEGINNINGS[input_format].search(data)):
        return offset - 1 + match.end(), True
    if len(data) < _LOOK_AHEAD:
        return offset - 1 + len(data), True  # The rest of the file belongs to the document before.
    match = re.search(rb"\n", data) or re.search(rb"[ \t\r]", data)
    while not match and (more := file.read(_LOOK_AHEAD)):
        data += more
        _check_run(path, offset, len(data))
        match = re.search(rb"[ \t\r\n]", data)
    return offset - 1 + (match.end() if match else len(data)), False


def _check_run(path: str, start: int, num_bytes: int) -> None:
    if num_bytes > _LONGEST_RUN:
        raise InputError(
            f"{path}: no white space in {num_bytes:,} bytes after about byte {start:,}. Expected text, one "
            "sentence a line."
        )


# === Reading ===


def read_block(block: Block, input_format: str = "sentences") -> Iterator[tuple[int, bytes, str]]:
    """Reads a block in chunks of about one MiB, without a byte order mark.

    A chunk ends at a line's end, or at a blank in a very long line.

    Args:
        block: a block of `text_blocks`.
        input_format: what ends a document; see `split_block`.

    Yields:
        The offset of a chunk in its file, in bytes after decompression; and its text, in UTF-8 and decoded.

    Raises:
        InputError: a file cannot be read, is damaged, is not text, or is not valid UTF-8 (the message names the line).
    """
    for span in block:
        with opened(span.path) as file:
            begin, end = 0, None
            if not span.is_gzip:
                begin, end = (_cut(span.path, file, cut, input_format)[0] for cut in (span.start, span.end))
                file.seek(begin)
            for start, data in _chunks(span.path, file, begin, end):
                data = data if start else data.removeprefix(_BYTE_ORDER_MARK)
                yield start, data, _decode(span, data)


def _chunks(path: str, file: BinaryIO, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yields offset and bytes of each chunk from `start`, the file's current position, to `end` or the file's end."""
    rest = b""
    is_end = False
    while not is_end:
        read = start + len(rest)
        data = file.read(_CHUNK if end is None else min(_CHUNK, end - read))
        is_end = not data
        rest += data
        cut = len(rest) if is_end else rest.rfind(b"\n") + 1
        if not cut and len(rest) >= _CHUNK:
            cut = max(map(rest.rfind, (b" ", b"\t", b"\r"))) + 1
            _check_run(path, start, len(rest) - cut)
        if cut:
            yield start, rest[:cut]
        start, rest = start + cut, rest[cut:]


def _decode(span: FileRange, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        with opened(span.path) as file:
            for _ in files.decode_lines(span.path, file):
                pass  # Reads the file again line by line, so that the error names the line.
        raise


def split_block(block: Block, input_format: str) -> Iterator[str | None]:
    """Yields the stripped lines of a block, and None at the end of a document, or if the block begins with a document.

    A document continues in the next file of the block unless something ends it (google-research/bert,
    create_pretraining_data.py:183-204). The end of the block always ends it.

    Args:
        block: a block of `text_blocks`.
        input_format: what ends a document. "sentences": a blank line; "wikitext": a title such as ` = Title = `, and
            headings are left out; "document_per_file": the end of the file.

    Raises:
        InputError: as in `read_block`.
    """
    with opened(block[0].path) as file:
        begins_document = _cut(block[0].path, file, block[0].start, input_format)[1]
    if begins_document:
        yield None
    for start, _, content in read_block(block, input_format):
        if input_format == "document_per_file" and not start:
            yield None
        for line in io.StringIO(content):  # Unlike `splitlines`, ends lines at line feeds only.
            text = line.strip()
            if input_format == "sentences":
                yield text or None
            elif input_format == "wikitext" and text.startswith("= ") and text.endswith(" ="):
                if not text.startswith("= = "):
                    yield None
            elif text:
                yield text
