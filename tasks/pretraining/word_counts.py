"""Counts the words of text files: in parallel, in bounded memory, the same result on every engine.

A worker takes a block of the text (tasks/text/blocks.py), counts the chunks between its blanks, splits each distinct
chunk into words once (no rule of `keras_bert.tokenization.normalizer` looks beyond a blank), and writes a count file.
Workers then merge count files, several at a time, until one is left.

The first line of a count file holds `Totals` as JSON. Each further line is a word, a tab and its occurrences, in the
order of the words' bytes. The result depends neither on how a text is cut nor on how its counts are merged.
"""

import heapq
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import file_size, open_file, parsing
from keras_bert.tokenization.normalizer import MAX_WORD_LENGTH, split_words
from tasks.text.blocks import Block, block_bytes, count_bytes, read_block, readable, text_blocks
from tasks.text.steps import create_whole, run_step

# Larger blocks repeat fewer words, so that less is merged.
_SMALLEST_BLOCK = 1 << 22
_COUNTED_AT_ONCE = 1 << 16  # Bytes whose chunks stay in the processor's cache: a quarter faster than a whole piece.
_MERGED_AT_ONCE = 16  # Count files; more at once leave less to do in parallel.

_BLANKS = re.compile(rb"[ \t\r\n]")
_DELETED = b"\x0b\x0c"  # The rules delete these two; `bytes.split` would split there.
# Characters that always leave something to a word: most lines are settled by their first one.
_IN_A_WORD = re.compile(r"[!-~]|[^\W_]")
_MAGIC = b"#bert-word-counts "
BLANK, NEITHER, SENTENCE = "bns"  # Kinds of lines.


def count_words(files: list[str], do_lower_case: bool, directory: str, pool) -> str:
    """Counts the words of UTF-8 files, gzip-compressed or not, one sentence a line, a blank line between documents.

    A document runs on into the next file, as in google-research/bert.

    Args:
        files: paths, in this order, of text or of count files.
        do_lower_case: lower the case and strip accents.
        directory: for what is unfinished; an earlier run's on the same files is used again.
        pool: runs the functions: `tasks.text.parallel.LocalPool` or what maps like it.

    Returns:
        The path of a count file of all words, in `directory` unless it is the only one of `files`.

    Raises:
        InputError: a file that cannot be read, damaged gzip data, a line that is not UTF-8, a count file that is
            damaged or was counted with another `do_lower_case`, or no words.
    """
    counted = [path for path in files if is_count_file(path)]
    text = [path for path in files if path not in counted]
    if counted:
        tasks = [(do_lower_case, path) for path in counted]
        list(run_step(pool, directory, "check counts", _check_counts, tasks, list(map(file_size, counted)), "B"))
    paths = []
    if text:
        blocks = text_blocks(text, max(_SMALLEST_BLOCK, block_bytes(sum(map(file_size, text)))))
        paths = [os.path.join(directory, f"counts-{number:06d}") for number in range(len(blocks))]
        tasks = [(do_lower_case, path, block) for path, block in zip(paths, blocks, strict=True)]
        list(run_step(pool, directory, "count words", _count_block, tasks, list(map(count_bytes, blocks)), "B"))
    paths += counted
    level = 0
    while len(paths) > 1:
        level += 1
        groups = [paths[start : start + _MERGED_AT_ONCE] for start in range(0, len(paths), _MERGED_AT_ONCE)]
        paths = [os.path.join(directory, f"merged-{level}-{number:06d}") for number in range(len(groups))]
        tasks = [(do_lower_case, path, group) for path, group in zip(paths, groups, strict=True)]
        list(run_step(pool, directory, f"merge counts {level}", _merge, tasks, list(map(len, groups)), "file"))
    if not paths or not read_totals(paths[0], do_lower_case).words:
        raise InputError(f"{', '.join(files)}: no text. Expected one sentence a line, a blank line between documents.")
    return paths[0]


def read_figures(path: str, do_lower_case: bool) -> dict[str, int]:
    """Reads the figures of a text from its count file.

    Returns:
        `documents` with at least one sentence; `sentences`, which are lines with at least one word (of more than a MiB,
        each MiB); `words`, the occurrences of all words.
    """
    totals = Totals(last=BLANK) + read_totals(path, do_lower_case)
    return {"documents": totals.documents, "sentences": totals.sentences, "words": totals.words}


def read_counts(path: str, do_lower_case: bool, max_distinct_words: int) -> tuple[dict[str, int], dict[str, int]]:
    """Reads the most frequent words of a count file, at most `max_distinct_words`; words of equal count, all or none.

    Returns:
        counts: word -> occurrences, in the order of the words' bytes. Words over `MAX_WORD_LENGTH` characters are cut
            behind the next character.
        figures: those of `read_figures`; `dropped_words`, how many words are left out of `counts`;
            `dropped_occurrences`, theirs; `largest_dropped_count`, the most occurrences of one of them.

    Raises:
        InputError: there are more words, all of one count.
    """
    sizes = Counter(count for _, count in merge_counts([path]))
    num_kept, limit = sizes.total(), 0
    for count in sorted(sizes):
        if num_kept <= max_distinct_words:
            break
        limit = count
        num_kept -= sizes[count]
    if not num_kept:
        raise InputError(
            f"--max_distinct_words={max_distinct_words} is too small: more words than these occur equally often, most "
            "often of all. Raise it."
        )
    counts = {word.decode("utf-8"): count for word, count in merge_counts([path]) if count > limit}
    figures = read_figures(path, do_lower_case)
    dropped = {
        "dropped_words": sizes.total() - num_kept,
        "dropped_occurrences": figures["words"] - sum(counts.values()),
        "largest_dropped_count": limit,
    }
    return counts, figures | dropped


