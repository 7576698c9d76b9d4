"""The classification tasks that `bert-classify` knows by name: where each file keeps its text and labels.

GLUE's files are tab-separated without any quoting. CoLA's train and dev files have no header, its test file has one.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Task:
    """Where the files of a task keep their columns, and how the task is scored.

    Attributes:
        name: the value of `--task_name`.
        text_column: name of the column with the (first) text.
        text_pair_column: name of the column with the second text, or None for single texts.
        label_column: name of the column with the label.
        headerless_columns: names of the columns of a labelled file that has no header, or None where its first
            row is the header.
        extensions: the file formats of the task: `.tsv` (tab-separated, no quoting), `.csv` (RFC 4180 quoting).
        labels: the labels in the order of their class numbers, or None: the sorted set of the training file.
        metric: the task's main figure in `metrics.json`: "accuracy" or "matthews_correlation".
    """

    name: str
    text_column: str
    text_pair_column: str | None = None
    label_column: str = "label"
    headerless_columns: tuple[str, ...] | None = None
    extensions: tuple[str, ...] = (".tsv",)
    labels: tuple[str, ...] | None = None
    metric: str = "accuracy"


TASKS = {
    task.name: task
    for task in (
        Task("table", text_column="text", extensions=(".tsv", ".csv")),
        Task("sst2", text_column="sentence", labels=("0", "1")),
        Task(
            "cola",
            text_column="sentence",
            headerless_columns=("source", "label", "mark", "sentence"),
            labels=("0", "1"),
            metric="matthews_correlation",
        ),
    )
}
