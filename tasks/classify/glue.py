"""Describes the tasks that `bert-classify` knows by name: the columns of their files, and their scores.

GLUE's files are tab-separated without any quoting. All but CoLA's train and dev files have a header, and no test file
has labels. A user's own table may have any format that `tasks.text.rows` reads.
"""

import dataclasses

from tasks.classify.kinds import LabelSets, Scores
from tasks.text.rows import EXTENSIONS


@dataclasses.dataclass(frozen=True)
class Split:
    """One file of a task.

    Attributes:
        files: base names that the file may have in `--data_dir`, without the extension.
        name: "" for the first file of a kind. For any other file, the prefix of its figures and output files.
        submission: name of the file with the answers for GLUE's server, or None.
    """

    files: tuple[str, ...]
    name: str = ""
    submission: str | None = None


@dataclasses.dataclass(frozen=True)
class TableTask:
    """The columns of a task's files, and its scores.

    Attributes:
        name: the value of `--task_name`.
        text_column: column of the (first) text.
        text_pair_column: column of the second text, or None for single texts.
        label_column: column of the label or the score. With several labels per row, it may also list columns of 0 and
            1, separated by commas, each named like its label.
        headerless_columns: names of all columns of files without a header, or None if their first row is the header.
        test_has_header: whether files to predict have a header all the same, as CoLA's do.
        extensions: formats that the files may have in `--data_dir`, a subset of `tasks.text.rows.EXTENSIONS`.
        labels: labels in the order of their class numbers, or None for the sorted set of the training file.
        class_names: names that Hugging Face's data sets have for `labels`, in the same order; empty if none differs.
        is_regression: whether the label is a number to predict.
        is_multi_label: whether a row has any number of labels.
        label_separator: separator of labels in a cell; None: a cell holds one label, or a list.
        metrics: figures in `metrics.json`, `statistics` of the kind of labels. The best of several models is chosen by
            the first one.
        score_range: least and largest score of a submission, for regression.
        train: the training file; empty for a task that is only predicted.
        dev, test: the labelled files to evaluate on, and the files to predict.
    """

    name: str
    text_column: str
    text_pair_column: str | None = None
    label_column: str = "label"
    headerless_columns: tuple[str, ...] | None = None
    test_has_header: bool = False
    extensions: tuple[str, ...] = (".tsv",)
    labels: tuple[str, ...] | None = None
    class_names: tuple[str, ...] = ()
    is_regression: bool = False
    is_multi_label: bool = False
    label_separator: str | None = None
    metrics: tuple[str, ...] = ("accuracy",)
    score_range: tuple[float, float] | None = None
    train: tuple[Split, ...] = (Split(("train",)),)
    dev: tuple[Split, ...] = (Split(("dev",)),)
    test: tuple[Split, ...] = (Split(("test",)),)

    def columns(self, with_labels: bool = True) -> list[str]:
        """Returns the columns of a row: first text, second text if there is one, and if wanted the label columns."""
        pair = [] if self.text_pair_column is None else [self.text_pair_column]
        return [self.text_column, *pair, *(self.label_columns if with_labels else ())]

    @property
    def label_columns(self) -> list[str]:
        """Column of the label; several columns of 0 and 1 for several labels."""
        return self.label_column.split(",") if self.is_multi_label else [self.label_column]

    def own_label(self, label):
        """Returns the task's label for one of `class_names`, and any other label unchanged."""
        return self.labels[self.class_names.index(label)] if label in self.class_names else label

    def as_regression(self) -> "TableTask":
        """Returns this task with numbers instead of labels."""
        return dataclasses.replace(self, is_regression=True, labels=None, metrics=tuple(Scores.statistics))

    def as_multi_label(self, labels: tuple[str, ...] | None, separator: str | None) -> "TableTask":
        """Returns this task with any number of labels per row, from several columns, or from one with separators."""
        kind = {"is_multi_label": True, "metrics": tuple(LabelSets.statistics)}
        return dataclasses.replace(self, **kind, labels=labels, label_separator=separator)


def _test(submission: str, file: str = "test") -> tuple[Split, ...]:
    return (Split((file,), submission=submission),)


_YES_NO = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")  # google-research/bert run_classifier.py: MnliProcessor
_SENTENCES = ("sentence1", "sentence2")
_PARAPHRASES = {"labels": _YES_NO, "metrics": ("accuracy_f1_mean", "accuracy", "f1")}


def _mnli(name: str, dev: tuple[Split, ...], test: tuple[Split, ...]) -> TableTask:
    columns = {"label_column": "gold_label", "labels": _INFERENCE}
    return TableTask(name, *_SENTENCES, **columns, dev=dev, test=test)


TASKS = {
    task.name: task
    for task in (
        TableTask("table", "text", extensions=EXTENSIONS),
        TableTask(
            "cola",
            "sentence",
            headerless_columns=("source", "label", "mark", "sentence"),
            test_has_header=True,
            labels=_YES_NO,
            class_names=("unacceptable", "acceptable"),
            metrics=("matthews_correlation", "accuracy"),
            test=_test("CoLA.tsv"),
        ),
        TableTask("sst2", "sentence", labels=_YES_NO, class_names=("negative", "positive"), test=_test("SST-2.tsv")),
        TableTask(
            "mrpc",
            "#1 String",
            "#2 String",
            label_column="Quality",
            **_PARAPHRASES,
            class_names=("not_equivalent", "equivalent"),
            test=_test("MRPC.tsv"),
        ),
        TableTask(
            "qqp",
            "question1",
            "question2",
            label_column="is_duplicate",
            **_PARAPHRASES,
            class_names=("not_duplicate", "duplicate"),
            test=_test("QQP.tsv"),
        ),
        TableTask(
            "stsb",
            *_SENTENCES,
            label_column="score",
            is_regression=True,
            metrics=tuple(Scores.statistics),
            score_range=(0.0, 5.0),
            test=_test("STS-B.tsv"),
        ),
        _mnli(
            "mnli",
            (Split(("dev_matched",)), Split(("dev_mismatched",), "mismatched")),
            (*_test("MNLI-m.tsv", "test_matched"), Split(("test_mismatched",), "mismatched", "MNLI-mm.tsv")),
        ),
        _mnli("mnli-m", (Split(("dev_matched",)),), _test("MNLI-m.tsv", "test_matched")),
        _mnli("mnli-mm", (Split(("dev_mismatched",)),), _test("MNLI-mm.tsv", "test_mismatched")),
        TableTask("qnli", "question", "sentence", labels=_ENTAILMENT, test=_test("QNLI.tsv")),
        TableTask("rte", *_SENTENCES, labels=_ENTAILMENT, test=_test("RTE.tsv")),
        TableTask("wnli", *_SENTENCES, labels=_YES_NO, class_names=_ENTAILMENT[::-1], test=_test("WNLI.tsv")),
        TableTask(  # GLUE's diagnostic set, for a model of MNLI.
            "ax",
            *_SENTENCES,
            labels=_INFERENCE,
            train=(),
            dev=(),
            test=(Split(("test", "AX", "diagnostic"), "ax", "AX.tsv"),),
        ),
    )
}
