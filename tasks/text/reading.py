"""Reads text files in pieces, which processes can take side by side, and splits lines into documents."""

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import decode_lines, not_utf8

_LONGEST_CHUNK = 1 << 26  # A file that cannot be cut for so many bytes is not text.
_STEP = 1 << 16  # Bytes that are read at once from a pipe, and beyond the end of a piece.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"  # No UTF-8 text begins like this.


class Cuts(NamedTuple):
    """Where text may be cut, and how large pieces are.

    Attributes:
        after: ASCII bytes, one of which ends each piece. Cutting there never splits a UTF-8 character.
        name: what error messages call such a byte.
        piece_bytes: size of a piece of a plain file, before its end moves on to the next cut.
        unit_bytes: size at which a unit of several small pieces is full.
    """

    after: bytes
    name: str
    piece_bytes: int
    unit_bytes: int

    def first(self, data: bytes) -> int:
        """Returns where `data` can be cut first: the offset behind the cut, or 0 if there is none."""
        match = re.search(b"[" + self.after + b"]", data)
        return match.end() if match else 0

    def last(self, data: bytes) -> int:
        """Returns where `data` can be cut last: the offset behind the cut, or 0 if there is none."""
        return max(data.rfind(byte) for byte in self.after) + 1


LINES = Cuts(b"\n", "line feed", 1 << 21, 1 << 21)  # Tokenizing two MiB takes some 30 MB of memory.
# No word crosses a blank. Larger pieces repeat fewer words but take more memory: counting 4 MiB peaks at 60 MB.
WORDS = Cuts(b" \t\r\n", "blank", 1 << 22, 1 << 21)


class Piece(NamedTuple):
    """Bytes `start` to `end` of a file, both moved on to the next cut.

    Attributes:
        num_bytes: size on disk, compressed for gzip: for progress bars.
        data: the bytes themselves, where they had to be read in order.
        is_gzip: whether the file is gzip-compressed; without `data` the piece is the whole file.
    """

    path: str
    start: int
    end: int
    num_bytes: int
    cuts: Cuts
    data: bytes | None = None
    is_gzip: bool = False


# === Cutting ===


def text_units(
    files: list[str], cuts: Cuts, *, open_file: Callable = open, split_gzip: bool = True
) -> Iterator[list[Piece]]:
    """Cuts files into pieces and groups small ones into units of about `cuts.unit_bytes`, in the order of the text.

    Where a file is cut depends on its content alone. Gzip data and pipes are read here, since they cannot be read from
    the middle.

    Args:
        files: paths of plain or gzip-compressed text, or of pipes.
        cuts: `LINES` or `WORDS`.
        open_file: `open`, or another function of path and mode.
        split_gzip: False makes each gzip file one piece, which whoever takes the piece reads.

    Raises:
        InputError: a file cannot be read, is damaged, or holds a line or word of over 64 MiB.
    """
    unit, size = [], 0
    for path in files:
        for piece in _pieces(path, cuts, open_file, split_gzip):
            unit.append(piece)
            size += piece.end - piece.start
            if size >= cuts.unit_bytes:
                yield unit
                unit, size = [], 0
    if unit:
        yield unit


def _pieces(path: str, cuts: Cuts, open_file: Callable, split_gzip: bool) -> Iterator[Piece]:
    with readable(path), open_file(path, "rb") as file:
        size = _size(file)
        is_gzip = (file.read(2) if size else file.peek(2)[:2]) == _GZIP
        if size:
            file.seek(0)
        if is_gzip and size and not split_gzip:
            yield Piece(path, 0, size, size, cuts, is_gzip=True)
            return
        if is_gzip or not size:
            yield from _read_stream(path, cuts, file, is_gzip)
            return
    for start in range(0, size, cuts.piece_bytes):
        end = min(start + cuts.piece_bytes, size)
        yield Piece(path, start, end, end - start, cuts)


