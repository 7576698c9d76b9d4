"""Tables of `bert-swag`: SWAG's CSV and others, what a bad row is, and the token ids of each choice."""

import csv
import json
import re

import numpy as np
import pytest
import toy_choices
from repository import SHARED, needs_data

from keras_bert import BertTokenizer
from keras_bert.errors import InputError
from tasks.fine_tuning import encoding
from tasks.fine_tuning.task import Answers, Part, Trained
from tasks.swag import data
from tasks.swag.data import Columns, Table
from tasks.swag.task import Swag, SwagSettings, SwagSpec
from tasks.text.bad_rows import BadRows

HEADER = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
ROW = '0,v,1,s,A man sits.,He,gold,stands up.,flies.,"sinks, then floats.",sleeps.,2\n'
QUIZ = Columns("question", None, ("options",), "answer")
PLAIN = Columns("q", None, ("a", "b"))


def write(tmp_path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def read(path, columns=Columns(), policy="refuse", with_labels=True) -> Table:  # noqa: B008
    return data.read_table(path, columns, BadRows(policy), with_labels)


# === Formats ===


@needs_data
def test_swags_own_file_keeps_every_row():
    path = SHARED / "swag" / "sample.csv"
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    table = read(str(path))
    assert table.labels == [int(row["label"]) for row in rows] and table.lines == list(range(2, 10))
    assert table.contexts == [row["sent1"] for row in rows]
    assert table.choices == [[f"{row['sent2']} {row[f'ending{n}']}" for n in range(4)] for row in rows]


def test_swag_columns_and_quotes(tmp_path):
    path = write(tmp_path, "train.csv", "\ufeff" + HEADER + ROW + "\n\n")
    choices = ["He stands up.", "He flies.", "He sinks, then floats.", "He sleeps."]
    assert read(path) == Table(path, [2], [0], ["A man sits."], [choices], [2])


def test_a_test_file_needs_no_label(tmp_path):
    path = write(tmp_path, "test.csv", "sent1,sent2,ending0,ending1,ending2\na,b,c,d,e\n")
    table = read(path, with_labels=False)
    assert table.labels is None and table.choices == [["b c", "b d", "b e"]]


def test_other_columns_without_a_start(tmp_path):
    path = write(tmp_path, "quiz.csv", 'b,right,q,a\nyes,1,"Is it,\nreally?",no\nup,0,Which way?,down\n')
    table = read(path, Columns("q", None, ("a", "b"), "right"))
    assert table == Table(
        path, [2, 4], [0, 1], ["Is it,\nreally?", "Which way?"], [["no", "yes"], ["down", "up"]], [1, 0]
    )


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (QUIZ, {"question": "q", "options": ["a", "b", "c"], "answer": 2}),
        (QUIZ, {"question": " q ", "options": ["a", "b ", "c"], "answer": "2"}),
        (Columns("ctx_a", "ctx_b"), {"ctx_a": "q", "ctx_b": "", "endings": ["a", "b", "c"], "label": 2.0}),
        (Columns("ctx", None), {"ctx": "q", "ending1": "b", "ending0": "a", "ending2": "c", "label": 2}),
        (Columns("ctx", None, ("x", "y", "z")), {"ctx": "q", "z": "c", "x": "a", "y": "b", "label": 2}),
    ],
)
def test_json_lines_with_a_list_or_a_key_a_choice(tmp_path, columns, row):
    path = toy_choices.write_jsonl(tmp_path / "x.jsonl", [row])
    assert read(path, columns) == Table(path, [1], [0], ["q"], [["a", "b", "c"]], [2])


def test_more_than_ten_endings_come_in_the_order_of_their_numbers(tmp_path):
    numbers = [10, 2, 0, 1, 3, 4, 5, 6, 7, 8, 9]
    header = ",".join(["sent1", "sent2", "label", *(f"ending{number}" for number in numbers)])
    path = write(tmp_path, "x.csv", header + "\nc,s,10," + ",".join(f"e{number}" for number in numbers) + "\n")
    assert read(path).choices == [[f"s e{number}" for number in range(11)]]


