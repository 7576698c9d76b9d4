"""Counts the words of text files: in parallel, in bounded memory, the same result whatever the number of processes.

A process takes a piece of the text (`text_pieces.py`), counts the chunks between its blanks, and splits each distinct
chunk into words once: no rule of `keras_bert.normalizer` looks beyond a blank. The parent merges the pieces in the
order of the text, so that neither the words nor what is dropped of them depends on the number of processes.
"""

import contextlib
import functools
import itertools
import multiprocessing
import os
import re
import signal
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from typing import NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import not_utf8
from keras_bert.normalizer import split_words
from tasks.pretraining import text_pieces
from tasks.pretraining.text_pieces import BLANK, Piece

MAX_WORD_LENGTH = 200  # Longer words are [UNK] to the tokenizer.
_COUNTED_AT_ONCE = 1 << 16  # Bytes whose chunks stay in the processor's cache: a quarter faster than a whole piece.
_BLOCKS_PER_WORKER = 2  # Starting a process takes about as long as counting two blocks.

_DELETED = b"\x0b\x0c"  # The rules delete these two; `bytes.split` would split there.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Characters that always leave something to a word: most lines are settled by their first one.
_IN_A_WORD = re.compile(r"[!-~]|[^\W_]")

# Kinds of lines, and of parts of lines: a line is of its parts' largest kind.
_MISSING, _BLANK_LINE, _NEITHER, _SENTENCE = range(-1, 3)


class WordCounts(NamedTuple):
    """The words of a text.

    Attributes:
        counts: word -> occurrences. Words over `MAX_WORD_LENGTH` characters are cut behind the next character.
        documents: documents with at least one sentence.
        sentences: lines with at least one word.
        words: occurrences of all words, dropped ones too.
        dropped_words: times that a word was dropped from the full table.
        dropped_occurrences: occurrences dropped with them; `words` is the sum of `counts` and this.
        largest_count_error: what a count may lack at most; a word that is not in `counts` occurs no more often.
    """

    counts: dict[str, int]
    documents: int
    sentences: int
    words: int
    dropped_words: int
    dropped_occurrences: int
    largest_count_error: int


def count_words(
    files: list[str], do_lower_case: bool, *, max_distinct_words: int, num_workers: int | None = 1
) -> WordCounts:
    """Counts the words of UTF-8 files, gzip-compressed or not, one sentence a line, a blank line between documents.

    A document runs on into the next file, as in google-research/bert. When the table holds more than
    `max_distinct_words` after a block, the rarest words are dropped, all of one count together.

    Args:
        files: paths, read in this order; they may be pipes.
        do_lower_case: lower the case and strip accents.
        max_distinct_words: most words that the table may hold.
        num_workers: processes that count; None: one for each core that this process may use.

    Raises:
        InputError: a file that cannot be read, damaged gzip data, a line that is not UTF-8, or no words.
    """
    from tqdm import tqdm

    num_bytes = sum(os.path.getsize(path) for path in files)
    table, lines = _Table(max_distinct_words), _Lines()
    count = functools.partial(_count_batch, do_lower_case=do_lower_case)
    num_workers = _workers_worth_starting(files, num_bytes, num_workers)
    with _signals_held_back():  # The bar has a thread.
        bar = tqdm(total=num_bytes or None, desc="count words", unit="B", unit_scale=True, mininterval=0.5)
    results = _map_in_order(count, text_pieces.batches(files), num_workers)
    with bar as progress, contextlib.closing(results):
        for result in results:
            for piece in result.pieces:
                lines.add(piece)
            table.add(result.counts)
            progress.update(result.num_bytes)
    lines.end_file()
    table.check_not_empty(files)
    return WordCounts(
        counts=table.counts,
        documents=lines.documents,
        sentences=lines.sentences,
        words=sum(table.counts.values()) + table.dropped_occurrences,
        dropped_words=table.dropped_words,
        dropped_occurrences=table.dropped_occurrences,
        largest_count_error=table.largest_count_error,
    )


# === Counting a batch of pieces ===


class _PieceLines(NamedTuple):
    """What a piece tells of its lines: the part of a line that it begins with, lines within, the part at its end.

    Parts and lines without a byte are `_MISSING`. Of the lines within that are blank or sentences, `documents`
    counts the runs of sentences, `first` and `last` are the kinds of the first and the last one.
    """

    path: str
    head: int = _MISSING
    line_feeds: int = 0
    sentences: int = 0
    documents: int = 0
    first: int = _MISSING
    last: int = _MISSING
    tail: int = _MISSING
    tail_bytes: int = 0
    bad_byte: tuple[int, int] | None = None  # Its place in the part of the line, and its value.


