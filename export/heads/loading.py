"""Finds the head of a trained model or a preset.

A new head is one module and one line of `HEADS`.
"""

import os

from export.heads.base import Head
from export.heads.classification import Classification, LabelSet, Regression
from export.heads.embeddings import Embeddings, SentenceEmbedding
from export.heads.fill_mask import FillMask
from export.heads.multiple_choice import MultipleChoice
from export.heads.question_answering import QuestionAnswering
from export.heads.search import Search
from export.heads.windowed import TokenClassification, TokenRegression
from keras_bert.errors import InputError, first_line
from keras_bert.files import is_file
from keras_bert.models import BertMultipleChoice, BertSpanLabeler, BertTextClassifier, BertTokenClassifier
from keras_bert.presets import weights
from tasks.fine_tuning.model_files import MODEL_FILE, TASK_FILE, load_model, read_task

HEADS: dict[str, type[Head]] = {
    head.task: head
    for head in (
        Classification,
        LabelSet,
        Regression,
        MultipleChoice,
        TokenClassification,
        TokenRegression,
        QuestionAnswering,
        FillMask,
        Embeddings,
        SentenceEmbedding,
        Search,
    )
}
# These tasks need no training of their own, so any preset will do.
PRESET_TASKS = tuple(name for name, head in HEADS.items() if hasattr(head, "load_preset"))
_FLAGS = {"sequence_length": "max_seq_length"}  # Settings of every head whose flags have other names.
# Models whose heads are trained only by fine-tuning, by the task of their answers.
_FINE_TUNED = {
    "classification": BertTextClassifier,
    "token_classification": BertTokenClassifier,
    "question_answering": BertSpanLabeler,
    "multiple_choice": BertMultipleChoice,
}


def load_head(directory: str, task: str | None = None, **settings) -> Head:
    """Loads the head of a trained model or a preset.

    Args:
        directory: the model directory of a task's command (its `output_dir/model`), or any preset, as in
            `BertBackbone.from_preset`.
        task: one of `PRESET_TASKS`; None: the task that the directory was trained for, or that of a preset's fine-tuned
            head.
        **settings: `sequence_length`, and those that the head's class lists as its `settings`; None: the model's own,
            or the head's default.

    Raises:
        InputError: a file is missing or damaged; the task has no head, or the head no such setting.

    Example: `load_head("runs/mood/model")`, `load_head("base", task="embeddings", layer=-2)`
    """
    of_preset = None if task or is_file(os.path.join(directory, MODEL_FILE)) else _read_preset(directory)
    head_class = HEADS[task or _task_of(directory, of_preset[-1] if of_preset else read_task(directory))]
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if name not in (*_FLAGS, *head_class.settings):
            known = ", ".join(f"--{setting}" for setting in head_class.settings) or "none"
            raise InputError(f"--{name} is not for the task {head_class.task}. Its own flags: {known}. Leave it out.")
    try:
        if task is not None:
            model_file = os.path.join(directory, MODEL_FILE)
            return head_class.load_preset(directory, model_file if is_file(model_file) else directory, **given)
        return head_class.load(of_preset or _read(directory, head_class), **given)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        flags = " ".join(f"--{_FLAGS.get(name, name)}={value}" for name, value in given.items())
        raise InputError(f"{flags or directory}: {first_line(error)}") from error


def _read_preset(preset: str) -> tuple:
    """Returns model, tokenizer and the would-be content of `task.json`, for a preset with a fine-tuned head."""
    task = None
    if weights.has_config(preset):
        with weights.open_checkpoint(preset) as checkpoint:
            task = next((name for name, model_class in _FINE_TUNED.items() if model_class.has_head(checkpoint)), None)
            if task == "multiple_choice" and "num_choices" not in checkpoint.settings.get("task", {}):
                raise InputError(
                    f"{preset}: does not say how many choices there are. Pass num_choices to "
                    "BertMultipleChoice.from_preset in Python, and export what save_to_preset writes."
                )
    if task is None:
        presets = f"--task={' or --task='.join(PRESET_TASKS)}"
        raise InputError(
            f"{preset}: holds no trained model. Expected {TASK_FILE} and {MODEL_FILE}, as bert-classify and the other "
            f"commands write them (output_dir/model), or a preset with a fine-tuned head; any other preset is served "
            f"with {presets}."
        )
    model = _FINE_TUNED[task].from_preset(preset)
    preprocessor, model.preprocessor, num_outputs = model.preprocessor, None, model.output_shape[-1]
    if preprocessor is None:
        raise InputError(f"{preset}: has no tokenizer. Save the model with its preprocessor, or add its vocab.txt.")
    content = {"task": task, "sequence_length": preprocessor.sequence_length, "multi_label": model.multi_label}
    if num_outputs == 1 and not model.multi_label:
        content |= {"is_regression": True} if task == "classification" else {"task": "token_regression"}
    content |= {"num_texts": 1, "labels": model.labels or [str(number) for number in range(num_outputs)]}
    if task == "question_answering":
        content["max_query_length"] = min(preprocessor.max_query_length, preprocessor.sequence_length - 4)
    return model, preprocessor.tokenizer, {**content, **model.answer_settings}


def _task_of(directory: str, content: dict) -> str:
    task = "regression" if content.get("is_regression") else content["task"]
    task = LabelSet.task if content.get("multi_label") else task
    if task not in HEADS:
        path = os.path.join(directory, TASK_FILE)
        raise InputError(f"{path}: the task {task!r} has no served form. Expected one of: {', '.join(HEADS)}.")
    return task


def _read(directory: str, head_class: type[Head]) -> tuple:
    """Returns model, tokenizer and content of `task.json`, which must have the settings of the head."""
    model, tokenizer, task = load_model(directory, read_task(directory)["task"], "bert-classify")
    missing = [name for name in ("sequence_length", *head_class.trained_settings) if name not in task]
    if missing:
        path = os.path.join(directory, TASK_FILE)
        raise InputError(f"{path}: lacks {', '.join(missing)}. Train the model again.")
    return model, tokenizer, task
