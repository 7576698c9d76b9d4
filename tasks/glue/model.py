"""The sequence classifier: backbone, dropout, linear layer on the pooled output (paper, section 4.1); and, with one
output and a score instead of classes, the regressor.

Shapes: B batch, S sequence.
"""

import os
from typing import NamedTuple

import keras

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.heads import output_head
from keras_bert.tokenizer import BertTokenizer
from tasks.model_files import TASK_FILE, load_model, save_model

TASK_NAME = "classification"
HEAD = "classification"  # The name of the head's layer, by which checkpoints of every format know it.


class Classifier(NamedTuple):
    """A trained classifier, or regressor, with all that answers need.

    Attributes:
        model: keras.Model, encoder inputs to float32 logits of shape (B, number of labels), or scores of shape (B, 1).
        tokenizer: BertTokenizer.
        labels: list of str; class i is labels[i]. Empty for a regressor.
        sequence_length: int, tokens at most, special tokens included.
        num_texts: int, 1 or 2 texts an example.
        is_regression: bool, whether it gives a score instead of a class.
    """

    model: keras.Model
    tokenizer: BertTokenizer
    labels: list[str]
    sequence_length: int
    num_texts: int
    is_regression: bool = False


def build_classifier(backbone: BertBackbone, num_classes: int, dropout: float | None = None) -> keras.Model:
    """Puts a classification head on a backbone.

    Args:
        backbone: BertBackbone.
        num_classes: int, at least 2.
        dropout: float, on the pooled output (google-research/bert run_classifier.py:604: 0.1); None: the encoder's.

    Returns:
        A functional model, the backbone's inputs to float32 logits of shape (B, num_classes).
    """
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be at least 2. Received: num_classes={num_classes}")
    return _build(backbone, num_classes, dropout)


def build_regressor(backbone: BertBackbone, dropout: float | None = None) -> keras.Model:
    """As `build_classifier`, with one output: a functional model to float32 scores of shape (B, 1)."""
    return _build(backbone, 1, dropout)


def _build(backbone: BertBackbone, num_outputs: int, dropout: float | None) -> keras.Model:
    pooled = backbone(backbone.input)["pooled_output"]
    dropout = backbone.dropout if dropout is None else dropout
    pooled = keras.layers.Dropout(dropout, dtype=backbone.dtype_policy, name="classifier_dropout")(pooled)
    outputs = output_head(num_outputs, backbone.initializer_range, name=HEAD)(pooled)
    return keras.Model(backbone.input, outputs, name="classifier")


def save_classifier(
    directory: str,
    model: keras.Model,
    tokenizer: BertTokenizer,
    labels: list[str],
    sequence_length: int,
    num_texts: int,
    is_regression: bool = False,
) -> None:
    """Writes a classifier's directory, whole or not at all; the arguments are `Classifier`'s attributes."""
    task = {
        "task": TASK_NAME,
        "labels": labels,
        "sequence_length": sequence_length,
        "num_texts": num_texts,
        "is_regression": is_regression,
    }
    save_model(directory, model, tokenizer, task)


def load_classifier(directory: str) -> Classifier:
    """Reads what `save_classifier` wrote.

    Raises:
        InputError: a file is missing or damaged, or the directory is of another task.
    """
    model, tokenizer, task = load_model(directory, TASK_NAME, "bert-classify")
    path = os.path.join(directory, TASK_FILE)
    is_regression = task.get("is_regression", False)
    expected = 1 if is_regression else len(task["labels"])
    if model.output_shape[-1] != expected:
        raise InputError(f"{path}: {len(task['labels'])} labels, but the model has {model.output_shape[-1]} outputs.")
    return Classifier(model, tokenizer, task["labels"], task["sequence_length"], task["num_texts"], is_regression)
