"""Reads text files in pieces that processes can handle in parallel, and splits lines into documents and sentences."""

import contextlib
import functools
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import decode_lines, not_utf8

_LONGEST_CHUNK = 1 << 26  # A file without a cut in so many bytes is not text.
_STEP = 1 << 16  # Bytes per read from a pipe, and beyond the end of a piece.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"  # No UTF-8 text starts with these bytes.


class Cuts(NamedTuple):
    """The rule by which text is cut into pieces.

    Attributes:
        after: ASCII bytes, one of which ends each piece. Cutting there never splits a UTF-8 character.
        name: name of such a byte, for error messages.
        piece_bytes: size of a piece of a plain file, before its end moves on to the next cut.
        unit_bytes: size from which on a unit of small pieces is full.
    """

    after: bytes
    name: str
    piece_bytes: int
    unit_bytes: int

    def first(self, data: bytes) -> int:
        """Returns the offset after the first byte in `after`, or 0 if there is none."""
        match = re.search(b"[" + self.after + b"]", data)
        return match.end() if match else 0

    def last(self, data: bytes) -> int:
        """Returns the offset after the last byte in `after`, or 0 if there is none."""
        return max(data.rfind(byte) for byte in self.after) + 1


LINES = Cuts(b"\n", "line feed", 1 << 21, 1 << 21)  # Tokenizing 2 MiB takes some 30 MB of memory.
# No word crosses a blank. Larger pieces repeat fewer words but take more memory: counting 4 MiB peaks at 60 MB.
WORDS = Cuts(b" \t\r\n", "blank", 1 << 22, 1 << 21)


class Piece(NamedTuple):
    """The bytes `[start, end)` of a file, with both ends moved on to the next cut.

    Attributes:
        path: the file.
        start, end: offsets in the file, decompressed for gzip.
        num_bytes: size on disk, compressed for gzip; for progress bars.
        cuts: the rule by which the file is cut.
        data: the bytes themselves if they had to be read in order; else None.
        is_gzip: whether the file is gzip-compressed. Without `data` the piece is then the whole file.
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

    The cuts depend on a file's content alone. Gzip data and pipes cannot be read from the middle, so they are read
    here.

    Args:
        files: paths of plain or gzip-compressed text, or of pipes.
        cuts: `LINES` or `WORDS`.
        open_file: `open`, or another function of path and mode.
        split_gzip: False makes each gzip file a single piece without `data`.

    Raises:
        InputError: a file cannot be read, is damaged, or has a line or word of over 64 MiB.
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
    """Returns the size of a file; 0 for a pipe."""
    if not file.seekable():
        return 0
    file.seek(0, os.SEEK_END)  # A file of a remote store has no descriptor to ask.
    size = file.tell()
    file.seek(0)
    return size


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
    """Reads up to `size` bytes in short steps, since Python handles Ctrl-C only between two reads of a busy pipe."""
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
        `(bytes, text)`, both without a byte order mark.

    Raises:
        InputError: the file cannot be read or is not valid UTF-8; the message names the line.
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
            data = data[piece.cuts.first(data) or len(data) :]  # The piece before reads on to this cut.
        parts, size = [data], 0
        while parts[-1] and not piece.cuts.last(parts[-1][-1:]):  # Until a cut, or the end of the file.
            _check_length(piece.path, piece.cuts, piece.start, size)
            more = file.read(_STEP)
            parts.append(more[: piece.cuts.first(more) or len(more)])
            size += len(more)
        return b"".join(parts)


def _not_utf8(piece: Piece, error: UnicodeDecodeError, open_file: Callable) -> InputError:
    """Returns the error for invalid UTF-8; reads the file again to name the line, unless it is a pipe."""
    if piece.data is None or os.path.isfile(piece.path):
        with readable(piece.path), open_file(piece.path, "rb") as file:
            try:
                for _ in decode_lines(piece.path, gzip.GzipFile(fileobj=file) if piece.is_gzip else file):
                    pass
            except InputError as found:
                return found
    return not_utf8(piece.path, f"byte {piece.start + error.start} of its text", error.object[error.start])


def split_piece(piece: Piece, input_format: str, open_file: Callable = open) -> Iterator[str | None]:
    """Yields the lines of a piece, stripped, and None where a document ends.

    Args:
        piece: cut by `LINES`.
        input_format: "sentences": a blank line ends a document; "wikitext": a title such as ` = Title = ` does, and
            headings are left out; "document_per_file": the end of the file does.
        open_file: as in `text_units`.

    Raises:
        InputError: as in `read_piece`.
    """
    if input_format == "document_per_file" and not piece.start:
        yield None
    for line in io.StringIO(read_piece(piece, open_file)[1]):  # Unlike `splitlines`, ends lines at line feeds only.
        text = line.strip()
        if input_format == "sentences":
            yield text or None
        elif input_format == "wikitext" and text.startswith("= ") and text.endswith(" ="):
            if not text.startswith("= = "):
                yield None
        elif text:
            yield text


# === Sentences ===


@functools.lru_cache(maxsize=1)
def sentence_splitter(name: str, language: str) -> Callable[[str], list[str]]:
    """Returns a function that splits a line into sentences.

    Args:
        name: "none" keeps each line as one sentence; "sentencex" applies Wikimedia's rules for some 240 languages, with
            no model to download (https://github.com/wikimedia/sentencex).
        language: language code of the text, such as "en"; ignored for "none".

    Raises:
        InputError: sentencex is not installed.
    """
    if name == "none":
        return lambda text: [text]
    try:
        import sentencex
    except ImportError as error:
        raise InputError(
            "--sentence_splitter=sentencex needs the package sentencex: pip install 'keras-bert-zoo[sentences]'. "
            "Without it, give text with one sentence a line."
        ) from error
    return functools.partial(sentencex.segment, language)
