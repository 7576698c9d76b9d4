"""Trains classifiers on a few rows per label: a linear head on embeddings, before and after training the encoder.

Below some hundred rows per label, fine-tuning all weights together with a random head learns less than a logistic
regression on the embeddings of a good encoder, and varies more from seed to seed (Tunstall et al., arXiv:2209.11055).
That regression is a good head to start fine-tuning from (Kumar et al., arXiv:2202.10054), even more so if a contrastive
loss pulls the rows of a label together (Gunel et al., arXiv:2011.01403). The head becomes that of the classifier, which
is saved and served like any other.

Shapes: N rows, D components of an embedding, C classes.
"""

import dataclasses
import functools
import re
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from scipy.special import log_softmax

from keras_bert.presets import weights
from tasks.engine.build_trainer import build_trainer
from tasks.fine_tuning import start
from tasks.fine_tuning.encoding import encode_texts
from tasks.fine_tuning.examples import Examples, Predictor, join, make_train_dataset, take
from tasks.fine_tuning.logistic_regression import Scores, cross_validate, fit, fold_numbers, predict, score
from tasks.fine_tuning.objectives import SupervisedContrast
from tasks.fine_tuning.task import Encoded, Task, Trained

LEAST_ROWS_TO_TRAIN = 32  # In all. With fewer, the encoder is not trained.
LEAST_ROWS_TO_COMPARE = 32  # Per label. With fewer, the rows of a fold are too few to tell two encoders apart.
STEPS = (10, 60)  # Fewest and most steps of training the encoder. In between, it takes ten passes over the rows.
_RATE, _BATCH, _PASSES = 2e-4, 32, 10
_FOLDS = 5  # The encoder is trained without one of them, and compared with the frozen one on that fold.
_EMBEDDING_BATCH = 32
_NAME_SCALE = 20.0  # Factor of the cosines with the names' embeddings, before the softmax.
# A name alone, and in SetFit's sentence. The first is better for topics, the second for opinions.
_NAMES = ("{}", "This sentence is {}.")


class Head(NamedTuple):
    """How to fit a head: weight of the rows relative to the penalty, and of each label's name relative to a row."""

    strength: float
    weight_of_names: float


_PLAIN_HEAD = Head(1.0, 0.0)
_HEADS = (Head(1.0, 8.0), Head(10.0, 8.0), Head(1.0, 0.0), Head(10.0, 0.0))


class FewLabels(NamedTuple):
    """The classifier that was chosen.

    Attributes:
        model: BertTextClassifier; None if plain fine-tuning was chosen.
        results: for `metrics.json`: `train_few_labels`, the method, and `train_few_labels_accuracy`, the
            cross-validated accuracy of each method that was tried.
        num_steps: training steps of the encoder.
        logs: cross-validated log-probabilities of the frozen encoder's head, float, shape (N, C); None for the method
            "names".
    """

    model: keras.Model | None
    results: dict
    num_steps: int = 0
    logs: np.ndarray | None = None


