"""Counts the words of text files in parallel and in bounded memory, with the same result on every engine.

A worker takes a block of the text (tasks/text/blocks.py), counts the chunks between blanks, splits each distinct chunk
into words once (no rule of `keras_bert.tokenization.normalizer` looks beyond a blank), and writes a count file.
Workers then merge count files, several at a time, until one is left.

The first line of a count file is a marker and a JSON object with `do_lower_case` and `words`, the number of words in
the text. Each further line is a word, a tab and its number of occurrences, sorted by the words' bytes. The result
depends neither on how a text is cut into blocks nor on how the counts are merged.
"""

import heapq
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, file_size, parsing
from keras_bert.tokenization.normalizer import MAX_WORD_LENGTH, split_words
from tasks.text.blocks import Block, block_bytes, count_bytes, opened, read_block, text_blocks
from tasks.text.steps import run_step

# Bytes. With smaller blocks, more of them repeat a word, so that more counts are merged.
_SMALLEST_BLOCK = 1 << 22
_MERGED_AT_ONCE = 16  # Count files. Merging more at once would leave fewer parallel tasks.

_DELETED = b"\x0b\x0c"  # The tokenizer deletes these two characters; `bytes.split` would split at them.
_MAGIC = b"#bert-word-counts "


def count_words(files: list[str], do_lower_case: bool, directory: str, pool) -> str:
    """Counts the words of UTF-8 files, gzip-compressed or not.

    Args:
        files: paths of text or of count files.
        do_lower_case: whether to lowercase and to strip accents.
        directory: directory of unfinished work. What an earlier run on the same files left there is reused.
        pool: `tasks.text.parallel.LocalPool`, or an object with the same `map`.

    Returns:
        The path of a count file of all words. It is in `directory`, unless `files` is a single count file.

    Raises:
        InputError: a file cannot be read, its gzip data are damaged, a line is not UTF-8, a count file is damaged or
            was made with another `do_lower_case`, or there are no words.
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
    """Reads the most frequent words of a count file, at most `max_distinct_words`.

    Of the words with the same count, either all are kept or none.

    Returns:
        counts: word -> occurrences, sorted by the words' bytes. Longer words are cut after `MAX_WORD_LENGTH + 1`
            characters.
        figures: `words`, the number of words in the text; `dropped_words`, the number of distinct words left out of
            `counts`; `dropped_occurrences`, the sum of their occurrences; `largest_dropped_count`, the occurrences of
            the most frequent one.

    Raises:
        InputError: more than `max_distinct_words` words share the highest count.
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
            f"--max_distinct_words={max_distinct_words} is too small: more words than that share the highest count, "
            "and words of equal count are kept or dropped together. Raise it."
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
    """Checks a count file that was made elsewhere.

    Raises:
        InputError: the file is truncated or damaged.
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
    for _, data, _ in read_block(block):
        chunks.update(data.translate(None, _DELETED).split())
    # All chunks of one frequency are split as one text. ASCII chunks are kept apart: Python's `str` is faster on them.
    groups = defaultdict(list)
    for chunk, count in chunks.items():
        groups[count, chunk.isascii()].append(chunk)
    counts: dict[str, int] = {}
    for (count, _), group in groups.items():
        for word, times in Counter(split_words(b" ".join(group).decode("utf-8"), do_lower_case)).items():
            word = word[: MAX_WORD_LENGTH + 1]
            counts[word] = counts.get(word, 0) + count * times
    words = sorted((word.encode(), count) for word, count in counts.items())
    write_counts(path, do_lower_case, sum(counts.values()), words)


# === Count files ===


def write_counts(path: str, do_lower_case: bool, num_words: int, counts: Iterable[tuple[bytes, int]]) -> None:
    """Writes a count file atomically. `counts` must be sorted by word."""
    header = {"do_lower_case": do_lower_case, "words": num_words}
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(_MAGIC + json.dumps(header).encode() + b"\n")
        file.writelines(b"%b\t%d\n" % pair for pair in counts)


def is_count_file(path: str) -> bool:
    """Returns whether a file holds word counts rather than text."""
    with opened(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def read_num_words(path: str, do_lower_case: bool) -> int:
    """Reads the number of words of the counted text from a count file.

    Raises:
        InputError: the file is damaged, or was made with another `do_lower_case`.
    """
    with opened(path) as file, parsing(path, "count file"):
        header = json.loads(file.readline().removeprefix(_MAGIC))
        is_lower, num_words = header["do_lower_case"], int(header["words"])
    if is_lower != do_lower_case:
        raise InputError(
            f"{path}: was counted with --do_lower_case={is_lower}, but this command has "
            f"--do_lower_case={do_lower_case}. Use the setting of the counts."
        )
    return num_words


def merge_counts(paths: list[str]) -> Iterator[tuple[bytes, int]]:
    """Yields the words of count files in sorted order, each with its total count. Holds one line of each file."""
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
