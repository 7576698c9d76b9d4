"""Tables in Parquet and Excel workbooks: the same rows as in CSV and JSON Lines, and each fault by its row."""

import dataclasses
import datetime
import json
import re
import zipfile
from decimal import Decimal

import pytest

from keras_bert.errors import InputError
from tasks import settings
from tasks.classify.data import read_table
from tasks.classify.glue import TASKS
from tasks.fine_tuning.columns import choose_text, read_columns
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll
from tasks.text.rows import Broken, open_rows


def excel(tmp_path, *rows, more=()) -> str:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    for row in more:
        book.create_sheet().append(row)
    book.save(tmp_path / "a.xlsx")
    return str(tmp_path / "a.xlsx")


def parquet(tmp_path, columns: dict, features: dict | None = None) -> str:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table(columns)
    if features is not None:  # As datasets 5.2 writes them.
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet")


def shown(path: str) -> list:
    return [(line, str(row) if isinstance(row, Broken) else row) for line, row in open_rows(path).rows]


# === Excel ===


def test_cells_are_text_and_empty_cells_empty(tmp_path):
    day = datetime.datetime(2026, 11, 28)
    path = excel(tmp_path, ["text", "label", "n"], ["a\tb\nc", 1, 2.5], [None, True, day], ["=1", "x"])
    assert open_rows(path).columns == ["text", "label", "n"] and open_rows(path).header_line == 1
    assert shown(path) == [
        (2, {"text": "a\tb\nc", "label": "1", "n": "2.5"}),
        (3, {"text": "", "label": "True", "n": "2026-11-28 00:00:00"}),
        (4, {"text": "", "label": "x", "n": ""}),  # Nothing has computed the formula.
    ]


def test_a_sheet_may_be_wider_and_longer_than_its_table(tmp_path):
    path = excel(tmp_path, ["text", "label", " ", None], ["a", "b", None, ""], [None], ["c", "d"], [" "], more=[["x"]])
    assert shown(path) == [
        (2, {"text": "a", "label": "b"}),
        (3, "a blank line between rows. Remove it or fill it."),
        (4, {"text": "c", "label": "d"}),
    ]


def test_a_stale_size_of_the_sheet_loses_no_row(tmp_path):
    path = excel(tmp_path, ["text", "label"], *([f"row {number}", "a"] for number in range(20)))
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    assert b'ref="A1:B21"' in files[sheet]
    files[sheet] = files[sheet].replace(b'ref="A1:B21"', b'ref="A1"')
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert open_rows(path).columns == ["text", "label"] and len(shown(path)) == 20


def test_a_cell_beyond_the_header_is_named(tmp_path):
    path = excel(tmp_path, ["text", "label"], ["a", "b", "c"])
    assert shown(path) == [(2, "expected 2 fields (text, label), found 3. Name every column in the first row.")]


@pytest.mark.parametrize("options", [{}, {"is_multi_label": True}, {"is_regression": True}])
def test_the_error_of_a_formula_is_no_value(tmp_path, options):
    path = excel(tmp_path, ["text", "label", "#REF!"], ["a", "1", "#DIV/0!"], ["b", "#N/A"], ["c", "2"])
    task, bad_rows = dataclasses.replace(TASKS["table"], **options), BadRows("skip")
    assert read_table(path, task, bad_rows).texts == ["a", "c"]
    [(place, reason)] = bad_rows.rows
    assert place.endswith("a.xlsx:3") and re.match(r"column 'label': expected .*, found .*#N/A\. ", reason)
    assert read_columns(path)["label"].is_number


def test_a_sheet_without_a_header(tmp_path):
    path = excel(tmp_path, ["a"], ["b", "c"], ["d"])
    file = open_rows(path, ["text", "label"])
    values = [("a", ""), ("b", "c"), ("d", "")]  # The first row need not be the widest.
    assert list(file.rows) == [(line, {"text": text, "label": label}) for line, (text, label) in enumerate(values, 1)]
    with pytest.raises(InputError, match="a.xlsx: the file is empty. Expected a header with column names, then rows"):
        open_rows(excel(tmp_path))


# === Parquet ===


def test_values_keep_their_types_and_class_numbers_become_names(tmp_path):
    names = {"names": ["no", "yes"], "_type": "ClassLabel"}
    columns = {"text": ["a", None, "c"], "label": [1, 0, -1], "all": [[0, 1], [], None], "n": [1, 2, 3]}
    features = {"label": names, "all": {"feature": names, "_type": "List"}, "n": {"dtype": "int64", "_type": "Value"}}
    assert shown(parquet(tmp_path, columns, features)) == [
        (1, {"text": "a", "label": "yes", "all": ["no", "yes"], "n": 1}),
        (2, {"text": None, "label": "no", "all": [], "n": 2}),
        (3, {"text": "c", "label": None, "all": None, "n": 3}),
    ]
    assert [row["label"] for _, row in open_rows(parquet(tmp_path, columns)).rows] == [1, 0, -1]


