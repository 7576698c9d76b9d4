"""Chooses the WordPieces that shorten a text most when added to a vocabulary.

A candidate joins neighboring pieces of a word: the whole word, its beginning, its end or a part between. The candidate
that saves most tokens is taken first, then the one that saves most in addition to it, and so on. Savings are counted
with WordPiece's own rule, the longest match first, on all words that contain the candidate. So they are exact, and no
new piece makes one of these words unknown. Savings mostly shrink as other pieces are taken, so only the candidate with
the largest earlier saving is recounted (lazy greedy: Minoux, "Accelerated greedy algorithms for maximizing submodular
set functions", 1978).

2,000 pieces save 7.2% of the tokens of English manual pages and 36.1% of German ones. The first 2,000 new pieces of a
vocabulary trained on the domain save 6.3% and 34.1% (`benchmarks/adapt.py`). Joining the most frequent pair of old
pieces repeatedly lies between the two: it spends pieces on intermediate steps, such as "confi" on the way to "config".
"""

import heapq
import itertools
from collections import Counter, defaultdict
from typing import NamedTuple

from keras_bert.tokenization.normalizer import MAX_WORD_LENGTH
from keras_bert.tokenization.python_tokenizer import match_pieces
from keras_bert.vocabulary import MAX_PIECE_BYTES

_MIN_TIMES = 2  # Least occurrences of a new piece.
_MOST_PARTS = 10  # Most old pieces in a new one. Bounds the candidates in words such as hashes and links.


class NewPiece(NamedTuple):
    """A WordPiece to add.

    Attributes:
        piece: its text, with "##" if it does not begin a word.
        parts: the old pieces that it replaces.
        times: occurrences in the text when it is tokenized with all new pieces.
    """

    piece: str
    parts: list[str]
    times: int


def choose_pieces(counts: dict[str, int], vocabulary: list[str], num_pieces: int) -> list[NewPiece]:
    """Returns at most `num_pieces` new pieces that occur in the text, the one that saves most tokens first.

    Args:
        counts: word -> occurrences, the words as `keras_bert.tokenization.normalizer.split_words` returns them. Words
            that are [UNK] stay [UNK].
        vocabulary: the old pieces, in the order of their ids.
        num_pieces: maximum number of pieces to add.
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
            if is_useful:  # Another candidate may save more.
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
    return [piece for piece in new if piece.times]  # Longer new pieces may have replaced one everywhere.


def _candidates(split: dict, counts: dict[str, int], names: list[str]) -> tuple[dict[str, list[str]], Counter[str]]:
    """Returns the old pieces that each candidate joins, and the tokens that joining them would save."""
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
    """Adds a word to `words_of` of each candidate that longest match would use: longer than a piece, same start."""
    start, prefix = 0, ""
    for number in numbers:
        after = start + len(names[number].removeprefix(prefix))
        for end in range(after + 1, len(word) + 1):
            if (piece := prefix + word[start:end]) in candidates:
                words_of[piece].add(word)
        start, prefix = after, "##"
