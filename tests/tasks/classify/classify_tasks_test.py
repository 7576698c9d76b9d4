"""GLUE's own files: every task's columns in the places that GLUE has them, and the submission that GLUE takes.

The headers are those of the files that GLUE distributes.
"""

import numpy as np
import pytest
from run_tasks import read_tables

from keras_bert.files import write_table
from tasks import flags
from tasks.classify.data import Table
from tasks.classify.glue import TASKS
from tasks.classify.task import Classify, ClassifySettings, ClassifySpec
from tasks.fine_tuning.task import Answers, Part, Trained
from tasks.text.rows import open_rows

_PARSES = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse sentence1 sentence2"
_MNLI = f"index promptID pairID genre {_PARSES}".split()
_MRPC_IDS = ["#1 ID", "#2 ID", "#1 String", "#2 String"]
_STSB = "index genre filename year old_index source1 source2 sentence1 sentence2".split()
_PAIR = ["index", "sentence1", "sentence2"]
# task: (header of train, of dev, of test; "{label}" stands where GLUE has the label), texts, labels
LAYOUTS = {
    "sst2": (["sentence", "label"], ["sentence", "label"], ["index", "sentence"]),
    "mrpc": (["Quality", *_MRPC_IDS], ["Quality", *_MRPC_IDS], ["index", *_MRPC_IDS]),
    "qqp": (
        ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
        ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
        ["id", "question1", "question2"],
    ),
    "stsb": ([*_STSB, "score"], [*_STSB, "score"], _STSB),
    "mnli": ([*_MNLI, "label1", "gold_label"], [*_MNLI, *(f"label{i}" for i in range(1, 6)), "gold_label"], _MNLI),
    "qnli": (["index", "question", "sentence", "label"],) * 2 + (["index", "question", "sentence"],),
    "rte": ([*_PAIR, "label"], [*_PAIR, "label"], _PAIR),
    "wnli": ([*_PAIR, "label"], [*_PAIR, "label"], _PAIR),
}
FILES = {"mnli": ("train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched")}
LABELS = {
    "stsb": ["2.500", "5.000"],
    "mnli": ["neutral", "contradiction"],
    "qnli": ["not_entailment", "entailment"],
    "rte": ["not_entailment", "entailment"],
}


def write_task(directory, name: str) -> None:
    """Two rows a file, whose fields say where they stand; a quote opens in one and is never closed."""
    for file in FILES.get(name, ("train", "dev", "test")):
        columns = LAYOUTS[name][("train", "dev", "test").index(file.split("_")[0])]
        lines = ["\t".join(columns)]
        for row, label in enumerate(LABELS.get(name, ["1", "0"])):
            fields = [f'"{column} of {file} {row}' for column in columns]
            has_label = TASKS[name].label_column in columns
            if has_label:
                fields[columns.index(TASKS[name].label_column)] = label
            lines.append("\t".join(fields))
        byte_order_mark = "\ufeff" if (name, file) == ("mrpc", "train") else ""
        (directory / f"{file}.tsv").write_text(byte_order_mark + "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", LAYOUTS)
def test_columns_of_glue(tmp_path, name):
    write_task(tmp_path, name)
    task = TASKS[name]
    inputs = read_tables("train", "eval", "predict", task_name=name, data_dir=str(tmp_path))
    files = FILES.get(name, ("train", "dev", "test"))
    assert [part.rows.path for part in inputs.parts] == [str(tmp_path / f"{file}.tsv") for file in files]
    for file, table in zip(files, (part.rows for part in inputs.parts), strict=True):
        assert table.texts == [f'"{task.text_column} of {file} {row}' for row in (0, 1)]
        if task.text_pair_column:
            assert table.text_pairs == [f'"{task.text_pair_column} of {file} {row}' for row in (0, 1)]
        labels = LABELS.get(name, ["1", "0"])
        expected = [float(label) for label in labels] if name == "stsb" else labels
        assert table.labels == (None if file.startswith("test") else expected)


def test_cola_has_a_header_in_its_test_file_only(tmp_path):
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("gj04\t1\t\tOur friends.\ngj04\t0\t*\tThey drank the pub.\n")
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tBill whistled.\n")
    inputs = read_tables("train", "eval", "predict", task_name="cola", data_dir=str(tmp_path))
    train, dev, test = (part.rows for part in inputs.parts)
    for table in (train, dev):
        assert table.texts == ["Our friends.", "They drank the pub."] and table.labels == ["1", "0"]
    assert test.texts == ["Bill whistled."] and test.lines == [2]


