"""Tables from TensorFlow Datasets, by name: `glue/sst2`, `imdb_reviews`, `ag_news_subset`.

The package is not a requirement. It is imported when a data set is named.
"""

import dataclasses

from keras_bert.errors import InputError, first_line
from tasks.classification.data import Table, collect
from tasks.classification.glue import TASKS, TableTask
from tasks.fine_tuning.rows import Broken, Rows
from tasks.text.bad_rows import BadRows


def choose_task(task_name: str, tfds_name: str) -> TableTask:
    """Returns the task with its columns in TensorFlow Datasets.

    With the task name "table", a data set `glue/<task>` names the task.

    >>> choose_task("table", "glue/mnli").text_column
    'premise'
    """
    collection, _, name = tfds_name.partition(":")[0].partition("/")
    if task_name == "table" and collection == "glue" and name in TASKS:
        task_name = name
    task = TASKS[task_name]
    text, text_pair = task.tfds_texts or (task.text_column, task.text_pair_column)
    return dataclasses.replace(
        task, text_column=text, text_pair_column=text_pair, label_column="label", headerless_columns=None
    )


class TfdsTables:
    """The splits of a data set of TensorFlow Datasets, downloaded and prepared if necessary.

    Args:
        name: as for `tfds.builder`: `collection/config:version`.
        data_dir: directory of prepared data sets; None for the package's own (`TFDS_DATA_DIR`, or
            `~/tensorflow_datasets`).

    Raises:
        InputError: the package is not installed, or there is no such data set, or it cannot be prepared.
    """

    def __init__(self, name: str, data_dir: str | None = None):
        self.name = name
        try:
            import tensorflow_datasets
        except ImportError as error:
            raise InputError(
                f"--tfds_name needs the package tensorflow-datasets ({error}). Run: pip install tensorflow-datasets"
            ) from error
        self._tfds = tensorflow_datasets
        try:
            self._builder = self._tfds.builder(name, data_dir=data_dir)
        except (ValueError, OSError) as error:
            raise InputError(f"--tfds_name={name}: {first_line(error)} See tfds.list_builders().") from error
        try:
            self._builder.download_and_prepare()
        except Exception as error:  # The data set's own code may raise anything: network, disk, a missing package.
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise InputError(f"--tfds_name={name}: cannot be downloaded and prepared ({reason}).") from error

    def read_table(self, split: str, task: TableTask, bad_rows: BadRows, with_labels: bool = True) -> Table:
        """Reads a split, e.g. `train`, `validation` or `train[:10%]`, as `tasks.classification.data.read_table` does.

        A class number becomes the task's label, or the data set's own name for it; -1 means no label. Rows with an
        `idx` are sorted by it, since the package stores them shuffled.

        Raises:
            InputError: there is no such split or column, or a row is bad.
        """
        base = split.partition("[")[0]
        splits = list(self._builder.info.splits)
        if base not in splits and not any(part in base for part in ("+", "all")):
            raise InputError(
                f"--tfds_name={self.name}: no split {base!r}. There are: {', '.join(splits)}. Name them with "
                "--train_file, --dev_file and --test_file; train[:90%] and train[90%:] are such names too."
            )
        wanted = task.columns(with_labels)
        features = self._builder.info.features
        missing = [name for name in wanted if name not in features]
        if missing:
            raise InputError(
                f"--tfds_name={self.name}: no feature {missing[0]!r}. There are: {', '.join(features)}. Name the right "
                "one with --text_column, --text_pair_column or --label_column."
            )
        rows = self._rows(split, wanted, self._label_names(task) if with_labels else None)
        return collect(f"{self.name}[{split}]", rows, task, bad_rows, with_labels)

    def _label_names(self, task: TableTask) -> list[str] | None:
        """Returns the names of the class numbers, or None if the label is not a class number."""
        names = getattr(self._builder.info.features[task.label_column], "names", None)
        if names is None or task.is_regression:
            return None
        # Where the package has names such as "negative", GLUE's files have 0 and 1, in the same order.
        replaces = task.labels is not None and len(task.labels) == len(names) and set(task.labels) != set(names)
        return list(task.labels) if replaces else list(names)

    def _rows(self, split: str, wanted: list[str], names: list[str] | None) -> Rows:
        examples = enumerate(self._tfds.as_numpy(self._builder.as_dataset(split=split)))
        rows = [
            (int(example.get("idx", index)), [_plain(example[name]) for name in wanted]) for index, example in examples
        ]
        for index, values in sorted(rows, key=lambda row: row[0]):
            if names is not None:
                number = values[-1]
                if not 0 <= number < len(names):
                    yield index, Broken(f"feature {wanted[-1]!r} is {number}: no label. Choose a split that has them.")
                    continue
                values[-1] = names[number]
            yield index, dict(zip(wanted, values, strict=True))


def _plain(value):
    """Returns a NumPy scalar or bytes as a Python value."""
    value = value.item() if hasattr(value, "item") else value
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
