"""Optimizers by profile name.

| profile     | update                                                         | source                               |
| `bert-2018` | Adam, decoupled weight decay, no bias correction, epsilon 1e-6 | google-research/bert optimization.py |
| `adamw`     | the same with Adam's bias correction                           | Loshchilov & Hutter 2019             |
| `lamb`      | `adamw` with each step scaled to the norm of the weights       | You et al. 2020, algorithm 2         |
| `muon`      | orthogonal updates of the encoder's matrices, else `adamw`     | Jordan 2024, `keras.optimizers.Muon` |

Without bias correction, early updates are larger: 3.16 times at step 1, 6.5 times at step 10, 1.26 times at step 1000.
All profiles decay kernels and embedding tables, but no LayerNorm variable and no bias. `update_rules` assigns decay and
learning rate by variable path; `optimizer.rules` lists the result. Clipping the gradients' global norm to 1.0 is left
to `tasks.engine.training.Trainer`, which does it after summing over replicas.
"""

import functools
import re
from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf
from keras import ops

from tasks.engine.schedules import SCHEDULES
from tasks.engine.settings import OPTIMIZERS

# Matches "masked_lm/output_bias", but not "bias_table/embeddings".
_NOT_DECAYED = re.compile(r"(?:^|/)(?:gamma|beta|[^/]*bias)$")
_ENCODER_LAYER = re.compile(r"(?:^|/)transformer_layer_(\d+)/")
_EMBEDDINGS = re.compile(r"(?:^|/)embeddings/.")
# Query, key and value side by side in one kernel (keras_bert/encoder/attention.py).
_THREE_IN_ONE = re.compile(r"(?:^|/)query_key_value/kernel$")
_MUON_SIZE = 0.2  # Root mean square of an update, about that of Adam's (Liu et al. 2025, arXiv:2502.16982, 2.2).


class UpdateRule(NamedTuple):
    """How an optimizer treats one variable.

    Attributes:
        path: path of the variable.
        weight_decay: share of the weight subtracted at every step, times the learning rate; 0.0 for none.
        rate_multiplier: factor of the learning rate.
        trust_ratios: number of equal slices of the last axis that `lamb` gives a trust ratio each; 0 for none.
        is_orthogonal: whether `muon` makes the update of each of these slices orthogonal.
    """

    path: str
    weight_decay: float
    rate_multiplier: float
    trust_ratios: int
    is_orthogonal: bool


def update_rules(variables: Sequence, weight_decay: float = 0.01, layer_decay: float = 1.0) -> list[UpdateRule]:
    """Derives from its path how each variable is updated.

    - gamma, beta and everything that ends in "bias" have neither decay nor trust ratio.
    - The rate multiplier is `layer_decay ** (L + 1 - l)` in encoder layer l of L, counted from 1,
      `layer_decay ** (L + 1)` in the embeddings (and the output layer tied to them), and 1 in pooler and heads. This
      follows BEiT (Bao et al. 2022, appendix); ELECTRA's exponents are larger by one.
    - The fused query-key-value kernel has three trust ratios, as if it were three variables.
    - Only the encoder layers' matrices get orthogonal updates; embeddings, pooler and heads do not.

    Args:
        variables: Keras variables of one model, such as `model.trainable_variables`.
        weight_decay: weight decay of the variables that are decayed.
        layer_decay: in (0, 1]; 1 gives all layers the same rate.

    Returns:
        One rule per variable, in the order of `variables`.
    """
    paths = [variable.path for variable in variables]
    layers = [int(match[1]) + 1 for match in map(_ENCODER_LAYER.search, paths) if match]
    return [_update_rule(path, weight_decay, layer_decay, max(layers, default=0)) for path in paths]


