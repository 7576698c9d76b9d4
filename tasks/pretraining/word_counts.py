"""Counts the words of text files: in parallel, in bounded memory, the same result on every engine.

A worker takes a block of the text (tasks/text/blocks.py), counts the chunks between its blanks, splits each distinct
chunk into words once (no rule of `keras_bert.tokenization.normalizer` looks beyond a blank), and writes a count file.
Workers then merge count files, several at a time, until one is left.

The first line of a count file is a JSON object with `do_lower_case` and `words`, the occurrences of all words. Each
further line is a word, a tab and its occurrences, in the order of the words' bytes. The result depends neither on how a
text is cut nor on how its counts are merged.
"""

import heapq
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from keras_bert.errors import InputError
from keras_bert.files import file_size, parsing
from keras_bert.tokenization.normalizer import MAX_WORD_LENGTH, split_words
from tasks.text.blocks import Block, block_bytes, count_bytes, opened, read_block, text_blocks
from tasks.text.steps import create_whole, run_step

# Larger blocks repeat fewer words, so that less is merged.
_SMALLEST_BLOCK = 1 << 22
_MERGED_AT_ONCE = 16  # Count files; more at once leave less to do in parallel.

_DELETED = b"\x0b\x0c"  # The rules delete these two; `bytes.split` would split there.
_MAGIC = b"#bert-word-counts "


def count_words(files: list[str], do_lower_case: bool, directory: str, pool) -> str:
    """Counts the words of UTF-8 files, gzip-compressed or not.

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
    if not paths or not read_num_words(paths[0], do_lower_case):
        raise InputError(f"{', '.join(files)}: no text. Expected one sentence a line, a blank line between documents.")
    return paths[0]


def read_counts(path: str, do_lower_case: bool, max_distinct_words: int) -> tuple[dict[str, int], dict[str, int]]:
    """Reads the most frequent words of a count file, at most `max_distinct_words`; words of equal count, all or none.

    Returns:
        counts: word -> occurrences, in the order of the words' bytes. Words over `MAX_WORD_LENGTH` characters are cut
            behind the next character.
        figures: `words`, the occurrences of all words; `dropped_words`, how many words are left out of `counts`;
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
    num_words = read_num_words(path, do_lower_case)
    figures = {
        "words": num_words,
        "dropped_words": sizes.total() - num_kept,
        "dropped_occurrences": num_words - sum(counts.values()),
        "largest_dropped_count": limit,
    }
    return counts, figures


# === Tasks of workers ===


def _check_counts(directory: str, task: tuple[bool, str]) -> None:
    """Reads a count file that was made elsewhere.

    Raises:
        InputError: it is truncated or damaged; the message names the line.
    """
    do_lower_case, path = task
    expected, total, previous = read_num_words(path, do_lower_case), 0, b""
    with opened(path) as file:
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
    num_words = sum(read_num_words(part, do_lower_case) for part in paths)
    write_counts(path, do_lower_case, num_words, merge_counts(paths))


def _count_block(directory: str, task: tuple[bool, str, Block]) -> None:
    do_lower_case, path, block = task
    chunks: Counter[bytes] = Counter()
    for chunk in read_block(block):
        chunks.update(chunk.data.translate(None, _DELETED).split())
    counts = _count_chunk_words(chunks, do_lower_case)
    words = sorted((word.encode(), count) for word, count in counts.items())
    write_counts(path, do_lower_case, sum(counts.values()), words)


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


def write_counts(path: str, do_lower_case: bool, num_words: int, counts: Iterable[tuple[bytes, int]]) -> None:
    """Writes a count file, whole or not at all; `counts` come in the order of the words."""
    header = {"do_lower_case": do_lower_case, "words": num_words}
    with create_whole(path) as temporary, open(temporary, "wb") as file:
        file.write(_MAGIC + json.dumps(header).encode() + b"\n")
        file.writelines(b"%b\t%d\n" % pair for pair in counts)


def is_count_file(path: str) -> bool:
    """Returns whether a file holds counts, and no text."""
    with opened(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_num_words(path: str, do_lower_case: bool) -> int:
    """Reads from a count file the occurrences of all words.

    Raises:
        InputError: it is damaged, or was counted with another `do_lower_case`.
    """
    with opened(path) as file, parsing(path, "count file"):
        header = json.loads(file.readline().removeprefix(_MAGIC))
        is_lower, num_words = header["do_lower_case"], int(header["words"])
    if is_lower != do_lower_case:
        raise InputError(
            f"{path}: counted with --do_lower_case={is_lower}, found --do_lower_case={do_lower_case}. Give the former."
        )
    return num_words


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
    with opened(path) as file:
        file.readline()
        yield from file
