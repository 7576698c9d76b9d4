"""The multiple-choice model: one vector scores every choice (paper, section 4.4).

Shapes: B batch, K choices, S sequence, H hidden.
"""

from typing import NamedTuple

import keras
from keras import ops

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.heads import output_head
from keras_bert.tokenizer import BertTokenizer
from tasks.model_files import load_model, save_model

TASK_NAME = "multiple_choice"


class MultipleChoice(NamedTuple):
    """A trained model with all that answers need.

    Attributes:
        model: keras.Model, encoder inputs of shape (B, K, S) to float32 logits of shape (B, K).
        tokenizer: BertTokenizer.
        sequence_length: int, tokens of a sequence at most, special tokens included.
        num_choices: int, K.
    """

    model: keras.Model
    tokenizer: BertTokenizer
    sequence_length: int
    num_choices: int


@keras.saving.register_keras_serializable(package="keras_bert")
class FlattenChoices(keras.layers.Layer):
    """`[B, K, S]` to `[B * K, S]`: to the encoder each choice is a sequence of its own."""

    def call(self, inputs):
        return ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((None, inputs.shape[-1]), dtype=inputs.dtype)


def build_multiple_choice(backbone: BertBackbone, num_choices: int, dropout: float | None = None) -> keras.Model:
    """Puts a multiple-choice head on a backbone.

        logits[b, k] = v . pooled_output[b, k] + c

    with one vector v for all choices. The paper has v alone; the bias c, which transformers' BertForMultipleChoice has
    too, moves all of a row's logits alike, so that neither the softmax over choices nor the loss depends on it.

    Args:
        backbone: BertBackbone.
        num_choices: int, K, at least 2.
        dropout: float, on the pooled output (google-research/bert run_classifier.py:604, whose head this is: 0.1);
            None: the encoder's.

    Returns:
        A functional model, the backbone's inputs with an axis of choices, int32 (B, K, S), to float32 logits (B, K).
    """
    if num_choices < 2:
        raise ValueError(f"`num_choices` must be at least 2. Received: num_choices={num_choices}")
    inputs = {name: keras.Input((num_choices, None), dtype="int32", name=name) for name in backbone.input}
    sequences = {name: FlattenChoices(name=f"flatten_{name}")(value) for name, value in inputs.items()}  # [B * K, S]
    pooled = backbone(sequences)["pooled_output"]  # [B * K, H]
    dropout = backbone.dropout if dropout is None else dropout
    pooled = keras.layers.Dropout(dropout, dtype=backbone.dtype_policy, name="multiple_choice_dropout")(pooled)
    scores = output_head(1, backbone.initializer_range, name="multiple_choice")(pooled)  # [B * K, 1]
    return keras.Model(inputs, ops.reshape(scores, (-1, num_choices)), name="multiple_choice_model")


def save_multiple_choice(
    directory: str, model: keras.Model, tokenizer: BertTokenizer, sequence_length: int, num_choices: int
) -> None:
    """Writes a model's directory, whole or not at all (`tasks.model_files`)."""
    task = {"task": TASK_NAME, "sequence_length": sequence_length, "num_choices": num_choices}
    save_model(directory, model, tokenizer, task)


def load_multiple_choice(directory: str) -> MultipleChoice:
    """Reads what `save_multiple_choice` wrote.

    Raises:
        InputError: a file is missing or damaged, or the directory is of another task.
    """
    model, tokenizer, task = load_model(directory, TASK_NAME, "bert-swag")
    if model.output_shape[-1] != task["num_choices"]:
        raise InputError(
            f"{directory}: task.json tells of {task['num_choices']} choices, but the model has "
            f"{model.output_shape[-1]} outputs. They are not of one training."
        )
    return MultipleChoice(model, tokenizer, task["sequence_length"], task["num_choices"])
