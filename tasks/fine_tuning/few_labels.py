"""Classifiers from a few rows a label: a linear head on embeddings, which are frozen or trained by contrast.

Below some hundred rows a label, fine-tuning all weights together with a random head learns less than a logistic
regression on the embeddings of a good encoder, and differs more from seed to seed (Tunstall et al., arXiv:2209.11055).
The head is folded into the classifier, which is saved and served like any other.

Shapes: N rows, D components of an embedding, C classes.
"""

import dataclasses
import tempfile
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_bert.presets import weights
from tasks.engine.build_trainer import build_trainer
from tasks.fine_tuning import logistic_regression, start
from tasks.fine_tuning.examples import Examples, Predictor, make_train_dataset
from tasks.fine_tuning.objectives import SupervisedContrast
from tasks.fine_tuning.task import Encoded, Task, Trained

# Measured on 8, 16 and 64 rows a label (docs/benchmarks.md): with fewer rows in all, a trained encoder is worse than
# the frozen one, and there are too few to tell.
LEAST_ROWS_TO_TRAIN = 256
CONTRASTIVE_STEPS, CONTRASTIVE_RATE, CONTRASTIVE_BATCH = 60, 5e-5, 32
_FOLDS = 4  # One of them is held out, to compare a trained encoder with the frozen one.
_NAME_SCALE = 20.0  # Multiplies cosines with the names' embeddings, before the softmax.


class FewLabels(NamedTuple):
    """The classifier that was chosen.

    Attributes:
        model: BertTextClassifier; None if plain fine-tuning was chosen.
        results: for `metrics.json`: `train_few_labels`, the method, and `train_few_labels_accuracy`, the
            cross-validated accuracy of each method that was tried.
        num_steps: training steps of the encoder.
    """

    model: keras.Model | None
    results: dict
    num_steps: int = 0


