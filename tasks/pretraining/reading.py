"""Text files as pieces of whole lines that can be read apart, and the sentences and documents in their lines."""

import contextlib
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import not_utf8, read_lines

UNIT_BYTES = 1 << 21  # A process that tokenizes two MiB needs some 30 MB for them.
_LONGEST_LINE = 1 << 26  # Bytes beyond which a file is no text.
_AT_ONCE = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"  # No UTF-8 text begins so.


class Piece(NamedTuple):
    """The lines of a file that begin in the bytes `start` to `end`; or `data`, read already, or a whole gzip file."""

    path: str
    start: int
    end: int
    num_bytes: int  # What is read of the file, compressed bytes for gzip: for the progress bar.
    data: bytes | None = None
    is_gzip: bool = False


def text_units(files: list[str], *, open_file: Callable = open, split_gzip: bool = True) -> Iterator[list[Piece]]:
    """Cuts files into pieces and puts small ones together: about `UNIT_BYTES` a unit, in the order of the text.

    Args:
        files: paths of plain or gzip-compressed text; pipes can be read too.
        open_file: `open`, or another function of path and mode.
        split_gzip: read and cut gzip files here; else each is one piece.

    Raises:
        InputError: a file cannot be read, is damaged, or holds a line of over 64 MiB.
    """
    unit, size = [], 0
    for path in files:
        for piece in _pieces(path, open_file, split_gzip):
            unit.append(piece)
            size += piece.end - piece.start
            if size >= UNIT_BYTES:
                yield unit
                unit, size = [], 0
    if unit:
        yield unit


def _pieces(path: str, open_file: Callable, split_gzip: bool) -> Iterator[Piece]:
    with readable(path), open_file(path, "rb") as file:
        size = _size(file)
        is_gzip = (file.read(2) if size else file.peek(2)[:2]) == _GZIP
        if size:
            file.seek(0)
        if is_gzip and size and not split_gzip:
            yield Piece(path, 0, size, size, is_gzip=True)
            return
        if is_gzip or not size:
            yield from _read_stream(path, file, is_gzip)
            return
    for start in range(0, size, UNIT_BYTES):
        end = min(start + UNIT_BYTES, size)
        yield Piece(path, start, end, num_bytes=end - start)


def _size(file: BinaryIO) -> int:
    """The size of a file; 0 for a pipe, too."""
    try:
        return os.fstat(file.fileno()).st_size
    except (AttributeError, OSError):  # Not a file of this machine.
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(0)
        return size


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Says what is wrong with the file `path`, plain or gzip-compressed, that is opened and read in this context.

    Raises:
        InputError: it is damaged, or cannot be read.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip data ({error}). Get or compress the file again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}). Check the path.") from error


def _read_stream(path: str, file: BinaryIO, is_gzip: bool) -> Iterator[Piece]:
    """Reads what has to be read in order: gzip data and pipes."""
    source = gzip.GzipFile(fileobj=file) if is_gzip else file
    start = position = 0
    rest = b""
    while data := source.read(UNIT_BYTES):
        rest += data
        _check_length(path, start, rest)
        cut = rest.rfind(b"\n") + 1
        if cut:
            before, position = position, file.tell() if is_gzip else start + cut
            yield Piece(path, start, start + cut, position - before, rest[:cut])
            start, rest = start + cut, rest[cut:]
    if rest:
        yield Piece(path, start, start + len(rest), 0, rest)


def _check_length(path: str, start: int, line: bytes) -> None:
    if len(line) > _LONGEST_LINE:
        raise InputError(
            f"{path}: no line feed in {len(line):,} bytes from byte {start:,} on. Expected text, a sentence a line."
        )


# === Lines, sentences, documents ===


def piece_lines(piece: Piece, open_file: Callable = open) -> list[str]:
    """Reads the lines of a piece, without their ends.

    Raises:
        InputError: the file cannot be read, or is not valid UTF-8; the message names the line.
    """
    with readable(piece.path):
        data = piece.data if piece.data is not None else _read_piece(piece, open_file)
    if not piece.start:
        data = data.removeprefix(_BYTE_ORDER_MARK)
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise _not_utf8(piece, error, open_file) from error
    if not lines[-1]:
        lines.pop()  # What follows the last line feed is no line.
    return lines


def _read_piece(piece: Piece, open_file: Callable) -> bytes:
    with open_file(piece.path, "rb") as file:
        if piece.is_gzip:
            return gzip.GzipFile(fileobj=file).read()
        file.seek(max(0, piece.start - 1))
        data = file.read(piece.end - max(0, piece.start - 1))
        if piece.start:
            first = data.find(b"\n") + 1
            if not first:
                return b""  # Amid a line that an earlier piece has begun.
            data = data[first:]
        if not data or data.endswith(b"\n"):
            return data
        rest = [data]
        while more := file.read(_AT_ONCE):
            cut = more.find(b"\n") + 1
            rest.append(more[:cut] if cut else more)
            if cut:
                break
            _check_length(piece.path, piece.start, b"".join(rest))
    return b"".join(rest)


def _not_utf8(piece: Piece, error: UnicodeDecodeError, open_file: Callable) -> InputError:
    """Counts the lines of the file again, from its beginning."""
    if piece.data is None and not piece.is_gzip and open_file is open:
        try:
            for _ in read_lines(piece.path):
                continue
        except InputError as found:
            return found
    return not_utf8(piece.path, f"byte {piece.start + error.start} of its text", error.object[error.start])


def split_piece(piece: Piece, input_format: str, open_file: Callable = open) -> Iterator[str | None]:
    """Yields the texts of a piece, and None where a document ends.

    Args:
        input_format: "sentences": a blank line ends a document; "wikitext": a title, as in ` = Title = `, does, and
            headings are left out; "document_per_file": the end of the file does.
    """
    if input_format == "document_per_file" and not piece.start:
        yield None
    for line in piece_lines(piece, open_file):
        text = line.strip()
        if input_format == "sentences":
            yield text or None
        elif input_format == "wikitext" and text.startswith("= ") and text.endswith(" ="):
            if not text.startswith("= = "):
                yield None
        elif text:
            yield text
