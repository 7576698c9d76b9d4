"""Trainings that end by the clock: how many steps they settle on, when they end, and what a later call knows."""

import json

import numpy as np
import pytest
import toy_pretraining

from tasks.engine import time_budget
from tasks.engine.schedules import SCHEDULES, WarmupConstantDecay
from tasks.engine.time_budget import UNSETTLED, Budget


class Clock:
    """In place of the module `time`."""

    def __init__(self, tick: float = 0.0):
        self.now = 1000.0
        self.tick = tick

    def monotonic(self) -> float:
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time_budget, "time", clock)
    return clock


def start(path, clock, seconds=180.0, warmup=10, save_steps=400) -> tuple[Budget, WarmupConstantDecay]:
    schedule = SCHEDULES["constant_then_linear"](1.0, UNSETTLED, warmup)
    options = {"schedule": schedule, "save_checkpoints_steps": save_steps}
    return Budget(path=str(path / "budget.json"), seconds=seconds, started=clock.now, **options), schedule


def train(budget, clock, step=0, *, rate=0.1, pause=4.0, slower_from=None, save_steps=400, until=None) -> int:
    """Does what `Trainer.fit` does of a training with steps of `rate` seconds; returns the last step."""
    while not budget.is_over(step) and (until is None or step < until):
        count = min(5, budget.num_steps - step)
        clock.now += rate * count * (2.0 if slower_from is not None and step >= slower_from else 1.0)
        step += count
        budget.settle(step)
        if budget.needs_pause() or budget.is_over(step) or step % save_steps == 0:
            with budget.pause():
                clock.now += pause
        budget.keep(budget.is_over(step))
    return step


def test_it_uses_the_time_and_decays_over_half_of_the_steps(clock, tmp_path):
    began = clock.now
    budget, schedule = start(tmp_path, clock)
    last = train(budget, clock)
    assert last == budget.num_steps == schedule.num_train_steps
    assert 0.92 * 180 < clock.now - began < 180
    assert [float(schedule(step)) for step in (last // 2, last * 3 // 4, last)] == pytest.approx(
        [1.0, 0.5, 0.0], abs=0.01
    )
    kept = json.loads((tmp_path / "budget.json").read_text())
    assert kept["num_train_steps"] == last


def test_a_slower_machine_ends_it_before_the_last_step(clock, tmp_path):
    began = clock.now
    budget, _ = start(tmp_path, clock)
    last = train(budget, clock, slower_from=900)
    assert last < budget.num_steps and clock.now - began < 180


@pytest.mark.parametrize("killed_at", [300, 1200])
def test_a_killed_run_keeps_its_budget(clock, tmp_path, killed_at):
    """Before and after the number of steps is settled; 40 steps are lost, and the break does not count."""
    began = clock.now
    budget, _ = start(tmp_path, clock)
    step = train(budget, clock, until=killed_at)
    clock.now += 3600.0
    again, schedule = start(tmp_path, clock)
    assert again.num_steps == budget.num_steps and (budget.num_steps == UNSETTLED) == (killed_at == 300)
    last = train(again, clock, step - 40)
    assert 0.92 * 180 < clock.now - began - 3600 < 1.02 * 180
    assert schedule.num_train_steps == again.num_steps >= last > 0.9 * again.num_steps
    third, _ = start(tmp_path, clock)
    assert third.is_over(last)


def test_a_warmup_that_takes_half_of_the_time_does_not_reach_the_peak(clock, tmp_path, capsys):
    budget, schedule = start(tmp_path, clock, warmup=10000)
    last = train(budget, clock)
    assert last == budget.num_steps
    said = capsys.readouterr().err
    assert said.startswith(f"Half of --time_budget_minutes is over after step {last // 2}, before 10000 steps of")
    highest = max(float(schedule(step)) for step in range(0, last, 10))
    assert f"only {highest:.0%} of its peak" in said


def test_a_time_that_ends_with_the_first_call_has_the_steps_of_that_call(clock, tmp_path):
    budget, _ = start(tmp_path, clock)
    assert train(budget, clock, rate=60.0) == budget.num_steps == 5
    assert json.loads((tmp_path / "budget.json").read_text())["num_train_steps"] == 5


def test_a_training_given_its_steps_is_the_same(clock, tmp_path):
    clock.tick = 0.02

    def fit(name, by_clock, num_steps):
        trainer = toy_pretraining.build_trainer(
            tmp_path / name, optimizer="muon", num_layers=1, num_steps=num_steps, lr_schedule="constant_then_linear"
        )
        options = {"seconds": 1.5, "started": clock.now, "schedule": trainer.schedule, "save_checkpoints_steps": 50}
        budget = Budget(path=str(tmp_path / "budget.json"), **options) if by_clock else num_steps
        trainer.fit(toy_pretraining.batches, budget, save_checkpoints_steps=50)
        return int(trainer.step.numpy()), np.concatenate([weight.numpy().ravel() for weight in trainer.model.weights])

    last, weights = fit("clock", True, UNSETTLED)
    assert 4 < last < 50
    again, same = fit("steps", False, last)
    assert again == last
    np.testing.assert_array_equal(same, weights)
