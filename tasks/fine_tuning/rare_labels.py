"""Settings for rare labels: weights in the loss, and resampling of rows.

Shapes: N examples, C classes, T tokens of all sequences.
"""

from collections.abc import Sequence

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import expand_file, read_lines, read_object
from tasks.fine_tuning.encoding import format_labels
from tasks.fine_tuning.examples import Examples
from tasks.settings import Settings, setting
from tasks.text.rows import parse_number

NAMES = ("class_weights", "resample")  # The settings of `RareLabelSettings`.
_BALANCED = "balanced"


class RareLabelSettings(Settings):
    """Settings of a training on labels."""

    class_weights: str | None = setting(
        None,
        "Weights of the labels in the loss. balanced: rows / (labels * rows of the label); or a JSON or TSV file of "
        "labels and weights, 1 for a label that is left out. Tags are weighted by their entity type, or O.",
        subject="training",
    )
    resample: float = setting(
        1.0, "Draw a label of n rows in proportion to n to this power; 0: all equally.", at_least=0.0, at_most=1.0
    )

    def identity(self):
        """Returns the settings that identify a run, with the content of a file of weights instead of its path."""
        return {**super().identity(), "class_weights": self.read_weights()}

    def read_weights(self, names: Sequence[str] | None = None) -> dict[str, float] | str | None:
        """Returns the weights in a file by label, or the setting itself if it names no file.

        Args:
            names: labels that the file may name; None for any.

        Raises:
            InputError: the file cannot be read, has an unknown label or an invalid weight, or gives no label a weight.
        """
        if self.class_weights in (None, _BALANCED):
            return self.class_weights
        path = expand_file("--class_weights", self.class_weights)
        rows = (line.rpartition("\t")[::2] for _, line in read_lines(path) if line.strip())
        read = read_object(path) if path.endswith(".json") else dict(rows)
        weights = {label: parse_number(value) for label, value in read.items()}
        for label, weight in weights.items():
            if names is not None and label not in names:
                raise InputError(f"{path}: unknown label {label!r}. Expected {format_labels(names)}. Correct it.")
            if weight is None or weight < 0:
                raise InputError(
                    f"{path}: label {label!r}: expected a number from 0 on, found {read[label]!r}. Correct it."
                )
        if not weights or not any(weights.get(name, 1.0) for name in names or weights):
            raise InputError(
                f"{path}: gives no label a weight. Expected a JSON object, or lines of label, tab, weight."
            )
        return weights


def balance(examples: Examples, settings: RareLabelSettings, names: Sequence[str]) -> Examples:
    """Adds to training examples how often to draw each, and the weights of their labels in the loss.

    An example with several labels, such as a sentence with entities, is drawn as often as its rarest label requires
    (Gupta et al., arXiv:1908.03195, equation 1).

    Args:
        examples: examples with `labels`, int (N,), or float (N, C) for several labels per row; or with token labels
            `labels` and `weights`, both (T,).
        settings: which of the two to add.
        names: names of the C classes, in the order of their numbers. Classes of the same name count as one.
    """
    if settings.resample < 1.0:
        holders = np.zeros((examples.num_examples, len(set(names))), bool)
        holders[_occurrences(examples, names)] = True
        factors = np.maximum(holders.sum(axis=0), 1) ** (settings.resample - 1.0)
        shares = np.max(holders * factors, axis=1, initial=examples.num_examples ** (settings.resample - 1.0))
        examples = examples._replace(shares=shares / shares.mean())
    if settings.class_weights is None:
        return examples
    by_name = class_weights(examples, settings, names)
    of_class = np.array([by_name[name] for name in names], np.float32)
    if examples.token_labels:
        weights = examples.token_labels["weights"] * of_class[examples.token_labels["labels"]]
        return examples._replace(token_labels={**examples.token_labels, "weights": weights})
    labels = examples.labels["labels"]
    weights = of_class[labels] if labels.ndim == 1 else np.where(labels > 0, of_class, np.float32(1.0))
    return examples._replace(labels={**examples.labels, "weights": weights})


def class_weights(examples: Examples, settings: RareLabelSettings, names: Sequence[str]) -> dict[str, float]:
    """Returns the weight of each class by name.

    Balanced weights are scikit-learn's: n / (C * n_c) for a class that n_c of n labels have, if C classes occur. If
    rows may have several labels, they are torch's `pos_weight`: (n - n_c) / n_c for a label that n_c of n rows have;
    labels that a row lacks have weight 1. Rows count as often as they are drawn, so that resampling and weights do not
    favor rare labels twice.
    """
    given = settings.read_weights(names)
    if given != _BALANCED:
        return {name: given.get(name, 1.0) for name in names}
    rows, numbers = _occurrences(examples, names)
    classes = sorted(set(names))
    counts = np.bincount(numbers, None if examples.shares is None else examples.shares[rows], len(classes))
    total, is_several = counts.sum() / np.count_nonzero(counts), examples.labels.get("labels", numbers).ndim > 1
    weights = (examples.num_examples - counts if is_several else total) / np.where(counts > 0, counts, np.inf)
    return dict(zip(classes, weights.tolist(), strict=True))


def describe(examples: Examples, settings: RareLabelSettings, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Returns the weights for `metrics.json`, if there are any."""
    return {"train_class_weights": class_weights(examples, settings, names)} if settings.class_weights else {}


def _occurrences(examples: Examples, names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the example of each label, and the index of its class in the sorted names."""
    places = np.unique(names, return_inverse=True)[1]
    if not examples.token_labels:
        labels = examples.labels["labels"]
        rows, numbers = (np.arange(len(labels)), labels) if labels.ndim == 1 else np.nonzero(labels)
        return rows, places[numbers]
    rows, is_label = np.repeat(np.arange(examples.num_examples), examples.lengths), examples.token_labels["weights"] > 0
    return rows[is_label], places[examples.token_labels["labels"][is_label]]
