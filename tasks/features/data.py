"""Texts and tagged words as encoder sequences that lose nothing: tokens, where they stand, and windows over long ones.

Shapes: N rows (texts, or sentences), R sequences, T tokens of all sequences, U tokens that are kept, W words.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import read_lines
from tasks.bad_rows import BadRows
from tasks.conll import Documents
from tasks.examples import Examples, join_rows

PAIR = re.compile(r"^(.*) \|\|\| (.*)$")  # google-research/bert extract_features.py: read_examples
NUM_SPECIALS = 2  # [CLS] and [SEP] around a window.


class Row(NamedTuple):
    """A text or a sentence.

    Attributes:
        index: its number in the input, over all files, from 0; rows that are left out count.
        where: "path:line", for messages.
        texts: one text, or two.
        words: the words of a sentence, in the place of texts; or None.
    """

    index: int
    where: str
    texts: tuple[str, ...] = ()
    words: list[str] | None = None


class Encoded(NamedTuple):
    """The sequences of N rows for the encoder, and which of their tokens make up the rows.

    A row that is too long for one sequence is a series of overlapping ones, of which each keeps its middle.

    Attributes:
        examples: R sequences.
        kept: int64, shape (U,): places in `examples.token_ids`, row by row.
        row_splits: int64, shape (N + 1,): row i is `kept[row_splits[i] : row_splits[i + 1]]`.
        starts, ends: int32, shape (U,): the characters a token stems from, [start, end), in its own text of the row;
            those of special tokens are 0, 0. A sentence's text is its words with one blank between.
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
        bad_rows: collects empty lines, which are left out, but count in `index`; None: they are known already.

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
    """Reads all texts once and counts them, so that what is wrong with them is known before any work begins.

    Raises:
        InputError: as `read_texts`, or there is no text.
    """
    count = sum(1 for _ in read_texts(paths, bad_rows))
    if not count:
        raise InputError(f"{', '.join(paths)}: no texts. Expected one a line.")
    return count


def sentence_rows(documents: Documents, first_index: int = 0) -> list[Row]:
    """Makes a row of each sentence."""
    firsts = documents.sentence_splits[:-1]
    return [
        Row(first_index + number, f"{documents.path}:{documents.lines[first]}", words=words)
        for number, (first, words) in enumerate(zip(firsts, documents.split(documents.tokens), strict=True))
    ]