class _Candidates:
    """The methods on the rows of one training.

    Args:
        task, trained, encoded: as in `choose`.
        origin: the encoder to start from.
        strategy: where to train.
    """

    def __init__(self, task: Task, origin: start.Start, trained: Trained, encoded: Encoded, strategy):
        self._settings, self._strategy = task.settings, strategy
        arguments = task.model_arguments(trained.spec)
        saved = weights.read_settings(origin.preset).get("task", {})
        pooling = saved.get("pooling") or "mean"
        with strategy.scope():
            self.model, self._backbone = start.build_model(
                origin, self._settings, task.model_class(), {**arguments, "pooling": pooling}
            )
            self._embedder = keras.Model(self.model.input, self.model.get_layer("pool_tokens").output)
        self._start = self._backbone.get_weights()
        self._predictor = Predictor(self._embedder)
        self.examples: Examples = encoded.examples
        self.labels, self.num_classes = encoded.examples.labels["labels"], len(trained.spec.labels)

    def embed(self) -> np.ndarray:
        """Returns the embeddings of all rows by the encoder as it is now: float32 (N, D)."""
        return self._predictor.compute_outputs(self.examples, self._settings.eval_batch_size, "embed rows")

    def restore_encoder(self) -> None:
        """Undoes all training of the encoder."""
        self._backbone.set_weights(self._start)

    def train_encoder(self, rows: np.ndarray) -> None:
        """Trains the encoder, from its start, on the rows with these numbers."""
        self.restore_encoder()
        settings = dataclasses.replace(
            self._settings, optimizer="adamw", learning_rate=CONTRASTIVE_RATE, gradient_accumulation_steps=1
        )
        examples, seed = take(self.examples, rows), settings.random_seed
        num_steps = (CONTRASTIVE_STEPS, CONTRASTIVE_STEPS // 10)

        def make_dataset(step: int) -> tf.data.Dataset:
            return make_train_dataset(examples, CONTRASTIVE_BATCH, seed, step, CONTRASTIVE_STEPS)

        with tempfile.TemporaryDirectory() as directory:
            settings = dataclasses.replace(settings, output_dir=directory)
            objective = SupervisedContrast()
            trainer = build_trainer(settings, lambda: self._embedder, objective, self._strategy, num_steps)
            trainer.fit(make_dataset, CONTRASTIVE_STEPS, description="contrastive training")

    def set_head(self, vectors: np.ndarray, strength: float) -> None:
        """Fits the head to the rows' vectors."""
        scale = scale_of(vectors)
        fitted = logistic_regression.fit(vectors * scale, self.labels, self.num_classes, strength)
        self.model.get_layer("classification").set_weights([fitted[:-1] * scale, fitted[-1]])

    def set_head_to_names(self, vectors: np.ndarray) -> None:
        """Makes the head answer the label whose name's vector is nearest, by the cosine."""
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        kernel = np.zeros((vectors.shape[1], self.num_classes))
        kernel[:, self.labels] = unit.T * (_NAME_SCALE * scale_of(vectors))
        self.model.get_layer("classification").set_weights([kernel, np.zeros(self.num_classes)])

    def contrastive_gain(self, frozen: np.ndarray, strength: float) -> tuple[float, float]:
        """Returns the accuracies on one fold of a frozen and of a trained encoder, with the others' rows."""
        is_held = logistic_regression.fold_numbers(self.labels, _FOLDS) == 0
        self.train_encoder(np.flatnonzero(~is_held))
        return tuple(self._score(vectors, is_held, own) for vectors, own in ((frozen, strength), (self.embed(), 1.0)))

    def _score(self, vectors: np.ndarray, is_held: np.ndarray, strength: float) -> float:
        vectors = vectors * scale_of(vectors)
        fitted = logistic_regression.fit(vectors[~is_held], self.labels[~is_held], self.num_classes, strength)
        answers = logistic_regression.predict(fitted, vectors[is_held]).argmax(1)
        return float(np.mean(answers == self.labels[is_held]))


def choose(
    method: str, task: Task, origin: start.Start, trained: Trained, encoded: Encoded, strategy: tf.distribute.Strategy
) -> FewLabels:
    """Trains a classifier on a few rows a label, by a method or by the best.

    Args:
        method: "frozen", "contrastive" or "names"; or "auto", for the best by cross-validation on the rows alone: plain
            fine-tuning if the frozen embeddings do no better than the most frequent label.
        task: the task.
        origin: encoder and vocabulary to start from.
        trained: tokenizer and spec.
        encoded: the training rows; with "names", those of the labels' names.
        strategy: where to train.
    """
    candidates = _Candidates(task, origin, trained, encoded, strategy)
    frozen, labels = candidates.embed(), candidates.labels
    if method == "names":
        candidates.set_head_to_names(frozen)
        return FewLabels(candidates.model, {"train_few_labels": method})
    strength, accuracy = logistic_regression.choose_strength(frozen * scale_of(frozen), labels, candidates.num_classes)
    accuracies, majority = {"frozen": accuracy}, np.bincount(labels).max() / len(labels)
    if method == "auto" and accuracy <= majority:
        return FewLabels(None, {"train_few_labels": "off", "train_few_labels_accuracy": accuracies})
    if method == "auto":
        method = "frozen"
        if len(labels) >= LEAST_ROWS_TO_TRAIN:
            of_frozen, of_trained = candidates.contrastive_gain(frozen, strength)
            accuracies = {"frozen": of_frozen, "contrastive": of_trained}
            method = "contrastive" if of_trained > of_frozen else "frozen"
    num_steps = 0
    if method == "contrastive":
        candidates.train_encoder(np.arange(len(labels)))
        candidates.set_head(candidates.embed(), 1.0)
        num_steps = CONTRASTIVE_STEPS
    else:
        candidates.restore_encoder()
        candidates.set_head(frozen, strength)
    results = {"train_few_labels": method, "train_few_labels_accuracy": accuracies}
    return FewLabels(candidates.model, results, num_steps)


def describe(results: dict) -> str:
    """Returns a sentence that names the method in `metrics.json`, and why."""
    names = {
        "frozen": "frozen embeddings with logistic regression",
        "contrastive": "contrastive training of the encoder, then logistic regression",
        "names": "the label whose name's embedding is nearest",
        "off": "plain fine-tuning, since frozen embeddings do no better than the most frequent label",
    }
    tried = results.get("train_few_labels_accuracy", {})
    scores = ", ".join(f"{name} {accuracy:.3f}" for name, accuracy in tried.items())
    scores = f" (cross-validated accuracy: {scores})" if scores else ""
    method = names[results["train_few_labels"]]
    return f"Few labels ({results['train_rows']} rows): {method}{scores}. --few_labels=off fine-tunes all weights."


def scale_of(vectors: np.ndarray) -> float:
    """Returns what gives vectors, float (N, D), a mean square of 1: regularization then means the same to all."""
    return float(1.0 / np.sqrt(np.mean(np.sum(np.square(vectors, dtype=np.float64), axis=1))))


def take(examples: Examples, rows: np.ndarray) -> Examples:
    """Returns the examples with these numbers, int (M,), of one sequence each."""
    starts, ends = examples.row_splits[rows], examples.row_splits[rows + 1]
    tokens = np.concatenate([np.arange(first, last) for first, last in zip(starts, ends, strict=True)])
    return examples._replace(
        token_ids=examples.token_ids[tokens],
        segment_ids=examples.segment_ids[tokens],
        row_splits=np.concatenate([[0], np.cumsum(ends - starts)]),
        labels={name: values[rows] for name, values in examples.labels.items()},
    )
