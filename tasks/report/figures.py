"""Computes the drawings of the report in the coordinates of an SVG panel.

The template writes the SVG, so that the drawings take their colours from the style sheet (light or dark), keep their
text size on a phone, and name each point under the mouse.
"""

import math
from typing import NamedTuple

import numpy as np

MAX_SERIES = 5  # The style sheet has this many colours and dashes.
_MAX_POINTS = 400  # Points per curve, more than a panel has pixels. Longer curves are averaged.
_MAX_BARS = 40
_MAX_SCATTERED = 2000


class Axes:
    """The two scales of a plot, with round numbers as ticks.

    Args:
        x: lowest and highest value of the horizontal axis, which spans exactly these.
        y: lowest and highest value of the vertical axis, which spans its ticks.
        x_label: label of the horizontal axis.
    """

    width, height = 360, 220  # About the width of a panel on a phone and on a desktop.
    left, right, top, bottom = 46, width - 8, 12, height - 34  # The edges of the plot within its panel.

    def __init__(self, x: tuple[float, float], y: tuple[float, float], x_label: str):
        self.x_label = x_label
        self.x_ticks = [tick for tick in find_ticks(*x) if x[0] <= tick <= x[1]]
        self.y_ticks = find_ticks(*y)
        self._x, self._y = (x[0], max(x[1], x[0] + 1e-9)), (self.y_ticks[0], self.y_ticks[-1])

    def x(self, value: float) -> float:
        return round(self.left + (value - self._x[0]) / (self._x[1] - self._x[0]) * (self.right - self.left), 2)

    def y(self, value: float) -> float:
        return round(self.bottom + (value - self._y[0]) / (self._y[1] - self._y[0]) * (self.top - self.bottom), 2)


class Series(NamedTuple):
    """A curve.

    Attributes:
        label: name in the legend.
        points: steps and finite values, float64, shape (P, 2).
    """

    label: str
    points: np.ndarray

    def drawn(self) -> list[list[float]]:
        """Returns the points to draw, averaging neighbours if there are too many."""
        groups = np.array_split(self.points, min(len(self.points), _MAX_POINTS))
        return [group.mean(axis=0).tolist() for group in groups]


class Bar(NamedTuple):
    """A bar of a histogram: `count` lengths in (low, high]. The last bar also has all longer ones, up to `longest`."""

    low: int
    high: int
    longest: int
    count: int


def find_ticks(low: float, high: float) -> list[float]:
    """Returns up to seven round numbers, evenly spaced, from at or below `low` to at or above `high`.

    >>> find_ticks(0.0, 187.0)
    [0.0, 50.0, 100.0, 150.0, 200.0]
    """
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = (low - abs(low) * 0.5, high + abs(high) * 0.5) if low else (0.0, 1.0)
    at_least = (high - low) / 5 * (1 - 1e-9)  # Rounding must not make the step longer, or add a tick below.
    power = 10.0 ** math.floor(math.log10(at_least))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= at_least)
    numbers = range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    return [float(f"{number * step:.12g}") for number in numbers]


def curve_axes(series: list[Series]) -> Axes:
    """Returns axes for curves over steps, which start at 0."""
    points = np.concatenate([curve.points for curve in series])
    (first, low), (last, high) = points.min(axis=0), points.max(axis=0)
    return Axes((min(first, 0.0), last), (low, high), "step")


def histogram(lengths: np.ndarray, limit: int) -> tuple[Axes, list[Bar]]:
    """Counts examples by length, in bars whose width is a power of two.

    The last bar ends not far beyond the limit, so that a few very long examples do not squeeze the rest.

    Args:
        lengths: number of tokens of each example, int, shape (N,), with N at least 1.
        limit: maximum number of tokens of an example.
    """
    longest = int(lengths.max())
    shown = max(1, limit, min(longest, max(2 * limit, math.ceil(np.quantile(lengths, 0.99)))))
    width = 2 ** max(0, math.ceil(math.log2(shown / _MAX_BARS)))
    num_bars = math.ceil(shown / width)
    numbers = np.minimum((np.maximum(lengths, 1) - 1) // width, num_bars - 1)
    counts = np.bincount(numbers, minlength=num_bars).tolist()
    bars = [Bar(width * bar, width * (bar + 1), width * (bar + 1), count) for bar, count in enumerate(counts)]
    bars[-1] = bars[-1]._replace(longest=max(longest, bars[-1].high))
    return Axes((0, num_bars * width), (0, max(counts)), "tokens"), bars


def scatter(true: np.ndarray, predicted: np.ndarray) -> tuple[Axes, list[tuple[float, float]]]:
    """Returns axes with equal scales, and points of true and predicted values, a random sample if there are too many.

    Args:
        true, predicted: float, shape (N,), with N at least 1.
    """
    ticks = find_ticks(min(true.min(), predicted.min()), max(true.max(), predicted.max()))
    span = (ticks[0], ticks[-1])
    rows = np.random.default_rng(0).permutation(len(true))[:_MAX_SCATTERED]
    return Axes(span, span, "true value"), list(zip(true[rows].tolist(), predicted[rows].tolist(), strict=True))
