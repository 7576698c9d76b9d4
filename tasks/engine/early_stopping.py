"""Early stopping: decides when a training ends and which weights it keeps."""

import dataclasses
import math

from tasks.engine.progress import History


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Ends a training once its evaluations stop improving.

    Decisions depend on the history alone, so a resumed training stops where an uninterrupted one does.

    Args:
        metric: name of a figure that the evaluations return.
        patience: 1 or more, number of consecutive evaluations without improvement that ends the training.
        higher_is_better: False for a loss.
    """

    metric: str
    patience: int
    higher_is_better: bool = True

    def best_step(self, history: History) -> int | None:
        """Returns the step of the best evaluation (the earliest among equals), or None if all were NaN."""
        sign = 1.0 if self.higher_is_better else -1.0
        rows = [row for row in history.evaluations if not math.isnan(row[self.metric])]
        best = max(rows, key=lambda row: sign * row[self.metric], default=None)
        return best and best["step"]

    def is_over(self, history: History) -> bool:
        """Returns whether `patience` evaluations have followed the best one."""
        best_step = self.best_step(history)
        later = [row for row in history.evaluations if best_step is None or row["step"] > best_step]
        return len(later) >= self.patience
