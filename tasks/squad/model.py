"""The question answerer: a linear layer on every token's representation scores where an answer starts and ends.

Shapes: B batch, S sequence.
"""

from typing import NamedTuple

import keras

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.heads import output_head
from keras_bert.tokenizer import BertTokenizer
from tasks import model_files

TASK_NAME = "question_answering"
COMMAND = "bert-squad"
HEAD = "question_answering"  # Its name in `keras_bert.convert.HEADS`.


class QuestionAnswerer(NamedTuple):
    """A trained model with all that answers need; the defaults are google-research/bert's (run_squad.py).

    Attributes:
        model: keras.Model, encoder inputs to float32 logits of shape (B, S, 2).
        tokenizer: BertTokenizer.
        sequence_length: int, tokens of a window at most: question, piece of the context, special tokens.
        doc_stride: int, tokens of the context between the starts of two windows.
        max_query_length: int, tokens of the question at most.
        n_best_size: int, starts and ends that are combined, and answers listed.
        max_answer_length: int, tokens of an answer at most.
        null_score_diff_threshold: float, no answer is given where its score leads the best answer's by more.
        version_2_with_negative: bool, whether a question may have no answer.
    """

    model: keras.Model
    tokenizer: BertTokenizer
    sequence_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    null_score_diff_threshold: float = 0.0
    version_2_with_negative: bool = False


SETTINGS = QuestionAnswerer._fields[2:]


def build_question_answerer(backbone: BertBackbone) -> keras.Model:
    """Puts a question-answering head on a backbone, without dropout (google-research/bert run_squad.py: create_model).

    Args:
        backbone: BertBackbone.

    Returns:
        A functional model, the backbone's inputs to float32 logits of shape (B, S, 2): of the answer's first token and
        of its last. Those of padding mean nothing.
    """
    tokens = backbone(backbone.input)["sequence_output"]  # [B, S, H]
    logits = output_head(2, backbone.initializer_range, name=HEAD)(tokens)  # [B, S, 2]
    return keras.Model(backbone.input, logits, name="question_answerer")


def save_question_answerer(directory: str, answerer: QuestionAnswerer) -> None:
    """Writes a question answerer's directory, whole or not at all (see `tasks.model_files.save_model`)."""
    settings = {name: getattr(answerer, name) for name in SETTINGS}
    model_files.save_model(directory, answerer.model, answerer.tokenizer, {"task": TASK_NAME, **settings})


def load_question_answerer(directory: str) -> QuestionAnswerer:
    """Reads what `save_question_answerer` wrote.

    Raises:
        InputError: a file is missing or damaged, or the directory is of another task.
    """
    model, tokenizer, task = model_files.load_model(directory, TASK_NAME, COMMAND)
    lacking = [name for name in SETTINGS if name not in task]
    if lacking:
        path = f"{directory}/{model_files.TASK_FILE}"
        raise InputError(f"{path}: lacks {', '.join(lacking)}. Expected the model directory that {COMMAND} wrote.")
    if model.output_shape[-1] != 2:
        raise InputError(f"{directory}: expected 2 logits a token, start and end. The model has {model.output_shape}.")
    return QuestionAnswerer(model, tokenizer, **{name: task[name] for name in SETTINGS})
