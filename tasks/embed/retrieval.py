"""Computes figures of search: the ranks of each question's matches among all passages, by cosine.

Shapes: N rows, Q different questions, P different passages, D embedding.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError

CUTOFF = 10  # Number of first ranks that count for recall@10, MRR@10 and nDCG@10.
_ROWS_AT_ONCE = 256
# Takes pairs of texts and returns their scores, float, shape (number of pairs,).
Scorer = Callable[[list[tuple[str, str]]], np.ndarray]


class Ranking(NamedTuple):
    """The passages that each question finds.

    Attributes:
        questions: index of the first row with each of the Q questions.
        best: indices of the first `CUTOFF` passages, best first, int, shape (Q, min(CUTOFF, P)).
        ranks: rank of the best match, from 1, int, shape (Q,).
        losses: cross entropy of the first match among all passages, with cosines times 20, float, shape (Q,).
        figures: `recall@1`, `recall@10`, `mrr@10` and `ndcg@10` of each question, float, shape (Q,).
        passages: `(row, index of the text in the row)` of the first occurrence of each of the P passages.
    """

    questions: np.ndarray
    best: np.ndarray
    ranks: np.ndarray
    losses: np.ndarray
    figures: dict[str, np.ndarray]
    passages: list[tuple[int, int]]


def rank(
    texts: list[list[str]], vectors: np.ndarray, scorer: Scorer | None = None, num_scored: int = CUTOFF
) -> Ranking:
    """Ranks all passages of a table for each of its questions.

    Args:
        texts: N lists of K texts: a question, the passage that matches it, and passages that do not. A question in
            several rows has several matches.
        vectors: unit vectors, float32, shape (N, K, D).
        scorer: scores pairs of question and passage, to re-order the first passages of each question; None: no
            re-ordering.
        num_scored: number of passages to re-order.
    """
    pool = _collect(texts)
    best, ranks, losses, figures = [], [], [], []
    for similarities, some in _similarities(pool, vectors):
        orders = np.argsort(-similarities, axis=1, kind="stable")
        if scorer:
            first = orders[:, :num_scored]
            rows = zip(pool.rows[some], first, strict=True)
            pairs = [(texts[row][0], texts[at][place]) for row, order in rows for at, place in pool.at(order)]
            by_score = np.argsort(-scorer(pairs).reshape(first.shape), axis=1, kind="stable")
            orders[:, :num_scored] = np.take_along_axis(first, by_score, 1)
        for of_question, order, matches in zip(similarities, orders, pool.matches[some], strict=True):
            match_ranks = np.flatnonzero(np.isin(order, matches)) + 1
            best.append(order[:CUTOFF])
            ranks.append(match_ranks[0])
            losses.append(np.logaddexp.reduce(20.0 * of_question) - 20.0 * of_question[matches[0]])
            figures.append(_figures(match_ranks, len(matches)))
    names = ("recall@1", "recall@10", "mrr@10", "ndcg@10")
    columns = dict(zip(names, np.array(figures).T, strict=True))
    return Ranking(
        questions=np.array(pool.rows),
        best=np.array(best),
        ranks=np.array(ranks),
        losses=np.array(losses),
        figures=columns,
        passages=pool.passages,
    )


def mine(
    texts: list[list[str]], vectors: np.ndarray, num_negatives: int, relative_margin: float | None = None
) -> list[list[str]]:
    """Adds to each row the passages nearest to its question that are not in a row of this question.

    Args:
        texts, vectors: as in `rank`.
        num_negatives: number of passages to add to each row.
        relative_margin: share of the match's cosine by which the cosine of a passage must be lower; otherwise, it may
            match, too, and is not taken. A row then may get fewer passages.

    Raises:
        InputError: there are too few passages, whatever their cosines.
    """
    pool = _collect(texts)
    own: dict[str, set[str]] = {}
    for question, *others in texts:
        own.setdefault(question, {question}).update(others)
    negatives = {}
    for similarities, some in _similarities(pool, vectors):
        for of_question, matches, row in zip(similarities, pool.matches[some], pool.rows[some], strict=True):
            order, question = np.argsort(-of_question, kind="stable"), texts[row][0]
            if relative_margin is not None:
                least = of_question[matches].min()
                order = order[of_question[order] <= least - relative_margin * abs(least)]
            others = (texts[at][place] for at, place in pool.at(order))
            new = (text for text in others if text not in own[question])
            negatives[question] = list(itertools.islice(new, num_negatives))
            if len(negatives[question]) < num_negatives and relative_margin is None:
                raise InputError(
                    f"--num_negatives={num_negatives}: only {len(negatives[question])} passages of the training file "
                    f"do not belong to {question!r:.80}. Give a lower number."
                )
    return [[*row, *negatives[row[0]]] for row in texts]


class _Pool(NamedTuple):
    """The different questions and passages of a table, as in `Ranking`, and the passages that match each question."""

    rows: list[int]
    passages: list[tuple[int, int]]
    matches: list[list[int]]

    def at(self, numbers: np.ndarray) -> Iterator[tuple[int, int]]:
        return (self.passages[number] for number in numbers)


def _collect(texts: list[list[str]]) -> _Pool:
    numbers: dict[str, int] = {}
    passages: list[tuple[int, int]] = []
    matches: dict[str, set[int]] = {}
    rows: dict[str, int] = {}
    for row, (question, *others) in enumerate(texts):
        for place, passage in enumerate(others, 1):
            if numbers.setdefault(passage, len(passages)) == len(passages):
                passages.append((row, place))
        rows.setdefault(question, row)
        matches.setdefault(question, set()).add(numbers[others[0]])
    return _Pool(list(rows.values()), passages, [sorted(passages_of) for passages_of in matches.values()])


def _similarities(pool: _Pool, vectors: np.ndarray) -> Iterator[tuple[np.ndarray, slice]]:
    """Yields the cosines of some questions with all passages, float32 (some, P), and the slice of these questions."""
    corpus = np.stack([vectors[row, place] for row, place in pool.passages])
    for start in range(0, len(pool.rows), _ROWS_AT_ONCE):
        some = slice(start, start + _ROWS_AT_ONCE)
        yield vectors[pool.rows[some], 0] @ corpus.T, some


def _figures(ranks: np.ndarray, num_relevant: int) -> tuple[float, ...]:
    """Returns the figures of a question from the ranks of its matches, as sentence-transformers defines them."""
    near = ranks[ranks <= CUTOFF]
    ideal = np.sum(1.0 / np.log2(np.arange(min(num_relevant, CUTOFF)) + 2))
    return (
        float(ranks[0] == 1) / num_relevant,
        len(near) / num_relevant,
        1.0 / near[0] if len(near) else 0.0,
        np.sum(1.0 / np.log2(near + 1)) / ideal,
    )
