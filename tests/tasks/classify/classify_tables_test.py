"""Tables of `bert-classify`: each wrong row is named with its line, and none is lost in silence."""

import csv
import dataclasses
import json
import pathlib
import re

import pytest
from repository import SHARED, needs_data
from run_tasks import read_tables

from keras_bert.errors import InputError
from tasks.classify import data
from tasks.classify.glue import TASKS
from tasks.classify.task import Classify, ClassifySettings
from tasks.text.bad_rows import BadRows
from tasks.text.rows import open_rows

TABLE = TASKS["table"]
PAIRS = dataclasses.replace(TABLE, text_pair_column="other")
SCORES = TABLE.as_regression()


def write(tmp_path, name: str, text: str | bytes) -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(path: str, task=TABLE, policy: str = "refuse", **options) -> data.Table:
    return data.read_table(path, task, BadRows(policy), **options)


# === Formats ===


def test_csv_with_quotes_commas_and_texts_over_several_lines(tmp_path):
    text = 'label,id,text\r\na,1,"one, ""two""\nthree"\nb,2,plain\n\n'
    path = write(tmp_path, "train.csv", b"\xef\xbb\xbf" + text.encode())
    assert read(path) == data.Table(path, [2, 4], [0, 1], 2, ['one, "two"\nthree', "plain"], None, ["a", "b"])


def test_csv_takes_texts_of_any_length(tmp_path):
    long = "word " * 40_000  # Python's own limit is 131,072 characters.
    path = write(tmp_path, "train.csv", f'label,text\na,"{long}"\n')
    assert read(path).texts == [long]


def test_tsv_has_no_quoting(tmp_path):
    path = write(tmp_path, "train.tsv", 'text\tother\tlabel\n"open\tsaid "x", y\t1\nb\tc\t0\n')
    table = read(path, PAIRS)
    assert table.texts == ['"open', "b"] and table.text_pairs == ['said "x", y', "c"] and table.labels == ["1", "0"]


def test_json_lines_take_strings_numbers_and_truth_values_as_labels(tmp_path):
    rows = [("好吃\n", "good"), ("b", 1), ("c", True), ("d", "0")]
    path = write(tmp_path, "x.jsonl", "".join(json.dumps({"text": t, "label": y, "n": 1}) + "\n" for t, y in rows))
    table = read(path)
    assert table.texts == ["好吃\n", "b", "c", "d"] and table.labels == ["good", "1", "true", "0"]
    assert read(
        write(tmp_path, "y.jsonl", '{"text": "a", "label": 2}\n{"text": "b", "label": "3.5"}\n'), SCORES
    ).labels == [2.0, 3.5]


# The names in the data set nyu-mll/glue, in the order of their numbers.
CLASS_NAMES = {
    "cola": ["unacceptable", "acceptable"],
    "sst2": ["negative", "positive"],
    "mrpc": ["not_equivalent", "equivalent"],
    "qqp": ["not_duplicate", "duplicate"],
    "mnli": ["entailment", "neutral", "contradiction"],
    "qnli": ["entailment", "not_entailment"],
    "rte": ["entailment", "not_entailment"],
    "wnli": ["not_entailment", "entailment"],
}


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_hugging_face_s_class_names_are_glue_s_labels(tmp_path, name):
    names, glue = CLASS_NAMES[name], TASKS[name]
    task = dataclasses.replace(glue, text_column="text", text_pair_column=None, label_column="label")
    path = write(tmp_path, "x.jsonl", "".join(f'{{"text": "a", "label": "{label}"}}\n' for label in names))
    expected = names if set(names) == set(glue.labels) else [str(number) for number in range(len(names))]
    labels = read(path, task).labels
    assert labels == expected and set(labels) == set(glue.labels)
    path = write(tmp_path, "y.jsonl", "".join(f'{{"text": "a", "label": "{label}"}}\n' for label in glue.labels))
    assert read(path, task).labels == list(glue.labels)


