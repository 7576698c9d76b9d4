"""benchmarks/soak.py: how it judges, and three minutes of it."""

import subprocess
import sys

import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import soak


@pytest.mark.parametrize(
    ("answer", "expected", "is_alike"),
    [
        ({"label": "a", "score": 0.5}, {"label": "a", "score": 0.5004}, True),
        ({"label": "a", "score": 0.5}, {"label": "b", "score": 0.5}, False),
        ({"label": "a", "score": 0.5}, {"label": "a", "score": 0.502}, False),
        ({"label": "a"}, {"label": "a", "score": 0.5}, False),
        ([1, 2, -1, -1], [1, 2], True),
        ([1, 2, 3], [1, 2], False),
        (["a"], ["a", "", ""], True),
        (["a"], ["a", "b"], False),
    ],
)
def test_answers_are_compared_but_for_rounding_and_padding(answer, expected, is_alike):
    assert soak.alike(answer, expected) == is_alike


def test_growth_is_from_the_second_tenth_to_the_last():
    samples = [50.0] * 10 + [100.0] * 10 + [500.0] * 70 + [103.0] * 10
    assert soak.growth(samples) == pytest.approx(0.03)
    assert soak.growth([2.0, 1.0, 1.0]) == 0.0


@pytest.mark.slow
def test_servers_last(tmp_path):
    """In so short a time memory still settles: an hour is `make soak`."""
    command = [sys.executable, "benchmarks/soak.py", "--minutes=3", "--small", "--most_growth=0.05"]
    done = subprocess.run(command, cwd=ROOT, env=None, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "wrong: 0" in done.stdout.splitlines()[-1]
