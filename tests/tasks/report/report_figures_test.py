"""What the drawings of report.html show: ticks, averages of long curves, and bars that hold each example once."""

import numpy as np
import pytest

from tasks.report import figures


def test_long_curves_are_averaged():
    steps = np.arange(20_000.0)
    points = np.array(figures.Series("loss", np.stack([steps, 2.0 * steps], axis=1)).drawn())
    assert len(points) == 400
    np.testing.assert_allclose(points[:2, 0], [24.5, 74.5])
    np.testing.assert_allclose(points[:, 1], 2.0 * points[:, 0])


@pytest.mark.parametrize(
    "low, high, expected",
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.12, 0.69, [0.0, 0.2, 0.4, 0.6, 0.8]),
        (-3.0, 4.0, [-4.0, -2.0, 0.0, 2.0, 4.0]),
        (5.0, 5.0, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        (0.0, 0.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 4.3e-05, [0.0, 1e-05, 2e-05, 3e-05, 4e-05, 5e-05]),
    ],
)
def test_ticks(low, high, expected):
    assert figures.find_ticks(low, high) == expected


@pytest.mark.parametrize("seed", range(3))
def test_ticks_cover_any_range(seed):
    generator = np.random.default_rng(seed)
    for _ in range(300):
        low, high = sorted(generator.normal(size=2) * 10.0 ** generator.integers(-8, 9))
        ticks = figures.find_ticks(low, high)
        assert ticks[0] <= low + 1e-9 * abs(low) and ticks[-1] >= high - 1e-9 * abs(high)
        assert 2 <= len(ticks) <= 8 and np.allclose(np.diff(ticks), ticks[1] - ticks[0])


def test_bars_hold_each_example_once():
    lengths = np.random.default_rng(0).integers(1, 600, 3000)
    _, bars = figures.histogram(lengths, 128)
    assert sum(bar.count for bar in bars) == 3000
    for bar in bars:
        assert bar.count == ((lengths > bar.low) & (lengths <= bar.longest)).sum()


def test_a_few_very_long_ones_do_not_squeeze_the_rest():
    axes, bars = figures.histogram(np.array([20] * 500 + [30_000, 200]), 128)
    assert 128 <= bars[-1].low < 256
    assert (bars[-1].longest, bars[-1].count) == (30_000, 1)
    assert axes.x(bars[-1].high) == axes.right


@pytest.mark.parametrize("lengths, place", [([1], 0), ([0, 1, 1], 0), ([128], 31), ([129], 32)])
def test_small_sets_are_drawn(lengths, place):
    _, bars = figures.histogram(np.array(lengths), 128)
    assert bars[place].count == len(lengths) and bars[-1].longest == bars[-1].high
