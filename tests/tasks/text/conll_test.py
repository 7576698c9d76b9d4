"""CoNLL columns: what is read, what is refused by file and line, and that what is written reads back the same."""

import numpy as np
import pytest
from repository import SHARED, needs_data

from keras_bert.errors import InputError
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll, write_conll
from tasks.text.tags import find_entities

WNUT = SHARED / "wnut17"
CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP I-ORG
rejects VBZ B-VP O
German JJ B-NP I-MISC
call NN I-NP O

Peter NNP B-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- -X- O

BRUSSELS NNP B-NP I-LOC
"""


def write(tmp_path, text, name="a.conll"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def read(tmp_path, text, policy="refuse", **settings):
    return read_conll(write(tmp_path, text), bad_rows=BadRows(policy), **settings)


# === What is read ===


def test_conll_2003(tmp_path):
    documents = read(tmp_path, CONLL_2003)
    assert documents.tokens == ["EU", "rejects", "German", "call", "Peter", "Blackburn", "BRUSSELS"]
    assert documents.delimiter == "whitespace" and documents.has_document_lines
    assert documents.tags == ["B-ORG", "O", "B-MISC", "O", "B-PER", "I-PER", "B-LOC"]
    assert documents.lines == [3, 4, 5, 6, 8, 9, 13]
    assert documents.num_sentences == 3
    np.testing.assert_array_equal(documents.sentence_splits, [0, 4, 6, 7])
    np.testing.assert_array_equal(documents.document_splits, [0, 2, 3])
    assert documents.split(documents.tags) == [["B-ORG", "O", "B-MISC", "O"], ["B-PER", "I-PER"], ["B-LOC"]]


def test_the_tag_s_column(tmp_path):
    chunks = read(tmp_path, CONLL_2003, tag_column=2)
    assert chunks.tags[:3] == ["B-NP", "B-VP", "B-NP"]
    assert read(tmp_path, CONLL_2003, tag_column=-2).tags == chunks.tags
    for column in (4, 0, -4, -5):
        with pytest.raises(InputError, match=rf"a.conll:3: no tag column {column} beside the token: there are 4 colum"):
            read(tmp_path, CONLL_2003, tag_column=column)


def test_a_tab_parts_columns_and_a_token_may_hold_blanks(tmp_path):
    documents = read(tmp_path, "New York\tB-place\n\u00a0\u200bx\tO\n\t\n \n12 000\tO\n")
    assert documents.delimiter == "tab" and documents.num_sentences == 2
    assert documents.tokens == ["New York", "\u00a0\u200bx", "12 000"]
    assert read(tmp_path, "a\tB-place \nb\tO \n").tags == ["B-place", "O"]
    assert read(tmp_path, "New\u00a0York \t B-place\n", delimiter="whitespace").tokens == ["New\u00a0York"]
    with pytest.raises(InputError, match="a.conll:1: expected a token and its tag, found one column. Check --delim"):
        read(tmp_path, "York B-place\n", delimiter="tab")


def test_without_document_lines_the_file_is_one_document(tmp_path):
    documents = read(tmp_path, b"\xef\xbb\xbfa O\r\n\r\n\r\nb B-x\r\nc I-x")
    assert documents.tokens == ["a", "b", "c"] and documents.lines == [1, 4, 5]
    np.testing.assert_array_equal(documents.document_splits, [0, 2])
    assert not documents.has_document_lines


def test_document_lines_end_sentences_and_empty_documents_do_not_count(tmp_path):
    documents = read(tmp_path, "a O\n-DOCSTART- O\n-DOCSTART-\n\nb O\nc O\n-DOCSTART- -X- O")
    np.testing.assert_array_equal(documents.sentence_splits, [0, 1, 3])
    np.testing.assert_array_equal(documents.document_splits, [0, 1, 2])


def test_a_scheme_is_read_by_name(tmp_path):
    assert read(tmp_path, "a B-x\nb L-x\nc U-x\n").tags == ["B-x", "I-x", "B-x"]
    assert read(tmp_path, "a I-x\nb B-x\nc O\n", tag_scheme="iob1").tags == ["B-x", "B-x", "O"]
    with pytest.raises(InputError, match="a.conll:1: I-x follows O; expected B-x at an entity's first token. Correct"):
        read(tmp_path, "a I-x\nb B-x\nc O\n", tag_scheme="iob2")


def test_a_file_to_predict_needs_no_tags(tmp_path):
    documents = read(tmp_path, "a\nb\n\nc\n", needs_tags=False)
    assert documents.tags is None and documents.tokens == ["a", "b", "c"]
    assert read(tmp_path, "a B-x\n", needs_tags=False).tags == ["B-x"]
    with pytest.raises(InputError, match="a.conll:1: expected a token and its tag, found one column"):
        read(tmp_path, "a\nb\n\nc\n")


# === Bad rows ===

SOUND = "a\tO\nb\tB-x\n\n"


@pytest.mark.parametrize(
    ("sentence", "line", "reason"),
    [
        ("c\tO\nd\n", 5, "expected 2 columns, as most lines have, found 1. A line is a token and its tag"),
        ("c\tO\td\n", 4, "expected 2 columns, as most lines have, found 3. A line is a token and its tag"),
        ("c\tO\n\tB-x\n", 5, "the token is empty"),
        ("  \tO\n", 4, "the token is empty"),
        ("c\tO\nd\t\n", 5, "the tag is empty. Write O for a token outside of all entities, _ for one without"),
        ("c\tO\nd\tI-x\n", 5, "I-x follows O; expected B-x at an entity's first token"),
        ("c\tB-x\nd\tI-y\n", 5, "I-y follows B-x; expected B-y"),
        ("c\tQ-x\n", 4, "'Q-x' is no tag of iob2"),
        ("c\tB x\n", 4, "'B x' is no tag of iob2"),
    ],
)
def test_a_bad_row_is_refused_by_line_or_its_sentence_left_out(tmp_path, sentence, line, reason, capsys):
    text = SOUND + sentence + "\n" + SOUND
    with pytest.raises(InputError, match=f"a.conll:{line}: {reason}"):
        read(tmp_path, text)
    rows = BadRows("skip")
    documents = read_conll(write(tmp_path, text), bad_rows=rows)
    assert documents.tokens == ["a", "b"] * 2 and documents.tags == ["O", "B-x"] * 2
    assert rows.count == 1 and rows.rows[0][0].endswith(f"a.conll:{line}") and rows.rows[0][1].startswith(reason)
    assert f"a.conll:{line}: {reason}" in capsys.readouterr().err


def test_each_bad_sentence_counts_once(tmp_path):
    text = "-DOCSTART-\n\na I-x\nb I-y\n\n-DOCSTART-\n\nc O\n\nd B-x\n\ne\n\nf O\n"
    with pytest.raises(InputError, match=r"a.conll:3: I-x follows O; .* \(2 bad rows in all; --bad_rows=skip leaves"):
        read(tmp_path, text, tag_scheme="iob2")
    rows = BadRows("skip")
    documents = read_conll(write(tmp_path, text), tag_scheme="iob2", bad_rows=rows)
    assert rows.count == 2 and documents.tokens == ["c", "d", "f"] and documents.lines == [8, 10, 14]
    np.testing.assert_array_equal(documents.sentence_splits, [0, 1, 2, 3])
    np.testing.assert_array_equal(documents.document_splits, [0, 3])  # The first document lost its only sentence.


@pytest.mark.parametrize("text", ["", "\n\n", "-DOCSTART- O\n\n"])
def test_a_file_without_sentences_is_refused(tmp_path, text):
    with pytest.raises(InputError, match="a.conll: the file holds no sentences"):
        read(tmp_path, text)


def test_a_file_without_a_sound_sentence_is_refused(tmp_path):
    with pytest.raises(InputError, match="a.conll: none of the 2 sentences can be used"):
        read(tmp_path, "a I-x\n\nb I-x\n", policy="skip", tag_scheme="iob2")


def test_a_missing_file_and_one_that_is_not_utf8_are_refused(tmp_path):
    with pytest.raises(InputError, match="none.conll: cannot be read"):
        read_conll(str(tmp_path / "none.conll"), bad_rows=BadRows())
    with pytest.raises(InputError, match="a.conll:2: not valid UTF-8 at byte 0"):
        read(tmp_path, b"a O\n\xe9 O\n")


# === What is written ===


@pytest.mark.parametrize("text", [CONLL_2003, "New York\tU-x\n\nb c\tO\nd\tB-y\ne\tL-y\n"])
def test_what_is_written_reads_back(tmp_path, text):
    documents = read(tmp_path, text)
    path = str(tmp_path / "out" / "b.conll")
    write_conll(path, documents, ["O"] * len(documents.tokens))
    again = read_conll(path, tag_column=1, bad_rows=BadRows())
    for name in ("tokens", "tags", "delimiter", "has_document_lines"):
        assert getattr(again, name) == getattr(documents, name)
    np.testing.assert_array_equal(again.sentence_splits, documents.sentence_splits)
    np.testing.assert_array_equal(again.document_splits, documents.document_splits)
    assert set(read_conll(path, bad_rows=BadRows()).tags) == {"O"}


def test_the_written_lines(tmp_path):
    documents = read(tmp_path, CONLL_2003)
    write_conll(str(tmp_path / "b.conll"), documents._replace(tags=None), documents.tags)
    lines = (tmp_path / "b.conll").read_text().split("\n")
    assert lines[:4] == ["-DOCSTART- O", "", "EU B-ORG", "rejects O"]
    assert lines[-5:] == ["-DOCSTART- O", "", "BRUSSELS B-LOC", "", ""]
    with pytest.raises(ValueError, match="shorter"):
        write_conll(str(tmp_path / "c.conll"), documents._replace(tags=None), documents.tags[1:])
    assert not (tmp_path / "c.conll").exists()


# === Real files ===


@pytest.mark.oracle
@needs_data
@pytest.mark.parametrize(("split", "sentences"), [("train", 3394), ("dev", 1009)])
def test_wnut_17_has_the_entities_that_seqeval_finds(split, sentences):
    from seqeval.metrics.sequence_labeling import get_entities

    documents = read_conll(str(WNUT / f"{split}.conll"), bad_rows=BadRows())
    raw, sentence = [], []
    for line in [*(WNUT / f"{split}.conll").read_text(encoding="utf-8").split("\n"), ""]:
        if line.strip():
            sentence.append(line.split("\t")[1])
        elif sentence:
            raw.append(sentence)
            sentence = []
    assert documents.split(documents.tags) == raw and documents.num_sentences == len(raw) == sentences
    assert sum(len(find_entities(tags)) for tags in raw) == len(get_entities(raw)) > 300
