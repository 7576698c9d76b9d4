"""Steps whose results are kept: what was done before is not done again, on this machine or elsewhere."""

import os

import pytest

from tasks.text.parallel import LocalPool
from tasks.text.steps import run_step

DONE = []


def square(directory, number):
    DONE.append(number)
    if number == 3 and not os.path.exists(os.path.join(directory, "may")):
        raise KeyError("three")
    return {"square": number**2}


def run(directory, pool=None):
    tasks = range(6)
    return [
        result["square"] for result in run_step(pool or LocalPool(1), directory, "square", square, tasks, tasks, "it")
    ]


def test_results_are_kept_and_the_rest_is_done(tmp_path, capsys):
    DONE.clear()
    with pytest.raises(KeyError):
        run(str(tmp_path))
    (tmp_path / "may").write_text("")
    assert run(str(tmp_path)) == [0, 1, 4, 9, 16, 25]
    assert DONE == [0, 1, 2, 3, 3, 4, 5]
    assert "square: 3 of 6 tasks are finished already." in capsys.readouterr().err
    assert run(str(tmp_path)) == [0, 1, 4, 9, 16, 25] and len(DONE) == 7


def test_a_cluster_that_does_everything_twice_does_nothing_twice(tmp_path):
    class Cluster:
        def map(self, function, arguments, *shared):
            elements = list(arguments)
            for element in elements + elements:
                function(*shared, element)
            yield from (None for _ in elements)

    DONE.clear()
    (tmp_path / "may").write_text("")
    assert run(str(tmp_path), Cluster()) == [0, 1, 4, 9, 16, 25]
    assert DONE == list(range(6))
