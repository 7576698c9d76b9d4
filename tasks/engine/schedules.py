"""Learning rate schedules."""

import keras
from keras import ops

from keras_bert.encoder.layer import arguments_of, keep_arguments


class Registered:
    """Registers subclasses with Keras by their names, also under the package's former name, for files of that time."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        for package in ("keras_bert_zoo", "keras_bert"):
            keras.saving.register_keras_serializable(package)(cls)


class _Schedule(Registered, keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that keeps its arguments under their own names."""

    def get_config(self) -> dict:
        return {name: getattr(self, name) for name in arguments_of(type(self))}


class WarmupLinearDecay(_Schedule):
    """Linear warm-up followed by a linear decay that counts from step 0.

        step < num_warmup_steps:   learning_rate * step / num_warmup_steps
        else:                      learning_rate * (1 - min(step, num_train_steps) / num_train_steps)

    As in google-research/bert (optimization.py:29-53), the warm-up replaces the decay instead of delaying it. With 10%
    warm-up the rate therefore drops from 0.99 to 0.90 of the peak and never reaches it. The first step's rate is 0.

    Args:
        learning_rate: float >= 0, the peak.
        num_train_steps: int >= 1, the step at which the rate reaches 0.
        num_warmup_steps: int from 0 to `num_train_steps`.

    Raises:
        ValueError: an argument is outside its range.
    """

    def __init__(self, learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0):
        super().__init__()
        keep_arguments(self, locals())
        if not (learning_rate >= 0.0 and num_train_steps >= 1 and 0 <= num_warmup_steps <= num_train_steps):
            received = f"{learning_rate=}, {num_train_steps=}, {num_warmup_steps=}"
            raise ValueError(f"A rate must be 0 or more, and a warm-up end with the training. Received: {received}")

    def __call__(self, step):
        """Returns the rate, a float32 scalar, of the update that follows `step` finished ones (int scalar)."""
        step = ops.cast(step, "float32")
        rate = self.learning_rate * (1.0 - ops.minimum(step / self.num_train_steps, 1.0))
        if self.num_warmup_steps == 0:
            return rate
        warmup_rate = self.learning_rate * (step / self.num_warmup_steps)
        return ops.where(step < self.num_warmup_steps, warmup_rate, rate)


class WarmupConstantDecay(_Schedule):
    """Linear warm-up to the peak, which stays until a linear decay to 0.

        learning_rate * min(1, step / num_warmup_steps, (num_train_steps - step) / num_decay_steps)

    Args:
        learning_rate: float >= 0, the peak.
        num_train_steps: int >= 1, the step at which the rate reaches 0.
        num_warmup_steps: int >= 0.
        num_decay_steps: int >= 1; together with the warm-up at most `num_train_steps`. Default: half of all steps, if
            the warm-up leaves as many.

    Raises:
        ValueError: an argument is outside its range.
    """

    def __init__(
        self, learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0, num_decay_steps: int | None = None
    ):
        super().__init__()
        if num_decay_steps is None:
            num_decay_steps = min(max(1, num_train_steps // 2), num_train_steps - num_warmup_steps)
        keep_arguments(self, locals())
        fits = num_warmup_steps >= 0 and 1 <= num_decay_steps <= num_train_steps - num_warmup_steps
        if not (learning_rate >= 0.0 and fits):
            received = f"{learning_rate=}, {num_train_steps=}, {num_warmup_steps=}, {num_decay_steps=}"
            raise ValueError(f"A rate must be 0 or more, and its phases fit into the training. Received: {received}")
        # A variable, so that a graph need not be built again for another end. Exact up to 2^24 steps.
        self._decay = keras.Variable([num_train_steps, num_decay_steps], trainable=False, dtype="float32")

    def end_at(self, num_train_steps: int) -> None:
        """Moves the end; the decay takes half of all steps."""
        self.num_train_steps, self.num_decay_steps = num_train_steps, num_train_steps // 2
        self._decay.assign([self.num_train_steps, self.num_decay_steps])

    def __call__(self, step):
        """Returns the rate, a float32 scalar, of the update that follows `step` finished ones (int scalar)."""
        step = ops.cast(step, "float32")
        share = ops.clip((self._decay[0] - step) / self._decay[1], 0.0, 1.0)
        if self.num_warmup_steps:
            share = ops.minimum(share, step / self.num_warmup_steps)
        return self.learning_rate * share


# Each takes `learning_rate`, `num_train_steps` and `num_warmup_steps`.
SCHEDULES = {"linear": WarmupLinearDecay, "constant_then_linear": WarmupConstantDecay}
