"""Words of a context, where an answer stands in them, and the way back from WordPieces to the context's own text.

As google-research/bert has it (run_squad.py). Pure Python: no TensorFlow.
"""

import bisect
import functools
import re
from typing import NamedTuple

from keras_bert.normalizer import split_words

# run_squad.py, `is_whitespace`: with the narrow no-break blank U+202F, without U+00A0 and all others.
_find_words = re.compile("[^ \t\r\n\u202f]+").finditer


class Words(NamedTuple):
    """The words of a context: what stands between white space.

    Attributes:
        texts: list of str.
        starts: list of int, character of the context at which each word starts.
    """

    texts: list[str]
    starts: list[int]

    def join(self, first: int, last: int) -> str:
        """The words `first` to `last` (inclusive) with one blank between, whatever stood there."""
        return " ".join(self.texts[first : last + 1])


@functools.lru_cache(maxsize=16)  # The questions of a context follow each other.
def split_context(context: str) -> Words:
    """Splits a context into words.

    >>> split_context("Rollo  led\u202fthem.")
    Words(texts=['Rollo', 'led', 'them.'], starts=[0, 7, 11])
    """
    matches = list(_find_words(context))
    return Words([match[0] for match in matches], [match.start() for match in matches])


def find_answer(words: Words, context_length: int, text: str, start: int) -> tuple[int, int] | None:
    """Finds the words that hold an answer (run_squad.py: read_squad_examples).

    The words from the answer's first character to its last must hold its text, white space aside: half a word will do,
    and blanks of another kind will not.

    Args:
        words: of the context.
        context_length: characters of the context.
        text: the answer.
        start: character of the context at which the answer should start.

    Returns:
        The first and the last word (inclusive), or None if they do not hold the answer.
    """
    if not (text.strip() and 0 <= start <= context_length - len(text)):
        return None
    # A blank counts to the word before it.
    first, last = (bisect.bisect_right(words.starts, place) - 1 for place in (start, start + len(text) - 1))
    first = max(first, 0)
    return (first, last) if " ".join(text.split()) in words.join(first, last) else None


def join_pieces(pieces: list[str]) -> str:
    """Joins WordPieces to words, and words by blanks.

    >>> join_pieces(["steve", "smith", "##son", "'", "s"])
    "steve smithson ' s"
    """
    joined = " ".join(pieces).replace(" ##", "").replace("##", "")
    return " ".join(joined.split())


def project(predicted: str, original: str, lowercase: bool) -> str:
    """Finds the part of the original text that a normalized text stems from (run_squad.py: get_final_text).

    The original is normalized as a model's tokenizer does it, and the predicted text is looked for in that. If the
    original and its normalized form have equally many characters, blanks aside, they are aligned one to one.
    Otherwise, or if the text is not found, the whole original is the answer.

    Args:
        predicted: the answer's pieces, joined.
        original: the words that the answer's first and last token belong to, and those between.
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
    # Characters other than blanks before the text, and in it: the predicted text neither starts nor ends with a blank.
    before = start - normalized.count(" ", 0, start)
    count = len(predicted) - predicted.count(" ")
    return original[places[before] : places[before + count - 1] + 1] if count else original
