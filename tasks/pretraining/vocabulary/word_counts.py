"""Counts the words of text files: in parallel, in bounded memory, the same result whatever the number of processes.

A process takes a piece of the text (tasks/text/reading.py), counts the chunks between its blanks, and splits each
distinct chunk into words once: no rule of `keras_bert.tokenization.normalizer` looks beyond a blank. The parent merges
the pieces in the order of the text, so that neither the words nor those dropped depend on the number of processes.
"""

import dataclasses
import os
import re
from collections import Counter, defaultdict

from keras_bert.errors import InputError
from keras_bert.tokenization.normalizer import MAX_WORD_LENGTH, split_words
from tasks.text.parallel import LocalPool, progress_bar, workers_for
from tasks.text.reading import WORDS, Piece, read_piece, text_units

_COUNTED_AT_ONCE = 1 << 16  # Bytes whose chunks stay in the processor's cache: a quarter faster than a whole piece.

_BLANKS = re.compile(b"[" + WORDS.after + b"]")
_DELETED = b"\x0b\x0c"  # The rules delete these two; `bytes.split` would split there.
# Characters that always leave something to a word: most lines are settled by their first one.
_IN_A_WORD = re.compile(r"[!-~]|[^\W_]")

# Kinds of lines, and of parts of lines: a line is of its parts' largest kind.
_MISSING, _BLANK, _NEITHER, _SENTENCE = "-bns"


@dataclasses.dataclass
class WordCounts:
    """The words of a text, in a table with an upper bound on its size.

    Attributes:
        counts: word -> occurrences. Words over `MAX_WORD_LENGTH` characters are cut behind the next character.
        documents: documents with at least one sentence.
        sentences: lines with at least one word.
        words: occurrences of all words, dropped ones too.
        dropped_words: times that a word was dropped from the full table.
        dropped_occurrences: occurrences dropped with them; `words` is the sum of `counts` and this.
        largest_count_error: what a count may lack at most; a word that is not in `counts` occurs no more often.
    """

    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    documents: int = 0
    sentences: int = 0
    words: int = 0
    dropped_words: int = 0
    dropped_occurrences: int = 0
    largest_count_error: int = 0

    def add(self, counts: dict[str, int], max_distinct_words: int) -> None:
        known = self.counts
        for word, count in counts.items():
            known[word] = known.get(word, 0) + count
        self.words += sum(counts.values())
        if len(known) > max_distinct_words:
            self._drop_rarest(max_distinct_words * 3 // 4)

    def _drop_rarest(self, max_kept: int) -> None:
        """Keeps at most `max_kept` words, and of the words of one count all or none.

        A word loses at most `limit` occurrences each time; their sum is the largest error. This is lossy counting
        (Manku and Motwani, 2002) with the limit set by memory instead of by the error.
        """
        sizes = Counter(self.counts.values())
        kept, limit = len(self.counts), 0
        for count in sorted(sizes):
            if kept <= max_kept:
                break
            limit = count
            kept -= sizes[count]
            self.dropped_occurrences += count * sizes[count]
        self.dropped_words += len(self.counts) - kept
        self.largest_count_error += limit
        self.counts = {word: count for word, count in self.counts.items() if count > limit}


def count_words(
    files: list[str], do_lower_case: bool, max_distinct_words: int, num_workers: int | None = 1
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
    words, lines = WordCounts(), _Lines()
    total = sum(os.path.getsize(path) for path in files)
    with LocalPool(workers_for(files, num_workers)) as pool, progress_bar("count words", "B", total) as progress:
        for counts, line_kinds, num_bytes in pool.map(_count_unit, text_units(files, WORDS), do_lower_case):
            for path, kinds in line_kinds:
                lines.add(path, kinds)
            words.add(counts, max_distinct_words)
            progress.update(num_bytes)
    lines.end_file()
    words.documents, words.sentences = lines.documents, lines.sentences
    if words.dropped_words and not words.counts:
        raise InputError(
            f"--max_distinct_words={max_distinct_words} is too small: all words of this text were equally rare when "
            "the table was full, and dropped. Raise it."
        )
    if not words.counts:
        raise InputError(f"{', '.join(files)}: no text. Expected one sentence a line, a blank line between documents.")
    return words


# === Counting a unit of pieces ===


def _count_unit(do_lower_case: bool, unit: list[Piece]) -> tuple[dict[str, int], list[tuple[str, str]], int]:
    """Counts the words of some pieces.

    Returns:
        (the counts, `(path, kinds)` of each piece: a character per line, or part of one at its ends; bytes of the files
        that were read).
    """
    chunks: Counter[bytes] = Counter()
    line_kinds = []
    for piece in unit:
        data, text = read_piece(piece)
        *lines, rest = text.split("\n")
        kinds = [_line_kind(line, do_lower_case) for line in lines]
        kinds.append(_line_kind(rest, do_lower_case) if rest else _MISSING)
        line_kinds.append((piece.path, "".join(kinds)))
        _count_chunks(data, chunks)
    return _count_chunk_words(chunks, do_lower_case), line_kinds, sum(piece.num_bytes for piece in unit)


def _line_kind(line: str, do_lower_case: bool) -> str:
    if _IN_A_WORD.search(line):
        return _SENTENCE
    if not line.strip():
        return _BLANK
    return _SENTENCE if split_words(line, do_lower_case) else _NEITHER


def _count_chunks(data: bytes, chunks: Counter[bytes]) -> None:
    start = 0
    while start < len(data):
        blank = _BLANKS.search(data, start + _COUNTED_AT_ONCE)
        end = blank.end() if blank else len(data)
        chunks.update(data[start:end].translate(None, _DELETED).split())
        start = end


def _count_chunk_words(chunks: Counter[bytes], do_lower_case: bool) -> dict[str, int]:
    """Splits all chunks of one frequency as one text, those of ASCII apart: Python's `str` is faster on them."""
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


class _Lines:
    """Counts documents and sentences over pieces and files."""

    def __init__(self):
        self.documents = self.sentences = 0
        self._path: str | None = None
        self._open_line = _MISSING
        self._last_kind = _BLANK  # Of the lines so far that are blank or sentences.

    def add(self, path: str, kinds: str) -> None:
        """Goes on with the next piece of the text."""
        if path != self._path:
            self.end_file()
            self._path = path
        *kinds, self._open_line = max(self._open_line, kinds[0]) + kinds[1:]
        self._close("".join(kinds))

    def end_file(self) -> None:
        """Ends the last line; there is none after a line feed."""
        self._close(self._open_line.replace(_MISSING, ""))
        self._open_line = _MISSING

    def _close(self, kinds: str) -> None:
        self.sentences += kinds.count(_SENTENCE)
        telling = self._last_kind + kinds.replace(_NEITHER, "")
        self.documents += telling.count(_BLANK + _SENTENCE)
        self._last_kind = telling[-1]
