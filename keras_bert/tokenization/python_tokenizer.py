"""PythonBertTokenizer: the ids and offsets of `BertTokenizer`, without TensorFlow and tensorflow-text.

It serves platforms that have no wheel of tensorflow-text, and worker processes that create data. It splits a text at
white space into chunks and caches the ids of each chunk, since most chunks of a text occur many times.
"""

import functools
import itertools
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping

from keras_bert.tokenization import normalizer
from keras_bert.vocabulary import SPECIAL_TOKENS, TOKEN_OF, VocabularyLookup, read_vocabulary

_REMEMBERED = 1 << 16  # Strings, in about 20 MB. 5 MB of English have 909,019 chunks, 44,056 of them different.
_LONGEST_REMEMBERED = 32  # Characters; longer chunks rarely occur again (Chinese clauses, links).

# `str.split` takes these for white space, but the rules delete them: vertical tab, form feed, separators, next line.
_FALSE_BLANKS = "".join(c for c in map(chr, range(0x100)) if c.isspace() and normalizer.vanishes(c))
_HAS_FALSE_BLANK = re.compile(f"[{re.escape(_FALSE_BLANKS)}]").search
_DROP_FALSE_BLANKS = dict.fromkeys(map(ord, _FALSE_BLANKS))
_SPLIT_AT_SPECIAL_TOKENS = re.compile(f"({'|'.join(map(re.escape, SPECIAL_TOKENS))})").split
_CHUNKS = re.compile(rf"[\S{re.escape(_FALSE_BLANKS)}]+").finditer


class _Memory(dict):
    """Caches the results of `make` for a bounded number of short strings."""

    def __init__(self, make: Callable[[str], tuple], most: int):
        super().__init__()
        self._make, self._most = make, most

    def __missing__(self, text: str) -> tuple:
        made = self._make(text)
        if len(text) <= _LONGEST_REMEMBERED:
            if len(self) >= self._most:
                self.clear()
            self[text] = made
        return made


class PythonBertTokenizer(VocabularyLookup):
    """Splits text into WordPieces and looks up their ids, in Python alone.

    Ids are those of google-research/bert's `FullTokenizer`, and of `keras_bert.BertTokenizer`, on every text. No
    special token is added.

    Args:
        vocabulary: path of a file with one piece per line (the line number, from 0, is the id), or list of the pieces.
        lowercase, special_tokens_in_strings: as in `keras_bert.BertTokenizer`.
        most_remembered: limit on the strings in each cache.

    Raises:
        InputError: as `keras_bert.vocabulary.read_vocabulary`.

    >>> tokenizer = PythonBertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hell", "##o", ","])
    >>> tokenizer.tokenize("Hello, h\u00e9llo")
    [5, 6, 7, 5, 6]
    >>> tokenizer.tokenize_with_offsets("Hello, h\u00e9llo")
    ([5, 6, 7, 5, 6], [0, 4, 5, 7, 11], [4, 5, 6, 11, 12])
    """

    def __init__(
        self,
        vocabulary: str | os.PathLike | list[str],
        lowercase: bool | None = None,
        special_tokens_in_strings: bool = False,
        most_remembered: int = _REMEMBERED,
    ):
        self.set_pieces(read_vocabulary(vocabulary, lowercase), lowercase)
        self.special_tokens_in_strings = special_tokens_in_strings
        self._lengths = [len(piece.removeprefix("##")) for piece in self.vocabulary]
        for name, token in TOKEN_OF.items():
            setattr(self, name, token)
            setattr(self, f"{name}_id", self._ids[token])
        self._longest = max(self._lengths)
        self._ids_of_word = _Memory(self._match, most_remembered)
        self._ids_of_chunk = _Memory(self._tokenize_chunk, most_remembered)
        self._spans_of_chunk = _Memory(self._span_chunk, most_remembered)

    @classmethod
    def of(cls, tokenizer) -> "PythonBertTokenizer":
        """Returns the tokenizer with the vocabulary and settings of a `keras_bert.BertTokenizer`."""
        return cls(tokenizer.get_vocabulary(), tokenizer.lowercase, tokenizer.special_tokens_in_strings)

    def __reduce__(self):
        # Without the caches: a worker process fills its own.
        return type(self), (self.vocabulary, self.lowercase, self.special_tokens_in_strings)

    def tokenize(self, text: str | bytes) -> list[int]:
        """Tokenizes one text.

        Args:
            text: str, or UTF-8 bytes, whose invalid parts are ignored.

        Returns:
            list of int, the ids.

        Raises:
            ValueError: `text` is neither str nor bytes.
        """
        text = _as_text(text)
        if not self.special_tokens_in_strings:
            return self._tokenize_plain(text)
        ids = []
        for number, part in enumerate(_SPLIT_AT_SPECIAL_TOKENS(text)):
            ids += [self._ids[part]] if number % 2 else self._tokenize_plain(part)
        return ids

    def tokenize_with_offsets(self, text: str | bytes) -> tuple[list[int], ...]:
        """Tokenizes one text, and finds each token's place in it.

        A token covers the characters it stems from, and those directly after them that vanish: control characters and
        stripped accents. [UNK] covers its whole word.

        Args:
            text: as for `tokenize`.

        Returns:
            Three lists of int of the same length: ids, starts, ends (exclusive). Places count characters, of bytes only
            the valid ones.

        Raises:
            ValueError: `text` is neither str nor bytes.
        """
        ids, starts, ends = [], [], []
        for base, spans in self._spans(_as_text(text)):
            for number, start, end in spans:
                ids.append(number)
                starts.append(base + start)
                ends.append(base + end)
        return ids, starts, ends

    # === Parts of a text ===

    def _tokenize_plain(self, text: str) -> list[int]:
        if not text.isprintable() and _HAS_FALSE_BLANK(text):
            text = text.translate(_DROP_FALSE_BLANKS)
        return list(itertools.chain.from_iterable(map(self._ids_of_chunk.__getitem__, text.split())))

    def _spans(self, text: str) -> Iterator[tuple[int, Iterable[tuple[int, int, int]]]]:
        """Yields the start of each chunk or special token, and its tokens as `_span_chunk` does."""
        parts, base = _SPLIT_AT_SPECIAL_TOKENS(text) if self.special_tokens_in_strings else [text], 0
        for number, part in enumerate(parts):
            if number % 2:
                yield base, [(self._ids[part], 0, len(part))]
            else:
                yield from ((base + chunk.start(), self._spans_of_chunk[chunk[0]]) for chunk in _CHUNKS(part))
            base += len(part)

    # === Words and pieces ===

    def _tokenize_chunk(self, chunk: str) -> tuple[int, ...]:
        words = normalizer.split_words(chunk, self.lowercase)
        return tuple(itertools.chain.from_iterable(map(self._ids_of_word.__getitem__, words)))

    def _match(self, word: str) -> tuple[int, ...]:
        numbers = match_pieces(word, self._ids, self._longest)
        return (self.unk_token_id,) if numbers is None else numbers

    def _span_chunk(self, chunk: str) -> tuple[tuple[int, int, int], ...]:
        """Returns the tokens of a chunk as (id, start, end), counted in its characters."""
        origins = _origins(chunk, self.lowercase)
        spans, at = [], 0
        for word in normalizer.split_words(chunk, self.lowercase):
            for number in self._ids_of_word[word]:
                length = len(word) if number == self.unk_token_id else self._lengths[number]
                covered = origins[at : at + length]
                end = max(covered) + 1
                while end < len(chunk) and not any(kept for _, kept in _marks(chunk[end], self.lowercase)):
                    end += 1
                spans.append((number, min(covered), end))
                at += length
        return tuple(spans)


