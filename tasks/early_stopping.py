"""When fine-tuning ends before its last step, and which of its weights are kept."""

import math

from tasks.reporting import History


class EarlyStopping:
    """Ends a training whose evaluations have ceased to improve, and keeps the weights of the best one.

    It looks at the history alone, so that a resumed training decides as an undisturbed one.

    Args:
        metric: name of a figure that the evaluations return.
        patience: evaluations in a row without a better one, after which the training ends.
        higher_is_better: False for a loss.
    """

    def __init__(self, metric: str, patience: int, higher_is_better: bool = True):
        if patience < 1:
            raise ValueError(f"`patience` must be at least 1. Received: patience={patience}")
        self.metric = metric
        self.patience = patience
        self.higher_is_better = higher_is_better

    def best_step(self, history: History) -> int | None:
        """The step of the best evaluation, the first of equals; None where none has given a number."""
        best = None
        for row in history.evaluations:
            value = row[self.metric] if self.higher_is_better else -row[self.metric]
            if not math.isnan(value) and (best is None or value > best[0]):
                best = (value, row["step"])
        return best and best[1]

    def is_over(self, history: History) -> bool:
        """Whether `patience` evaluations have followed the best one."""
        best_step = self.best_step(history)
        later = [row for row in history.evaluations if best_step is None or row["step"] > best_step]
        return len(later) >= self.patience
