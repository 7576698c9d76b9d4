"""Texts and tagged words as encoder sequences that lose nothing: tokens, their places, and windows over long sentences.

Shapes: N rows (texts, or sentences), R sequences, T tokens of all sequences, U tokens that are kept, W words.
"""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import read_lines
from tasks.fine_tuning.examples import Examples, join_rows
from tasks.text.bad_rows import BadRows
from tasks.text.conll import Documents
from tasks.text.word_windows import SPECIAL_TOKENS

PAIR = re.compile(r"^(.*) \|\|\| (.*)$")  # google-research/bert extract_features.py: read_examples


class Row(NamedTuple):
    """A text or a sentence.

    Attributes:
        index: its number in the input, over all files, from 0; rows that are left out count.
        where: "path:line", for messages.
        texts: one text, or two.
        words: the words of a sentence, in place of texts; or None.
    """

    index: int
    where: str
    texts: tuple[str, ...] = ()
    words: list[str] | None = None


class Encoded(NamedTuple):
    """The encoder sequences of N rows, and which of their tokens make up the rows.

    A row that is too long for one sequence becomes several that overlap; each keeps its middle.

    Attributes:
        examples: R sequences.
        kept: int64, shape (U,): places in `examples.token_ids`, row by row.
        row_splits: int64, shape (N + 1,): row i is `kept[row_splits[i] : row_splits[i + 1]]`.
        starts, ends: int32, shape (U,): the characters a token stems from, [start, end), in its own text of the row;
            0, 0 for special tokens. A sentence's text is its words with one blank between them.
        word_starts: int32, shape (W,): place of each word's first token within its row; empty for texts.
        word_splits: int64, shape (N + 1,).
        num_cut: rows that lost tokens at their end.
    """

    examples: Examples
    kept: np.ndarray
    row_splits: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    word_starts: np.ndarray
    word_splits: np.ndarray
    num_cut: int


# === Files ===


def read_texts(paths: Sequence[str], bad_rows: BadRows | None) -> Iterator[Row]:
    """Yields the texts of files, one a line; `a ||| b` is a pair, as in google-research/bert's extract_features.py.

    Args:
        paths: the files, UTF-8.
        bad_rows: collects empty lines, which are left out, but count in `index`; None: they were reported before.

    Raises:
        InputError: a file cannot be read twice, or is not UTF-8; at its end, if `bad_rows` refuses one of its lines.
    """
    index = 0
    for path in paths:
        if not os.path.isfile(path):  # A pipe would be empty when it is read for the second time.
            raise InputError(f"{path}: expected a regular file, since it is read twice. Save it to one first.")
        for line, text in read_lines(path):
            text = text.strip()
            if text:
                pair = PAIR.match(text)
                yield Row(index, f"{path}:{line}", pair.groups() if pair else (text,))
            elif bad_rows is not None:
                bad_rows.add(f"{path}:{line}", "the line is empty. Expected a text; remove the line or fill it.")
            index += 1
        if bad_rows is not None:
            bad_rows.finish()


def count_texts(paths: Sequence[str], bad_rows: BadRows) -> int:
    """Reads all texts once and counts them, so that bad rows are known before any work begins.

    Raises:
        InputError: as `read_texts`, or there is no text.
    """
    count = sum(1 for _ in read_texts(paths, bad_rows))
    if not count:
        raise InputError(f"{', '.join(paths)}: no texts. Expected one a line.")
    return count


def sentence_rows(documents: Documents, first_index: int = 0) -> list[Row]:
    """Makes a row of each sentence."""
    columns = zip(documents.split(documents.lines), documents.split(documents.tokens), strict=True)
    return [
        Row(first_index + number, f"{documents.path}:{lines[0]}", words=words)
        for number, (lines, words) in enumerate(columns)
    ]


