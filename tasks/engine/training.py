"""The training loop around `tasks.engine.train_step`, and evaluation.

`orbit.Controller` could drive this loop, but would not shorten it, and needs tf-models-official, whose import loads 403
modules of tf_keras.
"""

import os
import time
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_bert.errors import InputError
from tasks.engine.checkpoints import Checkpoints, keep_settings
from tasks.engine.divergence import find_divergence
from tasks.engine.preemption import Preemption
from tasks.engine.progress import EarlyStopping, History, Reporter
from tasks.engine.strategy import distribute
from tasks.engine.time_budget import UNSETTLED, Budget
from tasks.engine.train_step import Objective, TrainStep, named_losses
from tasks.engine.workers import Workers

SECONDS_PER_CALL = 0.5  # Duration of the training steps between two updates of the progress bar.
RECORDS = 200  # About the number of rows of a history.

_OF_SEVERAL_HOSTS = (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.TPUStrategy)
MakeDataset = Callable[[int], tf.data.Dataset]  # From the number of finished steps to the batches that follow.


class Trainer:
    """Trains and evaluates a Keras model.

    Args:
        model: called as `model(features, training=...)`; created, like the optimizer, inside `strategy.scope()`.
        optimizer: a Keras optimizer that nothing else uses, in a `LossScaleOptimizer` if the model computes in float16.
        objective: the loss to minimize.
        output_dir: gets `checkpoints/`, `events/` and `history.json`; only the chief of several workers
            writes there.
        strategy: `tf.distribute.Strategy`; None for the current one.
        keep_checkpoints: number of checkpoints to keep; 0 to save none.
        steps_per_call: maximum number of steps between two returns to Python; fewer if they take long.
        **step_options: `gradient_accumulation_steps`, `clip_norm`, `jit_compile`, `rematerialize`, `random_seed` and
            `pooling` of `TrainStep`.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: keras.optimizers.Optimizer,
        objective: Objective,
        *,
        output_dir: str,
        strategy: tf.distribute.Strategy | None = None,
        keep_checkpoints: int = 3,
        steps_per_call: int = 100,
        **step_options,
    ):
        self.model, self.optimizer, self.objective = model, optimizer, objective
        self.output_dir = output_dir
        self.strategy = strategy or tf.distribute.get_strategy()
        self.keep_checkpoints = keep_checkpoints
        self.steps_per_call = steps_per_call
        self.workers = Workers(self.strategy)
        with self.strategy.scope():
            # Keras's own `iterations` is int32.
            self.step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
        self.train_step = TrainStep(model, optimizer, objective, strategy=self.strategy, step=self.step, **step_options)
        weights = [variable.value for variable in model.weights]
        moments = [variable.value for variable in optimizer.variables]
        self._state = [self.step, *weights, *moments]
        self._checkpoints = Checkpoints(os.path.join(output_dir, "checkpoints"), self.step, weights, moments)
        self._best = Checkpoints(os.path.join(output_dir, "best"), self.step, weights, [])
        self._train = tf.function(self._train_steps, autograph=False)
        self._evaluate = tf.function(self._evaluate_batch, autograph=False)
        self._preemption = Preemption()  # Entered by `fit`.

    @property
    def schedule(self):
        """The learning rate, a float or a `LearningRateSchedule`; Keras's public property gives its current value."""
        return getattr(self.optimizer, "inner_optimizer", self.optimizer)._learning_rate

    # === Training ===

    def fit(
        self,
        make_dataset: MakeDataset,
        num_steps: int | Budget,
        *,
        save_checkpoints_steps: int = 1000,
        evaluate: Callable[[], dict[str, float]] | None = None,
        evaluation_steps: int = 1,
        early_stopping: EarlyStopping | None = None,
        description: str = "training",
    ) -> History:
        """Trains up to a step, or for a time, starting from the newest checkpoint in `output_dir` if there is one.

        A killed and restarted run ends with the same weights as an uninterrupted one (bit for bit on one CPU), provided
        that `make_dataset(n)` equals `make_dataset(0).skip(n)`. A worker that receives SIGTERM, which only its main
        thread can, makes all workers save at the next step and exit. A single worker breaks off an evaluation; several
        workers finish it.

        Args:
            make_dataset: takes the number of finished steps and returns the batches that follow: `(features, labels)`
                dicts of tensors, of the global batch. If it has a method `share(step, index, count)` that returns the
                given part of each batch's rows, each of several workers reads only its own part.
            num_steps: total number of training steps, finished ones included, or a `Budget` of time.
            save_checkpoints_steps: steps between checkpoints; the last step is always saved.
            evaluate: called after a checkpoint, and right away if an earlier run stopped between the newest checkpoint
                and its evaluation. Returns figures by name for history and events.
            evaluation_steps: minimum of steps between two evaluations; the last step is always evaluated.
            early_stopping: ends the training once the evaluations stop improving; weights and `step` are then those of
                the best evaluation, kept in `best/`. Needs `evaluate` and a single worker.
            description: title of the progress bar.

        Returns:
            The `History`, including that of earlier runs. Workers other than the chief only know their own rows.

        Raises:
            InputError: the data ended early; the loss or gradient is not finite; a batch cannot be split into
                `gradient_accumulation_steps`; no checkpoint can be read.
            Preempted: SIGTERM arrived; the checkpoint is saved, if the trainer keeps any.
            WorkerLost: another worker is gone.
        """
        budget = num_steps if isinstance(num_steps, Budget) else Budget(num_steps)

        def complete(step: int) -> None:
            """Evaluates a checkpoint and saves the report, if an evaluation is due; keeps the best weights."""
            if evaluate and self.workers.from_chief(report.needs_evaluation(step, 1 if is_over else evaluation_steps)):
                report.evaluation(step, evaluate())
                report.save()
            # After the report: a run that is killed in between restores these very weights, and comes here again.
            if early_stopping is not None and early_stopping.best_step(report.history) == step:
                self._best.save(keep=1)

        with self.workers.naming_lost_ones(), self._preemption:
            start_step = step = self.restore()
            budget.agree(int(self.workers.from_chief(budget.num_steps)))  # Only the chief reads the budget's file.
            is_over = self.workers.from_chief(budget.is_over(step))
            options = {"description": description, "is_active": self.workers.is_chief}
            with Reporter(self.output_dir, start_step=step, **options) as report:
                report.expect(budget.num_steps)
                was_evaluated = early_stopping is not None and not report.needs_evaluation(step, 1)
                if step and (step % save_checkpoints_steps == 0 or is_over or was_evaluated):
                    complete(step)
                if is_over or (early_stopping and step and early_stopping.is_over(report.history)):
                    if step and self.workers.is_chief:  # A run may have been killed while it removed the oldest.
                        self._checkpoints.remove_leftovers(self.keep_checkpoints)
                    report.save()
                    return self._end(report, early_stopping)
                expected_steps = 10 * save_checkpoints_steps if budget.num_steps == UNSETTLED else budget.num_steps
                intervals = (save_checkpoints_steps, max(1, expected_steps // RECORDS))
                for step, values in self._calls(make_dataset, start_step, budget, intervals):
                    report.steps(self.train_step.figure_names, values)
                    is_preempted, is_over, needs_pause = self._agree(budget, step)
                    report.expect(budget.num_steps)
                    is_last = is_preempted or is_over
                    if is_last or needs_pause or step % intervals[1] == 0:
                        report.record(step, self.train_step.figure_names)
                    if is_last or needs_pause or step % save_checkpoints_steps == 0:
                        with budget.pause():
                            report.save()  # Before the checkpoint: surplus rows are dropped, missing ones stay lost.
                            self.save()
                            if is_preempted:
                                self._preemption.stop(step, self.keep_checkpoints > 0)
                            complete(step)
                        if early_stopping is not None and early_stopping.is_over(report.history):
                            break
                    budget.keep(is_over)
                    if is_over:
                        break
                if self._preemption.requested:
                    self._preemption.stop(step, self.keep_checkpoints > 0)
                return self._end(report, early_stopping)

    def restore(self) -> int:
        """Restores weights, optimizer and step from the newest checkpoint in `output_dir`; returns its step or 0.

        The chief reads and sends the values to the other workers, which need no shared disk.

        Raises:
            InputError: no checkpoint can be read, or it belongs to another model or optimizer.
        """
        step = self._checkpoints.restore() if self.workers.is_chief else 0
        self.workers.saved_step = step = int(self.workers.from_chief(step))
        if step:
            self.workers.share(self._state)
        return step

    def save(self) -> None:
        """Saves a checkpoint of the current step and removes old ones. Only the chief writes; the others wait."""
        if self.workers.is_chief and self.keep_checkpoints:
            self._checkpoints.save(self.keep_checkpoints)
        self.workers.wait()
        self.workers.saved_step = int(self.step.numpy())

    def keep_settings(self, identity: dict) -> None:
        """Records what the weights depend on; see `tasks.engine.checkpoints.keep_settings`.

        Raises:
            InputError: `output_dir` holds a training with other settings, or those of the workers differ.
        """
        self.workers.check_equal(identity)
        keep_settings(self.output_dir, identity, writes=self.workers.is_chief)

    def _end(self, report: Reporter, early_stopping: EarlyStopping | None) -> History:
        """Restores the best weights, if early stopping keeps them, and returns the history."""
        if early_stopping and (best_step := early_stopping.best_step(report.history)) is not None:
            self._best.restore(best_step)
        return report.history

    def _agree(self, budget: Budget, step: int) -> tuple[bool, bool, bool]:
        """Returns whether the training is preempted, is over, and needs a checkpoint; equal on all workers."""
        budget.settle(step)
        flags = [self._preemption.requested, budget.num_steps, budget.is_over(step), budget.needs_pause()]
        of_workers = self.workers.gather(flags)
        budget.agree(int(of_workers[0, 1]))
        return bool(of_workers[:, 0].any()), bool(of_workers[0, 2]), bool(of_workers[0, 3])

    def _calls(
        self, make_dataset: MakeDataset, step: int, budget: Budget, intervals: tuple[int, ...]
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Runs the steps after `step`, several per call; yields the last one's number and all figures of each call.

        Calls take about `SECONDS_PER_CALL` if steps are short, and never cross a multiple of any of the intervals.
        """
        batches = iter(self._training_batches(make_dataset, step))
        seconds_per_step = SECONDS_PER_CALL  # The first call does one step.
        while step < budget.num_steps:
            ends = (interval - step % interval for interval in intervals)
            in_time = max(1, int(SECONDS_PER_CALL / seconds_per_step))
            count = min(in_time, self.steps_per_call, budget.num_steps - step, *ends)
            start = time.monotonic()
            values = self._call_train(batches, count)
            # Every worker uses the time of the slowest: all must do the same number of steps per call.
            seconds_per_step = self.workers.gather(time.monotonic() - start).max() / count
            if fault := find_divergence(self.train_step.figure_names, values):
                raise InputError(
                    f"Training diverged at step {step + fault[0] + 1}: {fault[1]}. Lower the learning rate or warm up "
                    "longer, in a new --output_dir. The same command would continue from the last checkpoint before "
                    "that step."
                )
            step += count
            yield step, values

    def _call_train(self, batches, count: int) -> np.ndarray:
        """Runs `count` steps and returns their figures: float32, shape (count, figures)."""
        try:
            return self._train(batches, tf.constant(count)).numpy()
        except tf.errors.OutOfRangeError as error:
            done = int(self.step.numpy())
            raise InputError(
                f"The training data ended after step {done}, before the last one. Repeat the data, or train less."
            ) from error

    def _train_steps(self, batches, count: tf.Tensor) -> tf.Tensor:
        """Runs `count` (int32 scalar) steps in one graph; returns float32 [count, figures]."""

        def one_step(index: tf.Tensor, rows: tf.TensorArray):
            by_name = self._global(self.strategy.run(self.train_step, args=batches.get_next()))
            figures = [by_name[name] for name in self.train_step.figure_names]
            with tf.control_dependencies(figures):  # A step without data must not count.
                self.step.assign_add(1)
            return index + 1, rows.write(index, tf.stack(figures))

        rows = tf.TensorArray(tf.float32, size=count)
        return tf.while_loop(lambda index, _: index < count, one_step, (0, rows))[1].stack()

    def _global(self, figures):
        """Returns the first replica's values of figures that are equal on all replicas."""
        return tf.nest.map_structure(lambda value: self.strategy.experimental_local_results(value)[0], figures)

    def _training_batches(self, make_dataset: MakeDataset, step: int):
        if not hasattr(make_dataset, "share") or not isinstance(self.strategy, _OF_SEVERAL_HOSTS):
            return distribute(self.strategy, make_dataset(step))

        def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
            dataset = make_dataset.share(step, context.input_pipeline_id, context.num_input_pipelines)
            num_replicas = self.strategy.num_replicas_in_sync // context.num_input_pipelines
            size = tf.nest.flatten(dataset.element_spec)[0].shape[0]
            if size % num_replicas:
                raise InputError(
                    f"--train_batch_size={size * context.num_input_pipelines} cannot be split among "
                    f"{self.strategy.num_replicas_in_sync} devices. Give a multiple of that."
                )
            return dataset if num_replicas == 1 else dataset.rebatch(size // num_replicas, drop_remainder=True)

        return self.strategy.distribute_datasets_from_function(of_host)

    # === Evaluation ===

    def evaluate(self, dataset: tf.data.Dataset) -> dict[str, float]:
        """Returns exact losses and metrics over all examples of a dataset, whatever its batch sizes.

        Args:
            dataset: `(features, labels)` batches as in `fit`; the last one may be smaller.

        Returns:
            `loss`, each `<name>_loss` if there are several, and the objective's metrics. Each is the sum divided by the
            sum of weights, without the epsilon; 0.0 if the weights sum to 0.
        """
        totals: dict[tuple[str, str], np.ndarray] = {}
        iterator = iter(distribute(self.strategy, dataset))
        total = max(int(dataset.cardinality()), 0) or None  # Negative if unknown or infinite.
        with tqdm(total=total, desc="evaluation", unit="step", mininterval=0.5, leave=False) as bar:
            while True:
                if self._preemption.requested and self.workers.count == 1:
                    self._preemption.stop(int(self.step.numpy()))  # Several workers must finish together.
                try:
                    batch = self._evaluate(iterator)
                except tf.errors.OutOfRangeError:
                    break
                for key, pair in batch.items():
                    totals[key] = totals.get(key, 0.0) + pair.numpy().astype(np.float64)
                bar.update()
        means: dict[str, dict[str, float]] = {"loss": {}, "metric": {}}
        for (kind, name), (total, weight) in totals.items():
            means[kind][name] = float(total / weight) if weight else 0.0
        return {"loss": self.objective.total(means["loss"]), **named_losses(means["loss"]), **means["metric"]}

    def _evaluate_batch(self, iterator) -> dict[tuple[str, str], tf.Tensor]:
        """Evaluates the next batch; returns (sum, sum of weights), float32 [2], by `("loss" or "metric", name)`."""
        return self._global(self.strategy.run(self._replica_evaluate, args=iterator.get_next()))

    def _replica_evaluate(self, features, labels) -> dict[tuple[str, str], tf.Tensor]:
        outputs = self.model(features, training=False)
        sums = self.objective.sums(outputs, labels)
        weights = self.objective.weights(features, labels)
        pairs = {("loss", name): tf.stack([sums[name], weights[name]]) for name in weights}
        for name, pair in self.objective.metric_sums(outputs, labels).items():
            pairs["metric", name] = tf.stack(pair)
        return tf.distribute.get_replica_context().all_reduce("SUM", pairs)
