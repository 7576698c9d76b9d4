"""Figures of search: where the matches of each question stand among all passages, ranked by cosine.

Shapes: N rows, Q different questions, P different passages, D embedding.
"""

from typing import NamedTuple

import numpy as np

CUTOFF = 10  # Ranks that recall@10, MRR@10 and nDCG@10 look at.
_ROWS_AT_ONCE = 256


class Ranking(NamedTuple):
    """The passages that each question finds.

    Attributes:
        questions: Q row numbers, of the first row with each question.
        best: numbers of the first `CUTOFF` passages, best first, int, shape (Q, min(CUTOFF, P)).
        ranks: rank of the best match, from 1, int, shape (Q,).
        losses: cross entropy of the first match among all passages, at a scale of 20, float, shape (Q,).
        figures: `recall@1`, `recall@10`, `mrr@10` and `ndcg@10` of each question, float, shape (Q,).
        passages: P row numbers and places in the row, of the first text with each passage.
    """

    questions: np.ndarray
    best: np.ndarray
    ranks: np.ndarray
    losses: np.ndarray
    figures: dict[str, np.ndarray]
    passages: list[tuple[int, int]]


def rank(texts: list[list[str]], vectors: np.ndarray) -> Ranking:
    """Ranks all passages of a table for each of its questions.

    Args:
        texts: N lists of K texts: a question, the passage that matches it, and passages that do not. A question in
            several rows has several matches.
        vectors: float32, shape (N, K, D), of length 1.
    """
    numbers: dict[str, int] = {}
    passages: list[tuple[int, int]] = []
    matches: dict[str, list[int]] = {}
    first_rows: dict[str, int] = {}
    for row, (question, *others) in enumerate(texts):
        for place, passage in enumerate(others, 1):
            if numbers.setdefault(passage, len(passages)) == len(passages):
                passages.append((row, place))
        first_rows.setdefault(question, row)
        matches.setdefault(question, []).append(numbers[others[0]])
    rows = np.array(list(first_rows.values()))
    corpus = np.stack([vectors[row, place] for row, place in passages])
    best, ranks, losses, figures = [], [], [], []
    relevant = [sorted(set(of_question)) for of_question in matches.values()]
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        similarities = vectors[rows[start : start + _ROWS_AT_ONCE], 0] @ corpus.T
        for of_question, found in zip(similarities, relevant[start : start + _ROWS_AT_ONCE], strict=True):
            order = np.argsort(-of_question, kind="stable")
            places = np.flatnonzero(np.isin(order, found)) + 1
            best.append(order[:CUTOFF])
            ranks.append(places[0])
            losses.append(np.logaddexp.reduce(20.0 * of_question) - 20.0 * of_question[found[0]])
            figures.append(_figures(places, len(found)))
    names = ("recall@1", "recall@10", "mrr@10", "ndcg@10")
    columns = dict(zip(names, np.array(figures).T, strict=True))
    return Ranking(rows, np.array(best), np.array(ranks), np.array(losses), columns, passages)


def _figures(places: np.ndarray, num_relevant: int) -> tuple[float, ...]:
    """Returns the figures of one question from the ranks of its matches, as sentence-transformers defines them."""
    near = places[places <= CUTOFF]
    ideal = np.sum(1.0 / np.log2(np.arange(min(num_relevant, CUTOFF)) + 2))
    return (
        float(places[0] == 1) / num_relevant,
        len(near) / num_relevant,
        1.0 / near[0] if len(near) else 0.0,
        np.sum(1.0 / np.log2(near + 1)) / ideal,
    )
