"""When a training ends: after a number of steps, or by the clock (Izsak et al. 2021, arXiv:2104.07705, section 3)."""

import contextlib
import time
from contextlib import AbstractContextManager

from keras_bert.errors import InputError
from keras_bert.files import read_optional_json, write_json
from tasks.engine.schedules import WarmupConstantDecay

UNSETTLED = 2**24 - 2  # Steps: more than any run does, and exact in float32.
_MARGIN = 0.03  # Share of the budget for what follows the last evaluation, and for a machine that becomes slower.
_KEEP_SECONDS = 2.0  # Between two writings of the file.


class StepBudget:
    """Ends a training after a number of steps.

    Attributes:
        num_steps: int, the last step.
    """

    def __init__(self, num_steps: int):
        self.num_steps = num_steps

    def is_over(self, step: int) -> bool:
        """Returns whether `step` is the last one."""
        return step >= self.num_steps

    def needs_pause(self) -> bool:
        """Returns whether a checkpoint is wanted, beside the regular ones."""
        return False

    def pause(self) -> AbstractContextManager:
        """Returns the context of a checkpoint and its evaluation."""
        return contextlib.nullcontext()

    def settle(self, step: int) -> None:
        """Takes note of the steps that are finished."""

    def agree(self, num_steps: int) -> None:
        """Takes over the last step, which another worker settled."""

    def keep(self, stopped_at: int | None = None) -> None:
        """Writes down what a call that continues the training must know."""


class TimeBudget(StepBudget):
    """Ends a training by the clock, over all calls that continue it.

    The learning rate stays at its peak for half of the steps, and until then nothing depends on their number. It is
    settled as late as that: once the time left is just enough for as many steps as are done. A training given this
    number of steps is the same, bit by bit. If the machine then becomes slower, or a killed call loses steps, the
    training ends before its last one.

    Args:
        path: JSON file of the time that earlier calls took and, once it is settled, the number of steps.
        seconds: the budget.
        started: `time.monotonic()` when this call began.
        schedule: learning rate of the training.
        save_checkpoints_steps: steps between checkpoints.

    Attributes:
        num_steps: int; `UNSETTLED` until it is known.
    """

    def __init__(
        self, path: str, seconds: float, started: float, schedule: WarmupConstantDecay, save_checkpoints_steps: int
    ):
        super().__init__(UNSETTLED)
        kept = read_optional_json(path) or {}
        self._path = path
        self._seconds = seconds * (1.0 - _MARGIN)
        self._started = started - kept.get("seconds", 0.0)
        self._schedule = schedule
        self._save_checkpoints_steps = save_checkpoints_steps
        self._stopped_at = kept.get("stopped_at")
        self._kept_at = started
        self._first: tuple[int, float] | None = None  # Steps and seconds from which on the rate is measured.
        self._pauses = [0.0]
        self.agree(kept.get("num_train_steps") or UNSETTLED)

    def _left(self) -> float:
        """Returns the seconds left to train: at the end comes a pause as long as any before."""
        return self._seconds - (time.monotonic() - self._started) - max(self._pauses)

    def is_over(self, step: int) -> bool:
        return super().is_over(step) or self._left() <= 0.0 or (self._stopped_at or UNSETTLED) <= step

    def needs_pause(self) -> bool:
        """Returns True once, after a quarter of the time: how long an evaluation takes must be known."""
        return self.num_steps == UNSETTLED and len(self._pauses) == 1 and self._left() < 0.75 * self._seconds

    @contextlib.contextmanager
    def pause(self):
        start = time.monotonic()
        yield
        self._pauses.append(time.monotonic() - start)

    def settle(self, step: int) -> None:
        """Settles the last step, if it is time to.

        Raises:
            InputError: the warm-up takes more than half of the time.
        """
        seconds = time.monotonic() - sum(self._pauses)
        if self._first is None:  # The first call builds the graph.
            self._first = step, seconds
        elif self.num_steps == UNSETTLED:
            rate = (seconds - self._first[1]) / (step - self._first[0])
            pauses = (2 * step - 1) // self._save_checkpoints_steps - step // self._save_checkpoints_steps
            if self._left() - pauses * max(self._pauses) <= rate * step:
                warmup = self._schedule.num_warmup_steps
                if step < warmup:
                    raise InputError(
                        f"--num_warmup_steps={warmup}: half of --time_budget_minutes was over after step {step}. "
                        "Warm up for fewer steps or train longer, in a new --output_dir."
                    )
                self.agree(2 * step)

    def agree(self, num_steps: int) -> None:
        if num_steps != self.num_steps:
            self.num_steps = num_steps
            self._schedule.end_at(num_steps)

    def keep(self, stopped_at: int | None = None) -> None:
        """Writes the file, unless it was written a moment ago."""
        now = time.monotonic()
        if stopped_at is None and now - self._kept_at < _KEEP_SECONDS:
            return
        self._kept_at = now
        num_steps = None if self.num_steps == UNSETTLED else self.num_steps
        kept = {"seconds": round(now - self._started, 1), "num_train_steps": num_steps, "stopped_at": stopped_at}
        write_json(self._path, kept)
