"""Files, labels and unknown types of `bert-ner`."""

import numpy as np
import pytest
from tag_schemes import write_tags

from keras_bert.errors import InputError
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.fine_tuning import word_task
from tasks.fine_tuning.encoding import label_ids
from tasks.fine_tuning.word_task import make_examples
from tasks.ner import task
from tasks.ner.task import Ner
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll
from tasks.text.tags import find_entities
from tasks.text.word_windows import make_windows

TEXT = "Ann B-person\nLee I-person\nin O\nRome B-city\n\nBob B-person\n\nOslo B-city\n"


@pytest.fixture(name="documents")
def _documents(tmp_path):
    (tmp_path / "a.conll").write_text(TEXT)
    return read_conll(str(tmp_path / "a.conll"), bad_rows=BadRows())


def test_labels_are_b_and_i_of_each_type(documents):
    labels = task.make_labels(documents)
    assert labels == ["O", "B-city", "I-city", "B-person", "I-person"]
    np.testing.assert_array_equal(label_ids(documents.tags, labels), [3, 4, 0, 1, 3, 1])
    np.testing.assert_array_equal(label_ids(["B-city", "O"], ["I-city", "O"]), [-1, 1])
    assert task.entity_types(["O", "B", "I-x"]) == ["", "x"]


def test_a_file_without_entities_cannot_be_learned(tmp_path):
    (tmp_path / "a.conll").write_text("a O\nb O\n")
    with pytest.raises(InputError, match="a.conll: no token is tagged as an entity"):
        task.make_labels(read_conll(str(tmp_path / "a.conll"), bad_rows=BadRows()))


def test_an_unknown_type_is_refused_by_line_or_its_sentence_left_out(documents):
    labels = ["O", "B-person", "I-person"]
    with pytest.raises(InputError, match=r"a.conll:4: unknown entity type 'city'. Expected 'person'. \(2 bad rows"):
        task.leave_out_unknown(documents, labels, BadRows())
    rows = BadRows("skip")
    assert task.leave_out_unknown(documents, labels, rows).tokens == ["Bob"]
    assert [where.rsplit(":", 1)[1] for where, _ in rows.rows] == ["4", "8"]
    assert task.leave_out_unknown(documents, ["O", "I-city", "B-person"], BadRows()) is documents


def test_labels_of_a_foreign_model():
    for labels in (["O", "B-PER", "I-PER"], ["I-PER", "O"], ["B", "I", "O"]):
        assert task.check_labels(labels, "there") == labels
    for labels in (None, [], ["O", "PER"], ["O", "U-PER"], ["O", ""]):
        with pytest.raises(InputError, match='^there: the .*label.* Expected "O", and B- and I- of each entity type'):
            task.check_labels(labels, "there")


def find(split, **settings):
    files = Ner.Settings(output_dir="", **settings)
    return files.find_file(split, (split,), word_task.EXTENSIONS, any_extension=True)


def test_files_are_found_by_split(tmp_path):
    for name in ("train.txt", "dev.conll", "dev.tsv"):
        (tmp_path / name).write_text(TEXT)
    directory = str(tmp_path)
    assert find("train", data_dir=directory) == f"{directory}/train.txt"
    assert find("dev", data_dir=directory, dev_file=f"{directory}/dev.t*") == f"{directory}/dev.tsv"
    with pytest.raises(InputError, match="dev.conll or .*dev.tsv: 2 of them are there. Name the right one"):
        find("dev", data_dir=directory)
    with pytest.raises(InputError, match="/test, ending in .conll or .txt or .*: no such file. Name the right one"):
        find("test", data_dir=directory)
    with pytest.raises(InputError, match="No test file was named. Give --test_file, or --data_dir with a test.conll"):
        find("test")
    with pytest.raises(InputError, match=r"--dev_file=.*dev.\*: expected one file, found 2: "):
        find("dev", dev_file=f"{directory}/dev.*")


def test_only_a_file_to_predict_may_lack_tags(tmp_path):
    (tmp_path / "a.conll").write_text("a\nb\n")
    path = str(tmp_path / "a.conll")
    task = Ner(Ner.Settings(output_dir="", dev_file=path, test_file=path))
    assert task.read("test", BadRows())[0].rows.tags is None
    with pytest.raises(InputError, match="a.conll:1: expected a token and its tag"):
        task.read("dev", BadRows())


VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ann", "lee", "in", "rome", "bob", "os", "##lo"]


@pytest.mark.parametrize("scheme", ["iob1", "iob2", "bilou"])
@pytest.mark.parametrize("delimiter", [" ", "\t"])
def test_the_same_examples_come_of_every_scheme_and_delimiter(tmp_path, documents, scheme, delimiter):
    sentences = documents.split(documents.tags)
    tags = [tag for sentence in sentences for tag in write_tags(find_entities(sentence), len(sentence), scheme)]
    lines = [delimiter.join(row) + "\n" for row in zip(documents.tokens, tags, strict=True)]
    for place in documents.sentence_splits[1:-1]:
        lines[place] = "\n" + lines[place]
    (tmp_path / "b.conll").write_text("".join(lines))
    again = read_conll(str(tmp_path / "b.conll"), bad_rows=BadRows())
    assert again.tags == documents.tags and again.delimiter == ("tab" if delimiter == "\t" else "whitespace")
    tokenizer = PythonBertTokenizer(VOCABULARY)
    windows = make_windows(again, tokenizer, 8, 3)
    examples = make_examples(windows, label_ids(again.tags, task.make_labels(again)))
    pieces = [VOCABULARY[number] for number in examples.token_ids]
    assert pieces == [
        "[CLS]",
        "ann",
        "lee",
        "in",
        "rome",
        "[SEP]",
        "[CLS]",
        "bob",
        "[SEP]",
        "[CLS]",
        "os",
        "##lo",
        "[SEP]",
    ]
    np.testing.assert_array_equal(examples.token_labels["labels"], [0, 3, 4, 0, 1, 0, 0, 3, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(examples.token_labels["weights"], [0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(examples.row_splits, [0, 6, 9, 13])
