"""Tables, labels and batches of `bert-classify`: each wrong file is named with its line, and no row is lost."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

from keras_bert.errors import InputError
from tasks.glue import data
from tasks.glue.tasks import TASKS

SHARED = pathlib.Path(__file__).parents[2] / "shared" / "data"
TABLE = TASKS["table"]
PAIRS = dataclasses.replace(TABLE, text_pair_column="other")


def write(tmp_path, name: str, text: str | bytes) -> str:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


class WordPreprocessor:
    """Stands in for `BertPreprocessor`: one id a word, 2 + words (+ 1 + words of the pair), dense and padded."""

    def __call__(self, inputs):
        firsts, seconds = inputs if isinstance(inputs, tuple) else (inputs, None)
        rows = [[2, *map(int, text.split()), 3] for text in firsts]
        segments = [[0] * len(row) for row in rows]
        for row, segment, second in zip(rows, segments, seconds or [], strict=seconds is not None):
            row += [*map(int, second.split()), 3]
            segment += [1] * (len(row) - len(segment))
        longest = max(map(len, rows))
        pad = np.array([[*row, *[0] * (longest - len(row))] for row in rows], np.int32)
        mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int32)
        segment_ids = np.array([[*row, *[0] * (longest - len(row))] for row in segments], np.int32)
        return {"token_ids": pad, "segment_ids": segment_ids, "padding_mask": mask}


# === Files ===


def test_csv_with_quotes_commas_and_texts_over_several_lines(tmp_path):
    text = 'label,id,text\r\na,1,"one, ""two""\nthree"\nb,2,plain\n\n'
    path = write(tmp_path, "train.csv", b"\xef\xbb\xbf" + text.encode())
    table = data.read_table(path, TABLE)
    assert table == data.Table(path, [2, 4], ['one, "two"\nthree', "plain"], None, ["a", "b"])


def test_csv_takes_texts_of_any_length(tmp_path):
    long = "word " * 40_000  # Python's own limit is 131,072 characters
    path = write(tmp_path, "train.csv", f'label,text\na,"{long}"\n'.encode())
    assert data.read_table(path, TABLE).texts == [long]
    path = write(tmp_path, "train.csv", f'label,text\na,"{long}\n'.encode())
    with pytest.raises(InputError, match="train.csv:2: not valid CSV .* Close every quote"):
        data.read_table(path, TABLE)


def test_tsv_has_no_quoting(tmp_path):
    path = write(tmp_path, "train.tsv", 'text\tother\tlabel\n"open\tsaid "x", y\t1\nb\tc\t0\n')
    table = data.read_table(path, PAIRS)
    assert table.texts == ['"open', "b"] and table.text_pairs == ['said "x", y', "c"] and table.labels == ["1", "0"]


def test_cola_has_a_header_in_its_test_file_only(tmp_path):
    train = write(tmp_path, "train.tsv", "gj04\t1\t\tOur friends.\ngj04\t0\t*\tThey drank the pub.\n")
    test = write(tmp_path, "test.tsv", "index\tsentence\n0\tBill whistled.\n")
    task = TASKS["cola"]
    assert data.read_table(train, task) == data.Table(
        train, [1, 2], ["Our friends.", "They drank the pub."], None, ["1", "0"]
    )
    assert data.read_table(test, task, with_labels=False) == data.Table(test, [2], ["Bill whistled."], None, None)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.tsv", "", "x.tsv: the file is empty. Expected a header"),
        ("x.tsv", "text\tlabel\n", "x.tsv: the file holds no rows"),
        ("x.csv", "review,label\na,b\n", "x.csv:1: no column 'text' in the header. Columns there: 'review', 'label'."),
        ("x.csv", "text,text,label\na,a,b\n", "x.csv:1: 2 columns named 'text' in the header"),
        ("x.csv", 'text,label\n"a\nb",1\nc,d,1\n', "x.csv:4: expected 2 fields (text, label), found 3. A comma"),
        ("x.tsv", "text\tlabel\na\t1\nb\n", "x.tsv:3: expected 2 fields (text, label), found 1. A text must not"),
        ("x.tsv", "text\tlabel\na\t1\n \t1\n", "x.tsv:3: column 'text' is empty"),
        ("x.tsv", "text\tlabel\na\t1\nb\t\n", "x.tsv:3: column 'label' is empty"),
        ("x.tsv", "text\tlabel\na\t1\n\n\nb\t2\n", "x.tsv:3: a blank line between rows"),
        ("x.csv", 'text,label\na,1\n"b,1\nc,1\n', "x.csv:3: not valid CSV in the row that starts here"),
        ("x.csv", 'text,label\n"a"b,1\n', "x.csv:2: not valid CSV in the row that starts here"),
        ("x.tsv", b"text\tlabel\na\t1\ncaf\xe9\t1\n", "x.tsv:3: not valid UTF-8 at byte 3"),
        ("x.csv", b"text,label\na,1\ncaf\xe9,1\n", "x.csv:3: not valid UTF-8 at byte 3"),
    ],
)
def test_wrong_tables_are_named_with_their_line(tmp_path, name, content, message):
    with pytest.raises(InputError, match=re.escape(message)):
        data.read_table(write(tmp_path, name, content), TABLE)


def test_rows_of_cola_need_four_fields(tmp_path):
    path = write(tmp_path, "train.tsv", "a\t1\t\tb\nc\t0\td\n")
    with pytest.raises(InputError, match=re.escape("train.tsv:2: expected 4 fields (source, label, mark, sentence)")):
        data.read_table(path, TASKS["cola"])


def test_find_split(tmp_path):
    folder = str(tmp_path)
    with pytest.raises(InputError, match="Give --dev_file, or --data_dir"):
        data.find_split(TABLE, None, "dev", None)
    with pytest.raises(InputError, match=re.escape("dev.csv: no such file. Name the right one with --dev_file.")):
        data.find_split(TABLE, folder, "dev", None)
    csv_path = write(tmp_path, "dev.csv", "text,label\n")
    assert data.find_split(TABLE, folder, "dev", None) == csv_path
    tsv_path = write(tmp_path, "dev.tsv", "text\tlabel\n")
    assert data.find_split(TASKS["sst2"], folder, "dev", None) == tsv_path
    with pytest.raises(InputError, match="both are there"):
        data.find_split(TABLE, folder, "dev", None)
    assert data.find_split(TABLE, folder, "dev", csv_path) == csv_path
    with pytest.raises(InputError, match=r"missing\.csv: no such file"):
        data.find_split(TABLE, folder, "dev", str(tmp_path / "missing.csv"))
    with pytest.raises(InputError, match=r"dev\.json: expected a file name that ends in \.tsv or \.csv"):
        data.find_split(TABLE, None, "dev", write(tmp_path, "dev.json", "{}"))
    with pytest.raises(InputError, match="expected one file, found 2"):
        data.find_split(TABLE, None, "dev", str(tmp_path / "dev.?sv"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="no real data beside the repository (../shared/data)")
def test_real_files_keep_every_row():
    waimai = dataclasses.replace(TABLE, text_column="review")
    rte = dataclasses.replace(TABLE, text_column="sentence1", text_pair_column="sentence2")
    for task, path, rows in (
        (TASKS["sst2"], "sst2/train.tsv", 20000),
        (TASKS["cola"], "cola/train.tsv", 6200),
        (waimai, "waimai/train.csv", 8000),
        (rte, "rte/dev.tsv", 363),
    ):
        table = data.read_table(str(SHARED / path), task)
        assert len(table.texts) == rows
        assert len(set(table.labels)) == 2


# === Labels ===


def test_labels_are_the_sorted_set_or_those_given():
    table = data.Table("train.tsv", [2, 3, 4], ["x", "y", "z"], None, ["b", "a", "b"])
    assert data.choose_labels(table) == ["a", "b"]
    assert data.choose_labels(table, ["b", "c", "a"]) == ["b", "c", "a"]
    with pytest.raises(InputError, match="--labels=a,a: a label is empty or given twice"):
        data.choose_labels(table, ["a", "a"])
    with pytest.raises(InputError, match=re.escape("train.tsv: the label column has the one label 'b'.")):
        data.choose_labels(table._replace(labels=["b"] * 3))


def test_unknown_label_names_file_line_and_expected_set():
    table = data.Table("dev.tsv", [2, 5], ["x", "y"], None, ["a", "c"])
    with pytest.raises(InputError, match=re.escape("dev.tsv:5: unknown label 'c'. Expected 'a', 'b'.")):
        data.check_labels(table, ["a", "b"])
    many = [f"{i:03d}" for i in range(150)]
    assert data.format_labels(many).endswith("'019', ... (150 in all)")


# === Batches ===


@pytest.fixture(scope="module", name="lengths")
def _lengths():
    return np.random.default_rng(3).integers(2, 100, 1000)


def test_each_row_comes_exactly_once_per_epoch(lengths):
    for epoch in range(2):
        batches = data.epoch_batches(lengths, 8, seed=1, epoch=epoch)
        assert batches.shape == (125, 8)
        np.testing.assert_array_equal(np.sort(batches.ravel()), np.arange(1000))


def test_rows_that_fill_no_batch_open_the_next_epoch(lengths):
    epochs = [data.epoch_batches(lengths, 32, 1, epoch) for epoch in range(4)]
    assert [len(batches) for batches in epochs] == [31, 31, 31, 32]  # 31.25 batches an epoch
    np.testing.assert_array_equal(np.bincount(np.concatenate(epochs).ravel()), np.full(1000, 4))
    assert len(set(epochs[0].ravel())) == 31 * 32  # no row twice before its epoch ends
    assert data.count_steps(1000, 32, 4) == 125 and data.count_steps(1000, 32, 3) == 93


def test_order_is_a_pure_function_of_seed_and_epoch(lengths):
    first = data.epoch_batches(lengths, 8, 1, 0)
    np.testing.assert_array_equal(first, data.epoch_batches(lengths, 8, 1, 0))
    assert (first != data.epoch_batches(lengths, 8, 1, 1)).any()
    assert (first != data.epoch_batches(lengths, 8, 2, 0)).any()


@pytest.mark.parametrize(("rows", "batch_size"), [(1000, 32), (7, 3), (5, 12), (64, 32)])
def test_resuming_at_any_step_gives_the_rest_of_the_same_batches(lengths, rows, batch_size):
    whole = data.train_batches(lengths[:rows], batch_size, 5, 0, 100)
    assert whole.shape == (100, batch_size)
    for start in range(101):
        rest = data.train_batches(lengths[:rows], batch_size, 5, start, 100)
        np.testing.assert_array_equal(rest, whole[start:])


def test_buckets_save_padding(lengths):
    def padded(batches):
        return lengths[batches].max(axis=1).sum() * batches.shape[1]

    buckets = data.epoch_batches(lengths, 8, 1, 0)
    arrival = np.arange(1000).reshape(-1, 8)
    assert padded(buckets) < 1.08 * lengths.sum() < padded(arrival) / 1.5
    assert (np.diff(lengths[buckets].max(axis=1)) < 0).any()  # not simply from short to long


@pytest.fixture(scope="module", name="encoded")
def _encoded():
    texts = [" ".join(["7"] * (i % 11) + [str(i)]) for i in range(1, 51)]
    table = data.Table("x.tsv", list(range(50)), texts, texts[::-1], ["ab"[i % 2] for i in range(50)])
    return data.encode_table(table, WordPreprocessor(), ["b", "a"])


def rows_of(dataset):
    """Unpadded rows of all batches: token ids, segment ids, label; and the padded shapes."""
    rows, shapes = [], []
    for features, *labels in dataset.as_numpy_iterator():
        mask = features["padding_mask"].astype(bool)
        shapes.append(mask.shape)
        assert mask[:, -1].any() or mask.shape[1] == 40
        assert not features["token_ids"][~mask].any() and not features["segment_ids"][~mask].any()
        for i, kept in enumerate(mask):
            label = labels[0]["labels"][i] if labels else None
            rows.append((features["token_ids"][i][kept], features["segment_ids"][i][kept], label))
    return rows, shapes


def expected_row(i: int):
    first, second = ([7] * (n % 11) + [n] for n in (i + 1, 50 - i))
    return [2, *first, 3, *second, 3], [0] * (len(first) + 2) + [1] * (len(second) + 1), 1 - i % 2


def test_evaluation_batches_hold_every_row_once_padded_to_the_longest(encoded):
    dataset, order = data.make_eval_dataset(encoded, 8)
    rows, shapes = rows_of(dataset)
    assert sorted(order) == list(range(50)) and [shape[0] for shape in shapes] == [8] * 6 + [2]
    for i, row in zip(order, rows, strict=True):
        for got, expected in zip(row, expected_row(i), strict=True):
            np.testing.assert_array_equal(got, expected)
    assert all(spec.shape.as_list() == [None, None] for spec in dataset.element_spec[0].values())


def test_encoding_in_pieces_equals_encoding_at_once(encoded, monkeypatch):
    texts = [" ".join(["7"] * (i % 11) + [str(i)]) for i in range(1, 51)]
    monkeypatch.setattr(data, "ENCODE_ROWS", 7)
    pieces = data.encode_table(data.Table("x", [], texts, texts[::-1], None), WordPreprocessor(), ["b", "a"])
    for got, expected in zip(pieces[:3], encoded[:3], strict=True):
        np.testing.assert_array_equal(got, expected)
    assert pieces.labels is None
    assert len(data.make_eval_dataset(pieces, 8)[0].element_spec) == 1  # features only


def test_training_batches_follow_the_plan_and_resume(encoded):
    plan = data.train_batches(encoded.lengths, 8, 5, 0, 20)
    rows, _ = rows_of(data.make_train_dataset(encoded, 8, 5, start_step=0, num_steps=20))
    for i, row in zip(plan.ravel(), rows, strict=True):
        np.testing.assert_array_equal(row[0], expected_row(i)[0])
    rest, shapes = rows_of(data.make_train_dataset(encoded, 8, 5, start_step=17, num_steps=20, length=40))
    assert shapes == [(8, 40)] * 3
    for row, expected in zip(rest, rows[17 * 8 :], strict=True):
        np.testing.assert_array_equal(row[0], expected[0])


def test_a_fixed_length_gives_static_shapes(encoded):
    dataset = data.make_train_dataset(encoded, 8, 5, start_step=0, num_steps=20, length=40)
    assert all(spec.shape.as_list() == [8, 40] for spec in dataset.element_spec[0].values())