def batches_of(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Yields the rows in lists of `size`, the last one shorter."""
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


# === Tokens ===


class _Tokens(NamedTuple):
    """Ids of a text, and the characters they stem from: int32 arrays of one length."""

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    def cut(self, length: int) -> "_Tokens":
        return _Tokens(*(array[:length] for array in self))


def encode_rows(rows: Sequence[Row], tokenizer, max_seq_length: int) -> Encoded:
    """Turns rows into sequences of at most `max_seq_length` tokens.

    Texts are cut at the end, of a pair the longer one first (google-research/bert); sentences of words never are:
    they become several windows.

    Args:
        rows: all with texts, or all with words.
        tokenizer: BertTokenizer.
        max_seq_length: at least 4, special tokens included.
    """
    if rows[0].words is not None:
        units, word_starts, word_splits = _tokenize_words([row.words for row in rows], tokenizer)
        windows = [_windows(unit, tokenizer, max_seq_length) for unit in units]
        return _join(windows, np.concatenate(word_starts), word_splits, 0)
    tokens = _tokenize([text for row in rows for text in row.texts], tokenizer)
    windows, num_cut = [], 0
    for row in rows:
        parts = [next(tokens) for _ in row.texts]
        limits = _fit([len(part.ids) for part in parts], max_seq_length)
        num_cut += any(len(part.ids) > limit for part, limit in zip(parts, limits, strict=True))
        windows.append([_pack([part.cut(limit) for part, limit in zip(parts, limits, strict=True)], tokenizer)])
    return _join(windows, np.empty(0, np.int32), np.zeros(len(rows) + 1, np.int64), num_cut)


def _tokenize(texts: Sequence[str], tokenizer) -> Iterator[_Tokens]:
    ids, starts, ends = tokenizer.tokenize_with_offsets(list(texts))
    splits = ids.row_splits.numpy()
    values = [np.asarray(column.values, np.int32) for column in (ids, starts, ends)]
    for start, stop in zip(splits, splits[1:], strict=False):
        yield _Tokens(*(column[start:stop] for column in values))


def _tokenize_words(
    sentences: Sequence[Sequence[str]], tokenizer
) -> tuple[list[_Tokens], list[np.ndarray], np.ndarray]:
    """Tokenizes each word by itself; one that leaves nothing (a control character) is [UNK], so that none is lost.

    Returns:
        The tokens of each sentence; the places of its words' first tokens, behind a [CLS]; the splits of the words.
    """
    words = _tokenize([word for sentence in sentences for word in sentence], tokenizer)
    units, word_starts = [], []
    for sentence in sentences:
        pieces, character = [], 0
        for word in sentence:
            found = next(words)
            if not len(found.ids):
                found = _Tokens(*(np.array([n], np.int32) for n in (tokenizer.token_to_id("[UNK]"), 0, len(word))))
            pieces.append(_Tokens(found.ids, found.starts + character, found.ends + character))
            character += len(word) + 1
        counts = [len(piece.ids) for piece in pieces]
        word_starts.append(np.cumsum([1, *counts[:-1]]).astype(np.int32))
        units.append(_Tokens(*(np.concatenate(column) for column in zip(*pieces, strict=True))))
    splits = np.cumsum([0, *(len(sentence) for sentence in sentences)]).astype(np.int64)
    return units, word_starts, splits


# === Sequences ===


class _Window(NamedTuple):
    """A sequence; `kept_start` to `kept_stop` are the tokens that it gives to its row."""

    tokens: _Tokens
    segment_ids: np.ndarray
    kept_start: int
    kept_stop: int


def _fit(lengths: Sequence[int], max_seq_length: int) -> list[int]:
    """How many tokens of each text stay; of a pair the longer one loses first, and the second of equals.

    What `BertPreprocessor` does in the graph, which a test compares.
    """
    limit = max_seq_length - 1 - len(lengths)
    if len(lengths) == 1:
        return [limit]
    first = min(lengths[0], max(-(-limit // 2), limit - lengths[1]))
    return [first, min(lengths[1], limit - first)]


def _pack(parts: Sequence[_Tokens], tokenizer) -> _Window:
    """[CLS] a [SEP], or [CLS] a [SEP] b [SEP]."""
    columns = [[[tokenizer.cls_token_id]], [[0]], [[0]]]
    segment_ids = [[0]]
    for segment, part in enumerate(parts):
        for column, array, special in zip(columns, part, (tokenizer.sep_token_id, 0, 0), strict=True):
            column += [array, [special]]
        segment_ids.append([segment] * (len(part.ids) + 1))
    tokens = _Tokens(*(np.concatenate(column).astype(np.int32) for column in columns))
    return _Window(tokens, np.concatenate(segment_ids).astype(np.int32), 0, len(tokens.ids))


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


def _windows(unit: _Tokens, tokenizer, max_seq_length: int) -> list[_Window]:
    """The windows of one unit; [CLS] of the first and [SEP] of the last one are kept too."""
    spans = window_spans(len(unit.ids), max_seq_length - NUM_SPECIALS)
    windows = []
    for number, (start, stop, kept_start, kept_stop) in enumerate(spans):
        window = _pack([_Tokens(*(array[start:stop] for array in unit))], tokenizer)
        first = 0 if number == 0 else kept_start - start + 1
        last = len(window.tokens.ids) if number == len(spans) - 1 else kept_stop - start + 1
        windows.append(window._replace(kept_start=first, kept_stop=last))
    return windows


def _join(
    windows_of_rows: Sequence[Sequence[_Window]], word_starts: np.ndarray, word_splits: np.ndarray, num_cut: int
) -> Encoded:
    windows = [window for row in windows_of_rows for window in row]
    token_ids, splits = join_rows(window.tokens.ids for window in windows)
    segment_ids, _ = join_rows(window.segment_ids for window in windows)
    kept, _ = join_rows(
        (
            np.arange(window.kept_start, window.kept_stop) + start
            for window, start in zip(windows, splits, strict=False)
        ),
        np.int64,
    )
    starts, ends = (np.concatenate([window.tokens[column] for window in windows])[kept] for column in (1, 2))
    counts = [sum(window.kept_stop - window.kept_start for window in row) for row in windows_of_rows]
    row_splits = np.cumsum([0, *counts]).astype(np.int64)
    examples = Examples(token_ids, segment_ids, splits)
    return Encoded(examples, kept, row_splits, starts, ends, word_starts, word_splits, num_cut)


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
        document_context: whether a document's sentences run on, in overlapping windows, so that each word has the
            context of the neighbouring sentences (paper, section 5.3). A file without -DOCSTART- lines is one.
    """
    sentences = documents.split(documents.tokens)
    limits = documents.document_splits if document_context else np.arange(len(sentences) + 1)
    pairs = zip(limits, limits[1:], strict=False)
    units = [[word for sentence in sentences[start:stop] for word in sentence] for start, stop in pairs]
    rows = [Row(number, documents.path, words=words) for number, words in enumerate(units)]
    encoded = encode_rows(rows, tokenizer, max_seq_length)
    firsts = np.repeat(encoded.row_splits[:-1], np.diff(encoded.word_splits)) + encoded.word_starts
    ends = np.append(firsts[1:], 0)
    ends[encoded.word_splits[1:] - 1] = encoded.row_splits[1:] - 1  # Behind a unit's last word stands [SEP].
    lengths = np.add.reduceat(ends - firsts, documents.sentence_splits[:-1]) + NUM_SPECIALS
    return EncodedWords(encoded.examples, encoded.kept[firsts], lengths)