def test_labels_that_the_user_names_stay_as_they_are(tmp_path):
    path = write(tmp_path, "x.jsonl", '{"sentence": "a", "label": "positive"}\n')
    for labels, expected in ((["negative", "positive"], "positive"), (["1", "0"], "1"), (None, "1")):
        settings = ClassifySettings(output_dir="run", task_name="sst2", labels=labels)
        assert read(path, settings.table_task()).labels == [expected]


def test_files_without_a_header_get_names_for_all_columns(tmp_path):
    path = write(tmp_path, "x.csv", '"a, b",c,1.5\nd,e,5\n')
    task = dataclasses.replace(SCORES, text_pair_column="other", headerless_columns=("text", "other", "label"))
    assert read(path, task) == data.Table(path, [1, 2], [0, 1], 2, ["a, b", "d"], ["c", "e"], [1.5, 5.0])
    assert read(path, task, with_labels=False).texts == ["a, b", "d"]


@pytest.mark.parametrize(
    ("content", "columns", "rows"),
    [
        ('a;b\n"1;2";"3,4"\n', None, [{"a": "1;2", "b": "3,4"}]),
        ("a\tb\n1,2\t3;4\n", None, [{"a": "1,2", "b": "3;4"}]),
        ("a,b;c\n1,2\n", None, [{"a": "1", "b;c": "2"}]),
        ("well, I, like it;yes\n", ["text", "label"], [{"text": "well, I, like it", "label": "yes"}]),
        ('"x\ny";b\n1;2\n', None, [{"x\ny": "1", "b": "2"}]),
        ("text\n1;2\n", None, [{"text": "1;2"}]),
    ],
)
def test_the_first_row_tells_the_delimiter(tmp_path, content, columns, rows):
    (tmp_path / "x.csv").write_text(content)
    assert [row for _, row in open_rows(f"{tmp_path}/x.csv", columns).rows] == rows


def test_a_row_of_another_length_is_told_its_delimiter(tmp_path):
    (tmp_path / "x.csv").write_text("text;label\na;b;c\n")
    ((_, row),) = open_rows(f"{tmp_path}/x.csv").rows
    assert (
        str(row) == "expected 2 fields (text, label), found 3. A semicolon inside a text needs quotes around the text."
    )


# === Bad rows ===


