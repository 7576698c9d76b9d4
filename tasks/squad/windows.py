"""Windows of a question and a part of its context, as in google-research/bert (run_squad.py:309-474).

This module does not import TensorFlow. Shapes: Q questions, W windows, T tokens of all windows, C tokens of one
context, M windows of one question.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.fine_tuning.examples import Examples
from tasks.squad.data import Question, first_answer
from tasks.squad.text import split_context
from tasks.text.word_windows import best_windows, slice_tokens

POSITIONS = ("start_positions", "end_positions")
_LENGTH_WEIGHT = 0.01  # google-research/bert run_squad.py:542


class Windows(NamedTuple):
    """Windows `[CLS] question [SEP] part of the context [SEP]` of all questions in their order, without padding.

    Attributes:
        examples: one sequence per window. Labels, int32, shape (W,): `start_positions` and `end_positions`, the first
            and last token of the answer within the window, or (0, 0) if the window does not contain it; and `lengths`,
            the number of tokens of the window.
        question_index: int64, shape (W,), ascending: the question of each window.
        token_word: int32, shape (T,): the word of each token (see `tasks.squad.text.split_context`), -1 outside the
            context.
        is_max_context: bool, shape (T,): whether this window is the token's window of maximum context.
        vocabulary: list of str, the WordPieces.
        lowercase: whether the tokenizer lowercases.
        question_lengths: int64, shape (Q,): number of tokens of each question and its whole context in one window.
    """

    examples: Examples
    question_index: np.ndarray
    token_word: np.ndarray
    is_max_context: np.ndarray
    vocabulary: list[str]
    lowercase: bool
    question_lengths: np.ndarray


class _Context(NamedTuple):
    """A tokenized context: int32 arrays, shape (C,)."""

    ids: np.ndarray
    words: np.ndarray


class _Plan(NamedTuple):
    """The windows of one question.

    Attributes:
        query: token ids of the question, int32.
        context: the tokenized context.
        spans: M windows, `(start, stop)` in tokens of the context.
        answer: the answer's first and last token in the context, or None.
    """

    query: np.ndarray
    context: _Context
    spans: list[tuple[int, int]]
    answer: tuple[int, int] | None


def make_windows(
    questions: Sequence[Question],
    tokenizer,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    *,
    with_answers: bool,
    description: str | None = "make windows",
) -> Windows:
    """Tokenizes questions and contexts, and cuts them into windows, showing a progress bar.

    Windows start `doc_stride` tokens apart, until one reaches the end of the context. A context without any token, such
    as one of control characters only, has no window.

    Args:
        questions: as `tasks.squad.data.read_squad` returns them.
        tokenizer: `keras_bert.BertTokenizer` or `PythonBertTokenizer`.
        max_seq_length: maximum tokens of a window.
        doc_stride: tokens of the context from the start of one window to the start of the next.
        max_query_length: maximum tokens of a question; longer ones are cut.
        with_answers: whether to make labels, from the first answer found at the place given by the file.
        description: title of the progress bar, or None for no bar.

    Raises:
        InputError: `max_seq_length` leaves no room for the context beside the longest question.
    """
    from tqdm import tqdm

    if max_seq_length < max_query_length + 4:
        raise InputError(
            f"--max_seq_length={max_seq_length} leaves no room for the context beside a question of "
            f"--max_query_length={max_query_length} tokens and 3 special tokens. Expected {max_query_length + 4}."
        )
    tokenizer = PythonBertTokenizer.of(tokenizer)
    tokenize = functools.cache(functools.partial(_tokenize, tokenizer))  # Questions share their contexts.

    def plan(question: Question) -> _Plan:
        context = tokenize(question.context)
        query = tokenizer.tokenize(question.question)[:max_query_length]
        room, num_tokens = max_seq_length - len(query) - 3, len(context.ids)
        # The stride is limited to the room, so that no token is lost between two windows.
        spans = slice_tokens(0, num_tokens, room, min(doc_stride, room)) if num_tokens else []
        found = first_answer(question) if with_answers and not question.is_impossible else None
        answer = found and _find_tokens(context, *found, tokenizer)
        return _Plan(np.array(query, np.int32), context, spans, answer)

    progress = tqdm(questions, desc=description, unit="question", mininterval=0.5, disable=description is None)
    return _fill(list(map(plan, progress)), tokenizer, with_answers)


def _tokenize(tokenizer: PythonBertTokenizer, text: str) -> _Context:
    # google-research/bert tokenizes each word separately. The tokenizer splits at all white space that separates these
    # words, so that tokenizing the whole text gives the same tokens.
    ids, starts, _ = (np.array(part, np.int32) for part in tokenizer.tokenize_with_offsets(text))
    words = np.searchsorted(split_context(text).starts, starts, side="right").astype(np.int32) - 1
    return _Context(ids, words)


def _find_tokens(
    context: _Context, text: str, first_word: int, last_word: int, tokenizer: PythonBertTokenizer
) -> tuple[int, int] | None:
    """Returns the first and last token of an answer in the context, or None if its words have no token.

    The tokens of whole words are shrunk to those of the answer, if these occur in them (run_squad.py:476-510): the
    answer "1895" is a token of its own in the word "(1895-1943)". The leftmost occurrence counts.
    """
    first = int(np.searchsorted(context.words, first_word))
    stop = int(np.searchsorted(context.words, last_word, side="right"))
    tokens, answer = context.ids[first:stop].tolist(), tokenizer.tokenize(text)
    for start in range(len(tokens) - len(answer) + 1):
        if answer and tokens[start : start + len(answer)] == answer:
            return first + start, first + start + len(answer) - 1
    return (first, stop - 1) if tokens else None  # Words of nothing but control characters have none.


def _fill(plans: list[_Plan], tokenizer: PythonBertTokenizer, with_answers: bool) -> Windows:
    counts = [len(plan.spans) for plan in plans]
    lengths = np.array([stop - start + len(plan.query) + 3 for plan in plans for start, stop in plan.spans], np.int64)
    row_splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    num_tokens, window = int(row_splits[-1]), 0
    token_ids = np.full(num_tokens, tokenizer.sep_token_id, np.int32)
    segment_ids = np.zeros(num_tokens, np.int32)
    token_word = np.full(num_tokens, -1, np.int32)
    is_max_context = np.zeros(num_tokens, bool)
    positions = np.zeros((2, len(lengths)), np.int32)
    for plan in filter(lambda plan: plan.spans, plans):
        best = best_windows(plan.spans, np.arange(len(plan.context.ids)), _LENGTH_WEIGHT)
        for number, (start, stop) in enumerate(plan.spans):
            first = int(row_splits[window])
            place = first + len(plan.query) + 2
            within, piece = slice(place, place + stop - start), slice(start, stop)
            token_ids[first] = tokenizer.cls_token_id
            token_ids[first + 1 : place - 1] = plan.query
            token_ids[within] = plan.context.ids[piece]
            segment_ids[place : place + stop - start + 1] = 1
            token_word[within] = plan.context.words[piece]
            is_max_context[within] = best[piece] == number
            if plan.answer is not None and start <= plan.answer[0] and plan.answer[1] < stop:
                positions[:, window] = np.array(plan.answer) - start + place - first
            window += 1
    labels = {**dict(zip(POSITIONS, positions, strict=True)), "lengths": lengths.astype(np.int32)}
    return Windows(
        Examples(token_ids, segment_ids, row_splits, labels if with_answers else {}),
        np.repeat(np.arange(len(plans)), counts),
        token_word,
        is_max_context,
        tokenizer.vocabulary,
        tokenizer.lowercase,
        np.array([len(plan.query) + len(plan.context.ids) + 3 for plan in plans], np.int64),
    )
