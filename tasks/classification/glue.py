"""The tasks that `bert-classify` knows by name: where each file keeps its texts and labels, and how it is scored.

GLUE's files are tab-separated without any quoting, and have a header; CoLA's train and dev files alone have none. Its
test files have no labels. A table of one's own may be TSV, CSV or JSON Lines.
"""

import dataclasses

from tasks.fine_tuning.rows import EXTENSIONS

CLASSIFICATION_METRICS = ("accuracy",)
REGRESSION_METRICS = ("pearson_spearman_mean", "pearson", "spearman", "mean_squared_error")


@dataclasses.dataclass(frozen=True)
class Split:
    """One file of a task.

    Attributes:
        files: base names that it may have in `--data_dir`, without the extension; TensorFlow Datasets calls the first
            one's "dev" "validation".
        name: "", or what tells it from the task's first file of the kind, in names of figures and files.
        submission: name of the file that GLUE takes the answers in; None where there is none.
    """

    files: tuple[str, ...]
    name: str = ""
    submission: str | None = None

    @property
    def tfds_name(self) -> str:
        """The split's name in TensorFlow Datasets."""
        return self.files[0].replace("dev", "validation", 1)


@dataclasses.dataclass(frozen=True)
class TableTask:
    """Where the files of a task keep their columns, and how the task is scored.

    Attributes:
        name: the value of `--task_name`.
        text_column: name of the column with the (first) text.
        text_pair_column: name of the column with the second text, or None for single texts.
        label_column: name of the column with the label or the score.
        headerless_columns: names of the columns of a file that has no header, or None where its first row is the
            header.
        test_has_header: whether files to predict have a header even so (CoLA's).
        extensions: the formats that its files may have in `--data_dir`: `.tsv` (tab-separated, no quoting), `.csv`
            (RFC 4180 quoting), `.jsonl` (a JSON object a line).
        labels: the labels in the order of their class numbers, or None: the sorted set of the training file.
        is_regression: whether the label is a number to come near to.
        metrics: the task's figures in `metrics.json`, keys of `metrics.CLASS_METRICS` or `SCORE_METRICS`; the first is
            the main one, by which the best of several models is chosen.
        score_range: least and largest score that a submission may hold, for regression.
        train: the training file; None for a task that is only predicted.
        dev, test: the labelled files to evaluate on, and those to predict.
        tfds_columns: names of first text, second text and label in TensorFlow Datasets; None: as in the files.
    """

    name: str
    text_column: str
    text_pair_column: str | None = None
    label_column: str = "label"
    headerless_columns: tuple[str, ...] | None = None
    test_has_header: bool = False
    extensions: tuple[str, ...] = (".tsv",)
    labels: tuple[str, ...] | None = None
    is_regression: bool = False
    metrics: tuple[str, ...] = CLASSIFICATION_METRICS
    score_range: tuple[float, float] | None = None
    train: Split | None = Split(("train",))
    dev: tuple[Split, ...] = (Split(("dev",)),)
    test: tuple[Split, ...] = (Split(("test",)),)
    tfds_columns: tuple[str, str | None, str] | None = None

    @property
    def metric(self) -> str:
        """The main figure."""
        return self.metrics[0]

    def splits(self, kind: str) -> tuple[Split, ...]:
        """The files of a kind: "train", "dev" or "test"."""
        if kind == "train":
            return () if self.train is None else (self.train,)
        return {"dev": self.dev, "test": self.test}[kind]

    def columns(self, with_labels: bool = True) -> list[str]:
        """Returns the columns that a row is made of: first text, second text if there is one, label if wanted."""
        pair = [] if self.text_pair_column is None else [self.text_pair_column]
        return [self.text_column, *pair, *[self.label_column] * with_labels]

    def as_regression(self) -> "TableTask":
        """This task with numbers in the place of labels."""
        return dataclasses.replace(self, is_regression=True, labels=None, metrics=REGRESSION_METRICS)


def _test(submission: str) -> tuple[Split, ...]:
    return (Split(("test",), submission=submission),)


_YES_NO = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")  # google-research/bert run_classifier.py: MnliProcessor
_SENTENCES = {"text_column": "sentence1", "text_pair_column": "sentence2"}
_ACCURACY_AND_F1 = ("accuracy_f1_mean", "accuracy", "f1")

TASKS = {
    task.name: task
    for task in (
        TableTask("table", text_column="text", extensions=EXTENSIONS),
        TableTask(
            "cola",
            text_column="sentence",
            headerless_columns=("source", "label", "mark", "sentence"),
            test_has_header=True,
            labels=_YES_NO,
            metrics=("matthews_correlation", "accuracy"),
            test=_test("CoLA.tsv"),
        ),
        TableTask("sst2", text_column="sentence", labels=_YES_NO, test=_test("SST-2.tsv")),
        TableTask(
            "mrpc",
            text_column="#1 String",
            text_pair_column="#2 String",
            label_column="Quality",
            labels=_YES_NO,
            metrics=_ACCURACY_AND_F1,
            test=_test("MRPC.tsv"),
            tfds_columns=("sentence1", "sentence2", "label"),
        ),
        TableTask(
            "qqp",
            text_column="question1",
            text_pair_column="question2",
            label_column="is_duplicate",
            labels=_YES_NO,
            metrics=_ACCURACY_AND_F1,
            test=_test("QQP.tsv"),
            tfds_columns=("question1", "question2", "label"),
        ),
        TableTask(
            "stsb",
            **_SENTENCES,
            label_column="score",
            is_regression=True,
            metrics=REGRESSION_METRICS,
            score_range=(0.0, 5.0),
            test=_test("STS-B.tsv"),
            tfds_columns=("sentence1", "sentence2", "label"),
        ),
        TableTask(
            "mnli",
            **_SENTENCES,
            label_column="gold_label",
            labels=_INFERENCE,
            dev=(Split(("dev_matched",)), Split(("dev_mismatched",), "mismatched")),
            test=(
                Split(("test_matched",), submission="MNLI-m.tsv"),
                Split(("test_mismatched",), "mismatched", "MNLI-mm.tsv"),
            ),
            tfds_columns=("premise", "hypothesis", "label"),
        ),
        TableTask(
            "qnli", text_column="question", text_pair_column="sentence", labels=_ENTAILMENT, test=_test("QNLI.tsv")
        ),
        TableTask("rte", **_SENTENCES, labels=_ENTAILMENT, test=_test("RTE.tsv")),
        TableTask("wnli", **_SENTENCES, labels=_YES_NO, test=_test("WNLI.tsv")),
        TableTask(  # GLUE's diagnostic set, for a model of MNLI.
            "ax",
            **_SENTENCES,
            labels=_INFERENCE,
            train=None,
            dev=(),
            test=(Split(("test", "AX", "diagnostic"), "ax", "AX.tsv"),),
            tfds_columns=("premise", "hypothesis", "label"),
        ),
    )
}
