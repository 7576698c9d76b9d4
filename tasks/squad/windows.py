"""Windows of a question and a piece of its context, as google-research/bert cuts them (run_squad.py:309-474).

Shapes: W windows, T tokens of all windows, C tokens of one context, M windows of one question. No TensorFlow here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.fine_tuning.examples import Examples
from tasks.squad.data import Question, first_answer
from tasks.squad.text import split_context

POSITIONS = ("start_positions", "end_positions")


class Windows(NamedTuple):
    """Windows `[CLS] question [SEP] piece of the context [SEP]`, question after question, without padding.

    Attributes:
        examples: Examples, one sequence a window. Labels, int32 (W,): `start_positions` and `end_positions`, the
            answer's first and last token within the window, (0, 0) where the window does not hold it; and `lengths`,
            the window's number of tokens.
        question_index: int64, shape (W,), ascending: the question that a window belongs to.
        token_word: int32, shape (T,): the word of the context that a token belongs to (of
            `tasks.squad.text.split_context`), -1 outside the context.
        is_max_context: bool, shape (T,): whether no other window shows more of the context around this token.
        vocabulary: list of str, the WordPieces.
        lowercase: bool, whether the tokenizer lower-cases.
        question_lengths: int64, shape (Q,): tokens that each question and its whole context would have in one window.
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
        starts, lengths: of the windows, in tokens of the context: int64, shape (M,).
        answer: the answer's first and last token in the context, or None.
    """

    query: np.ndarray
    context: _Context
    starts: np.ndarray
    lengths: np.ndarray
    answer: tuple[int, int] | None


def make_windows(
    questions: Sequence[Question],
    tokenizer,
    *,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    with_answers: bool,
    description: str | None = "make windows",
) -> Windows:
    """Tokenizes questions and contexts, and cuts them into windows, showing a progress bar.

    Windows start `doc_stride` tokens apart, until one reaches the context's end. A context without any token (nothing
    but control characters) has no window.

    Args:
        questions: as `tasks.squad.data.read_squad` returns them.
        tokenizer: `keras_bert.BertTokenizer` or `PythonBertTokenizer`.
        max_seq_length: tokens of a window at most.
        doc_stride: tokens of the context between the starts of two windows.
        max_query_length: tokens of a question at most; longer ones are cut.
        with_answers: whether to make labels; of several answers the first that stands where the file says counts.
        description: the progress bar's title; None: no bar.

    Raises:
        InputError: `max_seq_length` leaves no room for the context beside the longest question.
        ValueError: `doc_stride` is not positive.
    """
    from tqdm import tqdm

    if max_seq_length < max_query_length + 4:
        raise InputError(
            f"--max_seq_length={max_seq_length} leaves no room for the context beside a question of "
            f"--max_query_length={max_query_length} tokens and 3 special tokens. Expected {max_query_length + 4}."
        )
    if doc_stride < 1:
        raise ValueError(f"`doc_stride` must be at least 1. Received: doc_stride={doc_stride}")
    tokenizer = PythonBertTokenizer(list(tokenizer.vocabulary), tokenizer.lowercase)
    planner = _Planner(tokenizer, max_seq_length, doc_stride, max_query_length, with_answers)
    progress = tqdm(questions, desc=description, unit="question", mininterval=0.5, disable=description is None)
    return _fill(list(map(planner.plan, progress)), tokenizer, with_answers)


class _Planner:
    """Plans the windows of one question after the other, and tokenizes each context once."""

    def __init__(self, tokenizer, max_seq_length: int, doc_stride: int, max_query_length: int, with_answers: bool):
        self._tokenizer = tokenizer
        self._max_seq_length = max_seq_length
        self._doc_stride = doc_stride
        self._max_query_length = max_query_length
        self._with_answers = with_answers
        self._contexts: dict[str, _Context] = {}

    def plan(self, question: Question) -> _Plan:
        if question.context not in self._contexts:
            self._contexts[question.context] = self._tokenize(question.context)
        context = self._contexts[question.context]
        query = self._tokenizer.tokenize(question.question)[: self._max_query_length]
        room = self._max_seq_length - len(query) - 3
        starts, lengths = _cut(len(context.ids), room, self._doc_stride)
        answer = None
        if self._with_answers and not question.is_impossible:
            answer = self._find_tokens(question, context)
        return _Plan(np.array(query, np.int32), context, starts, lengths, answer)

    def _tokenize(self, text: str) -> _Context:
        # google-research/bert tokenizes each word by itself. What separates words is white space to the tokenizer, too,
        # so that the whole text at once gives the same tokens.
        ids, starts, _ = (np.array(part, np.int32) for part in self._tokenizer.tokenize_with_offsets(text))
        words = np.searchsorted(split_context(text).starts, starts, side="right").astype(np.int32) - 1
        return _Context(ids, words)

    def _find_tokens(self, question: Question, context: _Context) -> tuple[int, int] | None:
        """Returns the answer's first and last token in the context, or None."""
        answer = first_answer(question)
        if answer is None:
            return None
        text, first_word, last_word = answer
        first = int(np.searchsorted(context.words, first_word))
        last = int(np.searchsorted(context.words, last_word, side="right")) - 1
        return _improve_span(context.ids[first : last + 1].tolist(), first, self._tokenizer.tokenize(text))