def _size(file: BinaryIO) -> int:
    """Returns the size of a file, 0 for a pipe."""
    try:
        return os.fstat(file.fileno()).st_size
    except (AttributeError, OSError):  # A file of a remote store has no descriptor.
        file.seek(0, os.SEEK_END)
        size = file.tell()
        file.seek(0)
        return size


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turns errors of opening and reading a plain or gzip-compressed file into messages that name it.

    Raises:
        InputError: `path` is damaged, or cannot be read.
    """
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: damaged gzip data ({error}). Get or compress the file again.") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error}). Check the path.") from error


def _read_stream(path: str, cuts: Cuts, file: BinaryIO, is_gzip: bool) -> Iterator[Piece]:
    source = gzip.GzipFile(fileobj=file) if is_gzip else file
    start = position = 0
    rest = b""
    is_end = False
    while not is_end:
        data = _read_block(source, cuts.piece_bytes)
        is_end = not data
        cut = cuts.last(data)
        ready, rest = (rest + data[:cut], data[cut:]) if cut or is_end else (b"", rest + data)
        _check_length(path, cuts, start, len(rest))
        before, position = position, file.tell() if file.seekable() else start + len(ready)
        yield Piece(path, start, start + len(ready), position - before, cuts, ready, is_gzip)
        start += len(ready)


def _read_block(source: BinaryIO, size: int) -> bytes:
    """Reads in short steps: Python handles Ctrl-C only between reads of a pipe that keeps giving data."""
    parts = []
    while size and (part := source.read1(min(size, _STEP))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _check_length(path: str, cuts: Cuts, start: int, num_bytes: int) -> None:
    if num_bytes > _LONGEST_CHUNK:
        raise InputError(
            f"{path}: no {cuts.name} in {num_bytes:,} bytes, from about byte {start:,} on. "
            "Expected text, one sentence a line."
        )


# === Reading ===


def read_piece(piece: Piece, open_file: Callable = open) -> tuple[bytes, str]:
    """Reads a piece.

    Returns:
        Its bytes, without a byte order mark, and the text that they encode.

    Raises:
        InputError: the file cannot be read, or is not valid UTF-8; the message names the line.
    """
    with readable(piece.path):
        data = piece.data if piece.data is not None else _read_bytes(piece, open_file)
    if not piece.start:
        data = data.removeprefix(_BYTE_ORDER_MARK)
    try:
        return data, data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_utf8(piece, error, open_file) from error


def _read_bytes(piece: Piece, open_file: Callable) -> bytes:
    with open_file(piece.path, "rb") as file:
        if piece.is_gzip:
            return gzip.GzipFile(fileobj=file).read()
        begin = max(0, piece.start - 1)
        file.seek(begin)
        data = file.read(piece.end - begin)
        if piece.start:
            data = data[piece.cuts.first(data) or len(data) :]  # An earlier piece reads on to its next cut.
        if not data or piece.cuts.last(data[-1:]):
            return data
        return data + _read_to_cut(piece, file)


def _read_to_cut(piece: Piece, file: BinaryIO) -> bytes:
    parts, size = [], 0
    while more := file.read(_STEP):
        cut = piece.cuts.first(more)
        parts.append(more[: cut or len(more)])
        size += len(more)
        if cut:
            break
        _check_length(piece.path, piece.cuts, piece.start, size)
    return b"".join(parts)


def _not_utf8(piece: Piece, error: UnicodeDecodeError, open_file: Callable) -> InputError:
    """Reads the file again from its beginning, to name the line; a pipe cannot be read again."""
    if piece.data is None or os.path.isfile(piece.path):
        with readable(piece.path), open_file(piece.path, "rb") as file:
            try:
                for _ in decode_lines(piece.path, gzip.GzipFile(fileobj=file) if piece.is_gzip else file):
                    pass
            except InputError as found:
                return found
    return not_utf8(piece.path, f"byte {piece.start + error.start} of its text", error.object[error.start])


def piece_lines(piece: Piece, open_file: Callable = open) -> list[str]:
    """Reads the lines of a piece that was cut after line feeds, without them.

    Raises:
        InputError: as `read_piece`.
    """
    lines = read_piece(piece, open_file)[1].split("\n")
    if not lines[-1]:
        lines.pop()  # No line follows the last line feed.
    return lines


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
