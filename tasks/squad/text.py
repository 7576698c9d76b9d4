"""Finds the words of a context, the words of an answer, and the original text of WordPieces.

Source: google-research/bert, run_squad.py. This module does not import TensorFlow.
"""

import bisect
import functools
import re
from typing import NamedTuple

from keras_bert.tokenization.normalizer import split_words

# The white space of run_squad.py:232, which includes the narrow no-break space U+202F but not U+00A0.
_find_words = re.compile("[^ \t\r\n\u202f]+").finditer


class Words(NamedTuple):
    """The words of a context, separated by white space.

    Attributes:
        texts: list of str.
        starts: list of int, offset of each word in the context, in characters.
    """

    texts: list[str]
    starts: list[int]

    def join(self, first: int, last: int) -> str:
        """Joins the words `first` to `last` (inclusive) with single spaces."""
        return " ".join(self.texts[first : last + 1])


@functools.lru_cache(maxsize=16)  # Questions about the same context are consecutive.
def split_context(context: str) -> Words:
    """Splits a context into words.

    >>> split_context("Rollo  led\u202fthem.")
    Words(texts=['Rollo', 'led', 'them.'], starts=[0, 7, 11])
    """
    matches = list(_find_words(context))
    return Words([match[0] for match in matches], [match.start() for match in matches])


def find_answer(words: Words, context_length: int, text: str, start: int) -> tuple[int, int] | None:
    """Finds the words that contain an answer (run_squad.py:266-286).

    These are the words from the answer's first character to its last. They must contain its text after white space is
    reduced to single spaces. The answer may start or end within a word.

    Args:
        words: words of the context.
        context_length: number of characters of the context.
        text: the answer.
        start: offset of the answer in the context, in characters.

    Returns:
        First and last word (inclusive), or None if they do not contain the answer.
    """
    if not (text.strip() and 0 <= start <= context_length - len(text)):
        return None
    # White space belongs to the word before it.
    first, last = (bisect.bisect_right(words.starts, offset) - 1 for offset in (start, start + len(text) - 1))
    first = max(first, 0)
    return (first, last) if " ".join(text.split()) in words.join(first, last) else None


def join_pieces(pieces: list[str]) -> str:
    """Joins WordPieces into words separated by single spaces.

    >>> join_pieces(["steve", "smith", "##son", "'", "s"])
    "steve smithson ' s"
    """
    joined = " ".join(pieces).replace(" ##", "").replace("##", "")
    return " ".join(joined.split())


def project(predicted: str, original: str, lowercase: bool) -> str:
    """Finds the part of the original text that corresponds to a normalized text (run_squad.py:927-1020).

    Normalizes the original as the model's tokenizer does, and looks for the predicted text in it. If the original and
    its normalized form have the same number of characters other than spaces, these are aligned one to one. If not, or
    if the text is not found, the whole original is the answer.

    Args:
        predicted: joined pieces of the answer.
        original: the words from the answer's first token to its last.
        lowercase: whether the model's tokenizer lowercases.

    Returns:
        A part of `original`.

    >>> project("steve smith", "Steve Smith's", lowercase=True)
    'Steve Smith'
    """
    normalized = " ".join(split_words(original, lowercase))
    start = normalized.find(predicted)
    if start < 0:
        return original
    offsets = [offset for offset, char in enumerate(original) if char != " "]
    if len(offsets) != len(normalized) - normalized.count(" "):
        return original
    # Count the characters other than spaces before the text and in it. The text neither starts nor ends with a space.
    before = start - normalized.count(" ", 0, start)
    count = len(predicted) - predicted.count(" ")
    return original[offsets[before] : offsets[before + count - 1] + 1] if count else original
