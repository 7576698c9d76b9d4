"""Finds the labelled rows that a training held out, by its recorded flags, and scores a model on them."""

import contextlib
import dataclasses
import io
import os
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from keras_bert.files import absolute, is_file, read_json, read_optional_json
from tasks.distill.settings import TASKS
from tasks.fine_tuning.examples import Predictor
from tasks.fine_tuning.inputs import METRICS_FILE, read_inputs, read_spec
from tasks.fine_tuning.model_files import read_task
from tasks.fine_tuning.task import Answers, Encoded, Part, Task, Trained
from tasks.flags import FLAGS_FILE
from tasks.text.bad_rows import BadRows

_MOST_ROWS = 2000


class HeldOut(NamedTuple):
    """Rows that a model was not trained on, with the task that they belong to.

    Attributes:
        task: task of the training.
        trained: the model's tokenizer and spec, without the model.
        part: at most 2,000 rows of a file.
        encoded: the encoded rows.
    """

    task: Task
    trained: Trained
    part: Part
    encoded: Encoded

    @property
    def metric(self) -> str:
        """Name of the figure by which the task's models are compared."""
        return self.task.metric_of(self.part)

    @property
    def source(self) -> str:
        """Description of the rows, for a message."""
        return f"{len(self.task.groups(self.part.rows))} {self.task.unit} of {self.part.rows.path}"

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """The texts of each row."""
        content = self.task.content(self.part.rows)
        return [] if content is None else content.texts

    def points(self, model) -> float:
        """Returns the model's `metric` on the rows, times 100 if the task's figures are fractions of 1."""
        trained = self.trained._replace(model=self.task.to_answer(model, self.trained.spec))
        outputs = self.encoded.compute_outputs(Predictor(trained.model), self.task.settings.eval_batch_size, None)
        answers = Answers(trained, self.part, self.encoded, outputs)
        figures = self.task.checkpoint_figures(answers)
        if self.metric not in figures:
            figures = self.task.evaluate(answers, {}).figures
        return figures[self.metric] * (100.0 if self.task.decimals > 2 else 1.0)


def find(model_directory: str, tokenizer) -> HeldOut | None:
    """Finds the rows that the training of a model held out; None if it recorded none.

    Args:
        model_directory: the `model/` of a run.
        tokenizer: tokenizer of the model.

    Raises:
        InputError: the rows of the run cannot be read, or have changed since the training.
    """
    run = os.path.dirname(absolute(model_directory))
    path = os.path.join(run, FLAGS_FILE)
    task_class = TASKS.get(read_task(model_directory)["task"])
    if task_class is None or not is_file(path):
        return None
    known = {field.name for field in dataclasses.fields(task_class.Settings)}
    recorded = {name: value for name, value in read_json(path).items() if name in known}
    settings = task_class.Settings(**recorded | {"output_dir": run})
    if not (settings.do_eval or settings.validation_share):
        return None
    task = task_class(settings)
    spec = read_spec(task, model_directory)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if settings.do_train and (settings.dev_share or settings.validation_share):
            parts = [part for part in read_inputs(task).parts if part.split != "train"]
            _check_same(parts[0], read_optional_json(os.path.join(run, METRICS_FILE)))
        else:
            parts = task.read("dev", BadRows(settings.bad_rows))
        part = task.match(parts[0], spec, BadRows("skip"))
        count = len(task.groups(part.rows))
        if count > _MOST_ROWS:
            part = part.with_rows(task.take_rows(part.rows, np.arange(count) < _MOST_ROWS))
        trained = Trained(None, tokenizer, spec)
        encoded = task.encode(part, trained)
    return HeldOut(task, trained, part, encoded)


def _check_same(part: Part, results: dict) -> None:
    checksum = part.rows.checksum()
    if results.get(f"{part.split}_rows_checksum", checksum) != checksum:
        raise InputError(
            f"{part.rows.path}: has changed since the training, so that other rows would be held out, some of which "
            "were trained on. Bring its old content back, or train again with --dev_file (bert-squad: --predict_file)."
        )
