"""Turns: so many graphs run at once, however many requests there are, and short runs do not wait for long ones."""

import concurrent.futures
import threading
import time

import pytest
import toy_server

from export.server import admission, servable
from export.server.admission import Turns
from export.server.servable import ServedModel
from export.server.serving_error import ServingError, unlimited

LONG, SHORT = 5000, 100


def test_a_short_run_passes_a_long_one(monkeypatch):
    monkeypatch.setattr(admission, "available_cores", lambda: 2)
    turns = Turns()
    with turns.turn(LONG, unlimited), turns.turn(SHORT, unlimited):
        with pytest.raises(ServingError, match="deadline passed"), turns.turn(LONG, lambda: 0.01):
            pytest.fail("Two long runs at once.")
    with turns.turn(LONG, unlimited):  # It was given back.
        pass


def test_a_late_run_has_no_turn():
    with pytest.raises(ServingError, match="deadline passed"), Turns().turn(SHORT, lambda: -1.0):
        pytest.fail("It is late.")


def test_a_turn_that_comes_after_its_client_has_gone_is_given_back():
    turns = Turns()
    seconds = iter([1.0, 0.0])
    with pytest.raises(ServingError, match="deadline passed"), turns.turn(LONG, lambda: next(seconds)):
        pytest.fail("Nobody waits for it.")
    assert turns._long._value == Turns()._long._value


@pytest.mark.parametrize(("num_cores", "num_short", "num_long"), [(1, 2, 1), (2, 4, 1), (8, 16, 4)])
def test_a_machine_has_turns_for_its_cores(num_cores, num_short, num_long, monkeypatch):
    monkeypatch.setattr(admission, "available_cores", lambda: num_cores)
    for size, count in ((SHORT, num_short), (LONG, num_long)):
        turns = Turns()
        taken = [turns.turn(size, unlimited) for _ in range(count)]
        for turn in taken:
            turn.__enter__()
        with pytest.raises(ServingError, match="deadline passed"), turns.turn(size, lambda: 0.01):
            pytest.fail("One more than there are.")


def test_requests_of_all_models_wait_for_their_turns(tmp_path, monkeypatch):
    """Twelve requests of 5,000 bytes to two signatures of a model: one runs at a time."""
    monkeypatch.setattr(admission, "available_cores", lambda: 2)
    lock, running, most, run = threading.Lock(), [], [], ServedModel._run

    def noted(model, name, arrays):
        with lock:
            running.append(name)
            most.append(len(running))
        try:
            time.sleep(0.01)
            return run(model, name, arrays)
        finally:
            with lock:
                running.remove(name)

    monkeypatch.setattr(servable.ServedModel, "_run", noted)
    with toy_server.running(toy_server.saved(tmp_path), enable_model_warmup=False) as server:

        def ask(number: int):
            document = {"signature_name": ("echo", "serving_default")[number % 2], "instances": ["x" * LONG]}
            return toy_server.ask(server, "POST", "/v1/models/toy:predict", document)[0]

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            assert list(pool.map(ask, range(12))) == [200] * 12
    assert max(most) == 1
