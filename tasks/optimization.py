"""The optimizers, by the name of a profile, and their learning-rate schedule.

| profile     | update                                                         | source                              |
| `bert-2018` | Adam, decoupled weight decay, no bias correction, epsilon 1e-6 | google-research/bert optimization.py |
| `adamw`     | the same with Adam's bias correction                           | Loshchilov & Hutter 2019            |

Without bias correction early updates are larger: 3.16 times at step 1, 6.5 times at step 10, 1.26 times at step
1000. In both, LayerNorm's gamma and beta and every bias are left out of the decay, and embedding tables are not.
The gradients' global norm is clipped to 1.0 by `tasks.training.Trainer`, after the replicas' sum.
"""

import keras
from keras import ops

from keras_bert.errors import InputError

# Matches the end of a variable's name; on TensorFlow that is a path with suffixes, "mlm/bias/replica_1:0".
NO_DECAY = r"(?:^|/)(?:gamma|beta|[^/]*bias)(?:/replica_\d+)?(?::\d+)?$"


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up, then a linear decay that counts from step 0.

        step < num_warmup_steps:   learning_rate * step / num_warmup_steps
        else:                      learning_rate * (1 - min(step, num_train_steps) / num_train_steps)

    As in google-research/bert (optimization.py:29-53) the warm-up takes the decay's place and does not delay it:
    with 10% warm-up the rate jumps from 0.99 to 0.90 of the peak, which is never reached. The first step's rate
    is 0.

    Args:
        learning_rate: float >= 0, the peak.
        num_train_steps: int >= 1, the step at which the rate is 0.
        num_warmup_steps: int from 0 to `num_train_steps`.

    Raises:
        InputError: the warm-up is longer than the training.
        ValueError: another argument is outside its range.
    """

    def __init__(self, learning_rate: float, num_train_steps: int, num_warmup_steps: int = 0):
        super().__init__()
        if not learning_rate >= 0.0:
            raise ValueError(f"`learning_rate` must be 0 or more. Received: learning_rate={learning_rate}")
        if num_train_steps < 1:
            raise ValueError(f"`num_train_steps` must be 1 or more. Received: num_train_steps={num_train_steps}")
        if not 0 <= num_warmup_steps <= num_train_steps:
            raise InputError(
                "`num_warmup_steps` must be from 0 to `num_train_steps`. Received: "
                f"num_warmup_steps={num_warmup_steps}, num_train_steps={num_train_steps}"
            )
        self.learning_rate = learning_rate
        self.num_train_steps = num_train_steps
        self.num_warmup_steps = num_warmup_steps

    def __call__(self, step):
        """Returns the rate, float32 scalar, for the update after `step` finished ones (int scalar)."""
        step = ops.cast(step, "float32")
        rate = self.learning_rate * (1.0 - ops.minimum(step / self.num_train_steps, 1.0))
        if self.num_warmup_steps == 0:
            return rate
        warmup_rate = self.learning_rate * (step / self.num_warmup_steps)
        return ops.where(step < self.num_warmup_steps, warmup_rate, rate)

    def get_config(self) -> dict:
        return {
            "learning_rate": self.learning_rate,
            "num_train_steps": self.num_train_steps,
            "num_warmup_steps": self.num_warmup_steps,
        }


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertAdam(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay and without bias correction (google-research/bert optimization.py:87-174).

        m <- beta_1 m + (1 - beta_1) g
        v <- beta_2 v + (1 - beta_2) g^2
        w <- w - learning_rate (m / (sqrt(v) + epsilon) + weight_decay w)

    The decay's term is left out for variables whose name matches `NO_DECAY`. Keras's `Optimizer` subtracts it.

    Args:
        learning_rate: float or `LearningRateSchedule`.
        weight_decay: float; None: no decay.
        beta_1: decay rate of the first moment.
        beta_2: decay rate of the second moment.
        epsilon: added to the root of the second moment.
        name: optimizer name.
        **kwargs: those of `keras.optimizers.Optimizer`.
    """

    def __init__(
        self,
        learning_rate=5e-5,
        weight_decay: float | None = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        name: str = "bert_adam",
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, name=name, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.exclude_from_weight_decay(var_names=[NO_DECAY])

    def build(self, variables) -> None:
        """Creates the two moments, zeros, of every variable."""
        if self.built:
            return
        super().build(variables)
        self._first_moments, self._second_moments = self.add_optimizer_variables(variables, ["m", "v"])

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Updates one variable and its moments; `gradient` has the variable's shape."""
        index = self._get_variable_index(variable)
        first, second = self._first_moments[index], self._second_moments[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(first, (gradient - first) * (1.0 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1.0 - self.beta_2))
        update = first / (ops.sqrt(second) + self.epsilon)
        self.assign_sub(variable, update * ops.cast(learning_rate, variable.dtype))

    def get_config(self) -> dict:
        config = super().get_config()
        config.update(beta_1=self.beta_1, beta_2=self.beta_2, epsilon=self.epsilon)
        return config


@keras.saving.register_keras_serializable(package="keras_bert_zoo")
class BertAdamW(keras.optimizers.AdamW):
    """Keras's bias-corrected AdamW that leaves the variables matching `NO_DECAY` out of the decay.

    Keras forgets `exclude_from_weight_decay` when an optimizer is saved and reloaded; this class does not.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.exclude_from_weight_decay(var_names=[NO_DECAY])


def build_optimizer(
    name: str,
    learning_rate: float,
    num_train_steps: int,
    num_warmup_steps: int = 0,
    weight_decay: float = 0.01,
) -> keras.optimizers.Optimizer:
    """Builds the optimizer of a profile, with warm-up and linear decay.

    Under a `tf.distribute` strategy call it inside `strategy.scope()`, as for the model.

    Args:
        name: `"bert-2018"` or `"adamw"`.
        learning_rate: peak of the schedule.
        num_train_steps: steps after which the rate is 0.
        num_warmup_steps: steps over which the rate rises.
        weight_decay: share of a weight subtracted at every step, times the learning rate.

    Raises:
        ValueError: an unknown name, or a schedule out of range.
    """
    profiles = {"bert-2018": BertAdam, "adamw": BertAdamW}
    if name not in profiles:
        raise ValueError(f"`name` must be one of {sorted(profiles)}. Received: name={name!r}")
    schedule = WarmupLinearDecay(learning_rate, num_train_steps, num_warmup_steps)
    return profiles[name](learning_rate=schedule, weight_decay=weight_decay, beta_1=0.9, beta_2=0.999, epsilon=1e-6)
