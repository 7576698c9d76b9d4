"""The training loop around `tasks.train_step`, and evaluation.

The loop is our own, on `tf.train.CheckpointManager`. `orbit.Controller` could drive it, but would add no more than
the loop below, and is one more dependency (tf-models-official) whose import loads 403 modules of tf_keras,
Keras 2 (0.15 s after TensorFlow's own 3.5 s, on 2 cores).
"""

import os
import time
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_bert.errors import InputError
from tasks.checkpoints import Checkpoints
from tasks.divergence import Divergence, save_batch
from tasks.early_stopping import EarlyStopping
from tasks.preemption import Preemption
from tasks.reporting import History, Reporter
from tasks.throughput import Speed
from tasks.train_step import Objective, TrainStep, named_losses
from tasks.workers import Workers

SECONDS_PER_CALL = 0.5  # Of training steps between two looks at the progress bar.
RECORDS = 200  # Points of the training curve.


class Trainer:
    """Trains and evaluates a Keras model.

    Args:
        model: called as `model(features, training=...)`; created, as the optimizer, inside `strategy.scope()`.
        optimizer: a Keras optimizer of its own for this trainer, in a `LossScaleOptimizer` if the model computes in
            float16; None: for evaluation only.
        objective: the `Objective`.
        output_dir: gets `checkpoints/`, `events/`, `history.json` and `curve.png`; of several workers the chief's.
        strategy: `tf.distribute.Strategy`; None: the current one.
        gradient_accumulation_steps: micro-batches that a replica's batch is split into, to save memory.
        clip_norm: largest global norm of the gradients (google-research/bert: 1.0); None: no clipping.
        jit_compile: compile with XLA: on one device the whole step, on several all but the exchange and the update.
        random_seed: seed of the dropout masks, which are a function of it, the step, the replica and the layer.
        spike_factor: stop when the loss exceeds this multiple of its running median; 0: never.

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
        spike_factor: float = 0.0,
    ):
        self.model = model
        self.optimizer = optimizer
        self.objective = objective
        self.output_dir = output_dir
        self.spike_factor = spike_factor
        self.strategy = strategy or tf.distribute.get_strategy()
        self.workers = Workers(self.strategy)
        with self.strategy.scope():
            # Of our own, int64: Keras's `iterations` is int32.
            self.step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        self.train_step = None
        if optimizer is not None:
            self.train_step = TrainStep(
                model,
                optimizer,
                objective,
                strategy=self.strategy,
                step=self.step,
                gradient_accumulation_steps=gradient_accumulation_steps,
                clip_norm=clip_norm,
                jit_compile=jit_compile,
                random_seed=random_seed,
            )
        self._train = tf.function(self._train_steps, autograph=False)
        self._evaluate = tf.function(self._evaluate_batch, autograph=False)
        self._preemption = Preemption()  # Listens while `fit` runs.

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
        early_stopping: EarlyStopping | None = None,
        speed: Speed | None = None,
        description: str = "training",
    ) -> History:
        """Trains up to step `num_steps`, from the newest checkpoint in `output_dir` if there is one.

        A run that was killed and restarted ends with the same weights as an undisturbed one, bit by bit on one CPU,
        if `make_dataset(n)` gives what `make_dataset(0).skip(n)` would. After SIGTERM (in the main thread; to any of
        several workers) it saves at the next step and leaves; an evaluation is broken off, by several workers ended.

        Args:
            make_dataset: takes the number of finished steps, returns the batches that follow: pairs
                `(features, labels)` of dicts of tensors, whose batch is the global one, on every worker.
            num_steps: number of training steps, the finished ones included.
            steps_per_call: most steps done between two returns to Python; fewer if they take long.
            save_checkpoints_steps: steps between checkpoints; one more is saved at the end.
            evaluate: called after every checkpoint, and first of all if the run was stopped between the newest
                checkpoint and its evaluation; returns figures by name for history, events and curve.
            keep_checkpoints: how many to keep.
            early_stopping: ends the training before `num_steps` once its evaluations have ceased to improve; weights
                and `step` are then those of the best evaluation, kept in `best/`.
            speed: what the speed is compared with; None: only the speed is shown.
            description: the progress bar's title.

        Returns:
            The `History`, that of resumed runs included; a worker that is not the chief knows its own rows only.

        Raises:
            InputError: the data ended too early; the loss or the gradient is not a finite number, or the loss spiked
                (the batch is saved); a batch cannot be split into `gradient_accumulation_steps`; no checkpoint can be
                read; `output_dir` cannot be written; another worker is gone.
            Preempted: SIGTERM came; the checkpoint is saved.
            ValueError: early stopping without `evaluate`, or on several workers.
        """
        if early_stopping is not None and (evaluate is None or self.workers.count > 1):
            raise ValueError("`early_stopping` needs `evaluate`, and one worker.")
        with self.workers.naming_lost_ones(), self._preemption:
            start_step = step = self.restore()
            with Reporter(
                self.output_dir, step, num_steps, description, speed=speed, is_active=self.workers.is_chief
            ) as report:
                if step and (step % save_checkpoints_steps == 0 or step >= num_steps):
                    self._complete(report, step, evaluate, early_stopping)
                if step >= num_steps or (early_stopping and step and early_stopping.is_over(report.history)):
                    if step and self.workers.is_chief:  # Killed while it removed the oldest.
                        self._checkpoints().remove_leftovers(keep_checkpoints)
                    report.save()
                    return self._end(report, early_stopping)
                intervals = (save_checkpoints_steps, max(1, num_steps // RECORDS))
                for step, values in self._calls(make_dataset, start_step, num_steps, steps_per_call, intervals):
                    names = self.train_step.figure_names
                    report.steps(names, values)
                    is_preempted = self.workers.gather(self._preemption.requested).any()
                    is_last = is_preempted or step == num_steps
                    if is_last or step % intervals[1] == 0:
                        report.record(step, names)
                    if is_last or step % save_checkpoints_steps == 0:
                        report.save()  # Before the checkpoint: rows beyond it do no harm, missing ones never come back.
                        self.save(keep_checkpoints)
                        if is_preempted:
                            self._preemption.stop(step)
                        self._complete(report, step, evaluate, early_stopping)
                        if early_stopping is not None and early_stopping.is_over(report.history):
                            break
                if self._preemption.requested:
                    self._preemption.stop(step)
                return self._end(report, early_stopping)

    def restore(self) -> int:
        """Restores weights, optimizer and step from the newest checkpoint in `output_dir`; returns its step or 0.

        Of several workers the chief reads, and the others get what it has read: they need no disk in common.

        Raises:
            InputError: no checkpoint there can be read, or it is of another model or optimizer.
        """
        step = self._checkpoints().restore() if self.workers.is_chief else 0
        step = int(self.workers.from_chief(step))
        if step:
            self.workers.share([self.step, *self._weights(), *self._optimizer_variables()])
        return step

    def save(self, keep_checkpoints: int) -> None:
        """Saves a checkpoint of the current step, and removes the oldest beyond `keep_checkpoints`; the chief alone."""
        if self.workers.is_chief:
            self._checkpoints().save(keep_checkpoints)

    def _checkpoints(self) -> Checkpoints:
        directory = os.path.join(self.output_dir, "checkpoints")
        return Checkpoints(directory, self.step, self._weights(), self._optimizer_variables())

    def _best(self) -> Checkpoints:
        return Checkpoints(os.path.join(self.output_dir, "best"), self.step, self._weights(), [])

    def _weights(self) -> list[tf.Variable]:
        return [variable.value for variable in self.model.weights]

    def _optimizer_variables(self) -> list[tf.Variable]:
        if self.optimizer is None:
            raise ValueError("`optimizer` must be given for training and checkpoints. Received: optimizer=None")
        return [variable.value for variable in self.optimizer.variables]

    def _complete(
        self,
        report: Reporter,
        step: int,
        evaluate: Callable[[], dict[str, float]] | None,
        early_stopping: EarlyStopping | None,
    ) -> None:
        """Evaluates at a checkpoint's step and saves the report, if that is wanted and not yet in the history."""
        if evaluate is not None and self.workers.from_chief(report.lacks_evaluation(step)):
            report.evaluation(step, evaluate())
            if early_stopping is not None and early_stopping.best_step(report.history) == step:
                self._best().save(keep=1)  # Before the report, which says that it is there.
            report.save()

    def _end(self, report: Reporter, early_stopping: EarlyStopping | None) -> History:
        """Restores the best weights, if they were kept, and returns the history."""
        if early_stopping is not None and early_stopping.best_step(report.history) is not None:
            self._best().restore()
        return report.history

    def _calls(
        self,
        make_dataset: Callable[[int], tf.data.Dataset],
        step: int,
        num_steps: int,
        steps_per_call: int,
        intervals: tuple[int, ...],
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Does the steps after `step`, several a call; yields after each the last one's number, and all figures.

        A call ends at the latest where one of the intervals does, and takes half a second if its steps are short.
        """
        batches = iter(self._distribute(make_dataset(step)))
        divergence = Divergence(self.spike_factor)
        seconds_per_step = SECONDS_PER_CALL  # Until known: one step.
        while step < num_steps:
            count = min(num_steps - step, steps_per_call, *(interval - step % interval for interval in intervals))
            count = max(1, min(count, int(SECONDS_PER_CALL / seconds_per_step)))
            start = time.monotonic()
            values = self._call_train(batches, count)
            # The same on every worker: all must do the same steps between two of these exchanges.
            seconds_per_step = self.workers.gather(time.monotonic() - start).max() / count
            found = divergence.find(self.train_step.figure_names, values)
            if found is not None:
                self._stop_diverged(make_dataset, step + found[0] + 1, found[1])
            step += count
            yield step, values

    def _stop_diverged(self, make_dataset: Callable[[int], tf.data.Dataset], step: int, reason: str) -> None:
        """Saves the batch of a step and raises an InputError that names both."""
        path = os.path.join(self.output_dir, f"diverged_step_{step}.npz")
        if self.workers.is_chief:
            save_batch(path, make_dataset(step - 1))
        raise InputError(
            f"Training diverged at step {step}: {reason}. Its batch is in {path}. Lower the learning rate or warm up "
            "longer, in a new --output_dir; the same command continues from the last checkpoint, which is from before."
        )

    def _call_train(self, batches, count: int) -> np.ndarray:
        """Does `count` steps; returns their figures, float32, shape (count, figures)."""
        try:
            return self._train(batches, tf.constant(count)).numpy()
        except tf.errors.OutOfRangeError as error:
            done = int(self.step.numpy())
            raise InputError(
                f"The training data ended after step {done}, before the last one. Repeat the data, or train less."
            ) from error

    def _train_steps(self, batches, count: tf.Tensor) -> tf.Tensor:
        """Does `count` (int32 scalar) steps in one graph; returns float32 [count, figures]."""

        def one_step(index: tf.Tensor, rows: tf.TensorArray):
            by_name = self._global(self.strategy.run(self.train_step, args=batches.get_next()))
            figures = [by_name[name] for name in self.train_step.figure_names]
            with tf.control_dependencies(figures):  # Else it counts a step whose data is missing.
                self.step.assign_add(1)
            return index + 1, rows.write(index, tf.stack(figures))

        rows = tf.TensorArray(tf.float32, size=count)
        return tf.while_loop(lambda index, _: index < count, one_step, (0, rows))[1].stack()

    def _global(self, figures):
        """Takes one replica's values of figures that are the same on all."""
        return tf.nest.map_structure(lambda value: self.strategy.experimental_local_results(value)[0], figures)

    def _distribute(self, dataset: tf.data.Dataset):
        """Gives every replica its part of each batch; of several workers each reads all batches, and takes its own."""
        options = tf.data.Options()
        # Whole files would go to each worker otherwise: other batches than on one device.
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
        return self.strategy.experimental_distribute_dataset(dataset.with_options(options))

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
        iterator = iter(self._distribute(dataset))
        total = cardinality if cardinality >= 0 else None  # Negative: unknown or infinite.
        with tqdm(total=total, desc="evaluation", unit="step", mininterval=0.5, leave=False) as bar:
            while True:
                if self._preemption.requested and self.workers.count == 1:
                    self._preemption.stop(int(self.step.numpy()))  # Several workers finish it together.
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
        return {"loss": sum(losses.values()), **named_losses(losses), **metrics}

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