def _update_rule(path: str, weight_decay: float, layer_decay: float, num_layers: int) -> UpdateRule:
    is_matrix = not _NOT_DECAYED.search(path)
    above, match = 0, _ENCODER_LAYER.search(path)
    if match:
        above = num_layers - int(match[1])
    elif _EMBEDDINGS.search(path):
        above = num_layers + 1
    return UpdateRule(
        path=path,
        weight_decay=weight_decay if is_matrix else 0.0,
        rate_multiplier=layer_decay**above,
        trust_ratios=(3 if _THREE_IN_ONE.search(path) else 1) if is_matrix else 0,
        is_orthogonal=is_matrix and match is not None,
    )


class _BertOptimizer(keras.optimizers.Optimizer):
    """Base of the profiles: two moments per gradient, and update rules by path.

    Like Keras's own optimizers, they use `_get_variable_index` and `_apply_weight_decay`, for which there are no public
    names.

    Attributes:
        rules: one `UpdateRule` per variable, in their order; set by `build`.
        beta_1, beta_2: decay rates of the first and the second moment.
        epsilon: added to the square root of the second moment.
    """

    bias_correction: bool
    beta_1, beta_2, epsilon = 0.9, 0.999, 1e-6  # google-research/bert's.

    def __init__(self, learning_rate=5e-5, weight_decay: float | None = 0.01, layer_decay: float = 1.0, **kwargs):
        super().__init__(learning_rate=learning_rate, weight_decay=weight_decay, **kwargs)
        self.layer_decay = layer_decay

    def build(self, variables) -> None:
        """Creates the rules and the zero-initialized moments of each variable."""
        if self.built:
            return
        super().build(variables)
        self.rules = tuple(update_rules(variables, self.weight_decay or 0.0, self.layer_decay))
        self._create_moments(variables)

    def _create_moments(self, variables) -> None:
        self._first_moments, self._second_moments = self.add_optimizer_variables(variables, ["m", "v"])

    def _apply_weight_decay(self, variables) -> None:
        """Does nothing: Keras decays all variables at one rate, so `update_step` decays them by rule instead."""

    def apply(self, grads, trainable_variables=None) -> None:
        """Updates the variables. Scalars that many of them share are computed once.

        This cuts the time to trace BERT base's 199 updates from 2.45 s to 0.75 s (under cProfile).
        """
        learning_rate = self.learning_rate
        # Created in each call, since tensors of one graph must not leak into the next.
        self._rate = functools.cache(lambda factor, dtype: ops.cast(learning_rate * factor, dtype))
        self._correction = functools.cache(self._compute_correction)
        self._adam_rate = functools.cache(lambda factor, dtype: self._rate(factor, dtype) * self._correction(dtype)[0])
        self._betas = functools.cache(lambda dtype: tf.unstack(tf.constant((self.beta_1, self.beta_2, 0.0), dtype)))
        super().apply(grads, trainable_variables)

    def _compute_correction(self, dtype: str) -> tuple:
        """Returns the rate's factor and the epsilon that apply bias correction to uncorrected moments.

        With c1 = 1 - beta_1^t and c2 = 1 - beta_2^t at step t,

            (m / c1) / (sqrt(v / c2) + epsilon) = (sqrt(c2) / c1) m / (sqrt(v) + epsilon sqrt(c2))
        """
        if not self.bias_correction:
            return ops.ones((), dtype), ops.cast(self.epsilon, dtype)
        step = ops.cast(self.iterations + 1, dtype)
        root = ops.sqrt(1.0 - ops.power(ops.cast(self.beta_2, dtype), step))
        return root / (1.0 - ops.power(ops.cast(self.beta_1, dtype), step)), self.epsilon * root


