"""From words to the encoder's sequences: sub-tokens, document context, and windows over long sentences.

A window is a sequence [CLS] pieces [SEP]. Each sentence has one, or, if it is longer than a sequence, several that
overlap; each of its words is scored in one of them, where its first piece has most context.

Shapes: N words, P pieces (sub-tokens) of all words, W windows, T tokens of all windows.
"""

from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from tasks.text.conll import Documents

DOCUMENT_CONTEXT = ("none", "document")
SPECIAL_TOKENS = 2  # [CLS] and [SEP].


class Windows(NamedTuple):
    """The sequences of a file.

    Attributes:
        token_ids: int32, shape (T,).
        row_splits: int64, shape (W + 1,).
        places: int64, shape (N,): where in `token_ids` each word is labelled and scored.
        sentence_lengths: int64, shape (S,): tokens of each sentence, [CLS] and [SEP] included, however long.
    """

    token_ids: np.ndarray
    row_splits: np.ndarray
    places: np.ndarray
    sentence_lengths: np.ndarray

    @property
    def num_windows(self) -> int:
        return len(self.row_splits) - 1


def check_stride(max_seq_length: int, doc_stride: int | None) -> int:
    """Returns the pieces between two windows of a long sentence: `doc_stride`, or half of what a window holds.

    Raises:
        InputError: pieces between two windows would be in none.
    """
    room = max_seq_length - SPECIAL_TOKENS
    if doc_stride is None:
        return max(1, room // 2)
    if doc_stride > room:
        raise InputError(
            f"--doc_stride={doc_stride}: a sequence of --max_seq_length={max_seq_length} holds {room} sub-tokens; "
            "what lies between two windows would be lost. Give at most that many."
        )
    return doc_stride


def split_words(words: list[str], tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Tokenizes words one by one; a word that vanishes, such as a control character, is [UNK].

    Args:
        words: N words.
        tokenizer: `PythonBertTokenizer`.

    Returns:
        (ids of the pieces, int32, shape (P,); int64 splits, shape (N + 1,), one word's pieces from one to the next).
    """
    pieces = [tokenizer.tokenize(word) or [tokenizer.unk_token_id] for word in words]
    splits = np.concatenate([[0], np.cumsum([len(ids) for ids in pieces])]).astype(np.int64)
    return np.array([number for ids in pieces for number in ids], np.int32), splits


def make_windows(
    documents: Documents, tokenizer, max_seq_length: int, doc_stride: int, document_context: str = "none"
) -> Windows:
    """Makes the windows of a file, sentence by sentence, in the file's order.

    Args:
        documents: N words.
        tokenizer: `PythonBertTokenizer`.
        max_seq_length: tokens of a window at most, special ones included.
        doc_stride: pieces from the start of one window over a long sentence to the next.
        document_context: "none": a sentence alone. "document": what room is left is filled with the pieces before and
            after the sentence in its document, as many on one side as on the other as far as there are ("we include
            the maximal document context provided by the data", paper, section 5.3, which does not say how). These are
            read, but neither labelled nor scored: each word is, once, in a window of its own sentence.
    """
    room = max_seq_length - SPECIAL_TOKENS
    pieces, word_splits = split_words(documents.tokens, tokenizer)
    sentences = word_splits[documents.sentence_splits]  # [S + 1], in pieces.
    document_of = np.repeat(np.arange(len(documents.document_splits) - 1), np.diff(documents.document_splits))
    bounds = sentences[documents.document_splits]  # [D + 1], in pieces.
    spans, places, taken = [], np.empty(len(documents.tokens), np.int64), 0
    for number, (start, stop) in enumerate(zip(sentences[:-1], sentences[1:], strict=True)):
        own = slice_sentence(start, stop, room, doc_stride)
        if document_context == "document":
            limits = bounds[document_of[number] : document_of[number] + 2]
            own = [extend(span, room, limits, word_splits) for span in own]
        words = slice(documents.sentence_splits[number], documents.sentence_splits[number + 1])
        places[words] = taken + _places(word_splits[words], own)
        spans += own
        taken += sum(last - first + SPECIAL_TOKENS for first, last in own)
    token_ids, row_splits = _assemble(pieces, spans, tokenizer)
    return Windows(token_ids, row_splits, places, np.diff(sentences) + SPECIAL_TOKENS)


def slice_sentence(start: int, stop: int, room: int, doc_stride: int) -> list[tuple[int, int]]:
    """Covers the pieces `[start, stop)` with windows of `room` pieces, every `doc_stride`; the last may be shorter."""
    spans = [(start, min(start + room, stop))]
    while spans[-1][1] < stop:
        first = spans[-1][0] + doc_stride
        spans.append((first, min(first + room, stop)))
    return spans


def extend(span: tuple[int, int], room: int, limits: np.ndarray, word_splits: np.ndarray) -> tuple[int, int]:
    """Widens a span to `room` pieces, evenly on both sides as far as its document goes, by whole words."""
    (start, stop), (first, last) = span, limits
    free = room - (stop - start)
    before = min(start - first, max(free // 2, free - (last - stop)))
    after = min(last - stop, free - before)
    wider_start = word_splits[np.searchsorted(word_splits, start - before)]
    wider_stop = word_splits[np.searchsorted(word_splits, stop + after, side="right") - 1]
    # A window over a long sentence may itself begin and end within a word.
    return int(min(start, wider_start)), int(max(stop, wider_stop))


def _places(pieces: np.ndarray, spans: list[tuple[int, int]]) -> np.ndarray:
    """Where each word of a sentence is scored, counted from the [CLS] of the sentence's first window.

    That is the window in which its first piece, of `pieces`, int64 of shape (words,), has most context: the smaller of
    the pieces before and behind it in the window, the first of equals (google-research/bert run_squad.py:542, less its
    preference for longer windows).
    """
    starts, stops = np.array(spans).T[:, :, np.newaxis]  # [spans, 1] each
    context = np.minimum(pieces - starts, stops - 1 - pieces)  # [spans, words]; negative outside of the window.
    best = context.argmax(axis=0)
    lengths = (stops - starts)[:, 0] + SPECIAL_TOKENS
    offsets = np.cumsum(lengths) - lengths
    return offsets[best] + 1 + pieces - starts[best, 0]


def _assemble(pieces: np.ndarray, spans: list[tuple[int, int]], tokenizer) -> tuple[np.ndarray, np.ndarray]:
    row_splits = np.cumsum([0, *(stop - start + SPECIAL_TOKENS for start, stop in spans)]).astype(np.int64)
    token_ids = np.empty(row_splits[-1], np.int32)
    token_ids[row_splits[:-1]] = tokenizer.cls_token_id
    token_ids[row_splits[1:] - 1] = tokenizer.sep_token_id
    for (start, stop), row in zip(spans, row_splits[:-1], strict=True):
        token_ids[row + 1 : row + 1 + stop - start] = pieces[start:stop]
    return token_ids, row_splits
