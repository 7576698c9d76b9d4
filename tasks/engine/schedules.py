"""Learning rate schedules."""

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from keras_bert.encoder.layer import keep_arguments


class WarmupLinearDecay(LearningRateSchedule):
    """Linear warm-up followed by a linear decay that counts from step 0.

        step < num_warmup_steps:   learning_rate * step / num_warmup_steps
        else:                      learning_rate * (1 - min(step, num_train_steps) / num_train_steps)

    As in google-research/bert (optimization.py:29-53), the warm-up replaces the decay instead of delaying it. With 10%
    warm-up the rate therefore drops from 0.99 to 0.90 of the peak and never reaches it. The first step's rate is 0.

    Args:
        learning_rate: float >= 0, the peak.
        num_train_steps: int >= 1, the step at which the rate reaches 0.
        num_warmup_steps: int from 0 to `num_train_steps`.
    """

    def __init__(self, learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0):
        keep_arguments(self, locals())

    def __call__(self, step):
        """Returns the rate, a float32 scalar, of the update that follows `step` finished ones (int scalar)."""
        step = ops.cast(step, "float32")
        rate = self.learning_rate * (1.0 - ops.minimum(step / self.num_train_steps, 1.0))
        if self.num_warmup_steps == 0:
            return rate
        warmup_rate = self.learning_rate * (step / self.num_warmup_steps)
        return ops.where(step < self.num_warmup_steps, warmup_rate, rate)


class WarmupConstantDecay(LearningRateSchedule):
    """Linear warm-up to the peak, which is held until half of the steps are done, then a linear decay to 0.

        learning_rate * min(1, step / num_warmup_steps, 2 (num_train_steps - step) / num_train_steps)

    Args:
        learning_rate: float >= 0, the peak.
        num_train_steps: int >= 1, the step at which the rate reaches 0.
        num_warmup_steps: int >= 0. With more than half of `num_train_steps`, the rate decays before it has reached
            the peak.
    """

    def __init__(self, learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0):
        keep_arguments(self, locals())
        # A variable, so that the graph need not be traced again when the end moves. Exact up to 2^24 steps.
        self._end = keras.Variable(num_train_steps, trainable=False, dtype="float32")

    def end_at(self, num_train_steps: int) -> None:
        """Moves the last step."""
        self.num_train_steps = num_train_steps
        self._end.assign(num_train_steps)

    def __call__(self, step):
        """Returns the rate, a float32 scalar, of the update that follows `step` finished ones (int scalar)."""
        step = ops.cast(step, "float32")
        share = ops.clip(2.0 * (self._end - step) / self._end, 0.0, 1.0)
        if self.num_warmup_steps:
            share = ops.minimum(share, step / self.num_warmup_steps)
        return self.learning_rate * share


# Each takes `learning_rate`, `num_train_steps` and `num_warmup_steps`.
SCHEDULES = {"linear": WarmupLinearDecay, "constant_then_linear": WarmupConstantDecay}
