"""Cuts text into blocks that workers read by themselves, in bounded memory.

The blocks depend on the files and on the flags alone, never on the workers. Their bounds are found by whoever reads
them: a block begins where a document does, and so does the next one, where the block before it ends.
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
_BLOCKS = 64  # In a small text: enough for all cores of a machine to end at about the same time.
_LOOK_AHEAD = 1 << 20  # Bytes in which the beginning of a document is looked for.
_LONGEST_RUN = 1 << 26  # A file without a blank in so many bytes is not text.
_CHUNK = 1 << 20
_FILES_AT_ONCE = 32
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"  # No UTF-8 text starts with these bytes.
# Where a document begins, by --input_format: a match ends there. Other places may be beginnings, too.
_BEGINNINGS = {
    "sentences": re.compile(rb"\n[ \t\r]*\n"),
    "wikitext": re.compile(rb"\n(?=[ \t]*= (?!= )[^\n]*[^\n= ][^\n]* =[ \t\r]*\n)"),
}


class Part(NamedTuple):
    """The bytes `[start, end)` of a file, before both ends move on to the next cut; a gzip file is whole."""

    path: str
    start: int
    end: int
    is_gzip: bool = False


Block = tuple[Part, ...]


class Chunk(NamedTuple):
    """Some text of a file, without a byte order mark. It ends behind a line, or within a very long one at a blank.

    Attributes:
        path: the file.
        start: where it begins in the file, in bytes, decompressed.
        data, text: the text, in UTF-8 and decoded.
    """

    path: str
    start: int
    data: bytes
    text: str


# === Cutting ===


def block_bytes(num_bytes: int, passes: int = 1) -> int:
    """Returns the size of a block of a text: one MiB or more, 16 MiB at most, less where it is processed repeatedly."""
    most = max(1, 16 // passes) * _MEBIBYTE
    return min(max(num_bytes // _BLOCKS, _MEBIBYTE), most)


def text_blocks(paths: list[str], size: int) -> list[Block]:
    """Cuts files into blocks of about `size` bytes, half to one and a half, in the order of the text.

    Small files come together; a gzip file is not cut.

    Raises:
        InputError: a file cannot be read.
    """
    blocks, block, filled = [], [], 0
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        for path, (num_bytes, is_gzip) in zip(paths, pool.map(_look_at, paths), strict=True):
            num_parts = 1 if is_gzip else -(-num_bytes // size)
            bounds = [num_bytes * number // num_parts for number in range(num_parts + 1)] if num_parts else []
            for start, end in zip(bounds[:-1], bounds[1:], strict=True):
                block.append(Part(path, start, end, is_gzip))
                filled += end - start
                if filled >= size // 2:
                    blocks.append(tuple(block))
                    block, filled = [], 0
    return [*blocks, tuple(block)] if block else blocks


def count_bytes(block: Block) -> int:
    """Returns the size of a block on disk, for progress bars."""
    return sum(part.end - part.start for part in block)


def spool_pipes(paths: list[str], directory: str) -> list[str]:
    """Copies what can be read only once, and in order, to a directory; returns the paths with the copies' instead."""
    found = []
    for number, path in enumerate(paths):
        if not files.is_remote(path) and os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
            copy = os.path.join(directory, f"pipe-{number}")
            with readable(path), open(path, "rb") as source, open(copy, "wb") as target:
                shutil.copyfileobj(source, target)
            path = copy
        found.append(path)
    return found


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


def _cut(path: str, file: BinaryIO, offset: int, input_format: str) -> tuple[int, bool]:
    """Returns where a file is cut from an offset on, and whether a document begins there."""
    if not offset:
        return 0, True
    file.seek(offset - 1)
    data = file.read(_LOOK_AHEAD)
    if input_format in _BEGINNINGS and (match := _BEGINNINGS[input_format].search(data)):
        return offset - 1 + match.end(), True
    if len(data) < _LOOK_AHEAD:
        return offset - 1 + len(data), True  # The rest of the file belongs to the document before.
    first = data.find(b"\n") + 1
    while not first:
        match = re.search(rb"[ \t\r\n]", data)
        first = match.end() if match else 0
        more = b"" if first else file.read(_LOOK_AHEAD)
        if not (first or more):
            first = len(data)
        data += more
        _check_run(path, offset, len(data))
    return offset - 1 + first, False


def _check_run(path: str, start: int, num_bytes: int) -> None:
    if num_bytes > _LONGEST_RUN:
        raise InputError(
            f"{path}: no blank in {num_bytes:,} bytes, from about byte {start:,} on. "
            "Expected text, one sentence a line."
        )


# === Reading ===


def read_block(block: Block, input_format: str = "sentences") -> Iterator[Chunk]:
    """Reads a block in chunks of about one MiB.

    Args:
        block: of `text_blocks`.
        input_format: where documents begin; see `split_block`.

    Raises:
        InputError: a file cannot be read, is damaged, is not valid UTF-8 (the message names the line), or is no text.
    """
    for part in block:
        with readable(part.path), files.open_file(part.path) as file:
            for start, data in _read_part(part, file, input_format):
                if not start:
                    data = data.removeprefix(_BYTE_ORDER_MARK)
                try:
                    text = data.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise _not_utf8(part, start, error) from error
                yield Chunk(part.path, start, data, text)


def _read_part(part: Part, file: BinaryIO, input_format: str) -> Iterator[tuple[int, bytes]]:
    if part.is_gzip:
        yield from _chunks(part.path, gzip.GzipFile(fileobj=file), 0, None)
        return
    end = _cut(part.path, file, part.end, input_format)[0]
    start = _cut(part.path, file, part.start, input_format)[0]
    file.seek(start)
    yield from _chunks(part.path, file, start, end)


def _chunks(path: str, file: BinaryIO, start: int, end: int | None) -> Iterator[tuple[int, bytes]]:
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


def _not_utf8(part: Part, start: int, error: UnicodeDecodeError) -> InputError:
    """Returns the error for invalid UTF-8; reads the file again to name the line."""
    with readable(part.path), files.open_file(part.path) as file:
        try:
            for _ in files.decode_lines(part.path, gzip.GzipFile(fileobj=file) if part.is_gzip else file):
                pass
        except InputError as found:
            return found
    return files.not_utf8(part.path, f"byte {start + error.start} of its text", error.object[error.start])


def split_block(block: Block, input_format: str) -> Iterator[str | None]:
    """Yields the lines of a block, stripped, and None where a document ends or the block begins with a document.

    A document runs on into the next file of the block unless something ends it (google-research/bert,
    create_pretraining_data.py:183-204); it ends with the block.

    Args:
        block: of `text_blocks`.
        input_format: "sentences": a blank line ends a document; "wikitext": a title such as ` = Title = ` does, and
            headings are left out; "document_per_file": the end of the file does.

    Raises:
        InputError: as in `read_block`.
    """
    if begins_document(block[0], input_format):
        yield None
    for chunk in read_block(block, input_format):
        if input_format == "document_per_file" and not chunk.start:
            yield None
        for line in io.StringIO(chunk.text):  # Unlike `splitlines`, ends lines at line feeds only.
            text = line.strip()
            if input_format == "sentences":
                yield text or None
            elif input_format == "wikitext" and text.startswith("= ") and text.endswith(" ="):
                if not text.startswith("= = "):
                    yield None
            elif text:
                yield text


def begins_document(part: Part, input_format: str) -> bool:
    """Returns whether a part begins where a document does."""
    if not part.start:
        return True
    with readable(part.path), files.open_file(part.path) as file:
        return _cut(part.path, file, part.start, input_format)[1]
