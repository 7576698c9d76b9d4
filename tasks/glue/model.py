"""The sequence classifier: backbone, dropout, linear layer on the pooled output (paper, section 4.1).

Shapes: B batch, S sequence.
"""

import os
from typing import NamedTuple

import keras

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_json, write_json
from keras_bert.heads import output_head
from keras_bert.tokenizer import BertTokenizer

MODEL_FILE = "classifier.keras"
TASK_FILE = "task.json"
TASK_NAME = "classification"


class Classifier(NamedTuple):
    """A trained classifier with all that answers need.

    Attributes:
        model: keras.Model, encoder inputs to float32 logits of shape (B, number of labels).
        tokenizer: BertTokenizer.
        labels: list of str; class i is labels[i].
        sequence_length: int, tokens at most, special tokens included.
        num_texts: int, 1 or 2 texts an example.
    """

    model: keras.Model
    tokenizer: BertTokenizer
    labels: list[str]
    sequence_length: int
    num_texts: int


def build_classifier(backbone: BertBackbone, num_classes: int, dropout: float = 0.1) -> keras.Model:
    """Puts a classification head on a backbone.

    Args:
        backbone: BertBackbone.
        num_classes: int, at least 2.
        dropout: float, on the pooled output (google-research/bert run_classifier.py:604).

    Returns:
        A functional model, the backbone's inputs to float32 logits of shape (B, num_classes).
    """
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be at least 2. Received: num_classes={num_classes}")
    pooled = backbone(backbone.input)["pooled_output"]
    pooled = keras.layers.Dropout(dropout, dtype=backbone.dtype_policy, name="classifier_dropout")(pooled)
    logits = output_head(num_classes, backbone.initializer_range, name="logits")(pooled)
    return keras.Model(backbone.input, logits, name="classifier")


def save_classifier(
    directory: str,
    model: keras.Model,
    tokenizer: BertTokenizer,
    labels: list[str],
    sequence_length: int,
    num_texts: int,
) -> None:
    """Writes a classifier's directory, whole or not at all: `classifier.keras`, the tokenizer, `task.json`."""
    task = {"task": TASK_NAME, "labels": labels, "sequence_length": sequence_length, "num_texts": num_texts}
    with atomic_path(directory) as temporary:
        os.makedirs(temporary)
        model.save(os.path.join(temporary, MODEL_FILE))
        tokenizer.save_to_preset(temporary)
        write_json(os.path.join(temporary, TASK_FILE), task)


def load_classifier(directory: str) -> Classifier:
    """Reads what `save_classifier` wrote.

    Raises:
        InputError: a file is missing or damaged, or the directory is of another task.
    """
    path = os.path.join(directory, TASK_FILE)
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file. Expected the model directory that bert-classify wrote.")
    task = read_json(path)
    if task.get("task") != TASK_NAME:
        raise InputError(f"{path}: expected the task {TASK_NAME!r}, found {task.get('task')!r}.")
    model_path = os.path.join(directory, MODEL_FILE)
    try:
        model = keras.saving.load_model(model_path, compile=False)
    except (ValueError, OSError) as error:
        raise InputError(f"{model_path}: cannot be loaded ({str(error).splitlines()[0]}).") from error
    if model.output_shape[-1] != len(task["labels"]):
        raise InputError(f"{path}: {len(task['labels'])} labels, but the model has {model.output_shape[-1]} outputs.")
    tokenizer = BertTokenizer.from_preset(directory)
    return Classifier(model, tokenizer, task["labels"], task["sequence_length"], task["num_texts"])