def _improve_span(tokens: list[int], first: int, answer: list[int]) -> tuple[int, int] | None:
    """Shrinks the tokens of whole words to those of the answer, if they are there (run_squad.py:476-510).

    The answer "1895" in the word "(1895-1943)" is a token of its own. The leftmost occurrence counts.

    Args:
        tokens: of the words.
        first: number of the first one in the context.
        answer: the answer's tokens.

    Returns:
        First and last token in the context, or None where the words have no token.
    """
    if not tokens:
        return None  # Words of nothing but control characters.
    for start in range(len(tokens) - len(answer) + 1):
        if answer and tokens[start : start + len(answer)] == answer:
            return first + start, first + start + len(answer) - 1
    return first, first + len(tokens) - 1


def _cut(num_tokens: int, room: int, doc_stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts and lengths of a context's windows, int64, shape (M,).

    A stride above the room for the context counts as the room: no token is left out between two windows.
    """
    if not num_tokens:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    stride = min(doc_stride, room)
    count = 1 + -(-max(num_tokens - room, 0) // stride)
    starts = np.arange(count, dtype=np.int64) * stride
    return starts, np.minimum(num_tokens - starts, room)


def best_windows(starts: np.ndarray, lengths: np.ndarray, num_tokens: int) -> np.ndarray:
    """Finds the window of maximum context of each token (run_squad.py:513-547).

        score(token, window) = min(tokens left of it, tokens right of it in the window) + 0.01 * window's length

    The first window of the highest score wins.

    Args:
        starts: int64, shape (M,).
        lengths: int64, shape (M,).
        num_tokens: C.

    Returns:
        Numbers of windows, int64, shape (C,).
    """
    starts, lengths = starts[:, np.newaxis], lengths[:, np.newaxis]
    places = np.arange(num_tokens)
    left, right = places - starts, starts + lengths - 1 - places  # [M, C]
    scores = np.minimum(left, right) + 0.01 * lengths
    return np.where((left >= 0) & (right >= 0), scores, -np.inf).argmax(axis=0)


def _fill(plans: list[_Plan], tokenizer: PythonBertTokenizer, with_answers: bool) -> Windows:
    counts = [len(plan.starts) for plan in plans]
    lengths = np.concatenate([np.empty(0, np.int64), *(plan.lengths + len(plan.query) + 3 for plan in plans)])
    row_splits = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    num_tokens, window = int(row_splits[-1]), 0
    token_ids = np.full(num_tokens, tokenizer.sep_token_id, np.int32)
    segment_ids = np.zeros(num_tokens, np.int32)
    token_word = np.full(num_tokens, -1, np.int32)
    is_max_context = np.zeros(num_tokens, bool)
    positions = np.zeros((2, len(lengths)), np.int32)
    for plan in filter(lambda plan: len(plan.starts), plans):
        best = best_windows(plan.starts, plan.lengths, len(plan.context.ids))
        for number, (start, length) in enumerate(zip(plan.starts.tolist(), plan.lengths.tolist(), strict=True)):
            first = int(row_splits[window])
            place = first + len(plan.query) + 2
            within, piece = slice(place, place + length), slice(start, start + length)
            token_ids[first] = tokenizer.cls_token_id
            token_ids[first + 1 : place - 1] = plan.query
            token_ids[within] = plan.context.ids[piece]
            segment_ids[place : place + length + 1] = 1
            token_word[within] = plan.context.words[piece]
            is_max_context[within] = best[piece] == number
            if plan.answer is not None and start <= plan.answer[0] and plan.answer[1] < start + length:
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
