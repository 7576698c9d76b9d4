"""From a directory or a preset to its head."""

import os

from export.heads.base import Head
from export.heads.classification import Classification
from export.heads.embeddings import Embeddings
from export.heads.fill_mask import FillMask
from export.heads.multiple_choice import MultipleChoice
from export.heads.question_answering import QuestionAnswering
from export.heads.regression import Regression
from export.heads.token_classification import TokenClassification
from keras_bert.errors import InputError
from tasks.model_files import MODEL_FILE, TASK_FILE, read_task

HEADS: dict[str, type[Head]] = {
    head.task: head
    for head in (
        Classification,
        Regression,
        MultipleChoice,
        TokenClassification,
        QuestionAnswering,
        FillMask,
        Embeddings,
    )
}
# Their heads, if any, come from pre-training: any preset will do.
PRESET_TASKS = (FillMask.task, Embeddings.task)
_FLAGS = {"sequence_length": "max_seq_length"}  # Settings of every head whose flags have other names.


def load_head(directory: str, task: str | None = None, **settings) -> Head:
    """Loads the head of a trained model or a preset.

    Args:
        directory: what one of the tasks' commands wrote (its `output_dir/model`); for one of `PRESET_TASKS` any preset,
            as in `BertBackbone.from_preset`.
        task: one of `PRESET_TASKS`; None: the one that the directory was trained for.
        **settings: `sequence_length`, and what the head's class lists as its `settings`; None: the model's own, or the
            head's default.

    Raises:
        InputError: a file is missing or damaged; the task has no head, or the head no such setting.

    Example: `load_head("runs/mood/model")`, `load_head("base", task="embeddings", layer=-2)`
    """
    if task is None:
        task = _task_of(directory)
    elif task not in PRESET_TASKS:
        raise InputError(f"--task={task}: expected {' or '.join(PRESET_TASKS)}; a trained model names its own task.")
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given:
        if name not in (*_FLAGS, *HEADS[task].settings):
            known = ", ".join(f"--{setting}" for setting in HEADS[task].settings) or "none"
            raise InputError(f"--{name} is not for the task {task}. Its own flags: {known}. Leave it out.")
    try:
        return HEADS[task].load(directory, **given)
    except InputError:
        raise
    except ValueError as error:  # A head does not take the settings.
        if not given:
            raise
        flags = " ".join(f"--{_FLAGS.get(name, name)}={value}" for name, value in given.items())
        raise InputError(f"{flags}: {str(error).splitlines()[0]}") from error


def _task_of(directory: str) -> str:
    # Not by the task.json alone: KerasHub's presets have a file of that name.
    if os.path.isdir(directory) and not os.path.isfile(os.path.join(directory, MODEL_FILE)):
        presets = f"--task={' or --task='.join(PRESET_TASKS)}"
        raise InputError(
            f"{directory}: holds no trained model. Expected {TASK_FILE} and {MODEL_FILE}, as bert-classify and the "
            f"other commands write them (output_dir/model); a preset is served with {presets}."
        )
    content = read_task(directory)
    task = content["task"]
    if task == "classification" and content.get("is_regression"):
        task = "regression"
    if task not in HEADS:
        path = os.path.join(directory, TASK_FILE)
        raise InputError(f"{path}: the task {task!r} has no served form. Expected one of: {', '.join(HEADS)}.")
    return task
