"""Tables of `bert-classify`: each wrong row is named with its line, and none is lost in silence."""

import dataclasses
import json
import pathlib
import re

import pytest

from keras_bert.errors import InputError
from tasks.bad_rows import BadRows
from tasks.glue import tables
from tasks.glue.inputs import Source, check_steps, read_inputs
from tasks.glue.tasks import TASKS, Split

SHARED = pathlib.Path(__file__).parents[2] / "shared" / "data"
needs_data = pytest.mark.skipif(not SHARED.is_dir(), reason="no real data beside the repository (../shared/data)")
TABLE = TASKS["table"]
PAIRS = dataclasses.replace(TABLE, text_pair_column="other")
SCORES = TABLE.as_regression()


def write(tmp_path, name: str, text: str | bytes) -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(path: str, task=TABLE, policy: str = "refuse", **options) -> tables.Table:
    return tables.read_table(path, task, BadRows(policy), **options)


# === Formats ===


def test_csv_with_quotes_commas_and_texts_over_several_lines(tmp_path):
    text = 'label,id,text\r\na,1,"one, ""two""\nthree"\nb,2,plain\n\n'
    path = write(tmp_path, "train.csv", b"\xef\xbb\xbf" + text.encode())
    assert read(path) == tables.Table(path, [2, 4], [0, 1], 2, ['one, "two"\nthree', "plain"], None, ["a", "b"])


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
    assert read(write(tmp_path, "y.jsonl", '{"text": "a", "label": 2}\n{"text": "b", "label": "3.5"}\n'),
                SCORES).labels == [2.0, 3.5]  # fmt: skip


def test_files_without_a_header_get_names_for_all_columns(tmp_path):
    path = write(tmp_path, "x.csv", '"a, b",c,1.5\nd,e,5\n')
    task = dataclasses.replace(SCORES, text_pair_column="other", headerless_columns=("text", "other", "label"))
    assert read(path, task) == tables.Table(path, [1, 2], [0, 1], 2, ["a, b", "d"], ["c", "e"], [1.5, 5.0])
    assert read(path, task, with_labels=False).texts == ["a, b", "d"]


# === Bad rows ===