# === Wrong files ===


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("", Columns(), "x.csv: the file is empty. Expected a header"),
        ("a,b,q,label\n", PLAIN, "x.csv: the file holds no rows. Expected one question a row"),
        (HEADER.replace("sent2", "sent3") + ROW, Columns(), "x.csv:1: no column 'sent2' in the header. Columns there:"),
        (HEADER.replace("label", "gold") + ROW, Columns(), "x.csv:1: no column 'label' in the header"),
        (HEADER.replace("ending", "e") + ROW, Columns(), "x.csv:1: no column 'ending0' in the header. Columns"),
        (HEADER.replace("ending1", "e1") + ROW, Columns(), "x.csv:1: no column 'ending1' in the header. Columns"),
        ("q,a,a,b,label\n", PLAIN, "x.csv:1: 2 columns named 'a' in the header"),
        ('q,a,b,label\nx,y,z,0\n"x,y,z,1\nx,y,z,1\n', PLAIN, "x.csv:3: not valid CSV in the row that starts here"),
    ],
)
def test_wrong_files(tmp_path, content, columns, message):
    with pytest.raises(InputError, match=re.escape(message)):
        read(write(tmp_path, "x.csv", content), columns, policy="skip")


def test_one_choice_is_none(tmp_path):
    path, told = (
        write(tmp_path, "x.csv", "q,a,label\nx,y,0\n"),
        "x.csv:2: expected at least two choices in a. Name them",
    )
    with pytest.raises(InputError, match=told):
        read(path, Columns("q", None, ("a",)))


CSV_ROWS = [
    ("x,y,z,2", "label '2': expected the number of the right choice, 0 to 1."),
    ("x,y,z,-1", "label '-1': expected the number of the right choice, 0 to 1."),
    ("x,y,z,", "label '': expected the number of the right choice, 0 to 1."),
    ("x,y,z,b", "label 'b': expected"),
    ("x,y,z,0.5", "label '0.5': expected"),
    ("x, ,z,1", "column 'a' is empty. Fill it or remove the row."),
    (",y,z,1", "column 'q' is empty."),
    ("x,y,z,1,1", "expected 4 fields (q, a, b, label), found 5. A comma inside a text needs quotes around the text."),
    ("x,y", "expected 4 fields (q, a, b, label), found 2."),
    ("", "a blank line between rows. Remove it or fill it."),
]
JSON_ROWS = [
    ('{"q": "x", "c": ["y", "z"], "label": 2}', "label 2: expected the number of the right choice, 0 to 1."),
    ('{"q": "x", "c": ["y", "z"], "label": true}', "label True: expected"),
    ('{"q": "x", "c": ["y", "z"], "label": null}', "label None: expected"),
    ('{"q": "x", "c": ["y", "z"]}', "no key 'label' in the object. Keys there: 'q', 'c'."),
    ('{"c": ["y", "z"], "label": 0}', "no key 'q' in the object. Keys there: 'c', 'label'."),
    ('{"q": 7, "c": ["y", "z"], "label": 0}', "column 'q': expected a text, found int 7."),
    ('{"q": "x", "c": ["y", ""], "label": 0}', "column 'c[1]' is empty."),
    ('{"q": "x", "c": ["y", "z", "z"], "label": 0}', "expected 2 choices as in line 1, found 3."),
    ('{"q": "x", "c": ["y"], "label": 0}', "expected at least two choices in c."),
    ('{"q": "x", "c": "y", "label": 0}', "expected at least two choices in c."),
    ('["x"]', "expected a JSON object, found list."),
    ('{"q": "x"', "not valid JSON (Expecting ',' delimiter"),
]


@pytest.mark.parametrize(
    ("name", "row", "message"), [("x.csv", *case) for case in CSV_ROWS] + [("x.jsonl", *case) for case in JSON_ROWS]
)
def test_bad_rows_are_refused_or_skipped_by_line(tmp_path, capsys, name, row, message):
    columns = PLAIN if name == "x.csv" else Columns("q", None, ("c",))
    good = "p,y,z,1" if name == "x.csv" else json.dumps({"q": "p", "c": ["y", "z"], "label": 1})
    lines = [*(["q,a,b,label"] if name == "x.csv" else []), good, row, good]
    number = lines.index(row) + 1
    path = write(tmp_path, name, "\n".join(lines) + "\n")
    with pytest.raises(InputError, match=re.escape(f"{path}:{number}: {message}")):
        read(path, columns)
    bad_rows = BadRows("skip")
    table = data.read_table(path, columns, bad_rows)
    assert table.labels == [1, 1] and table.lines == [number - 1, number + 1] and table.numbers == [0, 2]
    assert bad_rows.count == 1 and f"skipped: {path}:{number}: {message}" in capsys.readouterr().err


def settings(**given):
    return SwagSettings(output_dir="run", **given)


def find(split, **given):
    return settings(**given).find_file(split, data.SPLIT_NAMES[split], data.EXTENSIONS)


