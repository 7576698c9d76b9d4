"""Files of embeddings: what was written is what is read back, in every format, block by block, or nothing at all."""

import json
import os
import re

import numpy as np
import pytest

from keras_bert.errors import InputError
from tasks.features.writing import Column, check_path, open_writer

VOCABULARY = np.array(["[PAD]", "[CLS]", "[SEP]", "zoë", "##'s"])
INDICES = {"layer_2": -1, "embeddings": "embeddings", "features": "sum"}


def token_block(lengths, first_index, seed, words=False):
    generator = np.random.default_rng(seed)
    count = sum(lengths)
    ids, segments, starts = (generator.integers(0, 5, count, np.int32) for _ in range(3))
    columns = {name: generator.normal(size=(count, 3)).astype(np.float32) for name in ("layer_2", "embeddings")}
    columns |= {"tokens": VOCABULARY[ids], "token_ids": ids, "segment_ids": segments}
    columns |= {"starts": starts, "ends": starts + 2}
    splits = np.cumsum([0, *lengths])
    block = {"index": Column(np.arange(len(lengths)) * 2 + first_index)}
    block |= {name: Column(values, splits) for name, values in columns.items()}
    if words:
        block["word_starts"] = Column(np.arange(len(lengths), dtype=np.int32) + 1, np.arange(len(lengths) + 1))
    return block


def pooled_block(count, first_index, seed):
    vectors = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return {"index": Column(np.arange(count) + first_index), "features": Column(vectors)}


def write(path, blocks):
    with open_writer(str(path), INDICES) as write:
        for block in blocks:
            write(block)
    return str(path)


def rows_of(blocks):
    """Each row as a dict of arrays, cut out by hand."""
    rows = []
    for block in blocks:
        for place in range(len(block["index"].values)):
            row = {}
            for name, (values, splits) in block.items():
                row[name] = values[place] if splits is None else values[splits[place] : splits[place + 1]]
            rows.append(row)
    return rows


def from_npz(path):
    with np.load(path) as archive:
        arrays = dict(archive)
    rows = []
    for place, index in enumerate(arrays.pop("indices")):
        row = {"index": index}
        for name, array in arrays.items():
            if name in ("row_splits", "word_splits"):
                continue
            splits = arrays.get("word_splits" if name == "word_starts" else "row_splits")
            row[name] = array[place] if splits is None else array[splits[place] : splits[place + 1]]
        rows.append(row)
    return rows


def from_parquet(path):
    parquet = pytest.importorskip("pyarrow.parquet")
    return parquet.read_table(path).to_pylist()


READERS = {".npz": from_npz, ".parquet": from_parquet}
BLOCKS = {
    "tokens": [token_block([3, 1], 0, 1), token_block([5], 4, 2)],
    "words": [token_block([3, 2], 0, 3, words=True), token_block([4, 2], 9, 4, words=True)],
    "pooled": [pooled_block(3, 0, 5), pooled_block(2, 7, 6)],
}


@pytest.mark.parametrize("extension", READERS)
@pytest.mark.parametrize("kind", BLOCKS)
def test_rows_are_read_back_as_they_were(tmp_path, kind, extension):
    if extension == ".parquet":
        pytest.importorskip("pyarrow")
    rows = READERS[extension](write(tmp_path / f"out{extension}", BLOCKS[kind]))
    expected = rows_of(BLOCKS[kind])
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        assert row.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(np.asarray(row[name]), np.asarray(value), err_msg=name)
    assert os.listdir(tmp_path) == [f"out{extension}"]


def test_the_archive_has_the_types_that_it_documents(tmp_path):
    with np.load(write(tmp_path / "a.NPZ", BLOCKS["words"])) as archive:
        types = {name: (array.dtype.kind, array.dtype.itemsize) for name, array in archive.items()}
        assert archive["layer_2"].shape == (11, 3)
        assert archive["row_splits"].tolist() == [0, 3, 5, 9, 11]
        assert archive["word_splits"].tolist() == [0, 1, 2, 3, 4]
    assert types["layer_2"] == ("f", 4) and types["token_ids"] == types["word_starts"] == ("i", 4)
    assert types["indices"] == types["row_splits"] == ("i", 8) and types["tokens"][0] == "U"


def test_json_lines_have_googles_form(tmp_path):
    block = token_block([2], 6, 1)
    with open(write(tmp_path / "a.jsonl", [block]), encoding="utf-8") as file:
        (line,) = [json.loads(text) for text in file]
    assert list(line) == ["linex_index", "features"] and line["linex_index"] == 6
    first = line["features"][0]
    assert first["token"] == block["tokens"].values[0]
    assert [layer["index"] for layer in first["layers"]] == [-1, "embeddings"]
    values = [round(float(value), 6) for value in block["layer_2"].values[0]]  # google-research/bert's rounding
    assert first["layers"][0]["values"] == values
    assert (first["start"], first["end"]) == (block["starts"].values[0], block["ends"].values[0])


def test_json_lines_of_words_and_of_pooled_vectors(tmp_path):
    with open(write(tmp_path / "a.jsonl", [token_block([2, 2], 0, 1, words=True)]), encoding="utf-8") as file:
        assert [json.loads(text)["word_starts"] for text in file] == [[1], [2]]
    block = pooled_block(1, 3, 1)
    with open(write(tmp_path / "b.jsonl", [block]), encoding="utf-8") as file:
        line = json.loads(file.read())
    assert line["linex_index"] == 3 and line["layers"][0]["index"] == "sum"
    np.testing.assert_allclose(line["layers"][0]["values"], block["features"].values[0], atol=1e-6)


@pytest.mark.parametrize("extension", [".npz", ".parquet", ".jsonl"])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, extension):
    if extension == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"out{extension}"
    path.write_text("old")
    with pytest.raises(KeyError), open_writer(str(path), INDICES) as write:
        write(BLOCKS["tokens"][0])
        raise KeyError
    assert path.read_text() == "old" and os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("name", ["out.csv", "out", "npz", "out.json", "out.tfrecord"])
def test_an_unknown_ending_is_refused(name):
    with pytest.raises(InputError, match=re.escape(f"--output_file={name}: expected a name that ends in .npz")):
        check_path(name)


def test_a_directory_is_no_output_file(tmp_path):
    (tmp_path / "a.npz").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        check_path(str(tmp_path / "a.npz"))
