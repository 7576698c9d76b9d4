"""The picture of the learning curve."""

import matplotlib.figure
import pytest

from tasks.quickstart.learning_curve import draw


def test_the_picture_has_means_ranges_and_the_majority(tmp_path, monkeypatch):
    saved, save = [], matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure,
        "savefig",
        lambda self, *args, **options: saved.append(self) or save(self, *args, **options),
    )
    results = [
        {"rows": 16, "pretrained": [0.3, 0.5, 0.4], "random": [0.1, 0.1, 0.4]},
        {"rows": 250, "pretrained": [0.5, 0.6, 0.7], "random": [0.3, 0.3, 0.3]},
    ]
    draw(str(tmp_path / "curve.png"), results, 0.125)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    (axes,) = saved[0].axes
    pretrained, random, majority = axes.lines
    for line, label, means in ((pretrained, "from pre-training", [40, 60]), (random, "from random weights", [20, 30])):
        assert line.get_label() == label and list(line.get_xdata()) == [16, 250]
        assert list(line.get_ydata()) == pytest.approx(means)
    assert majority.get_label() == "majority class" and list(majority.get_ydata()) == [12.5, 12.5]
    for band, (low, high) in zip(axes.collections, ((30, 70), (10, 40)), strict=True):
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (pytest.approx(low), pytest.approx(high))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["16", "250"]