def batches_of(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Yields the rows in lists of `size`, the last one shorter."""
    rows = iter(rows)
    while batch := list(itertools.islice(rows, size)):
        yield batch


# === Sequences ===


def encode_rows(rows: Sequence[Row], tokenizer, max_seq_length: int) -> Encoded:
    """Turns rows into sequences of at most `max_seq_length` tokens.

    Texts are cut at the end, of a pair the longer one first (google-research/bert). Sentences of words are never cut:
    they become several windows.

    Args:
        rows: all with texts, or all with words.
        tokenizer: BertTokenizer.
        max_seq_length: at least 4, special tokens included.
    """
    if rows[0].words is not None:
        sentences, word_starts = _tokenize_words([row.words for row in rows], tokenizer)
        windows = [_lay_windows(sentence, tokenizer, max_seq_length) for sentence in sentences]
        return _join(windows, word_starts, [len(row.words) for row in rows], num_cut=0)
    tokens = _tokenize([text for row in rows for text in row.texts], tokenizer)
    windows, num_cut = [], 0
    for row in rows:
        parts = [next(tokens) for _ in row.texts]
        lengths = [part.shape[1] for part in parts]
        limits = _fit(lengths, max_seq_length)
        num_cut += any(length > limit for length, limit in zip(lengths, limits, strict=True))
        packed = _pack([part[:, :limit] for part, limit in zip(parts, limits, strict=True)], tokenizer)
        windows.append([_Window(packed, 0, packed.shape[1])])
    return _join(windows, [], [0] * len(rows), num_cut)


def _tokenize(texts: Sequence[str], tokenizer) -> Iterator[np.ndarray]:
    """Yields the tokens of each text: int32, shape (3, tokens), rows `id start end`."""
    columns = tokenizer.tokenize_with_offsets(list(texts))
    values = np.stack([np.asarray(column.values, np.int32) for column in columns])
    for start, stop in itertools.pairwise(columns[0].row_splits.numpy()):
        yield values[:, start:stop]


def _tokenize_words(sentences: Sequence[Sequence[str]], tokenizer) -> tuple[list[np.ndarray], list[int]]:
    """Tokenizes word by word; a word that vanishes, such as a control character, is [UNK], so that none is lost.

    Returns:
        (the tokens of each sentence as by `_tokenize`; the place of each word's first token in its sequence,
        behind [CLS]).
    """
    tokens = _tokenize([word for sentence in sentences for word in sentence], tokenizer)
    joined, word_starts = [], []
    for sentence in sentences:
        pieces, place, character = [], 1, 0
        for word in sentence:
            piece = next(tokens)
            if not piece.size:
                piece = np.array([[tokenizer.token_to_id("[UNK]")], [0], [len(word)]], np.int32)
            pieces.append(piece + np.array([[0], [character], [character]], np.int32))
            word_starts.append(place)
            place += piece.shape[1]
            character += len(word) + 1
        joined.append(np.concatenate(pieces, axis=1))
    return joined, word_starts


class _Window(NamedTuple):
    """A sequence, int32, shape (4, S), rows `id start end segment`, of which its row keeps [kept_start, kept_stop)."""

    tokens: np.ndarray
    kept_start: int
    kept_stop: int


def _fit(lengths: Sequence[int], max_seq_length: int) -> list[int]:
    """Returns how many tokens of each text stay; of a pair the longer one loses first, and the second of equals.

    `BertPreprocessor` does the same in the graph; a test compares them.
    """
    limit = max_seq_length - 1 - len(lengths)
    if len(lengths) == 1:
        return [limit]
    first = min(lengths[0], max(-(-limit // 2), limit - lengths[1]))
    return [first, min(lengths[1], limit - first)]


def _pack(parts: Sequence[np.ndarray], tokenizer) -> np.ndarray:
    """Joins texts to [CLS] a [SEP], or [CLS] a [SEP] b [SEP]: int32, shape (4, S), as in `_Window`."""
    pieces = [[[tokenizer.cls_token_id], [0], [0], [0]]]
    for segment, part in enumerate(parts):
        pieces.append(np.vstack([part, np.full(part.shape[1], segment)]))
        pieces.append([[tokenizer.sep_token_id], [0], [0], [segment]])
    return np.concatenate(pieces, axis=1).astype(np.int32)


def window_spans(num_tokens: int, size: int) -> list[tuple[int, int, int, int]]:
    """Lays windows over a text, half overlapping, so that every token is kept where it has most context.

    Returns:
        (start, stop, kept_start, kept_stop) of each: the kept spans follow one another and cover the text.

    >>> window_spans(10, 8)
    [(0, 8, 0, 5), (2, 10, 5, 10)]
    """
    last = max(num_tokens - size, 0)
    starts = [*range(0, last, max(size // 2, 1)), last]
    stops = [min(start + size, num_tokens) for start in starts]
    borders = [(start + stop) // 2 for start, stop in zip(starts[1:], stops, strict=False)]
    return list(zip(starts, stops, [0, *borders], [*borders, num_tokens], strict=True))


def _lay_windows(tokens: np.ndarray, tokenizer, max_seq_length: int) -> list[_Window]:
    """Lays windows over one sentence; [CLS] of the first and [SEP] of the last are kept too."""
    count = tokens.shape[1]
    return [
        _Window(
            _pack([tokens[:, start:stop]], tokenizer),
            0 if kept_start == 0 else kept_start - start + 1,
            kept_stop - start + (SPECIAL_TOKENS if kept_stop == count else 1),
        )
        for start, stop, kept_start, kept_stop in window_spans(count, max_seq_length - SPECIAL_TOKENS)
    ]


def _join(
    windows_of_rows: Sequence[Sequence[_Window]], word_starts: Sequence[int], word_counts: Sequence[int], num_cut: int
) -> Encoded:
    windows = [window for row in windows_of_rows for window in row]
    token_ids, starts, ends, segment_ids = np.concatenate([window.tokens for window in windows], axis=1)
    splits = _splits([window.tokens.shape[1] for window in windows])
    spans = (np.arange(*window[1:]) + split for window, split in zip(windows, splits, strict=False))
    kept, _ = join_rows(spans, np.int64)
    row_splits = _splits([sum(window.kept_stop - window.kept_start for window in row) for row in windows_of_rows])
    examples = Examples(token_ids, segment_ids, splits)
    word_starts = np.array(word_starts, np.int32)
    return Encoded(examples, kept, row_splits, starts[kept], ends[kept], word_starts, _splits(word_counts), num_cut)


def _splits(lengths: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.int64)


# === Words of whole documents ===


class EncodedWords(NamedTuple):
    """Sequences whose tokens hold the words of a file.

    Attributes:
        examples: R sequences.
        places: int64, shape (W,), rising: the place in `examples.token_ids` of each word's first token.
        sentence_lengths: int64, shape (N,): tokens of each sentence, with [CLS] and [SEP].
    """

    examples: Examples
    places: np.ndarray
    sentence_lengths: np.ndarray


def encode_words(documents: Documents, tokenizer, max_seq_length: int, document_context: bool) -> EncodedWords:
    """Turns tagged sentences into sequences for word features.

    Args:
        documents: the sentences.
        tokenizer: BertTokenizer.
        max_seq_length: at least 4, special tokens included.
        document_context: whether windows run over whole documents, so that each word has the context of the
            neighbouring sentences (paper, section 5.3). A file without -DOCSTART- lines is one document.
    """
    limits = documents.sentence_splits[documents.document_splits] if document_context else documents.sentence_splits
    rows = [
        Row(number, documents.path, words=documents.tokens[start:stop])
        for number, (start, stop) in enumerate(itertools.pairwise(limits))
    ]
    encoded = encode_rows(rows, tokenizer, max_seq_length)
    firsts = np.repeat(encoded.row_splits[:-1], np.diff(encoded.word_splits)) + encoded.word_starts
    ends = np.append(firsts[1:], 0)
    ends[encoded.word_splits[1:] - 1] = encoded.row_splits[1:] - 1  # [SEP] follows a row's last word.
    lengths = np.add.reduceat(ends - firsts, documents.sentence_splits[:-1]) + SPECIAL_TOKENS
    return EncodedWords(encoded.examples, encoded.kept[firsts], lengths)
