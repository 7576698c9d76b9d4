"""A training step that is exact under every strategy.

Each replica sums its losses and weights. The weights are all-reduced first and every replica divides by the global sum,
so that each token counts once even if masked tokens fall unevenly. The gradients, accumulated over micro-batches if
asked for, are all-reduced once, clipped by the norm of the sum, and then applied. Keras's `fit` averages the means of
replicas and clips before the sum.

Shapes are as static as those of the batch and no op handles strings, so on one device `jit_compile` turns the whole
step into one XLA program, as TPUs require.
"""

import contextlib
import dataclasses
import types
from collections.abc import Callable, Mapping

import keras
import tensorflow as tf

from keras_bert.answers.windows import list_windows, pool_windows
from keras_bert.errors import InputError
from tasks.engine.fused_layers import dropout_seeds, fused_layers, rematerialized


class Objective:
    """A loss to minimize, given as sums that can be added over replicas and micro-batches.

        loss = sum over names of loss_weights[name] * sums[name] / (weights[name] + epsilon)

    with sums and weights over the global batch. The methods run in a TensorFlow graph without AutoGraph, must accept
    batches of any size, even empty ones, and return float32 scalars.

    Attributes:
        epsilon: added to every weight.
        loss_weights: factors of the named losses in the total; 1.0 where there is none.
        needs_whole_batch: whether the loss of an example depends on the others. Micro-batches are then encoded twice:
            first without gradients, for the loss of the whole batch, and again for the gradients of the weights.
    """

    epsilon: float = 0.0
    loss_weights: Mapping[str, float] = types.MappingProxyType({})
    needs_whole_batch: bool = False

    def weights(self, features, labels) -> dict[str, tf.Tensor]:
        """Returns the sum of weights of each named loss over a local batch."""
        raise NotImplementedError

    def sums(self, outputs, labels) -> dict[str, tf.Tensor]:
        """Returns the sum of weight times loss, by the same names, over a local batch or micro-batch."""
        raise NotImplementedError

    def total(self, losses: dict):
        """Adds up the named losses, tensors or floats, by their weights."""
        return sum(self.loss_weights.get(name, 1.0) * loss for name, loss in losses.items())

    def metric_sums(self, outputs, labels) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Returns `(sum of weight times value, sum of weights)` of each metric for evaluation."""
        return {}

    def real_tokens(self, features) -> tf.Tensor:
        """Returns the number of real tokens in a local batch, for the reported speed; 0 if not counted."""
        mask = features.get("padding_mask")
        return tf.constant(0.0) if mask is None else tf.reduce_sum(tf.cast(mask, tf.float32))


@dataclasses.dataclass(eq=False)  # A step is compared by identity, as a function is.
class TrainStep:
    """Updates model and optimizer by one batch; called in replica context with the replica's part of the batch.

    Args:
        model, optimizer, objective: as in `tasks.engine.training.Trainer`.
        strategy: strategy whose replicas call the step.
        step: int64 scalar variable, the number of finished steps; the caller increments it.
        gradient_accumulation_steps: micro-batches that a replica's batch is split into, to save memory.
        clip_norm: largest global norm of the gradients (google-research/bert: 1.0); None for no clipping.
        jit_compile: whether to compile with XLA: the whole step on one device; under a mirrored strategy everything but
            the all-reduce and the update, or the model alone if the objective needs the whole batch.
        rematerialize: whether the encoder layers are computed once more for the gradients, to save memory.
        random_seed: seed of the dropout masks, which also depend on step, replica and layer.
        pooling: how the outputs of a text's windows are combined, as in `pool_windows`. Features are then windows,
            [B, X, S] or [B, K, X, S]. The model encodes as many windows at once as a micro-batch has texts, however
            long the texts are. None: the model takes the features as they are.

    Attributes:
        figure_names: names of the returned figures, in order; filled by tracing.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    objective: Objective
    _: dataclasses.KW_ONLY
    strategy: tf.distribute.Strategy
    step: tf.Variable
    gradient_accumulation_steps: int = 1
    clip_norm: float | None = 1.0
    jit_compile: bool = False
    rematerialize: bool = False
    random_seed: int = 0
    pooling: str | None = None

    def __post_init__(self):
        model, optimizer, strategy, jit_compile = self.model, self.optimizer, self.strategy, self.jit_compile
        self.figure_names: list[str] = []
        with strategy.scope():
            optimizer.build(model.trainable_variables)
        inner_optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        # `_step` has already summed the gradients over the replicas; the optimizer would sum them once more. Keras has
        # no public switch for this.
        inner_optimizer._all_reduce_sum_gradients = list
        self._is_scaled = inner_optimizer is not optimizer
        self._seeds = dropout_seeds(model)
        self._has_gradient: list[bool] = []  # Filled by tracing.
        self._differentiate, self._run, self._apply_model = self._accumulate, self._step, self._forward
        is_on_cpu = all("CPU" in variable.value.device for variable in model.variables)
        is_fused = is_on_cpu and not jit_compile and strategy.num_replicas_in_sync == 1
        self._fused_layers = fused_layers if is_fused else contextlib.nullcontext
        # XLA cannot compile where replicas synchronize, and mirrored ones do even if there is only one; TPUStrategy
        # compiles the step itself.
        is_mirrored = isinstance(strategy, tf.distribute.MirroredStrategy | tf.distribute.MultiWorkerMirroredStrategy)
        if jit_compile and strategy.num_replicas_in_sync == 1 and not is_mirrored:
            self._run = tf.function(self._step, jit_compile=True, autograph=False)
        elif jit_compile and not isinstance(strategy, tf.distribute.TPUStrategy):
            if self.objective.needs_whole_batch:  # It may gather the outputs of all replicas.
                self._apply_model = tf.function(self._apply_model, jit_compile=True, autograph=False)
            else:
                self._differentiate = tf.function(self._accumulate, jit_compile=True, autograph=False)

    def __call__(self, features, labels) -> dict[str, tf.Tensor]:
        """Runs the step and returns its figures by name: float32 scalars, the same on every replica."""
        figures = self._run(features, labels)
        self.figure_names = list(figures)
        return figures

    def _step(self, features, labels) -> dict[str, tf.Tensor]:
        context = tf.distribute.get_replica_context()
        self._seed_dropout(context)
        counts = {
            "examples": tf.cast(tf.shape(tf.nest.flatten(features)[0])[0], tf.float32),
            "real_tokens": self.objective.real_tokens(features),
        }
        weights, counts = _sum(context, (self.objective.weights(features, labels), counts))
        scales = {name: tf.math.divide_no_nan(1.0, weight + self.objective.epsilon) for name, weight in weights.items()}
        with self._fused_layers(self.model):
            gradients, losses = self._differentiate(features, labels, scales)
        pairs = zip(gradients, self.model.trainable_variables, self._has_gradient, strict=True)
        trained = [(gradient, variable) for gradient, variable, has_gradient in pairs if has_gradient]
        gradients, losses = _sum(context, ([gradient for gradient, _ in trained], losses))
        return {
            "loss": self.objective.total(losses),
            **named_losses(losses),
            "learning_rate": tf.cast(tf.convert_to_tensor(self.optimizer.learning_rate), tf.float32),
            **self._update(gradients, [variable for _, variable in trained]),
            **counts,
        }

    def _update(self, gradients: list[tf.Tensor], variables: list) -> dict[str, tf.Tensor]:
        """Clips and applies gradients that are summed over all replicas; returns their norm and any loss scale.

        `LossScaleOptimizer` divides by its scale and skips the step if a gradient is not finite. All replicas pass it
        the same sums, so they skip together.
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
        # The squares in the norm may overflow although no gradient does; such a step is skipped too.
        gradients = [tf.where(is_finite, gradient, float("nan")) for gradient in gradients]
        with tf.control_dependencies([scale]):
            self.optimizer.apply(gradients, variables)
        return {
            "gradient_norm": tf.where(is_finite, norm, 0.0),
            "loss_scale": scale,
            "skipped": 1.0 - tf.cast(is_finite, tf.float32),
        }

    def _loss_scale(self) -> tf.Tensor:
        return tf.identity(tf.convert_to_tensor(self.optimizer.dynamic_scale)) if self._is_scaled else tf.constant(1.0)

    def _seed_dropout(self, context) -> None:
        """Sets the state of every layer's seed generator as a function of (seed, replica, step).

        Keras mirrors these states, so all replicas would otherwise drop the same units; and checkpoints do not hold
        them. Replicas are numbered across all workers.
        """
        if not self._seeds:
            return
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        seed = tf.random.fold_in(tf.stack([tf.constant(self.random_seed, tf.int64), replica]), self.step.read_value())
        states = tf.random.stateless_uniform([len(self._seeds), 2], seed, 0, 2**31 - 2, tf.int32)
        for variable, state in zip(self._seeds, tf.unstack(states), strict=True):
            variable.assign(tf.cast(state, variable.dtype))

    # === Gradients ===

    def _forward(self, features):
        with rematerialized(self.model) if self.rematerialize else contextlib.nullcontext():
            return self.model(features, training=True)

    def _accumulate(self, features, labels, scales) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the gradients and losses of a replica's batch, summed over its micro-batches."""
        count = self.gradient_accumulation_steps
        if self.pooling is not None:
            windows, rows = list_windows(features)
            shape, num_windows = tf.shape(features["padding_mask"])[:-2], tf.shape(rows)[0]
            most = tf.maximum(tf.reduce_prod(shape) // count, 1)
            count = tf.maximum((num_windows + most - 1) // most, 1)

            def pool(outputs):
                return pool_windows(self.model, outputs, rows, shape, self.pooling)

            return self._accumulate_cached(_splitter(windows, count), labels, scales, count, pool)
        if count == 1:
            return self._gradients(features, labels, scales)
        if self.objective.needs_whole_batch:
            return self._accumulate_cached(_splitter(features, count), labels, scales, count)
        get_part = _splitter((features, labels), count)

        def add_part(index, gradients, losses):
            more_gradients, more_losses = self._gradients(*get_part(index), scales)
            gradients = [total + part for total, part in zip(gradients, more_gradients, strict=True)]
            return index + 1, gradients, {name: losses[name] + more_losses[name] for name in losses}

        zeros = [tf.zeros(variable.shape, variable.dtype) for variable in self.model.trainable_variables]
        start = (0, zeros, {name: tf.constant(0.0) for name in scales})
        # `maximum_iterations` gives XLA a static trip count.
        _, gradients, losses = tf.while_loop(lambda index, *_: index < count, add_part, start, maximum_iterations=count)
        return gradients, losses

    def _accumulate_cached(
        self, get_features, labels, scales, count, pool: Callable | None = None
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Does the same for a loss of the whole batch, without holding all activations (Gao et al., arXiv:2101.06983).

        Args:
            get_features: returns the features of one of the `count` parts, by its index.
            labels, scales: labels of the whole batch, and the factor of each named loss.
            count: number of parts, int or int32 scalar.
            pool: combines the outputs of all parts to those of the examples; None if they are the same.
        """
        variables = [variable.value for variable in self.model.trainable_variables]
        states = [tf.identity(variable) for variable in self._seeds]

        def forward(index):
            return self._apply_model(get_features(index))

        def repeat(body, start):
            _, result = tf.while_loop(
                lambda index, _: index < count,
                lambda index, result: (index + 1, body(index, result)),
                (0, start),
                maximum_iterations=count,
                parallel_iterations=1,
            )
            return result

        array = tf.TensorArray(tf.float32, count, infer_shape=False, element_shape=self.model.output_shape)
        outputs = repeat(lambda index, array: array.write(index, forward(index)), array).concat()
        if pool is None:  # XLA has to know the batch size, to cut the gradient into parts of static size.
            outputs = tf.ensure_shape(outputs, [tf.nest.flatten(labels)[0].shape[0], *outputs.shape[1:]])
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            sums = self.objective.sums(pool(outputs) if pool else outputs, labels)
            losses = {name: sums[name] * scale for name, scale in scales.items()}
            loss = self.objective.total(losses) * self._loss_scale()
        get_gradient = _splitter(tape.gradient(loss, outputs), count)
        for variable, state in zip(self._seeds, states, strict=True):
            variable.assign(state)  # The same dropout masks once more.

        def add_gradients(index, gradients):
            with tf.GradientTape() as tape:
                output = forward(index)
            part_gradients = tape.gradient(output, variables, output_gradients=get_gradient(index))
            self._has_gradient = [gradient is not None for gradient in part_gradients]
            pairs = zip(gradients, part_gradients, strict=True)
            return [total if gradient is None else total + tf.convert_to_tensor(gradient) for total, gradient in pairs]

        gradients = repeat(add_gradients, [tf.zeros(variable.shape, variable.dtype) for variable in variables])
        return gradients, losses

    def _gradients(self, features, labels, scales) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Returns a dense gradient for every trainable variable, and this batch's share of each named loss.

        Embeddings tied to an output layer have a sparse and a dense gradient; `convert_to_tensor` adds them up.
        Variables that the loss does not depend on get zeros and are recorded in `_has_gradient`, so that the optimizer
        leaves them alone. In float16, gradients are multiplied by the loss scale.
        """
        variables = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            outputs = self._apply_model(features)
            sums = self.objective.sums(outputs, labels)
            losses = {name: sums[name] * scale for name, scale in scales.items()}
            loss = self.objective.total(losses) * self._loss_scale()
        gradients = tape.gradient(loss, variables)
        self._has_gradient = [gradient is not None for gradient in gradients]
        dense = [
            tf.zeros(variable.shape, variable.dtype) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        return dense, losses


def _sum(context: tf.distribute.ReplicaContext, tensors):
    """Sums nested tensors over the replicas."""
    return tensors if context.num_replicas_in_sync == 1 else context.all_reduce("SUM", tensors)


def named_losses(losses: dict) -> dict:
    """Names the parts of the loss `<name>_loss`; returns nothing for a loss of one part."""
    return {f"{name}_loss": loss for name, loss in losses.items()} if len(losses) > 1 else {}


def _splitter(batch, count: int) -> Callable:
    """Returns `get_part(index)`, which slices a batch of nested tensors into `count` nearly equal parts.

    A batch of static size must be divisible by `count`: XLA and TPUs need parts of static size.
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
    stacked = tf.nest.map_structure(lambda tensor: tf.stack(tf.split(tensor, count)), batch)
    return lambda index: tf.nest.map_structure(lambda tensor: tensor[index], stacked)
