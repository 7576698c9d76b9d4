"""Chooses the WordPieces that shorten a text most, beside those that a vocabulary has already.

A candidate is what neighboring pieces of a word spell: the whole word, a beginning, an end or a part of it. The one
that saves most tokens is taken, then the one that saves most beside it, and so on. What a candidate saves is counted by
WordPiece's own rule, the longest match first, on all words that hold it, so that the counts are exact and no piece
makes one of these words unknown. Savings mostly shrink as others are taken; so only the candidate that promises most is
counted anew (lazy greedy: Minoux, "Accelerated greedy algorithms for maximizing submodular set functions", 1978).

2,000 pieces save 7.2% of the tokens of English manual pages and 36.1% of German ones; those that a vocabulary of the
domain's own holds first, 6.3% and 34.1% (`benchmarks/adapt.py`). Joining the most frequent pair of old pieces again and
again comes between the two, and spends pieces on "confi", on the way to "config", which the text needs no more.
"""

import heapq
import itertools
from collections import Counter, defaultdict
from typing import NamedTuple

from keras_bert.tokenization.normalizer import MAX_WORD_LENGTH
from keras_bert.tokenization.python_tokenizer import match_pieces
from keras_bert.vocabulary import MAX_PIECE_BYTES

_MIN_TIMES = 2  # Occurrences of a piece.
_MOST_PARTS = 10  # Old pieces of a new one: bounds the candidates of words such as hashes and links.


class NewPiece(NamedTuple):
    """A WordPiece to add.

    Attributes:
        piece: its text, with "##" if it does not begin a word.
        parts: the old pieces that it replaces.
        times: occurrences in the text, once all new pieces are there.
    """

    piece: str
    parts: list[str]
    times: int


def choose_pieces(counts: dict[str, int], vocabulary: list[str], num_pieces: int) -> list[NewPiece]:
    """Returns at most `num_pieces` new pieces, each of which occurs in the text, in the order of what they save.

    Args:
        counts: word -> occurrences, the words as `keras_bert.tokenization.normalizer.split_words` gives them. Words
            that are [UNK] stay so.
        vocabulary: the pieces that are there.
        num_pieces: how many to add.
    """
    names = list(vocabulary)
    ids = {piece: number for number, piece in enumerate(names)}
    words = [(word, match_pieces(word, ids, MAX_WORD_LENGTH)) for word in counts]
    split = {word: numbers for word, numbers in words if numbers is not None and len(numbers) > 1}
    parts_of, promised = _candidates(split, counts, names)
    words_of = defaultdict(set)
    for word, numbers in split.items():
        _index(word, numbers, names, promised, words_of)
    queue = [(-saved, piece) for piece, saved in promised.items()]
    heapq.heapify(queue)
    while queue and len(names) < len(vocabulary) + num_pieces:
        _, piece = heapq.heappop(queue)
        ids[piece] = len(names)
        matched = {word: match_pieces(word, ids, MAX_WORD_LENGTH) for word in words_of[piece]}
        fewer = {word: len(split[word]) - len(numbers or split[word]) for word, numbers in matched.items()}
        saved = sum(counts[word] * tokens for word, tokens in fewer.items())
        times = sum(counts[word] for word, tokens in fewer.items() if tokens > 0)
        is_useful = None not in matched.values() and saved > 0 and times >= _MIN_TIMES
        if not is_useful or (queue and saved < -queue[0][0]):
            del ids[piece]
            if is_useful:  # Others promise more by now.
                heapq.heappush(queue, (-saved, piece))
            continue
        names.append(piece)
        for word, numbers in matched.items():
            if numbers != split[word]:
                split[word] = numbers
                _index(word, numbers, names, promised, words_of)
    occurrences = Counter()
    for word, numbers in split.items():
        for number in numbers:
            occurrences[names[number]] += counts[word]
    new = (NewPiece(piece, parts_of[piece], occurrences[piece]) for piece in names[len(vocabulary) :])
    return [piece for piece in new if piece.times]  # Longer ones may have replaced it everywhere.


def _candidates(split: dict, counts: dict[str, int], names: list[str]) -> tuple[dict[str, list[str]], Counter[str]]:
    """Returns the old pieces of each candidate, and the tokens that it would save where these stand now."""
    parts_of, promised = {}, Counter()
    for word, numbers in split.items():
        old_pieces = [names[number] for number in numbers]
        for start, end in itertools.combinations(range(len(old_pieces) + 1), 2):
            if 1 < end - start <= _MOST_PARTS:
                piece = old_pieces[start] + "".join(part.removeprefix("##") for part in old_pieces[start + 1 : end])
                if len(piece.removeprefix("##").encode()) <= MAX_PIECE_BYTES:
                    parts_of[piece] = old_pieces[start:end]
                    promised[piece] += counts[word] * (end - start - 1)
    return parts_of, promised


def _index(word: str, numbers: tuple[int, ...], names: list[str], candidates: Counter, words_of: dict) -> None:
    """Notes the candidates that the longest match would take in a word: longer than a piece of it, from its start."""
    start, prefix = 0, ""
    for number in numbers:
        after = start + len(names[number].removeprefix(prefix))
        for end in range(after + 1, len(word) + 1):
            if (piece := prefix + word[start:end]) in candidates:
                words_of[piece].add(word)
        start, prefix = after, "##"