class Candidates:
    """The methods to choose from, applied to the rows of one training.

    Args:
        task: the task.
        origin: encoder and vocabulary to start from.
        trained: tokenizer and spec.
        encoded: the encoded training rows; for the method "names", the encoded names of the labels.
        strategy: distribution strategy to train with.
    """

    def __init__(self, task: Task, origin: start.Start, trained: Trained, encoded: Encoded, strategy):
        self._settings, self._strategy = task.settings, strategy
        pooling = weights.read_settings(origin.preset).get("task", {}).get("pooling") or "mean"
        arguments = {**task.model_arguments(trained.spec), "pooling": pooling}
        with strategy.scope():
            # Likely wrong labels are found by the preset's embeddings, whatever the training starts anew.
            whole = dataclasses.replace(self._settings, reinit_layers=0)
            self.model = start.build_model(origin, whole, task.model_class(), arguments)
            self._embedder = keras.Model(self.model.input, self.model.get_layer("pool_tokens").output)
        self._start = self.model.backbone.get_weights()
        self._predictor = Predictor(self._embedder)
        self.labels, labels = encoded.examples.labels["labels"], trained.spec.labels
        self.num_classes, names = len(labels), [as_words(label) for label in labels]
        self.all_rows = np.ones(len(self.labels), bool)
        self._has_words = all(re.search(r"[^\W\d_]", name) for name in names)
        texts = [form.format(name) for form in _NAMES for name in names]
        limit, long_text = trained.spec.sequence_length, trained.spec.long_text  # Windows, if the rows have some.
        shown = encode_texts(texts, None, trained.tokenizer, limit, "tokenize names", long_text=long_text)
        numbers = np.arange(len(texts), dtype=np.int32) % self.num_classes
        self._examples = join(encoded.examples, shown._replace(labels={"labels": numbers}))

    def embed(self) -> np.ndarray:
        """Returns the current encoder's embeddings of rows and names: float32, shape (N + len(_NAMES) * C, D)."""
        return self._predictor.compute_outputs(self._examples, _EMBEDDING_BATCH, "embed rows")

    def restore_encoder(self) -> None:
        """Undoes all training of the encoder."""
        self.model.backbone.set_weights(self._start)

    def train_encoder(self, frozen: np.ndarray, head: Head, is_used: np.ndarray) -> int:
        """Trains all weights on some of the rows, and on the labels' names if the head gives them a weight.

        The encoder's weights become the mean of those before and after.

        Args:
            frozen: embeddings by the untrained encoder. Training starts from the head that fits them.
            head: how to fit the head.
            is_used: which rows to train on, bool, shape (N,).

        Returns:
            The number of steps.
        """
        names = np.arange(len(self.labels), self._examples.num_examples)
        names = np.tile(names, int(head.weight_of_names) // len(_NAMES))
        examples = take(self._examples, np.append(np.flatnonzero(is_used), names))
        self.set_head(self.fit(frozen, head, is_used))
        num_steps = int(np.clip(_PASSES * np.sum(is_used) // _BATCH, *STEPS))
        size, seed = min(_BATCH, examples.num_examples), self._settings.random_seed
        changes = {"optimizer": "adamw", "learning_rate": _RATE, "gradient_accumulation_steps": 1}
        changes["jit_compile"] = False  # It would compile again for each length.
        with self._strategy.scope():
            model = start.with_layout(self.model, "unpadded")
            outputs = keras.Model(model.input, [model.output, model.get_layer("pool_tokens").output])

        def make_dataset(step: int) -> tf.data.Dataset:
            return make_train_dataset(examples, size, seed, step, num_steps)

        with tempfile.TemporaryDirectory() as directory:
            settings = dataclasses.replace(self._settings, output_dir=directory, **changes)
            length = (num_steps, num_steps // 10)
            trainer = build_trainer(settings, lambda: outputs, SupervisedContrast(), self._strategy, length)
            trainer.keep_checkpoints = 0  # Saving takes seconds, and nothing continues this training.
            trainer.fit(make_dataset, num_steps, description="train the encoder")
        # The mean of both is at least as good as the trained encoder, and loses less where training does not help
        # (Wortsman et al., arXiv:2109.01903).
        pairs = zip(self._start, model.backbone.get_weights(), strict=True)
        self.model.backbone.set_weights([(before + after) / 2 for before, after in pairs])
        return num_steps

    def set_head(self, kernel: np.ndarray) -> None:
        """Sets the weights of the classifier's head to a return value of `fit`."""
        self.model.get_layer("classification").set_weights([kernel[:-1], kernel[-1]])

    def set_head_to_names(self, vectors: np.ndarray) -> None:
        """Sets the head so that it answers the label whose name has the nearest embedding, by cosine."""
        names = vectors[len(self.labels) :]
        unit = names / np.linalg.norm(names, axis=1, keepdims=True)
        kernel = np.mean(unit.reshape(len(_NAMES), self.num_classes, -1), axis=0).T * _NAME_SCALE * scale_of(names)
        self.model.get_layer("classification").set_weights([kernel, np.zeros(self.num_classes)])

    def fit(self, vectors: np.ndarray, head: Head, is_used: np.ndarray) -> np.ndarray:
        """Fits a head to names and the rows where `is_used`, bool, shape (N,); returns as `logistic_regression.fit`."""
        weights = np.append(is_used, np.full(len(vectors) - len(is_used), head.weight_of_names / len(_NAMES)))
        labels, scale = self._examples.labels["labels"], scale_of(vectors)
        fitted = fit(vectors * scale, labels, self.num_classes, head.strength, weights)
        fitted[:-1] *= scale
        return fitted

    def spread(self, kernel: np.ndarray, vectors: np.ndarray) -> float:
        """Returns the standard deviation of the rows' logits around the mean of each row."""
        logits = vectors[: len(self.labels)] @ kernel[:-1] + kernel[-1]
        return float(np.std(logits - logits.mean(axis=1, keepdims=True)))

    def best_head(self, vectors: np.ndarray, heads: Sequence[Head] = _HEADS) -> tuple[Head, Scores, np.ndarray]:
        """Returns the head with the least cross-validated cross entropy, its scores, and its log-probabilities."""
        rows, scored = vectors[: len(self.labels)], []
        for head in heads:
            if self._has_words or not head.weight_of_names:
                fit_rows = functools.partial(self.fit, vectors, head)
                logs = cross_validate(fit_rows, rows, self.labels, self.num_classes)
                scores = score(logs, self.labels)
                scored.append((head, scores, log_softmax(scores.sharpness * logs, axis=1)))
        return min(scored, key=lambda pair: pair[1].loss)

    def compare(self, frozen: np.ndarray, head: Head) -> tuple[dict[str, Scores], float, int]:
        """Trains the encoder without one fold, and scores it and the frozen one on that fold.

        Returns:
            The scores by method; by how many standard deviations the trained encoder gives more right answers
            (McNemar's test); and the number of steps.
        """
        is_held, scores, right = fold_numbers(self.labels, _FOLDS) == 0, {}, []
        num_steps = self.train_encoder(frozen, head, ~is_held)
        for name, vectors in (("frozen", frozen), ("contrastive", self.embed())):
            logs = predict(self.fit(vectors, head, ~is_held), vectors[: len(is_held)][is_held])
            scores[name] = score(logs, self.labels[is_held])
            right.append(logs.argmax(1) == self.labels[is_held])
        gains = right[1].astype(int) - right[0]
        return scores, float(gains.sum() / np.sqrt(max(1, np.abs(gains).sum()))), num_steps


def choose(method: str, candidates: Candidates) -> FewLabels:
    """Trains a classifier on few rows per label, by a given method or by the best one.

    Args:
        method: "frozen", "contrastive", "names" or "auto". With "auto", the encoder is trained if there are enough
            rows, unless the result is much worse than the frozen encoder on a fold that was held out. If neither does
            better than the most frequent label, plain fine-tuning is chosen.
        candidates: candidates for the training rows.
    """
    frozen, labels = candidates.embed(), candidates.labels
    if method == "names":
        candidates.set_head_to_names(frozen)
        return FewLabels(candidates.model, {"train_few_labels": method})
    head, of_frozen, logs = candidates.best_head(frozen)
    scores, chosen, num_steps = {"frozen": of_frozen}, method, 0
    if method == "auto":
        chosen = "contrastive" if len(labels) >= LEAST_ROWS_TO_TRAIN else "frozen"
    if chosen != "frozen" and len(labels) >= LEAST_ROWS_TO_COMPARE * candidates.num_classes:
        # The compared encoder is kept. Training it again on all rows lost a point on SST-2.
        scores, gain, num_steps = candidates.compare(frozen, head)
        # Training pays off on average, so that only a loss of two standard deviations decides against it.
        if method == "auto" and gain < -2:
            chosen, num_steps = "frozen", 0
        best = max(of_frozen.accuracy, scores[chosen].accuracy)
        if method == "auto" and best <= np.bincount(labels).max() / len(labels):
            chosen = "off"
    elif chosen != "frozen":
        num_steps = candidates.train_encoder(frozen, head, candidates.all_rows)
    results = {"train_few_labels": chosen}
    results["train_few_labels_accuracy"] = {name: scored.accuracy for name, scored in scores.items()}
    if chosen == "off":
        return FewLabels(None, results, logs=logs)
    if not num_steps:
        candidates.restore_encoder()
    vectors = candidates.embed() if num_steps else frozen
    kernel = candidates.fit(vectors, head, candidates.all_rows)
    if chosen in scores:
        sharpness = scores[chosen].sharpness
    else:  # No row was held out of the training, so the logits of the rows spread too much.
        before = candidates.spread(candidates.fit(frozen, head, candidates.all_rows), frozen)
        sharpness = of_frozen.sharpness * before / candidates.spread(kernel, vectors)
    candidates.set_head(kernel * sharpness)
    return FewLabels(candidates.model, results, num_steps, logs)


def cross_validate_rows(candidates: Candidates, examples: Examples) -> np.ndarray:
    """Returns cross-validated log-probabilities of all rows, by logistic regressions on frozen embeddings.

    Args:
        candidates, examples: candidates and examples of the rows.

    Returns:
        float64, shape (N, C).
    """
    print(f"Likely wrong labels: embedding {examples.num_examples} rows, {len(examples.token_ids):,} tokens, once")
    return candidates.best_head(candidates.embed(), (_PLAIN_HEAD,))[2]


def describe(results: dict) -> str:
    """Returns a sentence about the method in `metrics.json` and the accuracies that decided."""
    names = {
        "frozen": "frozen embeddings with logistic regression",
        "contrastive": "contrastive training from a logistic regression's head, then logistic regression",
        "names": "the label whose name's embedding is nearest",
        "off": "plain fine-tuning, since frozen embeddings do no better than the most frequent label",
    }
    tried = results.get("train_few_labels_accuracy", {})
    scores = ", ".join(f"{name} {accuracy:.3f}" for name, accuracy in tried.items())
    scores = f" (cross-validated accuracy: {scores})" if scores else ""
    method = names[results["train_few_labels"]]
    return f"Few labels ({results['train_rows']} rows): {method}{scores}. --few_labels=off fine-tunes all weights."


def as_words(label: str) -> str:
    """Returns a label with spaces between its words, which may be written `CreditCard`, `credit_card` or with -."""
    return re.sub(r"[_-]+|(?<=[a-z])(?=[A-Z])", " ", label)


def scale_of(vectors: np.ndarray) -> float:
    """Returns the factor that gives vectors, float (N, D), a total variance of 1. One penalty then fits any encoder."""
    variance = np.sum(np.var(vectors, axis=0, dtype=np.float64))
    return float(1.0 / np.sqrt(max(variance, 1e-12)))