@pytest.mark.parametrize("item", [[{"names": ["no", "yes"], "_type": "ClassLabel"}], []])
def test_lists_of_older_versions_have_names_too(tmp_path, item):
    path = parquet(tmp_path, {"all": [[0, 1], None]}, {"all": item})
    assert [row["all"] for _, row in shown(path)] == [["no", "yes"] if item else [0, 1], None]


@pytest.mark.parametrize("features", [[{"name": "label", "_type": "ClassLabel", "names": ["no", "yes"]}], "text"])
def test_what_is_written_in_another_form_gives_no_names(tmp_path, features):
    assert shown(parquet(tmp_path, {"label": [1, 0]}, features)) == [(1, {"label": 1}), (2, {"label": 0})]


def test_whole_numbers_of_any_type_are_labels(tmp_path):
    bad_rows = BadRows("skip")
    for values in ([1.0, 0.0, None, 1.5], [Decimal("1.0"), Decimal("0.0"), None, Decimal("1.5")]):
        path = parquet(tmp_path, {"text": list("abcd"), "label": values})
        assert read_table(path, TASKS["table"], bad_rows).labels == ["1", "0"]
    assert "column 'label': expected a label, found float 1.5. Correct it" in bad_rows.rows[1][1]


def test_decimals_are_scores(tmp_path):
    scores = [Decimal("1.25"), Decimal("-20.00")]
    path = parquet(tmp_path, {"text": ["a", "b"], "label": scores})
    task = dataclasses.replace(TASKS["table"], is_regression=True)
    assert read_table(path, task, BadRows("refuse")).labels == [1.25, -20.0]
    assert read_columns(path)["label"].is_fractional


def test_columns_of_dates_are_looked_at(tmp_path):
    day = datetime.datetime(2026, 11, 28)
    path = parquet(tmp_path, {"text": ["a"], "days": [[day, day]], "day": [day], "all": [[1]]})
    columns = read_columns(path)
    assert list(columns) == ["text", "days", "day", "all"] and not columns["day"].values
    assert not columns["days"].is_list and columns["all"].is_list


def test_a_column_of_bytes_is_named(tmp_path):
    columns = read_columns(parquet(tmp_path, {"text": [b"a"], "label": [1]}))
    assert choose_text("a.parquet", columns) == "text"  # The reader then says what its cells hold.
    with pytest.raises(InputError, match="expected a column of texts, found none among: 'body' .0 characters."):
        choose_text("a.parquet", read_columns(parquet(tmp_path, {"body": [b"a"]})))


def test_the_index_of_pandas_is_no_column(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"text": ["a", "b", "c"], "label": [1, 0, 1]})
    frame[frame["label"] == 1].to_parquet(tmp_path / "a.parquet")
    assert shown(str(tmp_path / "a.parquet")) == [(1, {"text": "a", "label": 1}), (2, {"text": "c", "label": 1})]


def test_columns_of_one_name_are_refused(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 3, names=["text", "label", "text"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match="a.parquet: several columns named 'text'. Columns there: 'text', 'label', 't"):
        shown(str(tmp_path / "a.parquet"))


def test_tokens_and_tags(tmp_path):
    columns = {"tokens": [["Ada", "wrote"], ["in", "London"]], "ner_tags": [[1, 0], [0, 2]]}
    features = {"ner_tags": {"feature": {"names": ["O", "B-x", "B-y"], "_type": "ClassLabel"}, "_type": "Sequence"}}
    path, bad_rows = parquet(tmp_path, columns, features), BadRows("refuse")
    documents = read_conll(path, bad_rows=bad_rows)
    assert documents.tokens == ["Ada", "wrote", "in", "London"] and documents.tags == ["B-x", "O", "O", "B-y"]
    assert documents.lines == [1, 1, 2, 2]
    with pytest.raises(InputError, match="a.parquet:1: "):
        read_conll(parquet(tmp_path, columns), bad_rows=bad_rows)


# === Faults ===


@pytest.mark.parametrize("name", ["a.xlsx", "a.parquet"])
@pytest.mark.parametrize("content", [b"", b"text,label\n", b"PK\x03\x04 and more", b"PAR1 and more PAR1"])
def test_a_damaged_file_is_refused(tmp_path, name, content):
    pytest.importorskip("openpyxl" if name == "a.xlsx" else "pyarrow")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: cannot be read as (an Excel workbook|Parquet) \(.+\). Save it"):
        list(open_rows(str(tmp_path / name)).rows)


@pytest.mark.parametrize(("name", "extra"), [("a.xlsx", "excel"), ("a.parquet", "parquet")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, extra):
    monkeypatch.setitem(settings.EXTRAS, extra, ("no_such_package",))
    with pytest.raises(
        InputError, match=rf"{name} needs no_such_package. Run: pip install 'keras-bert-zoo\[{extra}\]'"
    ):
        list(open_rows(str(tmp_path / name)).rows)
