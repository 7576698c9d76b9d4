"""Encodes texts and tagged words as encoder sequences: tokens, character offsets, and windows over long sentences.

Shapes: N rows (texts or sentences), R sequences, S tokens of one sequence, U kept tokens of all rows.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.answers.rules import SPECIAL_TOKENS
from keras_bert.errors import InputError
from keras_bert.files import is_file, read_lines
from tasks.features.writing import Column
from tasks.fine_tuning.examples import Examples
from tasks.text.bad_rows import BadRows
from tasks.text.conll import Documents, splits_of
from tasks.text.word_windows import Windows


class Row(NamedTuple):
    """A text, a pair of texts, or a sentence of words.

    Attributes:
        index: index of the row in the input, over all files; skipped rows count.
        where: "path:line", for messages.
        texts: one text or two.
        words: the words of a sentence, instead of texts; else None.
    """

    index: int
    where: str
    texts: tuple[str, ...] = ()
    words: list[str] | None = None


class Encoded(NamedTuple):
    """The encoder sequences of N rows, and the tokens that make up each row.

    A row that is too long for one sequence has several, which overlap. Each of its tokens is taken from the sequence in
    which it has most context.

    Attributes:
        examples: R sequences.
        kept: int64, shape (U,), indices of the rows' tokens in `examples.token_ids`, row by row.
        columns: properties of these tokens: `token_ids`, `segment_ids`, and `starts` and `ends`, the characters
            `[start, end)` of a token in its text; 0, 0 for special tokens. The text of a sentence is its words joined
            by single blanks. Sentences also have `word_starts`, the index of each word's first token within its row.
        num_cut: number of rows that were truncated.
    """

    examples: Examples
    kept: np.ndarray
    columns: dict[str, Column]
    num_cut: int


# === Files ===


def read_texts(paths: Sequence[str], bad_rows: BadRows | None) -> Iterator[Row]:
    """Yields the texts of files, one per line; `a ||| b` is a pair, as in google-research/bert's extract_features.py.

    Unlike there, white space at the ends of a line is kept, since it counts in the positions of tokens.

    Args:
        paths: the files, UTF-8.
        bad_rows: collects empty lines, which are skipped but count in `index`; None if they were reported before.

    Raises:
        InputError: a file is not a regular file or is not UTF-8, or `bad_rows` refuses its empty lines.
    """
    index = 0
    for path in paths:
        if not is_file(path):  # A pipe would be empty when it is read again.
            raise InputError(f"{path}: expected a regular file, since it is read twice. Save it to one first.")
        for line, text in read_lines(path):
            if text.strip():
                first, _, second = text.rpartition(" ||| ")
                yield Row(index, f"{path}:{line}", (first, second) if first.strip() and second.strip() else (text,))
            elif bad_rows is not None:
                bad_rows.add(f"{path}:{line}", "the line is empty. Expected a text; remove the line or fill it.")
            index += 1
        if bad_rows is not None:
            bad_rows.finish()


def sentence_rows(documents: Documents, first_index: int = 0, skipped: Sequence[int] = ()) -> list[Row]:
    """Returns a row for each sentence, named by the line of its first word.

    `skipped` has one line of each sentence that was left out, in ascending order, since these count in `index`.
    """
    spans = [(documents.lines[start], start, stop) for start, stop in itertools.pairwise(documents.sentence_splits)]
    return [
        Row(number + int(np.searchsorted(skipped, line)), f"{documents.path}:{line}", (), documents.tokens[start:stop])
        for number, (line, start, stop) in enumerate(spans, start=first_index)
    ]


def batches_of(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """Yields the rows in lists of `size`; the last list may be shorter."""
    rows = iter(rows)
    while batch := list(itertools.islice(rows, size)):
        yield batch


# === Sequences ===


def encode_rows(rows: Sequence[Row], tokenizer, max_seq_length: int) -> Encoded:
    """Encodes rows as sequences of at most `max_seq_length` tokens.

    Texts are truncated at the end, pairs token by token from the longer text (google-research/bert). Sentences of words
    are never truncated; long ones are split into windows.

    Args:
        rows: at least one row.
        tokenizer: BertTokenizer, which splits all strings at once, several times as fast as one by one in Python.
        max_seq_length: maximum tokens of a sequence, at least 4, special tokens included.
    """
    spans = _tokenize([string for row in rows for string in row.words or row.texts], tokenizer)
    windows, lengths, word_starts, num_cut = [], [], [], 0
    for row in rows:
        if row.words is None:
            sequence, is_cut = _pack_texts([next(spans) for _ in row.texts], tokenizer, max_seq_length)
            of_row = [(sequence, 0, sequence.shape[1])]
            num_cut += is_cut
        else:
            tokens, starts = _join_words(row.words, spans, tokenizer)
            of_row = _lay_windows(tokens, tokenizer, max_seq_length)
            word_starts += starts
        windows += of_row
        lengths.append(sum(stop - start for _, start, stop in of_row))
    tokens = np.ascontiguousarray(np.concatenate([sequence for sequence, _, _ in windows], axis=1))
    splits = splits_of([sequence.shape[1] for sequence, _, _ in windows])
    places = [np.arange(start, stop) + split for (_, start, stop), split in zip(windows, splits, strict=False)]
    kept = np.concatenate(places)
    names, row_splits = ("token_ids", "segment_ids", "starts", "ends"), splits_of(lengths)
    columns = {name: Column(values, row_splits) for name, values in zip(names, tokens[:, kept], strict=True)}
    if word_starts:
        columns["word_starts"] = Column(np.array(word_starts, np.int32), splits_of([len(row.words) for row in rows]))
    return Encoded(Examples(tokens[0], tokens[1], splits), kept, columns, num_cut)


def _tokenize(strings: Sequence[str], tokenizer) -> Iterator[np.ndarray]:
    """Yields the tokens of each string: int32, shape (3, tokens), rows `id start end`."""
    columns = tokenizer.tokenize_with_offsets(list(strings))
    values = np.stack([np.asarray(column.values, np.int32) for column in columns])
    for start, stop in itertools.pairwise(columns[0].row_splits.numpy()):
        yield values[:, start:stop]


def _pack_texts(texts: Sequence[np.ndarray], tokenizer, max_seq_length: int) -> tuple[np.ndarray, bool]:
    """Returns the sequence of one text or two, as `_pack` does, and whether it was truncated.

    The longer text of a pair loses tokens first, the second one if both are equally long. `BertPreprocessor` does the
    same in the graph; a test compares them.
    """
    limit = max_seq_length - 1 - len(texts)
    limits = [limit]
    if len(texts) == 2:
        first, second = (text.shape[1] for text in texts)
        first = min(first, max(-(-limit // 2), limit - second))
        limits = [first, limit - first]
    packed = _pack([text[:, :limit] for text, limit in zip(texts, limits, strict=True)], tokenizer)
    return packed, packed.shape[1] < sum(text.shape[1] + 1 for text in texts) + 1


def _join_words(words: Sequence[str], spans: Iterator[np.ndarray], tokenizer) -> tuple[np.ndarray, list[int]]:
    """Joins the tokens of words to a sentence; a word without any piece, such as a control character, becomes [UNK].

    Args:
        words: words of the sentence.
        spans: tokens of the next words, as `_tokenize` yields them; as many as the sentence has are taken.

    Returns:
        `(tokens, word_starts)`: int32, shape (3, tokens), rows `id start end`; and the index of each word's first token
        in its sequence, after [CLS].
    """
    tokens, word_starts, place = [], [], 0
    for word, pieces in zip(words, spans, strict=False):
        word_starts.append(len(tokens) + 1)
        for number, start, end in pieces.T.tolist() or [(tokenizer.token_to_id("[UNK]"), 0, len(word))]:
            tokens.append((number, place + start, place + end))
        place += len(word) + 1
    return np.array(tokens, np.int32).T, word_starts


def _pack(texts: Sequence[np.ndarray], tokenizer) -> np.ndarray:
    """Joins texts, each as `_tokenize` yields it, to [CLS] a [SEP] or [CLS] a [SEP] b [SEP].

    Returns:
        int32, shape (4, S), rows `id segment start end`.
    """
    pieces = [[[tokenizer.cls_token_id], [0], [0], [0]]]
    for segment, tokens in enumerate(texts):
        pieces.append(np.vstack([tokens[0], np.full(tokens.shape[1], segment), tokens[1:]]))
        pieces.append([[tokenizer.sep_token_id], [segment], [0], [0]])
    return np.concatenate(pieces, axis=1, dtype=np.int32)


def window_spans(num_tokens: int, size: int) -> list[tuple[int, int, int, int]]:
    """Covers a text with windows that overlap by half; each token is kept in the window where it has most context.

    Returns:
        `(start, stop, kept_start, kept_stop)` of each window; the kept spans follow one another and cover the text.

    >>> window_spans(10, 8)
    [(0, 8, 0, 5), (2, 10, 5, 10)]
    """
    last = max(num_tokens - size, 0)
    starts = [*range(0, last, max(size // 2, 1)), last]
    stops = [min(start + size, num_tokens) for start in starts]
    borders = [(start + stop) // 2 for start, stop in zip(starts[1:], stops, strict=False)]
    return list(zip(starts, stops, [0, *borders], [*borders, num_tokens], strict=True))


def _lay_windows(tokens: np.ndarray, tokenizer, max_seq_length: int) -> list[tuple[np.ndarray, int, int]]:
    """Splits one sentence into windows: sequences as `_pack` returns them, with the start and stop of what is kept.

    The [CLS] of the first window and the [SEP] of the last are kept too.
    """
    count = tokens.shape[1]
    return [
        (
            _pack([tokens[:, start:stop]], tokenizer),
            0 if kept_start == 0 else kept_start - start + 1,
            kept_stop - start + (SPECIAL_TOKENS if kept_stop == count else 1),
        )
        for start, stop, kept_start, kept_stop in window_spans(count, max_seq_length - SPECIAL_TOKENS)
    ]


# === Words of whole documents ===


def encode_words(documents: Documents, tokenizer, max_seq_length: int, document_context: bool) -> Windows:
    """Encodes tagged sentences for features of words. Each word is placed at its first token, in exactly one window.

    Args:
        documents: the sentences.
        tokenizer: BertTokenizer.
        max_seq_length: maximum tokens of a window, at least 4, special tokens included.
        document_context: whether windows span whole documents, so that words see the neighbouring sentences (section
            5.3 of the paper). A file without -DOCSTART- lines is one document.

    Returns:
        The windows, whose `places` increase.
    """
    limits = documents.sentence_splits[documents.document_splits] if document_context else documents.sentence_splits
    rows = sentence_rows(documents._replace(sentence_splits=limits))
    encoded = encode_rows(rows, tokenizer, max_seq_length)
    row_splits, (word_starts, word_splits) = encoded.columns["token_ids"].splits, encoded.columns["word_starts"]
    firsts = np.repeat(row_splits[:-1], np.diff(word_splits)) + word_starts
    ends = np.append(firsts[1:], 0)
    ends[word_splits[1:] - 1] = row_splits[1:] - 1  # [SEP] follows the last word of a row.
    lengths = np.add.reduceat(ends - firsts, documents.sentence_splits[:-1]) + SPECIAL_TOKENS
    return Windows(encoded.examples.token_ids, encoded.examples.row_splits, encoded.kept[firsts], lengths)