def test_ax_is_found_under_its_names(tmp_path):
    for name in ("AX", "diagnostic"):
        path = tmp_path / f"{name}.tsv"
        path.write_text("index\tsentence1\tsentence2\n0\ta\tb\n")
        inputs = read_tables("predict", task_name="ax", data_dir=str(tmp_path))
        assert inputs.parts[0].rows.text_pairs == ["b"]
        path.unlink()


def test_mnli_files_may_be_named_one_by_one(tmp_path):
    write_task(tmp_path, "mnli")
    inputs = read_tables("eval", task_name="mnli", dev_file=str(tmp_path / "dev_mismatched.tsv"))
    assert [(part.figure("accuracy"), len(part.rows.texts)) for part in inputs.parts] == [("accuracy", 2)]


# https://gluebenchmark.com/tasks, and how data and code of others write them.
SPELLINGS = {
    "cola": ("CoLA", "COLA"),
    "sst2": ("SST-2", "sst_2", "Sst2"),
    "mrpc": ("MRPC",),
    "qqp": ("QQP",),
    "stsb": ("STS-B", "sts_b", "STSB"),
    "mnli": ("MNLI", "MnLi"),
    "mnli-m": ("MNLI-m", "mnli_m"),
    "mnli-mm": ("MNLI-mm", "mnli_mm", "MNLIMM"),
    "qnli": ("QNLI",),
    "rte": ("RTE",),
    "wnli": ("WNLI",),
    "ax": ("AX",),
}


@pytest.mark.parametrize(
    ("name", "spelling"), [(name, spelling) for name, spellings in SPELLINGS.items() for spelling in spellings]
)
def test_glue_s_own_spellings_name_its_tasks(name, spelling):
    assert ClassifySettings(output_dir="", task_name=spelling).table_task().name == name
    parsed = flags.parse(ClassifySettings, ["--output_dir=x", f"--task_name={spelling}"])
    assert parsed == ClassifySettings(output_dir="x", task_name=spelling) and parsed.task_name == name


def test_mnli_m_and_mnli_mm_are_its_two_dev_sets(tmp_path):
    write_task(tmp_path, "mnli")
    for name, half in (("MNLI-m", "matched"), ("MNLI-mm", "mismatched")):
        inputs = read_tables("train", "eval", "predict", task_name=name, data_dir=str(tmp_path))
        files = f"train.tsv dev_{half}.tsv test_{half}.tsv".split()
        assert [(part.rows.path, part.name) for part in inputs.parts] == [(str(tmp_path / file), "") for file in files]
        outputs = np.eye(3, dtype=np.float32)
        assert write_answers(tmp_path, name, inputs.spec.labels, outputs) == ["predictions.tsv", f"{name}.tsv"]


def test_metrics_are_those_of_glue():
    of_two = {name: set(task.metrics[1:]) for name, task in TASKS.items() if len(task.metrics) > 1}
    assert of_two == {
        "cola": {"accuracy"},
        "mrpc": {"accuracy", "f1"},
        "qqp": {"accuracy", "f1"},
        "stsb": {"pearson", "spearman", "mean_squared_error"},
    }
    assert TASKS["cola"].metrics[0] == "matthews_correlation" and TASKS["stsb"].metrics[0] == "pearson_spearman_mean"
    assert all(TASKS[name].metrics == ("accuracy",) for name in ("sst2", "mnli", "qnli", "rte", "wnli"))


# === Files for GLUE ===

# https://gluebenchmark.com/faq: the names that a submission's files must have.
OFFICIAL = {
    "CoLA.tsv",
    "SST-2.tsv",
    "MRPC.tsv",
    "QQP.tsv",
    "STS-B.tsv",
    "MNLI-m.tsv",
    "MNLI-mm.tsv",
    "QNLI.tsv",
    "RTE.tsv",
    "WNLI.tsv",
    "AX.tsv",
}


def test_every_official_file_has_its_task():
    splits = [split for task in TASKS.values() for split in task.test]
    assert {split.submission for split in splits} - {None} == OFFICIAL


