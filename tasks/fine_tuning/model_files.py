"""The directory of a fine-tuned model: `model.keras`, its tokenizer, and `task.json` with what else answers need."""

import os

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_json, write_json

MODEL_FILE = "model.keras"
TASK_FILE = "task.json"


def save_model(directory: str, model, tokenizer, task: dict) -> None:
    """Writes a model's directory, whole or not at all.

    Args:
        directory: what is there before is replaced.
        model: keras.Model of Keras classes, or registered ones.
        tokenizer: the BertTokenizer it was trained with.
        task: JSON values: `task`, its name, and what the task's `model.py` reads back.
    """
    with atomic_path(directory) as temporary:
        os.makedirs(temporary)
        model.save(os.path.join(temporary, MODEL_FILE))
        tokenizer.save_to_preset(temporary)
        write_json(os.path.join(temporary, TASK_FILE), task)


def load_model(directory: str, task_name: str, command: str) -> tuple:
    """Reads what `save_model` wrote.

    Args:
        directory: of the model.
        task_name: what `task.json` must name.
        command: that writes such directories, for messages.

    Returns:
        (keras.Model, BertTokenizer, content of `task.json`).

    Raises:
        InputError: a file is missing or damaged, or the directory is of another task.
    """
    import keras  # Not above: `read_task` needs no TensorFlow.

    from keras_bert import BertTokenizer

    task = read_task(directory, command)
    if task["task"] != task_name:
        path = os.path.join(directory, TASK_FILE)
        raise InputError(f"{path}: expected the task {task_name!r}, as {command} writes it, found {task['task']!r}.")
    path = os.path.join(directory, MODEL_FILE)
    try:
        model = keras.saving.load_model(path, compile=False)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: cannot be loaded ({str(error).splitlines()[0]}). Train it again.") from error
    return model, BertTokenizer.from_preset(directory), task


def read_task(directory: str, command: str = "bert-classify") -> dict:
    """Reads `task.json` of a model's directory.

    Raises:
        InputError: there is none, or it names no task.
    """
    path = os.path.join(directory, TASK_FILE)
    if not os.path.isfile(path):
        raise InputError(
            f"{path}: no such file. Expected the model directory that {command} wrote: --do_train does, evaluating a "
            "preset does not."
        )
    task = read_json(path)
    if not isinstance(task, dict) or not isinstance(task.get("task"), str):
        raise InputError(f"{path}: expected an object with the task's name, found {task!r}.")
    return task