class _BatchCounts(NamedTuple):
    counts: dict[str, int]
    pieces: list[_PieceLines]
    num_bytes: int


def _count_batch(batch: list[Piece], do_lower_case: bool) -> _BatchCounts:
    chunks: Counter[bytes] = Counter()
    pieces = []
    for piece in batch:
        data = piece.read()
        if not piece.start and data.startswith(_BYTE_ORDER_MARK):
            data = b"   " + data[3:]
        pieces.append(_read_lines(piece.path, data, do_lower_case))
        if pieces[-1].bad_byte:
            break
        _count_chunks(data, chunks)
    return _BatchCounts(_count_chunk_words(chunks, do_lower_case), pieces, sum(piece.num_bytes for piece in batch))


def _read_lines(path: str, data: bytes, do_lower_case: bool) -> _PieceLines:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = error.start - data.rfind(b"\n", 0, error.start) - 1
        line_feeds = data.count(b"\n", 0, error.start)
        return _PieceLines(path, line_feeds=line_feeds, bad_byte=(place, data[error.start]))
    tail_bytes = len(data) - data.rfind(b"\n") - 1
    head, *kinds = (_line_kind(line, do_lower_case) for line in text.split("\n"))
    if not kinds:
        return _PieceLines(path, head=head if data else _MISSING, tail_bytes=tail_bytes)
    tail = kinds.pop()
    within = [kind for kind in kinds if kind != _NEITHER]
    return _PieceLines(
        path,
        head=head,
        line_feeds=len(kinds) + 1,
        sentences=within.count(_SENTENCE),
        documents=sum(kind == _SENTENCE for kind, _ in itertools.groupby(within)),
        first=within[0] if within else _MISSING,
        last=within[-1] if within else _MISSING,
        tail=tail if tail_bytes else _MISSING,
        tail_bytes=tail_bytes,
    )


def _line_kind(line: str, do_lower_case: bool) -> int:
    if _IN_A_WORD.search(line):
        return _SENTENCE
    if not line.strip():
        return _BLANK_LINE
    return _SENTENCE if split_words(line, do_lower_case) else _NEITHER


def _count_chunks(data: bytes, chunks: Counter[bytes]) -> None:
    start = 0
    while start < len(data):
        blank = BLANK.search(data, start + _COUNTED_AT_ONCE)
        end = blank.end() if blank else len(data)
        chunks.update(data[start:end].translate(None, _DELETED).split())
        start = end


def _count_chunk_words(chunks: Counter[bytes], do_lower_case: bool) -> dict[str, int]:
    """Splits the chunks that occur equally often as one text; those of ASCII take a faster path in `str` alone."""
    groups = defaultdict(list)
    for chunk, count in chunks.items():
        groups[count, chunk.isascii()].append(chunk)
    counts: dict[str, int] = {}
    for (count, _), group in groups.items():
        words = Counter(split_words(b" ".join(group).decode("utf-8"), do_lower_case))
        for word, times in words.items():
            word = word[: MAX_WORD_LENGTH + 1]
            counts[word] = counts.get(word, 0) + count * times
    return counts


# === Merging, in the order of the text ===


class _Table:
    """Word -> occurrences, with an upper bound on the number of words."""

    def __init__(self, max_distinct_words: int):
        self.counts: dict[str, int] = {}
        self.dropped_words = self.dropped_occurrences = self.largest_count_error = 0
        self._max_distinct_words = max_distinct_words

    def add(self, counts: dict[str, int]) -> None:
        known = self.counts
        for word, count in counts.items():
            known[word] = known.get(word, 0) + count
        if len(known) > self._max_distinct_words:
            self._drop_rarest()

    def _drop_rarest(self) -> None:
        """Leaves three quarters of the bound at most, and of the words of one count all or none.

        A word loses `limit` occurrences at most each time, in sum the largest error: lossy counting (Manku and
        Motwani, 2002), with the limit set by the memory instead of the error.
        """
        sizes = Counter(self.counts.values())
        kept, limit = len(self.counts), 0
        for count in sorted(sizes):
            if kept <= self._max_distinct_words * 3 // 4:
                break
            limit = count
            kept -= sizes[count]
            self.dropped_occurrences += count * sizes[count]
        self.dropped_words += len(self.counts) - kept
        self.largest_count_error += limit
        self.counts = {word: count for word, count in self.counts.items() if count > limit}

    def check_not_empty(self, files: list[str]) -> None:
        if self.dropped_words and not self.counts:
            raise InputError(
                f"--max_distinct_words={self._max_distinct_words} is too small: all words of this text were equally "
                "rare when the table was full, and dropped. Raise it."
            )
        if not self.counts:
            raise InputError(
                f"{', '.join(files)}: no text. Expected one sentence a line, a blank line between documents."
            )


