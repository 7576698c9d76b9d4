"""Reads and writes the directory of a fine-tuned model: `model.keras`, the tokenizer, and `task.json` with the spec."""

import inspect
import os

from keras_bert.errors import InputError, first_line
from keras_bert.files import atomic_path, check_complete, is_file, keep_copies, local_copy, read_json, write_json

MODEL_DIRECTORY = "model"  # In an output directory.
MODEL_FILE = "model.keras"
TASK_FILE = "task.json"


def model_directory(path: str) -> str:
    """Returns the directory of a model, given this directory or the output directory of its training."""
    inner = os.path.join(path, MODEL_DIRECTORY)
    return inner if is_file(os.path.join(inner, TASK_FILE)) else path


def save_model(directory: str, model, tokenizer, task: dict) -> None:
    """Writes the directory of a model atomically.

    Args:
        directory: path to write; anything there is replaced.
        model: keras.Model of classes that belong to Keras or are registered with it. A model of `keras_bert.models`
            gets a preprocessor, so that the directory is a preset that takes texts.
        tokenizer: BertTokenizer of the training.
        task: JSON values: the task's name as `task`, and the fields of its spec.
    """
    with atomic_path(directory) as temporary:
        os.makedirs(temporary)
        give_preprocessor(model, tokenizer, task)
        model.save(os.path.join(temporary, MODEL_FILE))
        tokenizer.save_to_preset(temporary)
        write_json(os.path.join(temporary, TASK_FILE), task)


def give_preprocessor(model, tokenizer, task: dict) -> None:
    """Lets a model of `keras_bert.models` take texts. The arguments are those of `save_model`."""
    from keras_bert.models.task import BertTask

    if isinstance(model, BertTask):
        make = model.preprocessor_cls
        options = {name: task[name] for name in inspect.signature(make).parameters if name in task}
        model.preprocessor = make(tokenizer, **options)


@keep_copies()
def load_model(directory: str, task_name: str, command: str) -> tuple:
    """Loads a model that `save_model` wrote.

    Args:
        directory: directory of the model.
        task_name: name that `task.json` must have.
        command: command that writes such directories, for messages.

    Returns:
        (keras.Model, BertTokenizer, content of `task.json`).

    Raises:
        InputError: a file is missing or damaged, or the directory belongs to another task.
    """
    import keras  # Imported here, since `read_task` must answer without TensorFlow.

    from keras_bert import BertTokenizer

    task = read_task(directory, command, task_name)
    path = os.path.join(directory, MODEL_FILE)
    try:
        model = keras.saving.load_model(os.path.join(local_copy(directory), MODEL_FILE), compile=False)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: cannot be loaded ({first_line(error)}). Train it again.") from error
    return model, BertTokenizer.from_preset(directory), task


def load_reranker(directory: str) -> tuple:
    """Loads a model that scores pairs of texts: by its last output minus the first, or by its only output.

    Args:
        directory: model of `bert-classify` on pairs, with scores or two labels, of which the second means a match.

    Returns:
        As in `load_model`.

    Raises:
        InputError: as in `load_model` and `read_reranker`.
    """
    labels = read_reranker(directory).get("labels") or []
    if len(labels) == 2:
        order = "bert-classify --labels sets the order of labels"
        print(f"{directory}: orders passages by the probability of {labels[1]!r}, its second label; {order}.")
    return load_model(directory, "classification", "bert-classify")


def read_reranker(directory: str) -> dict:
    """Reads `task.json` of a model for `load_reranker`.

    Raises:
        InputError: as in `read_task`; or the model takes single texts, has more than two labels, or several per row.
    """
    task = read_task(directory, "bert-classify", "classification")
    num_outputs = len(task.get("labels") or [None])
    if task["num_texts"] != 2 or num_outputs > 2 or task.get("multi_label"):
        raise InputError(
            f"{directory}: expected a model of pairs of texts with a score or two labels, found one of "
            f"{task['num_texts']} text(s) with {num_outputs} outputs"
            f"{' (--multi_label)' if task.get('multi_label') else ''}. Train it by bert-classify on pairs."
        )
    return task


def read_task(directory: str, command: str = "bert-classify", task_name: str | None = None) -> dict:
    """Reads `task.json` of a model's directory. The arguments are those of `load_model`.

    Raises:
        InputError: there is no such file, or it names no task, or a task other than `task_name`.
    """
    check_complete(directory)
    path = os.path.join(directory, TASK_FILE)
    if not is_file(path):
        raise InputError(
            f"{path}: no such file. Expected the model directory that {command} wrote: --do_train does, evaluating a "
            "preset does not."
        )
    task = read_json(path)
    if not isinstance(task, dict) or not isinstance(task.get("task"), str):
        raise InputError(f"{path}: expected an object with the task's name, found {task!r}.")
    if task_name not in (None, task["task"]):
        raise InputError(
            f"{path}: expected the task {task_name!r}, as {command} writes it, found {task['task']!r}. The "
            "train_command in that run's metrics.json names the command and flags it needs."
        )
    return task