class BertAdam(_BertOptimizer):
    """Adam with decoupled weight decay and without bias correction (google-research/bert optimization.py:87-174).

        m <- beta_1 m + (1 - beta_1) g
        v <- beta_2 v + (1 - beta_2) g^2
        w <- w - rate (m / (sqrt(v) + epsilon) + weight_decay w)

    with rate and weight_decay from the variable's `UpdateRule`.

    TensorFlow's fused kernel does everything but the decay in one pass over memory, which takes 0.4 of the time of
    `keras.ops` (28.5 M weights, 2 cores).

    Args:
        learning_rate: float or `LearningRateSchedule`.
        weight_decay: float; None for no decay.
        layer_decay: as in `update_rules`.
        **kwargs: arguments of `keras.optimizers.Optimizer`.
    """

    bias_correction = False

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Updates one variable and its moments; `gradient` has the variable's shape."""
        index, dtype = self._get_variable_index(variable), variable.dtype
        rule = self.rules[index]
        handle = (variable.value if isinstance(variable, keras.Variable) else variable).handle
        if rule.weight_decay:
            # w (1 - decay) would lose precision: float32 has steps of 6e-8 below 1, a tenth of a decay at rate 5e-5.
            decay = self._rate(rule.rate_multiplier * rule.weight_decay, dtype)
            value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
            tf.raw_ops.AssignSubVariableOp(resource=handle, value=value * decay)
        # Bias correction is part of rate and epsilon, so the kernel's own is disabled: powers of 0.
        beta_1, beta_2, zero = self._betas(dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=handle,
            m=self._first_moments[index].value.handle,
            v=self._second_moments[index].value.handle,
            beta1_power=zero,
            beta2_power=zero,
            lr=self._adam_rate(rule.rate_multiplier, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=self._correction(dtype)[1],
            grad=_dense(gradient, dtype),
        )


class BertAdamW(BertAdam):
    """`BertAdam` with bias correction, as in torch's AdamW; Keras's own adds epsilon before the correction."""

    bias_correction = True


class BertLamb(_BertOptimizer):
    """LAMB (You et al. 2020, arXiv:1904.00962, algorithm 2), for batches of tens of thousands.

        u <- (m / (1 - beta_1^t)) / (sqrt(v / (1 - beta_2^t)) + epsilon) + weight_decay w
        w <- w - rate (|w| / |u|) u

    with Adam's m and v, the paper's bias correction, and no bounds on |w| (its phi is the identity). The trust ratio is
    1 if either norm is 0. Query, key and value have norms of their own although they share a variable. As in the
    authors' code, LayerNorm variables and biases are not decayed and have trust ratio 1.

    Args: as in `BertAdam`.
    """

    bias_correction = True

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Updates one variable and its moments; `gradient` has the variable's shape."""
        index = self._get_variable_index(variable)
        rule, gradient = self.rules[index], _dense(gradient, variable.dtype)
        first, second = self._first_moments[index], self._second_moments[index]
        self.assign_add(first, (gradient - first) * (1.0 - self.beta_1))
        self.assign_add(second, (ops.square(gradient) - second) * (1.0 - self.beta_2))
        correction, epsilon = self._correction(variable.dtype)
        update = correction * first / (ops.sqrt(second) + epsilon)
        if rule.weight_decay:
            update = update + variable * rule.weight_decay
        if rule.trust_ratios:
            update = _scale_to_length_of(variable, update, rule.trust_ratios)
        self.assign_sub(variable, update * self._rate(rule.rate_multiplier, variable.dtype))


class BertMuon(BertAdamW):
    """Muon on the matrices of the encoder layers, and `BertAdamW` on all other variables.

        m <- momentum m + g
        w <- w - rate (0.2 sqrt(max(rows, columns)) orthogonal(g + momentum m) + weight_decay w)

    This is `keras.optimizers.Muon` with its defaults, whose iteration it calls, except for three things: query, key and
    value, which share a variable, are made orthogonal separately; biases are not decayed; and the decay follows the
    variable's own rate.

    Args:
        learning_rate: float or `LearningRateSchedule`, of the matrices.
        adam_lr_ratio: float, the learning rate of all other variables, as a share of `learning_rate`.
        **kwargs: as in `BertAdam`.

    Attributes:
        momentum: momentum of the matrices.
    """

    momentum = 0.95

    def __init__(self, learning_rate=5e-5, *, adam_lr_ratio: float = 1.0, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.adam_lr_ratio = adam_lr_ratio
        self._newton_schulz = keras.optimizers.Muon().zeropower_via_newtonschulz5

    def _create_moments(self, variables) -> None:
        """Creates one moment for each matrix, and Adam's two for other variables; scales Adam's rates."""
        ratios = [1.0 if rule.is_orthogonal else self.adam_lr_ratio for rule in self.rules]
        rules = zip(self.rules, ratios, strict=True)
        self.rules = tuple(rule._replace(rate_multiplier=rule.rate_multiplier * ratio) for rule, ratio in rules)
        self._first_moments, self._second_moments = [], []
        for variable, rule in zip(variables, self.rules, strict=True):
            names = ["m"] if rule.is_orthogonal else ["m", "v"]
            (first,), *second = self.add_optimizer_variables([variable], names)
            self._first_moments.append(first)
            self._second_moments.append(second[0][0] if second else None)

    def update_step(self, gradient, variable, learning_rate) -> None:
        """Updates one variable and its moments; `gradient` has the variable's shape."""
        index = self._get_variable_index(variable)
        rule = self.rules[index]
        if not rule.is_orthogonal:
            super().update_step(gradient, variable, learning_rate)
            return
        first, gradient = self._first_moments[index], _dense(gradient, variable.dtype)
        self.assign_add(first, gradient - first * (1.0 - self.momentum))
        matrices = ops.stack(ops.split(gradient + first * self.momentum, rule.trust_ratios, axis=-1))  # [1 or 3, ...]
        updates = self._newton_schulz(matrices, 5) * (_MUON_SIZE * max(matrices.shape[1:]) ** 0.5)
        update = ops.concatenate(ops.unstack(updates, rule.trust_ratios), axis=-1)
        rate = self._rate(rule.rate_multiplier, variable.dtype)
        self.assign_sub(variable, (update + variable * rule.weight_decay) * rate)


def _dense(gradient, dtype: str):
    """Returns a gradient as a dense tensor; that of an embedding lookup is `tf.IndexedSlices` with repeated rows."""
    return tf.cast(tf.convert_to_tensor(gradient), dtype)  # `ops.convert_to_tensor` does not densify.


def _scale_to_length_of(variable, update, slices: int):
    """Scales each of `slices` equal parts of the update's last axis to the Euclidean norm of the variable's part."""
    shape = (-1, slices, variable.shape[-1] // slices)
    update = ops.reshape(update, shape)
    weight_length, update_length = (
        ops.sqrt(ops.sum(ops.square(tensor), axis=(0, 2), keepdims=True))
        for tensor in (ops.reshape(variable, shape), update)
    )
    has_ratio = ops.logical_and(weight_length > 0.0, update_length > 0.0)
    ratio = ops.where(has_ratio, weight_length / ops.where(has_ratio, update_length, 1.0), 1.0)  # [1, slices, 1]
    return ops.reshape(update * ratio, variable.shape)


PROFILES = dict(zip(OPTIMIZERS, (BertAdam, BertAdamW, BertLamb, BertMuon), strict=True))


def build_optimizer(
    name: str,
    learning_rate: float,
    num_train_steps: int,
    num_warmup_steps: int = 0,
    lr_schedule: str = "linear",
    **options,
) -> keras.optimizers.Optimizer:
    """Builds the optimizer of a profile, with warm-up and decay of the learning rate.

    Under a `tf.distribute` strategy, call this inside `strategy.scope()`, like the model's constructor.

    Args:
        name: a key of `PROFILES`.
        learning_rate: peak of the schedule.
        num_train_steps: step at which the rate reaches 0.
        num_warmup_steps: steps over which the rate rises.
        lr_schedule: a key of `SCHEDULES`.
        **options: further arguments of the profile's class, such as `layer_decay`, the factor of the learning rate from
            each encoder layer to the one below, and `adam_lr_ratio`.
    """
    schedule = SCHEDULES[lr_schedule](learning_rate, num_train_steps, num_warmup_steps)
    return PROFILES[name](learning_rate=schedule, **options)