def table_with_a_gap() -> Table:
    """Row 1 of 4 could not be used."""
    return Table("test.tsv", [2, 4, 5], [0, 2, 3], 4, ["a", "c", "d"], None, None)


def write_answers(directory, name: str, classes: list[str], outputs: np.ndarray, file: str = "") -> list[str]:
    """Writes the answers to a test file; returns the names of the files."""
    spec = ClassifySpec(sequence_length=8, labels=classes, num_texts=1, is_regression=not classes)
    part = Part("test", table_with_a_gap(), file)
    answers = Answers(Trained(None, None, spec), part, None, outputs)
    task = Classify(ClassifySettings(output_dir=str(directory), task_name=name))
    paths, _ = task.write_predictions(answers, str(directory))
    return [path.rpartition("/")[2] for path in paths]


def test_predictions_are_read_back_as_they_were(tmp_path):
    """REVIEW2.md, A11: they were quoted as in a CSV, and our own reader takes no quotes in a TSV."""
    classes = ['say "hi"', '"', "a, b", " blank "]
    (name,) = write_answers(tmp_path, "table", classes, np.eye(4, dtype=np.float32)[[0, 1, 3]])
    file = open_rows(str(tmp_path / name))
    assert file.columns == ["index", "prediction", *(f"probability_{label}" for label in classes)]
    assert [row["prediction"] for _, row in file.rows] == [classes[0], classes[1], classes[3]]


def test_a_tab_or_line_break_becomes_a_blank(tmp_path):
    path = str(tmp_path / "x.tsv")
    write_table(path, ["where", "the\nreason"], [["a\tb:1", 'a "quoted"\r\nreason'], ["c", 7]])
    rows = [{"where": "a b:1", "the reason": 'a "quoted"  reason'}, {"where": "c", "the reason": "7"}]
    assert [row for _, row in open_rows(path).rows] == rows


@pytest.mark.parametrize("name", ["mnli", "ax", "rte", "cola", "qqp"])
def test_submission_of_classes(tmp_path, name):
    task = TASKS[name]
    classes = list(task.labels)
    outputs = np.eye(len(classes), dtype=np.float32)[[1, 0, 1]] * 3
    for split in task.test:
        predictions = f"predictions_{split.name}.tsv" if split.name else "predictions.tsv"
        assert write_answers(tmp_path, name, classes, outputs, split.name) == [predictions, split.submission]
        lines = (tmp_path / split.submission).read_text().splitlines()
        assert lines[0] == "index\tprediction"
        # GLUE refuses a file that lacks a row: the one in the gap gets the most frequent answer.
        assert lines[1:] == [f"{i}\t{classes[number]}" for i, number in enumerate([1, 1, 0, 1])]


def test_submission_of_scores_is_clipped(tmp_path):
    outputs = np.array([[-0.3], [2.34567], [6.1]], np.float32)
    write_answers(tmp_path, "stsb", [], outputs)
    assert (tmp_path / "STS-B.tsv").read_text() == (
        "index\tprediction\n0\t0.0000\n1\t2.4486\n2\t2.3457\n3\t5.0000\n"  # 2.4486: the mean of the three
    )
    assert (tmp_path / "predictions.tsv").read_text() == "index\tprediction\n0\t-0.300000\n2\t2.345670\n3\t6.100000\n"


def test_a_table_of_one_s_own_has_no_submission(tmp_path):
    outputs = np.array([[0.0, np.log(3.0)]] * 3, np.float32)
    assert write_answers(tmp_path, "table", ["a", "b"], outputs) == ["predictions.tsv"]
    lines = (tmp_path / "predictions.tsv").read_text().splitlines()
    assert lines[:2] == ["index\tprediction\tprobability_a\tprobability_b", "0\tb\t0.250000\t0.750000"]
    assert [line.split("\t")[0] for line in lines[1:]] == ["0", "2", "3"]


def test_bad_rows_of_a_test_file_leave_their_number_free(tmp_path):
    (tmp_path / "test.tsv").write_text("index\tsentence\n0\tgood\n1\t\n2\tbad\n")
    inputs = read_tables("predict", task_name="sst2", data_dir=str(tmp_path), bad_rows="skip")
    assert inputs.parts[0].rows.numbers == [0, 2] and inputs.parts[0].rows.num_rows == 3
    assert inputs.bad_rows.count == 1
