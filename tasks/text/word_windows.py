"""Converts words to encoder sequences: WordPieces, document context, and windows over long sentences.

A window is a sequence [CLS] pieces [SEP]. A sentence has one window or, if it is too long, several that overlap. Each
word is scored once, in the window where its first piece has the most context.

Shapes: N words, P WordPieces of all words, W windows, T tokens of all windows, S sentences, D documents.
"""

import itertools
from typing import NamedTuple

import numpy as np

from keras_bert.answers.rules import SPECIAL_TOKENS
from tasks.text.conll import Documents, splits_of

DOCUMENT_CONTEXT = ("none", "document")


class Windows(NamedTuple):
    """The windows of a file.

    Attributes:
        token_ids: int32, shape (T,), all windows one after another.
        row_splits: int64, shape (W + 1,), offsets of the windows in `token_ids`.
        places: int64, shape (N,), index in `token_ids` of the token at which each word is labelled and scored.
        sentence_lengths: int64, shape (S,), tokens of each whole sentence, [CLS] and [SEP] included.
    """

    token_ids: np.ndarray
    row_splits: np.ndarray
    places: np.ndarray
    sentence_lengths: np.ndarray

    @property
    def num_windows(self) -> int:
        """Number of windows, W."""
        return len(self.row_splits) - 1


def tokenize_words(words: list[str], tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Tokenizes words one by one; a word without any piece, such as a control character, becomes [UNK].

    Args:
        words: N words.
        tokenizer: `PythonBertTokenizer`.

    Returns:
        `(piece ids, splits)`, int32 of shape (P,) and int64 of shape (N + 1,), the offsets of the words.
    """
    pieces = [tokenizer.tokenize(word) or [tokenizer.unk_token_id] for word in words]
    ids = np.array(list(itertools.chain.from_iterable(pieces)), np.int32)
    return ids, splits_of([len(word) for word in pieces])


def make_windows(
    documents: Documents, tokenizer, max_seq_length: int, doc_stride: int, document_context: str = "none"
) -> Windows:
    """Makes the windows of a file, sentence by sentence, in the file's order.

    Args:
        documents: N words.
        tokenizer: `PythonBertTokenizer`.
        max_seq_length: maximum number of tokens of a window, special ones included.
        doc_stride: pieces from the start of one window of a long sentence to the start of the next.
        document_context: "none" for the sentence alone; "document" fills the rest of the window with the surrounding
            pieces of the document, equally many on both sides where available. Context is not labelled: each word is
            scored in a window of its own sentence. The paper (section 5.3) includes "the maximal document context
            provided by the data", and does not say how.
    """
    room = max_seq_length - SPECIAL_TOKENS
    pieces, word_splits = tokenize_words(documents.tokens, tokenizer)
    sentences = word_splits[documents.sentence_splits]  # [S + 1], in pieces.
    document_of = documents.document_numbers
    bounds = sentences[documents.document_splits]  # [D + 1], in pieces.
    tokens, row_splits, places = [np.empty(0, np.int32)], [0], np.empty(len(documents.tokens), np.int64)
    for number, (start, stop) in enumerate(itertools.pairwise(sentences)):
        spans = slice_tokens(start, stop, room, doc_stride)
        if document_context == "document":
            limits = bounds[document_of[number] : document_of[number] + 2]
            spans = [extend(span, room, limits, word_splits) for span in spans]
        words = slice(documents.sentence_splits[number], documents.sentence_splits[number + 1])
        firsts = word_splits[words]  # The first piece of each word.
        best = best_windows(spans, firsts)
        splits = row_splits[-1] + splits_of([last - first + SPECIAL_TOKENS for first, last in spans])
        places[words] = splits[best] + 1 + firsts - np.array(spans)[best, 0]
        row_splits += splits[1:].tolist()
        for first, last in spans:
            tokens += [[tokenizer.cls_token_id], pieces[first:last], [tokenizer.sep_token_id]]
    return Windows(
        token_ids=np.concatenate(tokens, dtype=np.int32),
        row_splits=np.array(row_splits, np.int64),
        places=places,
        sentence_lengths=np.diff(sentences) + SPECIAL_TOKENS,
    )


def slice_tokens(start: int, stop: int, room: int, doc_stride: int) -> list[tuple[int, int]]:
    """Covers the tokens `[start, stop)` with windows of at most `room` tokens, `doc_stride` apart."""
    spans = [(start, min(start + room, stop))]
    while spans[-1][1] < stop:
        first = spans[-1][0] + doc_stride
        spans.append((first, min(first + room, stop)))
    return spans


def extend(span: tuple[int, int], room: int, limits: np.ndarray, word_splits: np.ndarray) -> tuple[int, int]:
    """Widens a span by whole words to at most `room` pieces, evenly on both sides within the document's `limits`."""
    (start, stop), (first, last) = span, limits
    free = room - (stop - start)
    before = min(start - first, max(free // 2, free - (last - stop)))
    after = min(last - stop, free - before)
    wider_start = word_splits[np.searchsorted(word_splits, start - before)]
    wider_stop = word_splits[np.searchsorted(word_splits, stop + after, side="right") - 1]
    # A window of a long sentence may itself start and end within a word.
    return int(min(start, wider_start)), int(max(stop, wider_stop))


def best_windows(spans: list[tuple[int, int]], places: np.ndarray, length_weight: float = 0.0) -> np.ndarray:
    """Finds the window in which each token has the maximum context (google-research/bert, run_squad.py:513-547).

        score(token, window) = min(tokens left of it, tokens right of it in the window) + length_weight * length

    The first window of the highest score wins.

    Args:
        spans: M windows, `[start, stop)`.
        places: ascending positions of C tokens, int, shape (C,), each in at least one of the windows.
        length_weight: weight of the window's length, 0.01 in run_squad.py.

    Returns:
        The index of each token's window, int64, shape (C,).
    """
    best, highest = np.zeros(len(places), np.int64), np.full(len(places), -np.inf)
    # All windows at once would take their number times that of the tokens: gigabytes for a file without blank lines.
    for window, (start, stop) in enumerate(spans):
        inside = slice(*np.searchsorted(places, (start, stop)))
        context = np.minimum(places[inside] - start, stop - 1 - places[inside])
        scores = context + length_weight * (stop - start)
        best[inside][scores > highest[inside]] = window
        highest[inside] = np.maximum(scores, highest[inside])
    return best
