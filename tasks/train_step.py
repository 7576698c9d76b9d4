"""One training step, exact under every strategy.

Each replica sums losses and weights; weights are summed over the replicas first, and each replica divides by that
global sum, so that unevenly masked batches count every token once. A step computes its batch in micro-batches if
asked to, sums the gradients over the replicas once, clips by the norm of that sum, and only then updates. Keras's
`fit` takes means of replica means, and clips before the sum.

Shapes are as static as those of the batch, and no op handles strings: on one device `jit_compile` makes the whole
step one XLA program, as a TPU needs it.
"""

import contextlib
from collections.abc import Callable

import keras
import tensorflow as tf

from keras_bert.errors import InputError
from keras_bert.fused_layers import fused_layers
from tasks.layer_graphs import shared_layer_graphs


class Objective:
    """What is minimized, as sums that replicas and micro-batches can add up.

        loss = sum over names of sums[name] / (weights[name] + epsilon)

    with sums and weights over the global batch. The methods run in a TensorFlow graph without AutoGraph, get
    batches of any size, an empty one too, and return float32 scalars.

    Attributes:
        epsilon: added to every weight.
    """

    epsilon: float = 0.0

    def weights(self, features, labels) -> dict[str, tf.Tensor]:
        """Returns the sum of weights of each named loss over a local batch."""
        raise NotImplementedError

    def sums(self, outputs, labels) -> dict[str, tf.Tensor]:
        """Returns the sum of weight times loss, by the same names, over a local batch or micro-batch."""
        raise NotImplementedError

    def metric_sums(self, outputs, labels) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Returns `(sum of weight times value, sum of weights)` of each metric for evaluation."""
        return {}

    def real_tokens(self, features) -> tf.Tensor:
        """Returns how many tokens of a local batch are real, for the report of speed; 0: not counted."""
        mask = features.get("padding_mask") if isinstance(features, dict) else None
        return tf.constant(0.0) if mask is None else tf.reduce_sum(tf.cast(mask, tf.float32))


class TrainStep:
    """Updates model and optimizer by one batch; called in replica context with a replica's part of it.

    Args:
        model, optimizer, objective, gradient_accumulation_steps, clip_norm, jit_compile, random_seed: as in
            `tasks.training.Trainer`.
        strategy: whose replicas call it.
        step: int64 scalar variable, the number of finished steps; counted by the caller.

    Attributes:
        figure_names: names of what a call returns, in its order; filled while it is traced.

    Raises:
        ValueError: the optimizer was created outside the strategy's scope.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        objective: Objective,
        *,
        strategy: tf.distribute.Strategy,
        step: tf.Variable,
        gradient_accumulation_steps: int,
        clip_norm: float | None,
        jit_compile: bool,
        random_seed: int,
    ):
        self.model = model
        self.optimizer = optimizer
        self.objective = objective
        self.step = step
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.clip_norm = clip_norm
        self.random_seed = random_seed
        self.figure_names: list[str] = []
        self._prepare_optimizer(strategy)
        self._seeds = [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]
        self._has_gradient: list[bool] = []  # Filled while the step is traced.
        self._differentiate, self._run = self._accumulate, self._step
        # XLA wants every op in sight, and replicas trace in threads of their own.
        is_plain = not jit_compile and strategy.num_replicas_in_sync == 1
        self._layer_graphs = shared_layer_graphs if is_plain else contextlib.nullcontext
        compiles_parts = is_plain and _is_on_cpu(model)
        self._fused_layers = fused_layers if compiles_parts else contextlib.nullcontext
        inner_optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        inner_optimizer.shares_graphs, inner_optimizer.compiles_decay = is_plain, compiles_parts
        # XLA cannot hold the sums over several replicas of a CPU or GPU machine; a TPU's strategy compiles by itself.
        if jit_compile and strategy.num_replicas_in_sync == 1:
            self._run = tf.function(self._step, jit_compile=True, autograph=False)
        elif jit_compile and not isinstance(strategy, tf.distribute.TPUStrategy):
            self._differentiate = tf.function(self._accumulate, jit_compile=True, autograph=False)

    def __call__(self, features, labels) -> dict[str, tf.Tensor]:
        """Does the step. Returns figures, float32 scalars, the same on every replica."""
        figures = self._run(features, labels)
        self.figure_names = list(figures)
        return figures

    @property
    def compiled(self) -> tf.types.experimental.PolymorphicFunction | None:
        """The whole step as one XLA program; None where it is not."""
        return None if self._run == self._step else self._run

    def _prepare_optimizer(self, strategy: tf.distribute.Strategy) -> None:
        """Creates the optimizer's variables, and takes the sum over the replicas out of its hands."""
        if self.optimizer._distribution_strategy is not strategy:
            raise ValueError("`optimizer` must be created inside `strategy.scope()`. Received: one created outside.")
        with strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
        # Keras has no public switch for this; a second sum would multiply the gradients by the number of replicas.
        # That the step is exact on two replicas is tested.
        getattr(self.optimizer, "inner_optimizer", self.optimizer)._all_reduce_sum_gradients = list

    def _step(self, features, labels) -> dict[str, tf.Tensor]:
        context = tf.distribute.get_replica_context()
        self._seed_dropout(context)
        counts = {
            "examples": tf.cast(tf.shape(tf.nest.flatten(features)[0])[0], tf.float32),
            "real_tokens": self.objective.real_tokens(features),
        }
        weights, counts = _sum(context, (self.objective.weights(features, labels), counts))
        scales = {name: tf.math.divide_no_nan(1.0, weight + self.objective.epsilon) for name, weight in weights.items()}
        gradients, losses = self._differentiate(features, labels, scales)
        pairs = zip(gradients, self.model.trainable_variables, self._has_gradient, strict=True)
        trained = [(gradient, variable) for gradient, variable, has_gradient in pairs if has_gradient]
        gradients, losses = _sum(context, ([gradient for gradient, _ in trained], losses))
        learning_rate = tf.cast(tf.convert_to_tensor(self.optimizer.learning_rate), tf.float32)
        return {
            "loss": tf.add_n(list(losses.values())),
            **named_losses(losses),
            "learning_rate": learning_rate,
            **self._update(gradients, [variable for _, variable in trained]),
            **counts,
        }

    def _update(self, gradients: list[tf.Tensor], variables: list) -> dict[str, tf.Tensor]:
        """Clips and applies gradients, summed over all replicas. Returns their norm and, in float16, the loss scale.

        `LossScaleOptimizer` divides by its scale, and skips the step if a gradient is not finite. As every replica
        gives it the same sums, all skip together.
        """
        scale = self._loss_scale()
        norm = tf.linalg.global_norm(gradients) / scale
        if self.clip_norm is not None:
            factor = self.clip_norm / tf.maximum(norm, self.clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        if not self._is_scaled:
            self.optimizer.apply(gradients, variables)
            return {"gradient_norm": norm}
        is_finite = tf.math.is_finite(norm)
        # The norm is made of squares: it may overflow where no gradient does, and such a step is skipped too.
        gradients = [tf.where(is_finite, gradient, float("nan")) for gradient in gradients]
        with tf.control_dependencies([scale]):
            self.optimizer.apply(gradients, variables)
        return {
            "gradient_norm": tf.where(is_finite, norm, 0.0),
            "loss_scale": scale,
            "skipped": 1.0 - tf.cast(is_finite, tf.float32),
        }

    @property
    def _is_scaled(self) -> bool:
        return isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)

    def _loss_scale(self) -> tf.Tensor:
        return tf.identity(tf.convert_to_tensor(self.optimizer.dynamic_scale)) if self._is_scaled else tf.constant(1.0)

    def _seed_dropout(self, context) -> None:
        """Gives every layer's seed generator a state drawn from (seed, replica, step).

        Keras mirrors these states, so that all replicas would drop the same units, and checkpoints leave them out. The
        number of a replica counts over all workers.
        """
        if not self._seeds:
            return
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        seed = tf.random.fold_in(tf.stack([tf.constant(self.random_seed, tf.int64), replica]), self.step.read_value())
        states = tf.random.stateless_uniform([len(self._seeds), 2], seed, 0, 2**31 - 2, tf.int32)
        for variable, state in zip(self._seeds, tf.unstack(states), strict=True):
            variable.assign(tf.cast(state, variable.dtype))

    # === Gradients ===

    def _accumulate(self, features, labels, scales) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Returns gradients of, and losses from, a replica's batch, summed over its micro-batches."""
        count = self.gradient_accumulation_steps
        if count == 1:
            return self._gradients(features, labels, scales)
        get_part = _splitter((features, labels), count)

        def one_part(index, gradients, losses):
            more_gradients, more_losses = self._gradients(*get_part(index), scales)
            gradients = [total + part for total, part in zip(gradients, more_gradients, strict=True)]
            return index + 1, gradients, {name: losses[name] + more_losses[name] for name in losses}

        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in self.model.trainable_variables]
        start = (0, zeros, {name: tf.constant(0.0) for name in scales})
        # The bound also tells XLA how often the loop runs.
        _, gradients, losses = tf.while_loop(lambda index, *_: index < count, one_part, start, maximum_iterations=count)
        return gradients, losses

    def _gradients(self, features, labels, scales) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Returns dense gradients of every trainable variable, and this batch's share of each named loss.

        A table that is looked up and tied to an output layer has a sparse and a dense part: both add up here. A
        variable that the loss does not depend on gets zeros, and is noted, so that the optimizer leaves it alone. In
        float16 the gradients are multiplied by the loss scale.
        """
        variables = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            with self._fused_layers(), self._layer_graphs(self.model):
                outputs = self.model(features, training=True)
            sums = self.objective.sums(outputs, labels)
            losses = {name: sums[name] * scale for name, scale in scales.items()}
            loss = tf.add_n(list(losses.values())) * self._loss_scale()
        gradients = tape.gradient(loss, variables)
        self._has_gradient = [gradient is not None for gradient in gradients]
        dense = [
            tf.zeros(variable.shape, variable.dtype) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        return dense, losses


def _is_on_cpu(model: keras.Model) -> bool:
    return all("CPU" in variable.value.device for variable in model.variables)


def _sum(context: tf.distribute.ReplicaContext, tensors):
    """Sums nested tensors over the replicas."""
    return tensors if context.num_replicas_in_sync == 1 else context.all_reduce("SUM", tensors)


def named_losses(losses: dict) -> dict:
    """Names the parts of the loss, `<name>_loss`; a loss of one part has none."""
    return {f"{name}_loss": loss for name, loss in losses.items()} if len(losses) > 1 else {}


def _splitter(batch, count: int) -> Callable:
    """Returns `get_part(index)`, which cuts the batch's nested tensors into `count` nearly equal parts.

    A batch of static size gives parts of static size (XLA and TPU need it), and must be divisible.
    """
    tensors = tf.nest.flatten(batch)
    static_size = tensors[0].shape[0]
    if static_size is None:
        size = tf.shape(tensors[0])[0]
        return lambda index: tf.nest.map_structure(
            lambda tensor: tensor[size * index // count : size * (index + 1) // count], batch
        )
    if static_size % count:
        raise InputError(
            f"A device's share of the batch, {static_size} examples, cannot be split into gradient_accumulation_steps="
            f"{count} equal parts. Choose a train_batch_size that divides evenly."
        )
    stacked = tf.nest.map_structure(
        lambda tensor: tf.reshape(tensor, [count, static_size // count, *tensor.shape[1:]]), batch
    )
    return lambda index: tf.nest.map_structure(lambda tensor: tensor[index], stacked)
