"""Count files: the words of some text and their occurrences, in sorted order, so that files merge exactly.

The first line holds `Totals` as JSON. Each further line is a word, a tab and its occurrences, in the order of the
words' bytes. Whatever the parts in which a text is counted, and however they are merged, the result is the same.
"""

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import open_file, parsing
from tasks.text.blocks import readable
from tasks.text.steps import create_whole

_MAGIC = b"#bert-word-counts "
BLANK, NEITHER, SENTENCE = "bns"  # Kinds of lines.


class Totals(NamedTuple):
    """What is known of some consecutive lines besides their words; `+` goes on with the lines that follow.

    Attributes:
        words: occurrences of all words.
        sentences: lines with at least one word.
        documents: sentences behind a blank line, with no other sentence between.
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
        telling = kinds.replace(NEITHER, "")
        return cls(words, kinds.count(SENTENCE), telling.count(BLANK + SENTENCE), telling[:1], telling[-1:])

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
        raise InputError(f"{path}: counted with --do_lower_case={is_lower}, found --do_lower_case={do_lower_case}.")
    return totals


def check_counts(path: str, do_lower_case: bool) -> None:
    """Reads a count file that was made elsewhere.

    Raises:
        InputError: it is truncated or damaged; the message names the line.
    """
    expected, found, previous = read_totals(path, do_lower_case).words, 0, b""
    with readable(path), open_file(path) as file:
        file.readline()
        for number, line in enumerate(file, start=2):
            word, _, count = line.partition(b"\t")
            with parsing(f"{path}:{number}", "line of a count file"):
                word.decode("utf-8")
                found += int(count)
            if not previous < word or int(count) < 1:
                raise InputError(f"{path}:{number}: expected words in order, each with its count. Copy it again.")
            previous = word
    if found != expected:
        raise InputError(f"{path}: expected counts of {expected:,} words, found {found:,}. Copy it again.")


def merge_counts(paths: list[str]) -> Iterator[tuple[bytes, int]]:
    """Yields the words of count files in their order, each with the sum of its occurrences; reads one line of each."""
    word, total = b"", 0
    for line in heapq.merge(*map(_lines, paths)):  # A tab sorts before every character of a word.
        found, _, count = line.partition(b"\t")
        if found != word:
            if total:
                yield word, total
            word, total = found, 0
        total += int(count)
    if total:
        yield word, total


def _lines(path: str) -> Iterator[bytes]:
    with readable(path), open_file(path) as file:
        file.readline()
        yield from file


def most_frequent(path: str, max_distinct_words: int) -> tuple[dict[str, int], int, Counter[int]]:
    """Reads the words that occur most often, and of the words of one count all or none.

    Returns:
        (word -> count, in the order of the file; the largest count that was left out, or 0; how many words of each
        count were left out).
    """
    sizes = Counter(count for _, count in merge_counts([path]))
    kept, limit = sizes.total(), 0
    for count in sorted(sizes):
        if kept <= max_distinct_words:
            break
        limit = count
        kept -= sizes[count]
    counts = {word.decode("utf-8"): count for word, count in merge_counts([path]) if count > limit}
    return counts, limit, Counter({count: size for count, size in sizes.items() if count <= limit})
