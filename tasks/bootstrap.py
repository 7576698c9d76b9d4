"""How far a score would move had other rows of the same kind been drawn: intervals by the bootstrap."""

from collections.abc import Callable

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
    if num_rows < 1 or samples < 1:
        raise ValueError(
            f"`num_rows` and `samples` must be at least 1. Received: num_rows={num_rows}, samples={samples}"
        )
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"`confidence` must be between 0 and 1. Received: confidence={confidence}")
    generator = np.random.default_rng(seed)
    values = np.array([statistic(generator.integers(0, num_rows, num_rows)) for _ in range(samples)], np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0])
    return float(low), float(high)