BROKEN_FILES = [
    ("x.tsv", "", "x.tsv: the file is empty. Expected a header"),
    ("x.jsonl", "", "x.jsonl: the file holds no rows"),
    ("x.tsv", "text\tlabel\n", "x.tsv: the file holds no rows"),
    ("x.csv", "review,label\na,b\n", "x.csv:1: no column 'text' in the header. Columns there: 'review', 'label'."),
    (
        "x.csv",
        "text,text,label\na,a,b\n",
        "x.csv:1: 2 columns named 'text' in the header. Columns there: 'text', 'text', 'label'. Rename all but one.",
    ),
    ("x.csv", 'text,label\na,1\n"b,1\nc,1\n', "x.csv:3: not valid CSV in the row that starts here"),
    ("x.tsv", b"text\tlabel\na\t1\ncaf\xe9\t1\n", "x.tsv:3: not valid UTF-8 at byte 3"),
    ("x.csv", b"text,label\na,1\ncaf\xe9,1\n", "x.csv:3: not valid UTF-8 at byte 3"),
]
# Each with one bad row besides a good one.
BROKEN_ROWS = [
    ("x.csv", 'text,label\n"a\nb",1\nc,d,1\n', "x.csv:4: expected 2 fields (text, label), found 3. A comma"),
    ("x.tsv", "text\tlabel\na\t1\nb\n", "x.tsv:3: expected 2 fields (text, label), found 1. A text must not"),
    ("x.tsv", "text\tlabel\nb\t\t1\na\t1\n", "x.tsv:2: expected 2 fields (text, label), found 3. A text must not"),
    ("x.tsv", "text\tlabel\na\t1\n \t1\n", "x.tsv:3: column 'text' is empty"),
    ("x.tsv", "text\tlabel\na\t1\nb\t\n", "x.tsv:3: column 'label' is empty"),
    ("x.tsv", "text\tlabel\n\na\t1\n", "x.tsv:2: a blank line between rows"),
    ("x.csv", 'text,label\n"a"b,1\nc,1\n', "x.csv:2: not valid CSV in the row that starts here"),
    ("x.jsonl", '{"text": "a", "label": 1}\n{"text": "b"\n', "x.jsonl:2: not valid JSON"),
    ("x.jsonl", '[1]\n{"text": "a", "label": 1}\n', "x.jsonl:1: expected a JSON object, found list"),
    ("x.jsonl", '{"text": "a", "label": 1}\n\n{"text": "b"}\n', "x.jsonl:2: a blank line between rows"),
    ("x.jsonl", '{"text": "a", "label": 1}\n{"text": "b"}\n', "x.jsonl:2: no key 'label' in the object. Keys there:"),
    ("x.jsonl", '{"text": "a", "label": 1}\n{"text": 7, "label": 1}\n', "x.jsonl:2: column 'text': expected a text"),
    ("x.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": null}\n', "x.jsonl:2: column 'label' is empty"),
    ("x.jsonl", '{"text": "a", "label": 1}\n{"text": "\\ud83d", "label": 1}\n', "x.jsonl:2: column 'text' has half"),
    ("x.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": [1]}\n', "x.jsonl:2: column 'label': expected a"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN_FILES + BROKEN_ROWS)
def test_wrong_tables_are_named_with_their_line(tmp_path, name, content, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read(write(tmp_path, name, content))


@pytest.mark.parametrize(("name", "content", "message"), BROKEN_ROWS)
def test_bad_rows_are_left_out_when_asked_for(tmp_path, capsys, name, content, message):
    bad_rows = BadRows("skip")
    table = data.read_table(write(tmp_path, name, content), TABLE, bad_rows)
    assert len(table.texts) == 1 and table.labels == ["1"]
    assert message.split(": ", 1)[1] in capsys.readouterr().err and bad_rows.count in (1, 2)
    assert table.num_rows == 1 + bad_rows.count  # Their numbers stay free.


@pytest.mark.parametrize("content", [content for *_, content, message in BROKEN_FILES if "empty" not in message])
def test_files_that_are_broken_as_a_whole_are_refused_in_any_case(tmp_path, content):
    name = "x.csv" if b"," in (content if isinstance(content, bytes) else content.encode()) else "x.tsv"
    with pytest.raises(InputError):
        read(write(tmp_path, name, content), policy="skip")


def test_scores_must_be_finite_numbers(tmp_path):
    path = write(tmp_path, "x.tsv", "text\tlabel\na\t1.5\nb\tgood\nc\tnan\nd\t\ne\t-2e1\n")
    with pytest.raises(InputError, match=re.escape("x.tsv:3: column 'label': expected a number, found 'good'.")) as e:
        read(path, SCORES)
    assert "(3 bad rows in all; --bad_rows=skip leaves them out.)" in str(e.value)
    table = read(path, SCORES, "skip")
    assert table.labels == [1.5, -20.0] and table.numbers == [0, 4] and table.lines == [2, 6] and table.num_rows == 5


@pytest.mark.parametrize(
    "number", ["1_0", "１２", "٣", "0x10", "nan", "inf", "-Infinity", "1e39", "1e999", "1e", ".", "1,5", "--1"]
)
def test_other_spellings_of_numbers_are_refused(tmp_path, number):
    """REVIEW2.md, A11: Python's own float() takes most of them."""
    expected = f"x.tsv:3: column 'label': expected a number, found {number!r}. Write it in the digits 0 to 9, such as"
    with pytest.raises(InputError, match=re.escape(expected)):
        read(write(tmp_path, "x.tsv", f"text\tlabel\na\t1.5\nb\t{number}\n"), SCORES)


def test_numbers_of_tables_and_of_json(tmp_path):
    texts = ["+1", "-.5", "2.", "3e2", " 4E-1", "3.4e38", "0" * 50_000]
    rows = "".join(f"a\t{text}\n" for text in texts)
    expected = [1, -0.5, 2, 300, 0.4, 3.4e38, 0]
    assert read(write(tmp_path, "x.tsv", f"text\tlabel\n{rows}"), SCORES).labels == expected
    numbers = ["1", "-0.5", '"2"', "3e2"]
    rows = "".join(f'{{"text": "a", "label": {number}}}\n' for number in numbers)
    assert read(write(tmp_path, "x.jsonl", rows), SCORES).labels == [1, -0.5, 2, 300]
    for number in ("true", "NaN", "1e39", "9" * 400):
        with pytest.raises(InputError, match="x.jsonl:1: column 'label': expected a number"):
            read(write(tmp_path, "x.jsonl", f'{{"text": "a", "label": {number}}}\n'), SCORES)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", 'text,label\na,1\nb,"two\nlines"\n'),
        ("x.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": "a\\tb"}\n'),
    ],
)
def test_labels_fit_into_a_tsv(tmp_path, name, content):
    message = f"{name}:{2 + name.endswith('csv')}: column 'label': expected a label without tabs, on one line"
    with pytest.raises(InputError, match=re.escape(message)):
        read(write(tmp_path, name, content))