BROKEN_FILES = [
    ("x.tsv", "", "x.tsv: the file is empty. Expected a header"),
    ("x.jsonl", "", "x.jsonl: the file is empty. Expected a JSON object a line."),
    ("x.tsv", "text\tlabel\n", "x.tsv: the file holds no rows"),
    ("x.csv", "review,label\na,b\n", "x.csv:1: no column 'text' in the header. Columns there: 'review', 'label'."),
    ("x.csv", "text,text,label\na,a,b\n", "x.csv:1: 2 columns named 'text' in the header"),
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
    ("x.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": [1]}\n', "x.jsonl:2: column 'label': expected a"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN_FILES + BROKEN_ROWS)
def test_wrong_tables_are_named_with_their_line(tmp_path, name, content, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read(write(tmp_path, name, content))


@pytest.mark.parametrize(("name", "content", "message"), BROKEN_ROWS)
def test_bad_rows_are_left_out_when_asked_for(tmp_path, capsys, name, content, message):
    bad_rows = BadRows("skip")
    table = tables.read_table(write(tmp_path, name, content), TABLE, bad_rows)
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


def test_a_file_without_one_usable_row_is_refused(tmp_path):
    with pytest.raises(InputError, match="x.tsv: none of its 2 rows can be used"):
        read(write(tmp_path, "x.tsv", "text\tlabel\n\t1\n\t2\n"), policy="skip")


# === Files of a split ===


def test_find_split(tmp_path):
    folder, dev = str(tmp_path), Split(("dev",))
    with pytest.raises(InputError, match="Give --dev_file, or --data_dir"):
        tables.find_split(TABLE, None, "dev", dev)
    with pytest.raises(InputError, match=re.escape("dev.jsonl: no such file. Name the right one with --dev_file.")):
        tables.find_split(TABLE, folder, "dev", dev)
    csv_path = write(tmp_path, "dev.csv", "text,label\n")
    assert tables.find_split(TABLE, folder, "dev", dev) == csv_path
    tsv_path = write(tmp_path, "dev.tsv", "text\tlabel\n")
    assert tables.find_split(TASKS["sst2"], folder, "dev", dev) == tsv_path
    with pytest.raises(InputError, match="2 of them are there"):
        tables.find_split(TABLE, folder, "dev", dev)
    assert tables.find_split(TABLE, folder, "dev", dev, csv_path) == csv_path
    with pytest.raises(InputError, match=r"missing\.csv: no such file"):
        tables.find_split(TABLE, folder, "dev", dev, str(tmp_path / "missing.csv"))
    with pytest.raises(InputError, match=r"dev\.json: expected a file name that ends in \.tsv or \.csv or \.jsonl"):
        tables.find_split(TABLE, None, "dev", dev, write(tmp_path, "dev.json", "{}"))
    with pytest.raises(InputError, match="expected one file, found 2"):
        tables.find_split(TABLE, None, "dev", dev, str(tmp_path / "dev.?sv"))


# === Labels ===


def table_of(labels: list, path: str = "train.tsv") -> tables.Table:
    count = len(labels)
    return tables.Table(path, list(range(2, count + 2)), list(range(count)), count, ["x"] * count, None, labels)


def test_labels_are_the_sorted_set_or_those_given():
    table = table_of(["b", "a", "b"])
    assert tables.choose_labels(table) == ["a", "b"]
    assert tables.choose_labels(table, ["b", "c", "a"]) == ["b", "c", "a"]
    with pytest.raises(InputError, match="--labels=a,a: a label is empty or given twice"):
        tables.choose_labels(table, ["a", "a"])
    with pytest.raises(InputError, match=re.escape("train.tsv: the label column has the one label 'b'.")):
        tables.choose_labels(table_of(["b"] * 3))


def test_unknown_label_names_file_line_and_expected_set(capsys):
    table = table_of(["a", "c", "b"], "dev.tsv")
    with pytest.raises(InputError, match=re.escape("dev.tsv:3: unknown label 'c'. Expected 'a', 'b'.")):
        tables.keep_known_labels(table, ["a", "b"], BadRows())
    bad_rows = BadRows("skip")
    kept = tables.keep_known_labels(table, ["a", "b"], bad_rows)
    assert kept.labels == ["a", "b"] and kept.lines == [2, 4] and kept.numbers == [0, 2] and kept.num_rows == 3
    assert bad_rows.rows == [("dev.tsv:3", "unknown label 'c'. Expected 'a', 'b'.")]
    with pytest.raises(InputError, match="no row has one of the labels 'd', 'e'"):
        tables.keep_known_labels(table, ["d", "e"], BadRows("skip"))
    many = [f"{i:03d}" for i in range(150)]
    assert tables.format_labels(many).endswith("'019', ... (150 in all)")


# === All tables of a call ===


def write_reviews(tmp_path, dev: str = "b\tbad\n") -> None:
    write(tmp_path, "train.tsv", "text\tlabel\na\tgood\nb\tbad\nc\n")
    write(tmp_path, "dev.tsv", f"text\tlabel\na\tgood\n{dev}")


def test_read_inputs_counts_bad_rows_of_all_files(tmp_path):
    write_reviews(tmp_path, "b\tugly\n")
    with pytest.raises(InputError, match="train.tsv:4: expected 2 fields"):
        read_inputs(Source(data_dir=str(tmp_path)), ["train", "dev"], str(tmp_path))
    inputs = read_inputs(Source(data_dir=str(tmp_path), bad_rows="skip"), ["train", "dev"], str(tmp_path))
    assert inputs.labels == ["bad", "good"] and inputs.bad_rows.count == 2
    assert [table.texts for table in inputs.tables] == [["a", "b"], ["a"]]


def test_without_training_the_model_knows_the_labels(tmp_path):
    write_reviews(tmp_path)
    source = Source(data_dir=str(tmp_path))
    assert read_inputs(source, ["dev"], str(tmp_path)).labels is None
    (tmp_path / "model").mkdir()
    write(tmp_path / "model", "task.json", '{"labels": ["good", "fine"]}')
    with pytest.raises(InputError, match="dev.tsv:3: unknown label 'bad'"):
        read_inputs(source, ["dev"], str(tmp_path))


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
        read_inputs(Source(**settings), ["train"], "")


def test_rows_must_fill_a_batch():
    check_steps(table_of(["a"] * 5), [15], 3.0)
    with pytest.raises(InputError, match="train.tsv: 5 rows in 3 epochs do not fill one batch of 16"):
        check_steps(table_of(["a"] * 5), [15, 16], 3.0)


@needs_data
@pytest.mark.parametrize(
    ("source", "folder", "rows", "labels"),
    [
        (Source(task_name="sst2"), "sst2", (20000, 2000), ["0", "1"]),
        (Source(task_name="cola"), "cola", (6200, 1050), ["0", "1"]),
        (Source(task_name="rte"), "rte", (2127, 363), ["entailment", "not_entailment"]),
        (Source(text_column="review"), "waimai", (8000, 2000), ["0", "1"]),
    ],
)
def test_real_files_keep_every_row(source, folder, rows, labels):
    inputs = read_inputs(dataclasses.replace(source, data_dir=str(SHARED / folder)), ["train", "dev"], "")
    assert tuple(len(table.texts) for table in inputs.tables) == rows
    assert inputs.labels == labels


@needs_data
def test_real_scores_without_a_header():
    source = Source(
        regression=True, data_dir=str(SHARED / "stsb"), column_names=["sentence1", "sentence2", "score"],
        text_column="sentence1", text_pair_column="sentence2", label_column="score",
    )  # fmt: skip
    inputs = read_inputs(source, ["train", "dev"], "")
    assert [len(table.texts) for table in inputs.tables] == [5749, 1500] and inputs.labels == []
    assert min(inputs.train.labels) == 0.0 and max(inputs.train.labels) == 5.0
