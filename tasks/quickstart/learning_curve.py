"""The learning curve in labels: fine-tunings from few rows and many, from pre-training and from random weights.

Each is what `bert-classify` does with the same settings. But they share one process and one graph, which would take
longer to build than most of them to train, and leave no files.
"""

import collections
import itertools
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

from keras_bert.files import atomic_path
from tasks.classification.task import Classification, ClassificationSettings
from tasks.engine.build_trainer import prepare_devices
from tasks.engine.optimization import PROFILES
from tasks.engine.schedules import SCHEDULES
from tasks.engine.train_step import TrainStep
from tasks.fine_tuning.inputs import read_inputs
from tasks.fine_tuning.session import plan_steps
from tasks.fine_tuning.start import find_start
from tasks.fine_tuning.task import Answers, Trained

STARTS = {"pretrained": "from pre-training", "random": "from random weights"}
MakeSettings = Callable[[int, bool, int], ClassificationSettings]  # From rows per label, `load_weights` and seed.


def first_rows(rows: Iterable[str], count: int) -> list[str]:
    """Returns the first `count` of each label of the rows `text<tab>label`, in their order."""
    seen: collections.Counter[str] = collections.Counter()
    kept = []
    for row in rows:
        label = row.rpartition("\t")[2]
        seen[label] += 1
        if seen[label] <= count:
            kept.append(row)
    return kept


def measure(make_settings: MakeSettings, sizes: Sequence[int], seeds: Sequence[int], known: dict) -> list[dict]:
    """Fine-tunes from both starts, and prints each dev accuracy.

    Args:
        make_settings: makes the settings of `bert-classify`. All hold out validation rows.
        sizes: numbers of rows of each label.
        seeds: seeds of the fine-tunings.
        known: accuracies that are known already, by the arguments of `make_settings`.

    Returns:
        For each size its `rows`, and the accuracies by seed of each of `STARTS`.
    """
    training, results = SharedTraining(), []
    for rows in sizes:
        training.read(Classification(make_settings(rows, True, seeds[0])))
        accuracies: dict[str, list[float]] = {start: [] for start in STARTS}
        for (start, title), seed in itertools.product(STARTS.items(), seeds):
            wanted = (rows, start == "pretrained", seed)
            accuracy = known[wanted] if wanted in known else training.train(Classification(make_settings(*wanted)))
            accuracies[start].append(accuracy)
            print(f"  {rows} rows a label, {title}, seed {seed}: {accuracy:.1%}", flush=True)
        results.append({"rows": rows, **accuracies})
    return results


class SharedTraining:
    """A model and a training step that fine-tunings use one after the other.

    The encoder must have no dropout, whose masks would follow the seed of the first.
    """

    def __init__(self):
        self._initial: dict[tuple[bool, int], list[np.ndarray]] = {}

    def read(self, task: Classification) -> None:
        """Reads and encodes the rows to train on, to validate on and to score."""
        inputs = read_inputs(task)
        self._trained = Trained(None, find_start(task.settings).tokenizer(), inputs.spec)
        self._parts = {part.split: (part, task.encode(part, self._trained)) for part in inputs.parts}

    def train(self, task: Classification) -> float:
        """Fine-tunes on the rows read, as `Session.train` does, and returns the dev accuracy of the best weights."""
        settings, (_, encoded) = task.settings, self._parts["train"]
        self._restart(task)
        num_steps, num_warmup_steps, interval = plan_steps(settings, encoded.num_examples)
        schedule = SCHEDULES["linear"](settings.learning_rate, num_steps, num_warmup_steps)
        best, best_weights = -1.0, None
        batches = encoded.make_train_dataset(settings.train_batch_size, settings.random_seed, 0, num_steps, None)
        for step, (features, labels) in enumerate(batches):
            self._optimizer.learning_rate = schedule(step)
            self._run(features, labels)
            if (step + 1) % interval == 0 or step + 1 == num_steps:
                accuracy = self._score(task, "validation")
                if accuracy > best:
                    best, best_weights = accuracy, self._model.get_weights()
        self._model.set_weights(best_weights)
        return self._score(task, "dev")

    def _restart(self, task: Classification) -> None:
        """Sets weights and optimizer as a new process would have them."""
        key = (task.settings.load_weights, task.settings.random_seed)
        if key not in self._initial:
            strategy = prepare_devices(task.settings)
            with strategy.scope():
                model, _ = task.build_training_model(find_start(task.settings), task.settings, self._trained.spec)
            self._initial[key] = model.get_weights()
            if len(self._initial) == 1:
                self._prepare(task, model, strategy)
        self._model.set_weights(self._initial[key])
        for variable in (self._step, *self._optimizer.variables):
            variable.assign(tf.zeros_like(variable))

    def _prepare(self, task: Classification, model: keras.Model, strategy: tf.distribute.Strategy) -> None:
        self._model = model
        with strategy.scope():
            self._optimizer = PROFILES[task.settings.optimizer](task.settings.learning_rate)
            self._step = tf.Variable(0, dtype=tf.int64)
        train_step = TrainStep(model, self._optimizer, task.objective(), strategy=strategy, step=self._step)
        _, encoded = self._parts["train"]
        batch = encoded.make_train_dataset(1, 0, 0, 1, None).element_spec
        self._run = tf.function(train_step, input_signature=batch, autograph=False)

    def _score(self, task: Classification, split: str) -> float:
        part, encoded = self._parts[split]
        outputs = encoded.compute_outputs(self._model, task.settings.eval_batch_size, None)
        return task.checkpoint_figures(Answers(self._trained, part, encoded, outputs))[task.stopping_metric]


def draw(path: str, results: Sequence[dict], majority: float) -> None:
    """Draws the mean over the seeds as a line and their range as a band, as a PNG.

    Args:
        path: file to write, atomically.
        results: as from `measure`.
        majority: accuracy of always giving the most frequent label.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4), dpi=120, layout="constrained")
    axes, sizes = figure.add_subplot(), [row["rows"] for row in results]
    for start, title in STARTS.items():
        percent = 100 * np.array([row[start] for row in results])  # [sizes, seeds]
        (line,) = axes.plot(sizes, percent.mean(axis=1), marker="o", label=title)
        axes.fill_between(sizes, percent.min(axis=1), percent.max(axis=1), color=line.get_color(), alpha=0.2)
    axes.axhline(100 * majority, color="gray", linestyle="--", label="majority class")
    axes.set(xlabel="training rows of each label", ylabel="dev accuracy (%)", xscale="log", ylim=(0, None))
    axes.set_xticks(sizes, list(map(str, sizes)))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png")