def test_find_split(tmp_path):
    folder = str(tmp_path)
    with pytest.raises(InputError, match="No dev file was named. Give --dev_file, or --data_dir with a val.csv"):
        find("dev")
    with pytest.raises(InputError, match="/val or dev, ending in .csv or .*: no such file. Name the right one"):
        find("dev", data_dir=folder)
    val = write(tmp_path, "val.csv", "")
    assert find("dev", data_dir=folder) == val
    dev = write(tmp_path, "dev.jsonl", "")
    with pytest.raises(InputError, match="val.csv or .*dev.jsonl: 2 of them are there. Name the right one with --dev"):
        find("dev", data_dir=folder)
    assert find("dev", data_dir=folder, dev_file=dev) == dev
    with pytest.raises(InputError, match="x.tsv: expected a file name that ends in .csv or .jsonl or .*xlsx."):
        find("train", train_file=write(tmp_path, "x.tsv", ""))
    write(tmp_path, "dev.csv", "")
    with pytest.raises(InputError, match="expected one file, found 2"):
        find("train", train_file=str(tmp_path / "dev.*"))


def test_tables_must_agree_on_the_number_of_choices():
    part = Part("dev", Table("two.csv", [5], [3], ["c"], [["x", "y"]], [0]))
    assert Swag(settings()).match(part, SwagSpec(sequence_length=8, num_choices=2), BadRows()) is part
    with pytest.raises(InputError, match=re.escape("two.csv:5: 2 choices a row, but the model chooses among 3.")):
        Swag(settings()).match(part, SwagSpec(sequence_length=8, num_choices=3), BadRows())


# === Token ids ===


def encode(table, tokenizer, length):
    spec = SwagSpec(sequence_length=length, num_choices=table.num_choices)
    return Swag(settings()).encode(Part("dev", table), Trained(None, tokenizer, spec)).examples


TOKENIZER_PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e"]


def test_predictions_have_the_numbers_of_the_file_s_rows(tmp_path):
    table = Table("x", [2, 4], [0, 2], ["a", "b"], [["c", "d"]] * 2, None)  # The row between them was left out.
    answers = Answers(None, Part("test", table), None, np.array([[0.0, 1.0], [1.0, 0.0]]))
    (path,), details = Swag(settings()).write_predictions(answers, str(tmp_path))
    with open(path, encoding="utf-8") as file:
        assert [(row["index"], row["prediction"]) for row in csv.DictReader(file)] == [("0", "1"), ("2", "0")]
    assert details == {"test_rows": 2}


def test_each_choice_is_a_pair_with_the_context():
    table = Table("x", [2, 3], [0, 1], ["a b", "c"], [["d e", "d"], ["d", "e e e"]], [1, 0])
    encoded = encode(table, BertTokenizer(TOKENIZER_PIECES), 16)
    assert encoded.rows_per_example == 2 and encoded.num_examples == 2
    rows = [row.tolist() for row in np.split(encoded.token_ids, encoded.row_splits[1:-1])]
    assert rows == [[2, 5, 6, 3, 8, 9, 3], [2, 5, 6, 3, 8, 3], [2, 7, 3, 8, 3], [2, 7, 3, 9, 9, 9, 3]]
    segments = [row.tolist() for row in np.split(encoded.segment_ids, encoded.row_splits[1:-1])]
    assert segments == [[0] * 4 + [1] * 3, [0] * 4 + [1] * 2, [0] * 3 + [1] * 2, [0] * 3 + [1] * 4]
    np.testing.assert_array_equal(encoded.labels["labels"], [1, 0])
    np.testing.assert_array_equal(encoded.lengths, [7, 7])


def test_what_does_not_fit_loses_the_end_of_the_longer_text():
    table = Table("x", [2], [0], ["a b a b a b"], [["c d e", "e"]], None)
    encoded = encode(table, BertTokenizer(TOKENIZER_PIECES), 8)
    rows = [row.tolist() for row in np.split(encoded.token_ids, encoded.row_splits[1:-1])]
    assert rows == [[2, 5, 6, 5, 3, 7, 8, 3], [2, 5, 6, 5, 6, 3, 9, 3]]
    assert encoded.labels == {}


def test_many_rows_stay_in_order(monkeypatch):
    rows = toy_choices.make_rows(23, num_choices=3)
    choices = [[row[f"ending{number}"] for number in range(3)] for row in rows]
    table = Table(
        "x", list(range(23)), list(range(23)), [row["sent1"] for row in rows], choices, [row["label"] for row in rows]
    )
    tokenizer = BertTokenizer(toy_choices.VOCABULARY)
    whole = encode(table, tokenizer, 32)
    monkeypatch.setattr(encoding, "CHUNK", 5)
    chunked = encode(table, tokenizer, 32)
    np.testing.assert_array_equal(whole.token_ids, chunked.token_ids)
    np.testing.assert_array_equal(whole.row_splits, chunked.row_splits)
    assert len(whole.row_splits) == 23 * 3 + 1
