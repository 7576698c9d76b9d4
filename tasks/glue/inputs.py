"""Everything that a call of `bert-classify` reads, checked before TensorFlow is imported."""

import dataclasses
import os
from collections.abc import Sequence
from typing import NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import read_json
from tasks.bad_rows import BadRows
from tasks.examples import count_steps
from tasks.glue import tables
from tasks.glue.tables import Table
from tasks.glue.tasks import TASKS, Split, Task

KINDS = ("train", "dev", "test")
MODEL_DIRECTORY = "model"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where the tables come from; the attributes are the flags of the same names.

    Attributes:
        task_name: a key of `TASKS`, whose columns the `*_column` ones replace.
        tfds_name: a data set of TensorFlow Datasets, in the place of files; the `*_file` ones then name its splits.
        data_dir, train_file, dev_file, test_file: where the tables are (`tables.find_split`).
        text_column, text_pair_column, label_column: names in the header.
        column_names: names of all columns, of files that have no header.
        labels: the labels in the order of their class numbers.
        regression: whether the label column holds scores.
        bad_rows: "refuse" or "skip".
    """

    task_name: str = "table"
    tfds_name: str | None = None
    data_dir: str | None = None
    train_file: str | None = None
    dev_file: str | None = None
    test_file: str | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    column_names: list[str] | None = None
    labels: list[str] | None = None
    regression: bool = False
    bad_rows: str = "refuse"

    @property
    def task(self) -> Task:
        """The task with this source's columns.

        Raises:
            InputError: flags that contradict the task, or each other.
        """
        if self.tfds_name:
            from tasks.glue.tfds_tables import choose_task

            task = choose_task(self.task_name, self.tfds_name)
        else:
            task = TASKS[self.task_name]
        if self.regression and not task.is_regression:
            if task.labels is not None:
                raise InputError(f"--regression: {task.name} has classes ({', '.join(task.labels)}), not scores.")
            task = task.as_regression()
        if task.is_regression and self.labels:
            raise InputError(f"--labels={','.join(self.labels)}: a task with scores has no classes. Leave it out.")
        columns = {
            "text_column": self.text_column,
            "text_pair_column": self.text_pair_column,
            "label_column": self.label_column,
            "headerless_columns": self.column_names and tuple(self.column_names),
        }
        task = dataclasses.replace(task, **{name: value for name, value in columns.items() if value})
        return dataclasses.replace(task, test_has_header=task.test_has_header and not self.column_names)


class Inputs(NamedTuple):
    """The tables of a call.

    Attributes:
        task: with the columns that were named.
        train: the table to train on, or None.
        dev, test: those to evaluate on and to predict.
        labels: the labels in the order of their class numbers; empty for scores; None: not yet known, those of the
            model that is loaded.
        bad_rows: what was left out.
    """

    task: Task
    train: Table | None
    dev: list[tuple[Split, Table]]
    test: list[tuple[Split, Table]]
    labels: list[str] | None
    bad_rows: BadRows

    @property
    def tables(self) -> list[Table]:
        return [*([] if self.train is None else [self.train]), *(table for _, table in [*self.dev, *self.test])]

    def with_labels(self, labels: Sequence[str]) -> "Inputs":
        """Leaves, or refuses, the rows whose label is none of `labels`; as `tables.keep_known_labels`."""
        if not labels:
            return self._replace(labels=[])
        dev = [(split, tables.keep_known_labels(table, labels, self.bad_rows)) for split, table in self.dev]
        train = self.train and tables.keep_known_labels(self.train, labels, self.bad_rows)
        return self._replace(train=train, dev=dev, labels=list(labels))


def read_inputs(source: Source, kinds: Sequence[str], output_dir: str) -> Inputs:
    """Reads and checks the tables.

    Args:
        source: where they are.
        kinds: of "train", "dev" and "test" those to read.
        output_dir: of the run, whose model, if nothing is trained, knows the labels.

    Raises:
        InputError: a file, a column, a row or a label is wrong; the message names file and line.
    """
    task, bad_rows = source.task, BadRows(source.bad_rows)
    read = {kind: _read_kind(source, task, kind, bad_rows) if kind in kinds else [] for kind in KINDS}
    train = read["train"][0][1] if read["train"] else None
    inputs = Inputs(task, train, read["dev"], read["test"], None, bad_rows)
    if task.is_regression:
        return inputs.with_labels([])
    if train is not None:
        return inputs.with_labels(tables.choose_labels(train, source.labels or task.labels))
    labels = _labels_of_model(output_dir)
    return inputs.with_labels(labels) if labels else inputs


def _read_kind(source: Source, task: Task, kind: str, bad_rows: BadRows) -> list[tuple[Split, Table]]:
    splits, file = task.splits(kind), getattr(source, f"{kind}_file")
    if not splits:
        can = "--do_predict, with a model of mnli"
        raise InputError(f"--task_name={task.name}: GLUE has no {kind} file of it. It can only be predicted: {can}.")
    if file:
        splits = splits[:1]
    with_labels = kind != "test"
    if source.tfds_name:
        from tasks.glue.tfds_tables import TfdsTables

        tfds = TfdsTables(source.tfds_name, source.data_dir)
        return [(one, tfds.read_table(file or one.tfds_name, task, bad_rows, with_labels)) for one in splits]
    paths = [tables.find_split(task, source.data_dir, kind, one, file) for one in splits]
    return [
        (one, tables.read_table(path, task, bad_rows, with_labels)) for one, path in zip(splits, paths, strict=True)
    ]


def _labels_of_model(output_dir: str) -> list[str] | None:
    path = os.path.join(output_dir, MODEL_DIRECTORY, "task.json")
    task = read_json(path) if os.path.exists(path) else None
    return task.get("labels") if isinstance(task, dict) else None


def check_steps(train: Table, batch_sizes: Sequence[int], num_train_epochs: float) -> None:
    """Checks that a training has at least one step.

    Raises:
        InputError: the rows do not fill a batch.
    """
    for batch_size in batch_sizes:
        if count_steps(len(train.texts), batch_size, num_train_epochs) < 1:
            raise InputError(
                f"{train.path}: {len(train.texts)} rows in {num_train_epochs:g} epochs do not fill one batch of "
                f"{batch_size}. Lower --train_batch_size or raise --num_train_epochs."
            )
