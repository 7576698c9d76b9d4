"""Reports a training by progress bar, history.json and TensorBoard events; decides when to stop early."""

import contextlib
import dataclasses
import math
import os
import sys
import time

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_bert import files
from tasks.engine.time_budget import UNSETTLED

_COUNTS = ("examples", "real_tokens")  # Summed to give the speed; all other figures are averaged.
_SHOWN = {"examples_per_second": "{:.0f} examples/s", "real_tokens_per_second": "{:,.0f} tokens/s"}
# As `tf.summary.scalar` marks its values. That function needs TensorBoard, which TensorFlow 2.21 does not install.
_SCALAR = tf.compat.v1.SummaryMetadata(plugin_data={"plugin_name": "scalars"})


@dataclasses.dataclass
class History:
    """Figures of a training, by step.

    Attributes:
        training: one dict per interval of steps: its last `step`, and means over the interval of `loss`,
            `learning_rate`, `gradient_norm` and, if there are several losses, each `<name>_loss`.
        evaluations: one dict per evaluation: its `step` and the figures it returned.
    """

    training: list[dict[str, float]] = dataclasses.field(default_factory=list)
    evaluations: list[dict[str, float]] = dataclasses.field(default_factory=list)

    @classmethod
    def read(cls, path: str, last_step: int) -> "History":
        """Reads the rows up to `last_step`; returns an empty history if there is no file."""
        rows = files.read_optional_json(path) or dataclasses.asdict(cls())
        return cls(*([row for row in rows[name] if row["step"] <= last_step] for name in ("training", "evaluations")))


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Ends a training once its evaluations stop improving.

    Decisions depend on the history alone, so a resumed training stops where an uninterrupted one does.

    Args:
        metric: name of a figure that the evaluations return; lower is better if it ends in "loss".
        patience: 1 or more, number of consecutive evaluations without improvement that ends the training.
    """

    metric: str
    patience: int

    def best_step(self, history: History) -> int | None:
        """Returns the step of the best evaluation (the earliest among equals), or None if all were NaN."""
        sign = -1.0 if self.metric.endswith("loss") else 1.0
        rows = [row for row in history.evaluations if not math.isnan(row[self.metric])]
        best = max(rows, key=lambda row: sign * row[self.metric], default=None)
        return best and best["step"]

    def is_over(self, history: History) -> bool:
        """Returns whether `patience` evaluations have followed the best one."""
        best_step = self.best_step(history)
        later = [row for row in history.evaluations if best_step is None or row["step"] > best_step]
        return len(later) >= self.patience


class Reporter(contextlib.AbstractContextManager):
    """Context manager that reports on a running training.

    Args:
        output_dir: directory for `history.json` and `events/`.
        start_step: step to resume from; later rows of an earlier run are dropped.
        description: title of the progress bar.
        is_active: whether to show and write anything; False on all workers but the chief.
    """

    def __init__(self, output_dir: str, *, start_step: int, description: str, is_active: bool):
        self.history, self._events = History(), tf.summary.create_noop_writer()
        self._output_dir = output_dir
        self._description = description
        self._is_active = is_active
        if is_active:
            files.make_directory(output_dir)
            self.history = History.read(self._path("history.json"), start_step)
            self._events = tf.summary.create_file_writer(self._path("events"))
        self._rows: list[np.ndarray] = []
        self._seconds = 0.0  # Time spent on `_rows`.
        self._since = time.monotonic()
        self._bar = tqdm(initial=start_step, desc=description, unit="step", mininterval=0.5, disable=not is_active)

    def __exit__(self, *exception) -> None:
        self._bar.close()
        self._events.close()

    def expect(self, num_steps: int) -> None:
        """Shows the time left until the last step, if that is known."""
        self._bar.total = None if num_steps == UNSETTLED else num_steps

    def steps(self, names: list[str], values: np.ndarray) -> None:
        """Adds the figures of the latest steps; `values[i, j]` is the figure `names[j]` of the i-th step."""
        self._rows.append(values)
        seconds = time.monotonic() - self._since
        self._seconds += seconds
        self._since = time.monotonic()
        loss = values[:, names.index("loss")].astype(np.float64).mean()
        rates = self._rates(names, values, seconds)
        shown = [form.format(rates[name]) for name, form in _SHOWN.items() if name in rates]
        self._bar.set_postfix_str(", ".join([f"loss {loss:.4f}", *shown]), refresh=False)
        self._bar.update(len(values))

    def _rates(self, names: list[str], values: np.ndarray, seconds: float) -> dict[str, float]:
        """Returns `examples_per_second` and, where known, `real_tokens_per_second`."""
        sums = dict(zip(names, values.astype(np.float64).sum(axis=0) / max(seconds, 1e-9), strict=True))
        return {f"{name}_per_second": sums[name] for name in _COUNTS if sums[name]}

    def record(self, step: int, names: list[str]) -> None:
        """Ends an interval at `step`: writes its means to the history and to TensorBoard.

        Only TensorBoard gets the speed, so that a resumed run has the same history as an uninterrupted one.
        """
        values = np.concatenate(self._rows).astype(np.float64)
        row = {name: float(mean) for name, mean in zip(names, values.mean(axis=0), strict=True) if name not in _COUNTS}
        self.history.training.append({"step": step, **row})
        self._write_events("train", step, {**row, **self._rates(names, values, self._seconds)})
        self._rows, self._seconds = [], 0.0

    def needs_evaluation(self, step: int, interval: int) -> bool:
        """Returns whether `interval` steps or more lie between `step` and the last evaluation, or the start."""
        return step - max((row["step"] for row in self.history.evaluations), default=0) >= interval

    def evaluation(self, step: int, figures: dict[str, float]) -> None:
        """Adds an evaluation to the history and to TensorBoard and prints it above the progress bar."""
        figures = {name: float(value) for name, value in figures.items()}
        self.history.evaluations.append({"step": step, **figures})
        self._write_events("eval", step, figures)
        shown = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        if self._is_active:
            self._bar.write(f"{self._description}: step {step}: {shown}", file=sys.stderr)
        self._since = time.monotonic()

    def save(self) -> None:
        """Writes history.json and flushes the events."""
        if self._is_active:
            self._events.flush()
            files.write_json(self._path("history.json"), dataclasses.asdict(self.history))

    def _path(self, name: str) -> str:
        return os.path.join(self._output_dir, name)

    def _write_events(self, prefix: str, step: int, figures: dict[str, float]) -> None:
        with self._events.as_default():
            for name, value in figures.items():
                tf.summary.write(f"{prefix}/{name}", tf.constant(value, tf.float32), step, _SCALAR)
