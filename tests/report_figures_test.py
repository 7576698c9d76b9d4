"""The drawings of report.html, read as XML: points, bars and ticks are where the numbers say."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from tasks import report_figures


def test_points_lie_where_the_axes_say():
    drawing = report_figures.draw_curves([("loss", np.array([0.0, 100.0]), np.array([0.2, 1.0]))], "loss", "step")
    root = ElementTree.fromstring(drawing)
    points = [(float(one.get("cx")), float(one.get("cy"))) for one in root.iter("circle")]
    ticks = {one.text: (float(one.get("x")), float(one.get("y")) - 4) for one in root.iter("text")}
    assert points[0][1] == ticks["0.2"][1] and points[1][1] == ticks["1"][1]
    assert points[0][0] == ticks["0"][0] and points[1][0] == ticks["100"][0]
    assert points[0][1] > points[1][1] and points[0][0] < points[1][0]


def test_long_histories_are_averaged():
    steps = np.arange(20_000.0)
    thin_steps, thin_values = report_figures._thin(steps, 2.0 * steps)
    assert len(thin_steps) == report_figures.MAX_POINTS
    np.testing.assert_allclose(thin_steps[:2], [24.5, 74.5])
    np.testing.assert_allclose(thin_values, 2.0 * thin_steps)
    assert len(report_figures.draw_curves([("loss", steps, steps)], "loss", "step")) < 12_000


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
    assert report_figures.ticks(low, high) == expected


@pytest.mark.parametrize("seed", range(3))
def test_ticks_cover_any_range(seed):
    generator = np.random.default_rng(seed)
    for _ in range(300):
        low, high = sorted(generator.normal(size=2) * 10.0 ** generator.integers(-8, 9))
        found = report_figures.ticks(low, high)
        assert found[0] <= low + 1e-9 * abs(low) and found[-1] >= high - 1e-9 * abs(high)
        assert 2 <= len(found) <= 8 and np.allclose(np.diff(found), found[1] - found[0])


def test_bars_hold_each_example_once():
    lengths = np.random.default_rng(0).integers(1, 600, 3000)
    drawing, _ = report_figures.draw_histogram(lengths, 128, "lengths")
    titles = [one.text for one in ElementTree.fromstring(drawing).iter("title")][1:]
    found = [re.fullmatch(r"([\d,]+) to ([\d,]+) tokens: ([\d,]+)", title).groups() for title in titles]
    found = [tuple(int(number.replace(",", "")) for number in row) for row in found]
    assert sum(count for *_, count in found) == 3000
    for first, last, count in found:
        assert count == ((lengths >= first) & (lengths <= last)).sum()


def test_a_few_very_long_ones_do_not_squeeze_the_rest():
    lengths = np.array([20] * 500 + [30_000, 200])
    drawing, rest = report_figures.draw_histogram(lengths, 128, "lengths")
    assert 128 <= rest < 256
    assert "to 30,000 tokens: 1" in drawing


@pytest.mark.parametrize("lengths", [[1], [0, 1, 1], [128], [129]])
def test_small_sets_are_drawn(lengths):
    drawing, rest = report_figures.draw_histogram(np.array(lengths), 128, "lengths")
    assert ElementTree.fromstring(drawing).findall("rect") and rest == 0
