"""Cuts questions with their contexts into windows, as in google-research/bert (run_squad.py:309-474).

This module does not import TensorFlow. Shapes: Q questions, W windows, T tokens of all windows, C tokens of one
context.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.answers.rules import LENGTH_WEIGHT
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.fine_tuning.examples import Examples
from tasks.fine_tuning.task import Spec
from tasks.squad.data import Question, first_answer
from tasks.squad.text import split_context
from tasks.text.conll import splits_of
from tasks.text.word_windows import best_windows, slice_tokens

POSITIONS = ("start_positions", "end_positions")


class SquadSpec(Spec):
    """Spec of a trained model for question answering.

    Attributes:
        sequence_length: maximum tokens of a window: question, part of the context, special tokens.
        doc_stride: tokens of the context from the start of one window to the start of the next.
        max_query_length: maximum tokens of a question.
        n_best_size: starts and ends to combine per window, and answers to list per question.
        max_answer_length: maximum tokens of an answer.
        null_score_diff_threshold: no answer is given if the score of "no answer" exceeds the best answer's by more.
        version_2_with_negative: whether a question may have no answer.
    """

    doc_stride: int
    max_query_length: int
    n_best_size: int
    max_answer_length: int
    null_score_diff_threshold: float
    version_2_with_negative: bool


# google-research/bert run_squad.py:66-154
DEFAULTS = SquadSpec(
    sequence_length=384,
    doc_stride=128,
    max_query_length=64,
    n_best_size=20,
    max_answer_length=30,
    null_score_diff_threshold=0.0,
    version_2_with_negative=False,
)


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


def make_windows(
    questions: Sequence[Question], tokenizer, spec: SquadSpec, description: str = "make windows"
) -> Windows:
    """Tokenizes questions and contexts, and cuts them into windows, showing a progress bar.

    The labels come from the first answer that occurs at its place in the context. Windows start `doc_stride` tokens
    apart, until one reaches the end of the context. A context without any token, such as one of control characters
    only, has no window.

    Args:
        questions: as `tasks.squad.data.read_squad` returns them.
        tokenizer: `keras_bert.BertTokenizer` or `PythonBertTokenizer`.
        spec: the sizes. `sequence_length` is at least 4 more than `max_query_length`; longer questions are cut.
        description: title of the progress bar.
    """
    from tqdm import tqdm

    tokenizer = PythonBertTokenizer.of(tokenizer)
    tokenize = functools.cache(functools.partial(_tokenize, tokenizer))  # Questions share their contexts.
    # The columns of a token are its id, its segment, its word, and the number of its window of maximum context.
    windows, tokens, question_lengths = [], [np.empty((4, 0), np.int32)], []
    progress = tqdm(questions, desc=description, unit="question", mininterval=0.5)
    for number, question in enumerate(progress):
        ids, words = tokenize(question.context)
        asked = tokenizer.tokenize(question.question)[: spec.max_query_length]
        query = [tokenizer.cls_token_id, *asked, tokenizer.sep_token_id]
        question_lengths.append(len(query) + len(ids) + 1)
        # The stride is limited to the room, so that no token is lost between two windows.
        room = spec.sequence_length - len(query) - 1
        spans = slice_tokens(0, len(ids), room, min(spec.doc_stride, room)) if len(ids) else []
        best = best_windows(spans, np.arange(len(ids)), LENGTH_WEIGHT) if spans else words
        answer = _find_tokens(ids, words, question, tokenizer)
        before = np.stack([query, *np.full((3, len(query)), [[0], [-1], [-1]])])
        context = np.stack([ids, np.ones_like(ids), words, best])
        after = [[tokenizer.sep_token_id], [1], [-1], [-1]]
        for window, (start, stop) in enumerate(spans):
            tokens.append(np.concatenate([before, context[:, start:stop], after], axis=1, dtype=np.int32))
            has_answer = answer is not None and start <= answer[0] and answer[1] < stop
            positions = [place - start + len(query) for place in answer] if has_answer else (0, 0)
            windows.append((number, window, tokens[-1].shape[1], *positions))
    question_index, window_numbers, lengths, *positions = np.array(windows, np.int64).reshape(-1, 5).T
    token_ids, segment_ids, token_word, best = np.concatenate(tokens, axis=1)
    labels = dict(zip((*POSITIONS, "lengths"), np.array([*positions, lengths], np.int32), strict=True))
    return Windows(
        examples=Examples(token_ids, segment_ids, splits_of(lengths), labels),
        question_index=question_index,
        token_word=token_word,
        is_max_context=best == np.repeat(window_numbers, lengths),
        vocabulary=tokenizer.vocabulary,
        lowercase=tokenizer.lowercase,
        question_lengths=np.array(question_lengths, np.int64),
    )


def _tokenize(tokenizer: PythonBertTokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the id of each token of a context, and the number of its word: int32, shape (C,)."""
    # google-research/bert tokenizes each word separately. The tokenizer splits at all white space that separates these
    # words, so that tokenizing the whole text gives the same tokens.
    ids, starts, _ = (np.array(column, np.int32) for column in tokenizer.tokenize_with_offsets(text))
    return ids, np.searchsorted(split_context(text).starts, starts, side="right").astype(np.int32) - 1


def _find_tokens(
    ids: np.ndarray, words: np.ndarray, question: Question, tokenizer: PythonBertTokenizer
) -> tuple[int, int] | None:
    """Returns the first and last token of the answer in the context; None without an answer, or without tokens in it.

    The tokens of whole words are shrunk to those of the answer, if these occur in them (run_squad.py:476-510): the
    answer "1895" is a token of its own in the word "(1895-1943)". The leftmost occurrence counts.
    """
    located = None if question.is_impossible else first_answer(question)
    if located is None:
        return None
    text, first_word, last_word = located
    first = int(np.searchsorted(words, first_word))
    stop = int(np.searchsorted(words, last_word, side="right"))
    tokens, answer = ids[first:stop].tolist(), tokenizer.tokenize(text)
    for start in range(len(tokens) - len(answer) + 1):
        if answer and tokens[start : start + len(answer)] == answer:
            return first + start, first + start + len(answer) - 1
    return (first, stop - 1) if tokens else None  # Words of nothing but control characters have none.
