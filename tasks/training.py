"""One training step, exact under every strategy, and the loop around it.

Each replica sums losses and weights; weights are summed over the replicas first, and each replica divides by that
global sum, so that unevenly masked batches count every token once. A step computes its batch in micro-batches if
asked to, sums the gradients over the replicas once, clips by the norm of that sum, and only then updates. Keras's
`fit` takes means of replica means, and clips before the sum.

The loop is our own, on `tf.train.CheckpointManager`. `orbit.Controller` could drive it, but would add no more than
the loop below, and is one more dependency (tf-models-official) whose import loads 403 modules of tf_keras,
Keras 2 (0.15 s after TensorFlow's own 3.5 s, on 2 cores).
"""

import os
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_bert.errors import InputError
from tasks.checkpoints import Checkpoints
from tasks.reporting import History, Reporter

SECONDS_PER_CALL = 0.5  # Of training steps between two looks at the progress bar.
RECORDS = 200  # Points of the training curve.


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


class Trainer:
    """Trains and evaluates a Keras model.

    Args:
        model: called as `model(features, training=...)`; created, as the optimizer, inside `strategy.scope()`.
        optimizer: a Keras optimizer of its own for this trainer; None: for evaluation only.
        objective: the `Objective`.
        output_dir: gets `checkpoints/`, `events/`, `history.json` and `curve.png`.
        strategy: `tf.distribute.Strategy` of one process; None: the current one.
        gradient_accumulation_steps: micro-batches that a replica's batch is split into, to save memory.
        clip_norm: largest global norm of the gradients (google-research/bert: 1.0); None: no clipping.
        jit_compile: compile forward and backward pass with XLA.
        random_seed: seed of the dropout masks, which are a function of it, the step, the replica and the layer.

    Raises:
        ValueError: the optimizer was created outside the strategy's scope.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer | None,
        objective: Objective,
        *,
        output_dir: str,
        strategy: tf.distribute.Strategy | None = None,
        gradient_accumulation_steps: int = 1,
        clip_norm: float | None = 1.0,
        jit_compile: bool = False,
        random_seed: int = 0,
    ):
        self.model = model
        self.optimizer = optimizer
        self.objective = objective
        self.output_dir = output_dir
        self.strategy = strategy or tf.distribute.get_strategy()
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.clip_norm = clip_norm
        self.random_seed = random_seed
        with self.strategy.scope():
            # Of our own, int64: Keras's `iterations` is int32.
            self.step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        if optimizer is not None:
            self._prepare_optimizer()
        self._seeds = [variable for variable in model.variables if variable.path.endswith("seed_generator_state")]
        self._differentiate = self._accumulate
        if jit_compile:
            self._differentiate = tf.function(self._accumulate, jit_compile=True, autograph=False)
        self._train = tf.function(self._train_steps, autograph=False)
        self._evaluate = tf.function(self._evaluate_batch, autograph=False)
        # Both are filled while the step is traced.
        self._has_gradient: list[bool] = []
        self._figure_names: list[str] = []

    def _prepare_optimizer(self) -> None:
        """Creates the optimizer's variables, and takes the sum over the replicas out of its hands."""
        if self.optimizer._distribution_strategy is not self.strategy:
            raise ValueError("`optimizer` must be created inside `strategy.scope()`. Received: one created outside.")
        with self.strategy.scope():
            self.optimizer.build(self.model.trainable_variables)
        # Keras has no public switch for this; a second sum would multiply the gradients by the number of replicas.
        # That the step is exact on two replicas is tested.
        self.optimizer._all_reduce_sum_gradients = list

    # === Training ===

    def fit(
        self,
        make_dataset: Callable[[int], tf.data.Dataset],
        num_steps: int,
        *,
        steps_per_call: int = 100,
        save_checkpoints_steps: int = 1000,
        evaluate: Callable[[], dict[str, float]] | None = None,
        keep_checkpoints: int = 3,
        description: str = "training",
    ) -> History:
        """Trains up to step `num_steps`, from the newest checkpoint in `output_dir` if there is one.

        A run that was killed and restarted ends with the same weights as an undisturbed one, bit by bit on one CPU,
        if `make_dataset(n)` gives what `make_dataset(0).skip(n)` would.

        Args:
            make_dataset: takes the number of finished steps, returns the batches that follow: pairs
                `(features, labels)` of dicts of tensors, whose batch is the global one.
            num_steps: number of training steps, the finished ones included.
            steps_per_call: most steps done between two returns to Python; fewer if they take long.
            save_checkpoints_steps: steps between checkpoints; one more is saved at the end.
            evaluate: called after every checkpoint, and first of all if the run was stopped between the newest
                checkpoint and its evaluation; returns figures by name for history, events and curve.
            keep_checkpoints: how many to keep.
            description: the progress bar's title.

        Returns:
            The `History`, that of resumed runs included.

        Raises:
            InputError: the data ended too early; the loss or the gradient is not a finite number; a batch cannot be
                split into `gradient_accumulation_steps`; no checkpoint can be read; `output_dir` cannot be written.
        """
        step = self.restore()
        checkpoints = self._checkpoints()
        with Reporter(self.output_dir, step, num_steps, description) as report:
            if step:
                report.complete(step, evaluate)
            if step >= num_steps:
                report.save()
                return report.history
            iterator = iter(self.strategy.experimental_distribute_dataset(make_dataset(step)))
            intervals = (save_checkpoints_steps, max(1, num_steps // RECORDS))
            seconds_per_step = SECONDS_PER_CALL  # Until known: one step.
            while step < num_steps:
                count = min(num_steps - step, steps_per_call, *(interval - step % interval for interval in intervals))
                count = max(1, min(count, int(SECONDS_PER_CALL / seconds_per_step)))
                start = time.monotonic()
                values = self._call_train(iterator, step, count)
                seconds_per_step = (time.monotonic() - start) / count
                step += count
                report.steps(self._figure_names, values)
                at_end = step == num_steps
                if at_end or step % intervals[1] == 0:
                    report.record(step, self._figure_names)
                if at_end or step % save_checkpoints_steps == 0:
                    report.save()  # Before the checkpoint: rows beyond it do no harm, missing ones never come back.
                    checkpoints.save(keep_checkpoints)
                    report.complete(step, evaluate)
            return report.history

    def restore(self) -> int:
        """Restores weights, optimizer and step from the newest checkpoint in `output_dir`; returns its step or 0.

        Raises:
            InputError: no checkpoint there can be read, or it is of another model or optimizer.
        """
        return self._checkpoints().restore()

    def _checkpoints(self) -> Checkpoints:
        if self.optimizer is None:
            raise ValueError("`optimizer` must be given for training and checkpoints. Received: optimizer=None")
        return Checkpoints(
            os.path.join(self.output_dir, "checkpoints"),
            self.step,
            [variable.value for variable in self.model.weights],
            [variable.value for variable in self.optimizer.variables],
        )

    def _call_train(self, iterator, step: int, count: int) -> np.ndarray:
        """Does `count` steps after `step`; returns their figures, float32, shape (count, len(_figure_names))."""
        try:
            values = self._train(iterator, tf.constant(count)).numpy()
        except tf.errors.OutOfRangeError as error:
            done = int(self.step.numpy())
            raise InputError(
                f"The training data ended after step {done}, before the last one. Repeat the data, or train less."
            ) from error
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            first = int(np.argmin(finite))
            pairs = zip(self._figure_names, values[first], strict=True)
            figures = ", ".join(f"{name} {value}" for name, value in pairs)
            raise InputError(
                f"Training diverged at step {step + first + 1}: {figures}. Lower the learning rate or warm up longer; "
                "the last checkpoint is from before."
            )
        return values

    def _train_steps(self, iterator, count: tf.Tensor) -> tf.Tensor:
        """Does `count` (int32 scalar) steps in one graph; returns float32 [count, figures]."""

        def one_step(index: tf.Tensor, rows: tf.TensorArray):
            figures = self._global(self.strategy.run(self._replica_step, args=iterator.get_next()))
            with tf.control_dependencies(list(figures.values())):  # Else it counts a step whose data is missing.
                self.step.assign_add(1)
            self._figure_names = list(figures)
            return index + 1, rows.write(index, tf.stack(list(figures.values())))

        rows = tf.TensorArray(tf.float32, size=count)
        return tf.while_loop(lambda index, _: index < count, one_step, (0, rows))[1].stack()

    def _global(self, figures):
        """Takes one replica's values of figures that are the same on all."""
        return tf.nest.map_structure(lambda value: self.strategy.experimental_local_results(value)[0], figures)

    def _replica_step(self, features, labels) -> dict[str, tf.Tensor]:
        """One replica's part of a step. Returns figures, float32 scalars, the same on every replica."""
        context = tf.distribute.get_replica_context()
        self._seed_dropout(context)
        examples = tf.cast(tf.shape(tf.nest.flatten(features)[0])[0], tf.float32)
        weights, examples = context.all_reduce("SUM", (self.objective.weights(features, labels), examples))
        scales = {name: tf.math.divide_no_nan(1.0, weight + self.objective.epsilon) for name, weight in weights.items()}
        gradients, losses = self._differentiate(features, labels, scales)
        pairs = zip(gradients, self.model.trainable_variables, self._has_gradient, strict=True)
        trained = [(gradient, variable) for gradient, variable, has_gradient in pairs if has_gradient]
        gradients, losses = context.all_reduce("SUM", ([gradient for gradient, _ in trained], losses))
        norm = tf.linalg.global_norm(gradients)
        if self.clip_norm is not None:
            factor = self.clip_norm / tf.maximum(norm, self.clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        learning_rate = tf.cast(tf.convert_to_tensor(self.optimizer.learning_rate), tf.float32)
        self.optimizer.apply(gradients, [variable for _, variable in trained])
        return {
            "loss": tf.add_n(list(losses.values())),
            **_named_losses(losses),
            "learning_rate": learning_rate,
            "gradient_norm": norm,
            "examples": examples,
        }

    def _seed_dropout(self, context) -> None:
        """Gives every layer's seed generator a state drawn from (seed, replica, step).

        Keras mirrors these states, so that all replicas would drop the same units, and checkpoints leave them out.
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
        _, gradients, losses = tf.while_loop(lambda index, *_: index < count, one_part, start)
        return gradients, losses

    def _gradients(self, features, labels, scales) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Returns dense gradients of every trainable variable, and this batch's share of each named loss.

        A table that is looked up and tied to an output layer has a sparse and a dense part: both add up here. A
        variable that the loss does not depend on gets zeros, and is noted, so that the optimizer leaves it alone.
        """
        variables = [variable.value for variable in self.model.trainable_variables]
        with tf.GradientTape() as tape:
            outputs = self.model(features, training=True)
            sums = self.objective.sums(outputs, labels)
            losses = {name: sums[name] * scale for name, scale in scales.items()}
            loss = tf.add_n(list(losses.values()))
        gradients = tape.gradient(loss, variables)
        self._has_gradient = [gradient is not None for gradient in gradients]
        dense = [
            tf.zeros(variable.shape, variable.dtype) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        return dense, losses

    # === Evaluation ===

    def evaluate(self, dataset: tf.data.Dataset, max_steps: int | None = None) -> dict[str, float]:
        """Returns losses and metrics over all examples of a dataset, whatever the sizes of its batches.

        Args:
            dataset: batches `(features, labels)` as in `fit`; the last one may be smaller.
            max_steps: batches to look at; None: all.

        Returns:
            `loss`, with several named losses `<name>_loss` too, and the objective's metrics: sum / sum of weights,
            without the epsilon; 0.0 where the weights sum to 0.

        Raises:
            InputError: the dataset is empty.
        """
        if max_steps is not None:
            dataset = dataset.take(max_steps)
        cardinality = int(dataset.cardinality().numpy())
        totals: dict[tuple[str, str], np.ndarray] = {}
        iterator = iter(self.strategy.experimental_distribute_dataset(dataset))
        total = cardinality if cardinality >= 0 else None  # Negative: unknown or infinite.
        with tqdm(total=total, desc="evaluation", unit="step", mininterval=0.5, leave=False) as bar:
            while True:
                try:
                    batch = self._evaluate(iterator)
                except tf.errors.OutOfRangeError:
                    break
                for key, pair in batch.items():
                    totals[key] = totals.get(key, 0.0) + pair.numpy().astype(np.float64)
                bar.update()
        if not totals:
            raise InputError("The evaluation data is empty: expected at least one batch.")
        means = {key: float(total / weight) if weight else 0.0 for key, (total, weight) in totals.items()}
        losses = {name: mean for (kind, name), mean in means.items() if kind == "loss"}
        metrics = {name: mean for (kind, name), mean in means.items() if kind == "metric"}
        return {"loss": sum(losses.values()), **_named_losses(losses), **metrics}

    def _evaluate_batch(self, iterator) -> dict[tuple[str, str], tf.Tensor]:
        """Evaluates the next batch: float32 [2], sum and sum of weights, for each `("loss" or "metric", name)`."""
        return self._global(self.strategy.run(self._replica_evaluate, args=iterator.get_next()))

    def _replica_evaluate(self, features, labels) -> dict[tuple[str, str], tf.Tensor]:
        outputs = self.model(features, training=False)
        sums = self.objective.sums(outputs, labels)
        weights = self.objective.weights(features, labels)
        pairs = {("loss", name): tf.stack([sums[name], weights[name]]) for name in weights}
        for name, pair in self.objective.metric_sums(outputs, labels).items():
            pairs["metric", name] = tf.stack(pair)
        return tf.distribute.get_replica_context().all_reduce("SUM", pairs)


def _named_losses(losses: dict) -> dict:
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