def test_a_file_without_one_usable_row_is_refused(tmp_path):
    with pytest.raises(InputError, match="x.tsv: none of its 2 rows can be used"):
        read(write(tmp_path, "x.tsv", "text\tlabel\n\t1\n\t2\n"), policy="skip")


# === Files of a split ===


def find(task_name="table", split="dev", **settings) -> str:
    task = Classify(ClassifySettings(output_dir="", task_name=task_name, **settings))
    return task._find(split, getattr(task.table_task, split)[0])


def test_find_split(tmp_path):
    folder = str(tmp_path)
    with pytest.raises(InputError, match="Give --dev_file, or --data_dir"):
        find()
    with pytest.raises(InputError, match=r"/dev, ending in .tsv or .csv or .*: no such file. Name the right one"):
        find(data_dir=folder)
    csv_path = write(tmp_path, "dev.csv", "text,label\n")
    assert find(data_dir=folder) == csv_path
    tsv_path = write(tmp_path, "dev.tsv", "text\tlabel\n")
    assert find("sst2", data_dir=folder) == tsv_path
    with pytest.raises(InputError, match="2 of them are there"):
        find(data_dir=folder)
    assert find(data_dir=folder, dev_file=csv_path) == csv_path
    with pytest.raises(InputError, match=r"missing\.csv: no such file"):
        find(data_dir=folder, dev_file=str(tmp_path / "missing.csv"))
    with pytest.raises(InputError, match=r"dev\.json: expected a file name that ends in \.tsv or \.csv or \.jsonl"):
        find(dev_file=write(tmp_path, "dev.json", "{}"))
    with pytest.raises(InputError, match="expected one file, found 2"):
        find(dev_file=str(tmp_path / "dev.?sv"))


# === Labels ===


def table_of(labels: list, path: str = "train.tsv") -> data.Table:
    count = len(labels)
    return data.Table(path, list(range(2, count + 2)), list(range(count)), count, ["x"] * count, None, labels)


def test_labels_are_the_sorted_set_or_those_given():
    table = table_of(["b", "a", "b"])
    assert data.choose_labels(table) == ["a", "b"]
    assert data.choose_labels(table, ["b", "c", "a"]) == ["b", "c", "a"]
    with pytest.raises(InputError, match="--labels=a,a: a label is empty or given twice"):
        data.choose_labels(table, ["a", "a"])
    with pytest.raises(InputError, match=re.escape("train.tsv: the label column has only the label 'b'.")):
        data.choose_labels(table_of(["b"] * 3))