class _Lines:
    """Counts documents and sentences over pieces and files."""

    def __init__(self):
        self.documents = self.sentences = 0
        self._in_document = False
        self._path: str | None = None
        self._line_feeds = 0
        self._open_line, self._open_bytes = _MISSING, 0

    def add(self, piece: _PieceLines) -> None:
        """Goes on with the next piece of the text.

        Raises:
            InputError: the piece is not UTF-8.
        """
        if piece.path != self._path:
            self.end_file()
            self._path = piece.path
        if piece.bad_byte:
            raise self._not_utf8(piece)
        self._open_line = max(self._open_line, piece.head)
        self._open_bytes += piece.tail_bytes
        if piece.line_feeds:
            self._close_line()
            self._go_on(piece.sentences, piece.documents, piece.first, piece.last)
            self._line_feeds += piece.line_feeds
            self._open_line, self._open_bytes = piece.tail, piece.tail_bytes

    def end_file(self) -> None:
        """Ends the last line; where a file ends with a line feed there is none."""
        if self._open_line != _MISSING:
            self._close_line()
        self._line_feeds = 0
        self._open_line, self._open_bytes = _MISSING, 0

    def _close_line(self) -> None:
        if self._open_line == _SENTENCE:
            self._go_on(1, 1, _SENTENCE, _SENTENCE)
        elif self._open_line != _NEITHER:
            self._go_on(0, 0, _BLANK_LINE, _BLANK_LINE)

    def _go_on(self, sentences: int, documents: int, first: int, last: int) -> None:
        self.sentences += sentences
        self.documents += documents - (self._in_document and first == _SENTENCE)
        if last != _MISSING:
            self._in_document = last == _SENTENCE

    def _not_utf8(self, piece: _PieceLines) -> InputError:
        place, value = piece.bad_byte
        if not piece.line_feeds:
            place += self._open_bytes
        line = self._line_feeds + piece.line_feeds + 1
        return not_utf8(f"{piece.path}:{line}", f"byte {place} of the line", value)


# === Processes ===


def _workers_worth_starting(files: list[str], num_bytes: int, num_workers: int | None) -> int:
    if num_workers is None:
        num_workers = len(os.sched_getaffinity(0))
    if all(os.path.isfile(path) for path in files):  # Nobody knows the size of a pipe.
        num_workers = min(num_workers, num_bytes // (text_pieces.BLOCK_BYTES * _BLOCKS_PER_WORKER))
    return max(1, num_workers)


def _map_in_order(function: Callable, arguments: Iterator, num_workers: int) -> Iterator:
    """Yields the results in the order of `arguments`, which are drawn only a few ahead of the results."""
    if num_workers == 1:
        yield from map(function, arguments)
        return
    context = multiprocessing.get_context("spawn")  # A fork of a process with threads (TensorFlow's) can hang.
    executor = ProcessPoolExecutor(num_workers, context, initializer=_start_worker)
    pending = deque()
    try:
        for argument in arguments:
            with _signals_held_back():
                pending.append(executor.submit(function, argument))
            if len(pending) > 2 * num_workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise InputError(
            "A process that counts words ended early, perhaps for lack of memory. Lower --num_workers."
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Holds Ctrl-C and SIGTERM back, lest they leave a process half started.

    Threads and processes that start in this context never get them. So no thread takes a signal in the place of the
    main one, which alone can act on it, and Ctrl-C in a terminal ends the parent, and the parent its processes.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker() -> None:
    """Lets the process be terminated, and ends it when its parent was killed: nobody would tell it to end."""

    def wait():
        multiprocessing.parent_process().join()
        os._exit(1)

    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()