# === Tasks of workers ===


def _check_counts(directory: str, task: tuple[bool, str]) -> None:
    """Reads a count file that was made elsewhere.

    Raises:
        InputError: it is truncated or damaged; the message names the line.
    """
    do_lower_case, path = task
    expected, total, previous = read_totals(path, do_lower_case).words, 0, b""
    with readable(path), open_file(path) as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            word, _, count = line.partition(b"\t")
            with parsing(f"{path}:{number}", "line of a count file"):
                word.decode("utf-8")
                total += int(count)
            if not previous < word or int(count) < 1:
                raise InputError(f"{path}:{number}: expected words in order, each with its count. Copy it again.")
            previous = word
    if total != expected:
        raise InputError(f"{path}: expected counts of {expected:,} words, found {total:,}. Copy it again.")


def _merge(directory: str, task: tuple[bool, str, list[str]]) -> None:
    do_lower_case, path, paths = task
    totals = sum((read_totals(part, do_lower_case) for part in paths), Totals())
    write_counts(path, do_lower_case, totals, merge_counts(paths))


def _count_block(directory: str, task: tuple[bool, str, Block]) -> None:
    do_lower_case, path, block = task
    chunks: Counter[bytes] = Counter()
    kinds = []
    for chunk in read_block(block):
        lines = chunk.text.removesuffix("\n").split("\n") if chunk.text else []
        kinds += [_line_kind(line, do_lower_case) for line in lines]
        _count_chunks(chunk.data, chunks)
    counts = _count_chunk_words(chunks, do_lower_case)
    totals = Totals.of("".join(kinds), sum(counts.values()))
    write_counts(path, do_lower_case, totals, sorted((word.encode(), count) for word, count in counts.items()))


def _line_kind(line: str, do_lower_case: bool) -> str:
    if _IN_A_WORD.search(line):
        return SENTENCE
    if not line.strip():
        return BLANK
    return SENTENCE if split_words(line, do_lower_case) else NEITHER


def _count_chunks(data: bytes, chunks: Counter[bytes]) -> None:
    start = 0
    while start < len(data):
        blank = _BLANKS.search(data, start + _COUNTED_AT_ONCE)
        end = blank.end() if blank else len(data)
        chunks.update(data[start:end].translate(None, _DELETED).split())
        start = end


def _count_chunk_words(chunks: Counter[bytes], do_lower_case: bool) -> dict[str, int]:
    """Splits all chunks of one frequency as one text; ASCII chunks apart, since Python's `str` is faster on them."""
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


# === Count files ===


class Totals(NamedTuple):
    """Figures of consecutive lines besides their words; `+` adds the lines that follow.

    Attributes:
        words: occurrences of all words.
        sentences: lines with at least one word.
        documents: sentences that are the first after a blank line.
        first, last: kinds of the first and the last line that is blank or a sentence; "" if there is none.
    """

    words: int = 0
    sentences: int = 0
    documents: int = 0
    first: str = ""
    last: str = ""

    @classmethod
    def of(cls, kinds: str, words: int = 0) -> "Totals":
        """Describes lines by their kinds, a character each."""
        kinds = kinds.replace(NEITHER, "")
        return cls(words, kinds.count(SENTENCE), kinds.count(BLANK + SENTENCE), kinds[:1], kinds[-1:])

    def __add__(self, other: "Totals") -> "Totals":
        begun = self.documents + other.documents + (self.last + other.first == BLANK + SENTENCE)
        counted = self.words + other.words, self.sentences + other.sentences, begun
        return Totals(*counted, self.first or other.first, other.last or self.last)


def write_counts(path: str, do_lower_case: bool, totals: Totals, counts: Iterable[tuple[bytes, int]]) -> None:
    """Writes a count file, whole or not at all; `counts` come in the order of the words."""
    header = {"do_lower_case": do_lower_case, **totals._asdict()}
    with create_whole(path) as temporary, open(temporary, "wb") as file:
        file.write(_MAGIC + json.dumps(header).encode() + b"\n")
        file.writelines(b"%b\t%d\n" % pair for pair in counts)


def is_count_file(path: str) -> bool:
    """Returns whether a file holds counts, and no text."""
    with readable(path), open_file(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_totals(path: str, do_lower_case: bool) -> Totals:
    """Reads the first line of a count file.

    Raises:
        InputError: it is damaged, or was counted with another `do_lower_case`.
    """
    with readable(path), open_file(path) as file, parsing(path, "count file"):
        header = json.loads(file.readline().removeprefix(_MAGIC))
        is_lower, totals = header.pop("do_lower_case"), Totals(**header)
    if is_lower != do_lower_case:
        raise InputError(
            f"{path}: counted with --do_lower_case={is_lower}, found --do_lower_case={do_lower_case}. Give the former."
        )
    return totals


def merge_counts(paths: list[str]) -> Iterator[tuple[bytes, int]]:
    """Yields the words of count files in their order, each with the sum of its occurrences; reads one line of each."""
    word, total = b"", 0
    for line in heapq.merge(*map(_lines, paths)):  # A tab sorts before every character of a word.
        next_word, _, count = line.partition(b"\t")
        if next_word != word:
            if total:
                yield word, total
            word, total = next_word, 0
        total += int(count)
    if total:
        yield word, total


def _lines(path: str) -> Iterator[bytes]:
    with readable(path), open_file(path) as file:
        file.readline()
        yield from file