def match_pieces(word: str, ids: Mapping[str, int], longest: int) -> tuple[int, ...] | None:
    """Matches the longest piece first (google-research/bert, tokenization.py, `WordpieceTokenizer`).

    Args:
        word: a word from `keras_bert.tokenization.normalizer.split_words`.
        ids: the id of each piece.
        longest: number of characters of the longest piece, without `##`.

    Returns:
        The pieces' ids; None for a word that is too long, or that the pieces do not cover.
    """
    if len(word) > normalizer.MAX_WORD_LENGTH:
        return None
    numbers, start, prefix = [], 0, ""
    while start < len(word):
        for end in range(min(len(word), start + longest), start, -1):
            number = ids.get(prefix + word[start:end])
            if number is not None:
                break
        else:
            return None
        numbers.append(number)
        start, prefix = end, "##"
    return tuple(numbers)


def _as_text(text: str | bytes) -> str:
    if not isinstance(text, str | bytes):
        raise ValueError(f"`text` must be str or bytes. Received: {text!r} (of type {type(text).__name__})")
    return text if isinstance(text, str) else text.decode("utf-8", "ignore")


# === Offsets ===


@functools.lru_cache(maxsize=_REMEMBERED)
def _marks(char: str, lowercase: bool) -> tuple[tuple[int, bool], ...]:
    """Returns, for each part of a non-blank character's decomposition, its combining class and whether it is kept."""
    if normalizer.vanishes(char):
        return ()
    if not lowercase:
        return ((0, True),)
    decomposition = unicodedata.normalize("NFD", char.lower())
    return tuple((unicodedata.combining(part), unicodedata.category(part) != "Mn") for part in decomposition)


def _origins(chunk: str, lowercase: bool) -> list[int]:
    """Returns, for each character of the chunk's words, the index in `chunk` of the character it comes from."""
    marks = [(index, order, kept) for index, char in enumerate(chunk) for order, kept in _marks(char, lowercase)]
    if any(order and kept for _, order, kept in marks):
        # NFD's canonical order: marks by class, up to the next character of class 0.
        runs = itertools.accumulate(order == 0 for _, order, _ in marks)
        in_order = sorted(zip(runs, marks, strict=True), key=lambda item: (item[0], item[1][1]))
        marks = [mark for _, mark in in_order]
    return [index for index, _, kept in marks if kept]
