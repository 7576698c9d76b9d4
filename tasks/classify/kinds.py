"""Defines the three kinds of labels: one class per row, any number of classes, or a score.

Shapes: N rows of a table, C classes.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from keras_bert.answers.rules import NO_LABEL
from keras_bert.files import write_table
from tasks.classify import metrics
from tasks.fine_tuning import doubt
from tasks.fine_tuning import metrics as shared_metrics
from tasks.fine_tuning.columns import SEPARATORS
from tasks.fine_tuning.encoding import label_ids
from tasks.report.page import Score


class Kind:
    """How labels of one kind are learned, scored, shown and written.

    A subclass also has `objective()`, the loss to minimize, and, with arguments and shapes as below:

    - `predict(outputs, spec)`, the N answers. With `spec` None, values that were chosen on held-out rows are ignored.
    - `row_losses(labels, outputs)`, each row's contribution to the loss: float64, shape (N,).
    - `describe(evaluation, answers, chosen, precision, train_counts)`, which adds figures of this kind to an
      evaluation. `chosen` are values of the spec that were chosen on these rows, `train_counts` training rows by label.
    - `show(label, output, spec)`, the expected and the predicted answer of one row, in words.
    - `write(path, outputs, spec, numbers)`, which writes the answers to the rows with these indices.
    - `to_submit(outputs, classes, score_range)`, texts of the answers to all rows, and of the answer to any other row.

    Arguments:
        labels: class numbers, int, or scores, float, shape (N,). With several labels per row, 0.0 or 1.0, shape (N, C).
        outputs: logits, float, shape (N, C), or scores, shape (N, 1).
        spec: the model's `ClassifySpec`.
    """

    statistics: ClassVar[dict[str, Callable]]

    def encode(self, labels: Sequence, classes: Sequence[str]) -> np.ndarray:
        """Converts the labels of a table to the `labels` above."""
        return label_ids(labels, classes)

    def strata(self, labels: Sequence) -> Sequence | None:
        """Returns the stratum of each row of a table, as `Task.strata` does."""
        return labels

    def figures(self, names: Sequence[str], labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """Computes figures of rows, keys of `statistics`."""
        return {name: self.statistics[name](labels, self.predict(outputs)) for name in names}

    def score(self, names: Sequence[str], labels: np.ndarray, outputs: np.ndarray) -> dict[str, float]:
        """Computes figures and the loss."""
        return {**self.figures(names, labels, outputs), "loss": float(self.row_losses(labels, outputs).mean())}

    def intervals(self, names: Sequence[str], labels: np.ndarray, outputs: np.ndarray) -> dict[str, list[float]]:
        """Returns 95% bootstrap intervals of the figures."""
        statistics = {name: self.statistics[name] for name in names}
        return shared_metrics.intervals(statistics, labels, self.predict(outputs))

    def choose(self, labels: np.ndarray, outputs: np.ndarray, precision: float | None, temperature=None) -> dict:
        """Returns the values of the spec to choose on held-out rows. A given `temperature` was chosen before."""
        return {}


class Scores(Kind):
    statistics = shared_metrics.SCORE_METRICS

    def objective(self):
        from tasks.fine_tuning.objectives import SquaredError

        return SquaredError()

    def encode(self, labels, classes):
        return np.array(labels, np.float32)

    def strata(self, labels):
        return None

    def predict(self, outputs, spec=None):
        return outputs[:, 0].astype(np.float64)

    def row_losses(self, labels, outputs):
        return np.square(self.predict(outputs) - labels)

    def describe(self, evaluation, answers, chosen, precision, train_counts):
        evaluation.predictions = (answers.labels, self.predict(answers.outputs))

    def show(self, label, output, spec):
        return f"{label:g}", f"{output[0]:.2f}"

    def write(self, path, outputs, spec, numbers):
        scores = (f"{value:.6f}" for value in outputs[:, 0])
        write_table(path, ["index", "prediction"], zip(numbers, scores, strict=True))

    def to_submit(self, outputs, classes, score_range):
        predictions = np.clip(self.predict(outputs), *score_range)
        return [f"{value:.4f}" for value in predictions], f"{predictions.mean():.4f}"


class Classes(Kind):
    statistics = metrics.CLASS_METRICS

    def objective(self):
        from tasks.fine_tuning.objectives import CrossEntropy

        return CrossEntropy()

    def predict(self, outputs, spec=None):
        return outputs.argmax(axis=-1)

    def row_losses(self, labels, outputs):
        return shared_metrics.cross_entropies(labels, outputs)

    def choose(self, labels, outputs, precision, temperature=None):
        choice = doubt.choose(outputs, labels, precision, temperature)
        thresholds = None if choice.threshold is None else [choice.threshold] * outputs.shape[1]
        return {"temperature": choice.temperature, "thresholds": thresholds}

    def describe(self, evaluation, answers, chosen, precision, train_counts):
        if answers.part.name:
            return
        spec, labels, outputs = answers.trained.spec, answers.labels, answers.outputs
        counts = shared_metrics.confusion_matrix(labels, self.predict(outputs), len(spec.labels))
        per_class = shared_metrics.class_scores(counts.sum(1), counts.sum(0), np.diagonal(counts), spec.labels)
        evaluation.confusion = (spec.labels, counts)
        evaluation.details |= {"per_class": per_class, "macro_f1": shared_metrics.macro_f1(per_class)}
        evaluation.scores.append(Score("macro F1", evaluation.details["macro_f1"]))
        choice = doubt.Choice(spec.temperature, spec.thresholds and spec.thresholds[0])
        details, evaluation.panels, notes = doubt.assess(outputs, labels, choice, precision, chosen)
        evaluation.chosen = chosen
        evaluation.details |= details
        evaluation.notes += notes
        if train_counts and list(train_counts) == spec.labels:
            majority = shared_metrics.majority_accuracy(list(train_counts.values()), labels)
            evaluation.details["majority_accuracy"] = majority
            evaluation.notes += [f"Always answering the most frequent training class: {majority:.1%}."]

    def show(self, label, output, spec):
        share, number = np.exp(shared_metrics.log_softmax(output / spec.temperature)).max(), output.argmax()
        predicted = f"{spec.labels[number]} {share:.0%}"
        if spec.thresholds and share < spec.thresholds[number]:
            predicted = f"{NO_LABEL} ({predicted})"
        return spec.labels[label], predicted

    def write(self, path, outputs, spec, numbers):
        shares = np.exp(shared_metrics.log_softmax(outputs / spec.temperature))
        least, best = np.array(spec.thresholds or [0.0] * len(spec.labels)), shares.argmax(axis=1)
        is_given = shares.max(axis=1) >= least[best]
        answers = (spec.labels[number] if given else NO_LABEL for number, given in zip(best, is_given, strict=True))
        shared_metrics.write_answers(path, "prediction", numbers, answers, spec.labels, shares)

    def to_submit(self, outputs, classes, score_range):
        numbers = self.predict(outputs)
        most_frequent = np.bincount(numbers, minlength=len(classes)).argmax()
        return [classes[number] for number in numbers], classes[most_frequent]


class LabelSets(Kind):
    statistics = metrics.LABEL_SET_METRICS

    def objective(self):
        from tasks.fine_tuning.objectives import SigmoidCrossEntropy

        return SigmoidCrossEntropy()

    def encode(self, labels, classes):
        return np.array([[name in of_row for name in classes] for of_row in labels], np.float32)

    def strata(self, labels):
        # The rarest label of each row stands for its set of labels, which no other row may have.
        counts = Counter(itertools.chain.from_iterable(labels))
        return [min(of_row, key=lambda name: (counts[name], name), default=None) for of_row in labels]

    def predict(self, outputs, spec=None):
        return metrics.choose(outputs, spec and spec.thresholds)

    def row_losses(self, labels, outputs):
        return np.mean(np.logaddexp(0.0, outputs.astype(np.float64)) - labels * outputs, axis=-1)

    def figures(self, names, labels, outputs):
        mean = float(np.mean(metrics.average_precisions(labels, outputs)))
        return {**super().figures(names, labels > 0, outputs), "mean_average_precision": mean}

    def intervals(self, names, labels, outputs):
        return super().intervals(names, labels > 0, outputs)

    def choose(self, labels, outputs, precision, temperature=None):
        if precision is None:  # The thresholds of the best F1, if they help rows that they were not chosen on.
            of_unseen = metrics.choose(outputs, metrics.unseen_thresholds(outputs, labels))
            true = labels > 0
            if metrics.macro_f1(true, of_unseen) <= metrics.macro_f1(true, metrics.choose(outputs)):
                return {"thresholds": None}
        return {"thresholds": metrics.best_thresholds(outputs, labels, precision)}

    def describe(self, evaluation, answers, chosen, precision, train_counts):
        spec, labels, logits = answers.trained.spec, answers.labels, answers.outputs
        evaluation.chosen = chosen
        evaluation.details["per_label"] = of_each = metrics.label_scores(labels, logits, spec.labels)
        header = [name.replace("_", " ") for name in of_each[spec.labels[0]]]
        rows = [[name, *row.values()] for name, row in of_each.items()]
        evaluation.tables = [("Labels", ["label", *header], rows)]
        if spec.thresholds is None:
            return
        # Thresholds that were chosen on these rows are scored on rows that they were not chosen on.
        scored = metrics.unseen_thresholds(logits, labels, precision) if chosen else spec.thresholds
        given, of_each = metrics.choose(logits, scored), metrics.label_scores(labels, logits, spec.labels, scored)
        pairs = zip(of_each.items(), spec.thresholds, strict=True)
        rows = [[name, threshold, *row.values()] for (name, row), threshold in pairs]
        evaluation.tables.append(("Labels by the chosen thresholds", ["label", "threshold", *header], rows))
        micro, macro = metrics.micro_f1(labels > 0, given), metrics.macro_f1(labels > 0, given)
        figures = {"chosen_micro_f1": micro, "chosen_macro_f1": macro, "chosen_per_label": of_each}
        evaluation.details |= {"thresholds": spec.thresholds, **figures}

    def show(self, label, output, spec):
        shares = zip(spec.labels, metrics.probabilities(output), strict=True)
        given = itertools.compress(shares, self.predict(output, spec))
        expected = ", ".join(itertools.compress(spec.labels, label > 0))
        return expected or "no label", ", ".join(f"{name} {share:.0%}" for name, share in given) or "no label"

    def write(self, path, outputs, spec, numbers):
        """Separates the labels by a mark that none of them contains."""
        marks = (mark for mark in SEPARATORS if not any(mark in name for name in spec.labels))
        mark = next(marks, SEPARATORS[0])
        answers = (mark.join(itertools.compress(spec.labels, given)) for given in self.predict(outputs, spec))
        shared_metrics.write_answers(path, "labels", numbers, answers, spec.labels, metrics.probabilities(outputs))


def kind_of(is_regression: bool, is_multi_label: bool) -> Kind:
    """Returns the kind of a task or of a model."""
    return Scores() if is_regression else LabelSets() if is_multi_label else Classes()
