"""Computes bootstrap intervals: the range of a score over other rows of the same kind.

`scipy.stats.bootstrap` draws the same samples, as a test checks, but it refuses a single row.
"""

from collections.abc import Callable

import numpy as np


def interval(
    statistic: Callable[[np.ndarray], float], num_rows: int, *, seed: int = 0, samples: int = 1000
) -> tuple[float, float]:
    """Computes a percentile interval: the middle 95% of the statistic over rows drawn with replacement.

    See Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. The interval covers the choice of the
    evaluated rows only. `tasks.fine_tuning.sweep` measures how a score varies with the seed of the training.

    Args:
        statistic: maps row numbers, int64, shape (num_rows,), drawn with replacement, to the score of these rows.
        num_rows: number of rows.
        seed: seed of the draws; the same seed, rows and statistic give the same interval.
        samples: number of draws. The ends of an interval need about 1000 (same chapter).

    Returns:
        The lower and the upper end.

    >>> answers = np.array([True] * 80 + [False] * 20)
    >>> interval(lambda rows: answers[rows].mean(), 100)
    (0.72, 0.88)
    """
    generator = np.random.default_rng(seed)
    values = [statistic(generator.integers(0, num_rows, num_rows)) for _ in range(samples)]
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)
