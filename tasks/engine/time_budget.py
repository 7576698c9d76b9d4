"""Decides when a training ends: after some steps, or by the clock (Izsak et al. 2021, arXiv:2104.07705, section 3)."""

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Iterator

from keras_bert.files import read_optional_json, write_json
from tasks.engine.schedules import WarmupConstantDecay

CLOCK_FILE = "time_budget.json"
UNSETTLED = 2**24 - 2  # Steps: more than any run does, and exact in float32.
_MARGIN = 0.03  # Share of the budget for what follows the last evaluation, and for a machine that becomes slower.
_KEEP_SECONDS = 2.0  # Least time between two writes of the file, which may be remote.


@dataclasses.dataclass
class Budget:
    """The number of steps of a training, or the time that all calls that continue it may take together.

    With a time, the learning rate stays at its peak for the first half of the steps, so that their number need not be
    known until then. The number is settled once the time left is just enough to do as many steps again. If the machine
    becomes slower after that, or a killed call loses steps, the training ends before its last step.

    Args:
        num_steps: the last step; `UNSETTLED` until the clock has settled it.
        path: JSON file of the time that earlier calls took and of the settled number of steps; None
            without a clock, and on all workers but the chief.
        seconds: the time that all calls may take together.
        started: `time.monotonic()` when this call began.
        schedule: learning rate of the training.
        save_checkpoints_steps: steps between checkpoints.
    """

    num_steps: int = UNSETTLED
    _: dataclasses.KW_ONLY
    path: str | None = None
    seconds: float = math.inf
    started: float = 0.0
    schedule: WarmupConstantDecay | None = None
    save_checkpoints_steps: int = 1

    def __post_init__(self):
        kept = (self.path and read_optional_json(self.path)) or {}
        self.seconds *= 1.0 - _MARGIN
        self.started -= kept.get("seconds", 0.0)
        self._measured_from: tuple[int, float] | None = None  # Steps and seconds.
        self._pauses = [0.0]
        self._kept_at = time.monotonic()
        self.agree(kept.get("num_train_steps") or self.num_steps)

    def _seconds_left(self) -> float:
        """Returns the seconds left to train; the longest pause so far is set aside for the one at the end."""
        return self.seconds - (time.monotonic() - self.started) - max(self._pauses)

    def is_over(self, step: int) -> bool:
        """Returns whether `step` is the last one."""
        return step >= self.num_steps or self._seconds_left() <= 0.0

    def needs_pause(self) -> bool:
        """Returns whether a checkpoint is wanted now, to learn how long its evaluation takes."""
        is_unknown = self.num_steps == UNSETTLED and len(self._pauses) == 1
        return is_unknown and self._seconds_left() < 0.75 * self.seconds

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Measures the time of a checkpoint and its evaluation."""
        start = time.monotonic()
        yield
        self._pauses.append(time.monotonic() - start)

    def settle(self, step: int) -> None:
        """Settles the last step, if half of the time is over after `step`; says so if the warm-up takes longer."""
        seconds = time.monotonic() - sum(self._pauses)
        if self._measured_from is None:  # The first call builds the graph, which says nothing about the rate.
            self._measured_from = step, seconds
        elif self.num_steps == UNSETTLED:
            rate = (seconds - self._measured_from[1]) / (step - self._measured_from[0])
            pauses = (2 * step - 1) // self.save_checkpoints_steps - step // self.save_checkpoints_steps
            if self._seconds_left() - pauses * max(self._pauses) <= rate * step:
                warmup = self.schedule.num_warmup_steps
                if step < warmup:
                    print(
                        f"Half of --time_budget_minutes is over after step {step}, before {warmup} steps of warm-up. "
                        f"The learning rate reaches only {2 * step / (step + warmup):.0%} of its peak. A longer time, "
                        "a smaller model or a shorter warm-up lets it reach more.",
                        file=sys.stderr,
                    )
                self.agree(2 * step)
        if self.num_steps == UNSETTLED and self._seconds_left() <= 0.0:
            self.agree(step)

    def agree(self, num_steps: int) -> None:
        """Adopts the last step that the chief or an earlier call has settled."""
        if num_steps != self.num_steps:
            self.num_steps = num_steps
            self.schedule.end_at(num_steps)

    def keep(self, is_over: bool) -> None:
        """Writes the time taken and the last step for a later call, at most every two seconds.

        Once the training is over, all time counts as taken.
        """
        now = time.monotonic()
        if self.path and (is_over or now - self._kept_at >= _KEEP_SECONDS):
            self._kept_at = now
            seconds = self.seconds if is_over else round(now - self.started, 1)
            write_json(self.path, {"seconds": seconds, "num_train_steps": self.num_steps})
