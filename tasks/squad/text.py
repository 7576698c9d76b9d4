"""Words of a context, the place of an answer in them, and the way back from WordPieces to the context's own text.

As google-research/bert has it (run_squad.py). No TensorFlow here.
"""

import bisect
import functools
import re
from typing import NamedTuple

from keras_bert.tokenization.normalizer import split_words

# White space to run_squad.py:232 are these alone: the narrow no-break space U+202F is among them, U+00A0 is not.
_find_words = re.compile("[^ \t\r\n\u202f]+").finditer


class Words(NamedTuple):
    """The words of a context, which white space separates.

    Attributes:
        texts: list of str.
        starts: list of int, character of the context at which each word starts.
    """

    texts: list[str]
    starts: list[int]

    def join(self, first: int, last: int) -> str:
        """Joins the words `first` to `last` (inclusive) by a single space, whatever separated them."""
        return " ".join(self.texts[first : last + 1])


@functools.lru_cache(maxsize=16)  # Questions about one context come one after the other.
def split_context(context: str) -> Words:
    """Splits a context into words.

    >>> split_context("Rollo  led\u202fthem.")
    Words(texts=['Rollo', 'led', 'them.'], starts=[0, 7, 11])
    """
    matches = list(_find_words(context))
    return Words([match[0] for match in matches], [match.start() for match in matches])


def find_answer(words: Words, context_length: int, text: str, start: int) -> tuple[int, int] | None:
    """Finds the words that hold an answer (run_squad.py:266-286).

    They are the words from the answer's first character to its last, and must contain its text once white space is
    reduced to single spaces. The answer may start or end within a word.

    Args:
        words: of the context.
        context_length: characters of the context.
        text: the answer.
        start: character of the context at which the answer should start.

    Returns:
        First and last word (inclusive), or None if they do not hold the answer.
    """
    if not (text.strip() and 0 <= start <= context_length - len(text)):
        return None
    # White space belongs to the word before it.
    first, last = (bisect.bisect_right(words.starts, place) - 1 for place in (start, start + len(text) - 1))
    first = max(first, 0)
    return (first, last) if " ".join(text.split()) in words.join(first, last) else None


def join_pieces(pieces: list[str]) -> str:
    """Joins WordPieces to words, with single spaces between.

    >>> join_pieces(["steve", "smith", "##son", "'", "s"])
    "steve smithson ' s"
    """
    joined = " ".join(pieces).replace(" ##", "").replace("##", "")
    return " ".join(joined.split())


def project(predicted: str, original: str, lowercase: bool) -> str:
    """Finds the part of the original text that a normalized text stems from (run_squad.py:927-1020).

    The predicted text is searched for in the original, normalized as the model's tokenizer does it. If the original and
    its normalized form have equally many characters other than spaces, they are aligned one to one. If not, or if the
    text is not found, the whole original is the answer.

    Args:
        predicted: the answer's pieces, joined.
        original: the words from the answer's first token to its last.
        lowercase: bool, whether the model's tokenizer lower-cases.

    Returns:
        A part of `original`.

    >>> project("steve smith", "Steve Smith's", lowercase=True)
    'Steve Smith'
    """
    normalized = " ".join(split_words(original, lowercase))
    start = normalized.find(predicted)
    if start < 0:
        return original
    places = [place for place, char in enumerate(original) if char != " "]
    if len(places) != len(normalized) - normalized.count(" "):
        return original
    # Characters other than spaces: those before the text, then those in it, which neither starts nor ends with one.
    before = start - normalized.count(" ", 0, start)
    count = len(predicted) - predicted.count(" ")
    return original[places[before] : places[before + count - 1] + 1] if count else original
