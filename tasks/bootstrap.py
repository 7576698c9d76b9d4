"""How far a score would move had other rows of the same kind been drawn: intervals by the bootstrap."""

from collections.abc import Callable, Iterator

import numpy as np


def interval(
    statistic: Callable[[np.ndarray], float],
    num_rows: int,
    *,
    seed: int = 0,
    samples: int = 1000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Percentile interval: the middle `confidence` of the statistic over rows drawn with replacement.

    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. It tells how sure the score is for
    these rows' size, with the model as it is; it says nothing of another training's luck (see `tasks.sweep`).

    Args:
        statistic: gets row numbers, int64, shape (num_rows,), some of them several times; gives the score of these
            rows. NaN where it is not defined, as a correlation of equal values: such a sample is left out.
        num_rows: rows that there are.
        seed: seed of the draw; the same seed, rows and statistic give the same interval.
        samples: how often to draw; the ends of an interval need about 1000 (same chapter).
        confidence: share of the samples that lie inside, above 0 and below 1.

    Returns:
        The lower and the upper end; both NaN if the statistic is defined for no sample.

    >>> answers = np.array([True] * 80 + [False] * 20)
    >>> interval(lambda rows: answers[rows].mean(), 100)
    (0.72, 0.88)
    """
    values = np.array([statistic(rows) for rows in _draws(num_rows, seed, samples)], np.float64)
    return middle(values, confidence)


def drawn_counts(groups: np.ndarray, num_groups: int, *, seed: int = 0, samples: int = 1000) -> np.ndarray:
    """How often each sample of `interval` has each kind of row, for statistics that hang on nothing else.

    Args:
        groups: the kind of each row, int from 0 on, shape (N,).
        num_groups: G.
        seed, samples: as in `interval`, which draws the same rows.

    Returns:
        int64, shape (samples, G); each line adds up to N.
    """
    return np.stack([np.bincount(groups[rows], minlength=num_groups) for rows in _draws(len(groups), seed, samples)])


def _draws(num_rows: int, seed: int, samples: int) -> Iterator[np.ndarray]:
    if num_rows < 1 or samples < 1:
        raise ValueError(
            f"`num_rows` and `samples` must be at least 1. Received: num_rows={num_rows}, samples={samples}"
        )
    generator = np.random.default_rng(seed)
    for _ in range(samples):
        yield generator.integers(0, num_rows, num_rows)


def middle(values: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """The lower and the upper end of the middle `confidence` of samples' values; NaN is left out."""
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"`confidence` must be between 0 and 1. Received: confidence={confidence}")
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    return float(low), float(high)