def test_unknown_label_names_file_line_and_expected_set(capsys):
    table = table_of(["a", "c", "b"], "dev.tsv")
    with pytest.raises(InputError, match=re.escape("dev.tsv:3: unknown label 'c'. Expected 'a', 'b'.")):
        data.find_known(table, ["a", "b"], BadRows())
    bad_rows = BadRows("skip")
    assert data.find_known(table, ["a", "b"], bad_rows) == [True, False, True]
    assert bad_rows.rows == [("dev.tsv:3", "unknown label 'c'. Expected 'a', 'b'.")]
    with pytest.raises(InputError, match="no row has one of the labels 'd', 'e'"):
        data.find_known(table, ["d", "e"], BadRows("skip"))
    many = [f"{i:03d}" for i in range(150)]
    assert data.format_labels(many).endswith("'019', ... (150 in all)")


# === All tables of a call ===


def write_reviews(tmp_path, dev: str = "b\tbad\n") -> None:
    write(tmp_path, "train.tsv", "text\tlabel\na\tgood\nb\tbad\nc\n")
    write(tmp_path, "dev.tsv", f"text\tlabel\na\tgood\n{dev}")


def test_read_inputs_counts_bad_rows_of_all_files(tmp_path):
    write_reviews(tmp_path, "b\tugly\n")
    with pytest.raises(InputError, match="train.tsv:4: expected 2 fields"):
        read_tables("train", "eval", data_dir=str(tmp_path))
    inputs = read_tables("train", "eval", data_dir=str(tmp_path), bad_rows="skip")
    assert inputs.spec.labels == ["bad", "good"] and inputs.bad_rows.count == 2
    assert [part.rows.texts for part in inputs.parts] == [["a", "b"], ["a"]]


def test_without_training_the_model_knows_the_labels(tmp_path):
    write_reviews(tmp_path)
    settings = {"data_dir": str(tmp_path), "output_dir": str(tmp_path)}
    assert read_tables("eval", **settings).spec is None
    (tmp_path / "model").mkdir()
    spec = {"task": "classification", "labels": ["good", "fine"], "sequence_length": 8, "num_texts": 1}
    write(tmp_path / "model", "task.json", json.dumps(spec))
    with pytest.raises(InputError, match="dev.tsv:3: unknown label 'bad'"):
        read_tables("eval", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task_name": "sst2", "regression": True}, r"--regression: sst2 has classes \(0, 1\), not scores."),
        ({"task_name": "stsb", "labels": ["a", "b"]}, "--labels=a,b: a task with scores has no classes."),
        ({"task_name": "ax"}, "--task_name=ax: GLUE has no train file of it. It can only be predicted"),
    ],
)
def test_flags_that_contradict_the_task(settings, message):
    with pytest.raises(InputError, match=message):
        read_tables("train", **settings)


@needs_data
@pytest.mark.parametrize(
    ("settings", "folder", "has_header", "labels"),
    [
        ({"task_name": "sst2"}, "sst2", True, ["0", "1"]),
        ({"task_name": "cola"}, "cola", False, ["0", "1"]),
        ({"task_name": "rte"}, "rte", True, ["entailment", "not_entailment"]),
        ({"text_column": "review"}, "waimai", True, ["0", "1"]),
    ],
)
def test_real_files_keep_every_row(settings, folder, has_header, labels):
    inputs = read_tables("train", "eval", data_dir=str(SHARED / folder), **settings)
    for part in inputs.parts:
        lines = pathlib.Path(part.rows.path).read_text(encoding="utf-8").splitlines()
        assert len(part.rows.texts) == len(lines) - has_header > 300
    assert inputs.spec.labels == labels


@needs_data
def test_real_scores_without_a_header():
    inputs = read_tables(
        "train",
        "eval",
        regression=True,
        data_dir=str(SHARED / "stsb"),
        column_names=["sentence1", "sentence2", "score"],
        text_column="sentence1",
        text_pair_column="sentence2",
        label_column="score",
    )
    train, dev = (part.rows for part in inputs.parts)
    for table in (train, dev):
        with open(table.path, encoding="utf-8", newline="") as file:
            assert len(table.texts) == sum(1 for _ in csv.reader(file)) > 400
    assert inputs.spec.labels == []
    assert min(train.labels) == 0.0 and max(train.labels) == 5.0
