"""Texts and words as sequences: packing, offsets, alignment, windows; nothing is lost that is not counted."""

import numpy as np
import pytest
from toy_features import VOCABULARY

from keras_bert import BertPreprocessor, BertTokenizer
from keras_bert.errors import InputError
from tasks.features import data
from tasks.features.extraction import _read
from tasks.features.settings import FeatureSettings
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer():
    return BertTokenizer(VOCABULARY)


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def pieces(encoded, row):
    ids = encoded.examples.token_ids[encoded.kept][slice(*encoded.columns["token_ids"].splits[row : row + 2])]
    return [VOCABULARY[number] for number in ids]


# === Files ===


def test_lines_become_texts_and_pairs_as_google_reads_them(tmp_path):
    path = write(tmp_path / "a.txt", "anna left\nanna ||| ben\na ||| b ||| c\nanna|||ben\n ||| ben\nanna ||| \n")
    rows = list(data.read_texts([path, path], BadRows()))
    assert [row.texts for row in rows[:3]] == [("anna left",), ("anna", "ben"), ("a ||| b", "c")]
    assert [row.texts for row in rows[3:6]] == [("anna|||ben",), (" ||| ben",), ("anna ||| ",)]
    assert [row.index for row in rows] == list(range(12))
    assert rows[7].where == f"{path}:2"


def test_offsets_are_places_in_the_line(tokenizer, tmp_path):
    line = "\u3000\u3000anna left \r"
    encoded = data.encode_rows(list(data.read_texts([write(tmp_path / "a.txt", line)], BadRows())), tokenizer, 20)
    spans = zip(*(encoded.columns[name].values.tolist() for name in ("starts", "ends")), strict=True)
    assert [line[start:end] for start, end in spans] == ["", "anna", "left", ""]


def test_an_empty_line_is_refused_or_left_out_but_counts(tmp_path):
    path = write(tmp_path / "a.txt", "anna\n\nben\n \n")
    with pytest.raises(InputError, match=r"a\.txt:2: the line is empty.*2 bad rows in all"):
        list(data.read_texts([path], BadRows()))
    skipped = BadRows("skip")
    assert [row.index for row in data.read_texts([path], skipped)] == [0, 2]
    assert skipped.count == 2
    assert [row.index for row in data.read_texts([path], None)] == [0, 2]
    paths = [write(tmp_path / "a.conll", "a X\nb X\n\nc\n\nd X\n"), write(tmp_path / "b.conll", "e\n\nf X\n\ng X\n")]
    settings = FeatureSettings(input_file=",".join(paths), input_format="conll", bad_rows="skip")
    assert [row.index for row in _read(settings, str(tmp_path / "out.npz"), BadRows("skip"))[0]] == [0, 2, 4, 5]


def test_no_texts_at_all_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"a\.txt: no texts"):
        _read(FeatureSettings(input_file=write(tmp_path / "a.txt", "")), str(tmp_path / "out.npz"), BadRows("skip"))


def test_a_line_that_is_not_utf8_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"anna\nna\xefve\n")
    with pytest.raises(InputError, match=r"a\.txt:2: not valid UTF-8"):
        list(data.read_texts([str(tmp_path / "a.txt")], BadRows()))


def test_batches_of_rows():
    assert [len(batch) for batch in data.batches_of(range(7), 3)] == [3, 3, 1]
    assert list(data.batches_of([], 3)) == []


# === Texts ===

TEXTS = [("anna saw rome.",), ("the man left , left",), ("unseen", "met ben , the man met anna"), ("saw saw", "left")]


@pytest.mark.slow(keep=["4"])
@pytest.mark.parametrize("length", [4, 5, 6, 7, 8, 20])
def test_sequences_are_those_of_the_preprocessor(tokenizer, length):
    preprocessor = BertPreprocessor(tokenizer, length, pad_to_longest=True)
    rows = [data.Row(i, "", texts) for i, texts in enumerate(TEXTS)]
    encoded = data.encode_rows(rows, tokenizer, length)
    for row, texts in enumerate(TEXTS):
        expected = preprocessor(tuple([text] for text in texts))
        span = slice(*encoded.examples.row_splits[row : row + 2])
        assert encoded.examples.token_ids[span].tolist() == expected["token_ids"][0].numpy().tolist()
        assert encoded.examples.segment_ids[span].tolist() == expected["segment_ids"][0].numpy().tolist()
    full = [sum(len(tokenizer.tokenize(text)) for text in texts) + 1 + len(texts) for texts in TEXTS]
    assert encoded.num_cut == sum(count > length for count in full)
    assert encoded.kept.tolist() == list(range(len(encoded.examples.token_ids)))


def test_offsets_point_into_each_text(tokenizer):
    encoded = data.encode_rows([data.Row(0, "", ("Anna, unseen.", "Mét x"))], tokenizer, 20)
    assert pieces(encoded, 0) == ["[CLS]", "anna", ",", "un", "##seen", ".", "[SEP]", "met", "[UNK]", "[SEP]"]
    spans = list(zip(*(encoded.columns[name].values.tolist() for name in ("starts", "ends")), strict=True))
    assert spans == [(0, 0), (0, 4), (4, 5), (6, 8), (8, 12), (12, 13), (0, 0), (0, 3), (4, 5), (0, 0)]
    assert "word_starts" not in encoded.columns


# === Words ===

SENTENCES = [["anna", "unseen", ",", "left"], ["\u200b", "ben"], ["unseen", "unseen", "unseen", "rome", "."]]


def test_words_are_aligned_to_their_first_tokens(tokenizer):
    rows = [data.Row(i, "", words=words) for i, words in enumerate(SENTENCES)]
    encoded = data.encode_rows(rows, tokenizer, 20)
    assert pieces(encoded, 0) == ["[CLS]", "anna", "un", "##seen", ",", "left", "[SEP]"]
    assert pieces(encoded, 1) == ["[CLS]", "[UNK]", "ben", "[SEP]"]  # What leaves no token keeps its place.
    assert encoded.columns["word_starts"].splits.tolist() == [0, 4, 6, 11]
    assert encoded.columns["word_starts"].values.tolist() == [1, 2, 4, 5, 1, 2, 1, 3, 5, 7, 8]
    text = " ".join(SENTENCES[0])
    starts, ends = (encoded.columns[name].values[:7] for name in ("starts", "ends"))
    token_texts = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    assert token_texts == ["", "anna", "un", "seen", ",", "left", ""]


@pytest.mark.parametrize("length", range(4, 14))
def test_windows_lose_no_token_of_a_long_sentence(tokenizer, length):
    rows = [data.Row(i, "", words=words) for i, words in enumerate(SENTENCES)]
    whole, cut = data.encode_rows(rows, tokenizer, 20), data.encode_rows(rows, tokenizer, length)
    assert np.diff(cut.examples.row_splits).max() <= length
    np.testing.assert_array_equal(cut.examples.token_ids[cut.kept], whole.examples.token_ids)
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(cut.columns[name].values, column.values)
        np.testing.assert_array_equal(cut.columns[name].splits, column.splits)
    assert (np.diff(cut.kept) > 0).all() and cut.num_cut == 0


@pytest.mark.parametrize("num_tokens, size", [(1, 4), (4, 4), (5, 4), (9, 4), (100, 7), (3, 2), (126, 126), (500, 126)])
def test_window_spans_cover_a_text_with_context_on_both_sides(num_tokens, size):
    spans = data.window_spans(num_tokens, size)
    kept = [place for _, _, start, stop in spans for place in range(start, stop)]
    assert kept == list(range(num_tokens))
    for start, stop, kept_start, kept_stop in spans:
        assert stop - start == min(size, num_tokens)
        for place in range(kept_start, kept_stop):  # No other window has more context around it.
            others = [min(place - s, e - 1 - place) for s, e, _, _ in spans if s <= place < e]
            assert min(place - start, stop - 1 - place) >= max(others) - 1


# === Documents ===

COLUMNS = "-DOCSTART- O\n\nanna O\nunseen O\n\nrome O\n\n-DOCSTART- O\n\nben O\n, O\n"


@pytest.mark.parametrize(
    "context, sequences",
    [
        (False, [["anna", "un", "##seen"], ["rome"], ["ben", ","]]),
        (True, [["anna", "un", "##seen", "rome"], ["ben", ","]]),
    ],
)
def test_the_sentences_of_a_document_run_on_if_asked_to(tmp_path, tokenizer, context, sequences):
    documents = read_conll(write(tmp_path / "a.conll", COLUMNS), bad_rows=BadRows())
    ids, splits, places, lengths = data.encode_words(documents, tokenizer, 20, context)
    assert ids.flags.c_contiguous  # A hash of them names the file of the features.
    tokens = [[VOCABULARY[n] for n in ids[a + 1 : b - 1]] for a, b in zip(splits, splits[1:], strict=False)]
    assert tokens == sequences
    assert [VOCABULARY[number] for number in ids[places]] == ["anna", "un", "rome", "ben", ","]
    assert lengths.tolist() == [5, 3, 4]


@pytest.mark.parametrize("length", [4, 5, 6])
def test_words_of_a_windowed_document_keep_their_order(tmp_path, tokenizer, length):
    documents = read_conll(write(tmp_path / "a.conll", COLUMNS), bad_rows=BadRows())
    ids, _, places, lengths = data.encode_words(documents, tokenizer, length, True)
    assert [VOCABULARY[n] for n in ids[places]] == ["anna", "un", "rome", "ben", ","]
    assert (np.diff(places) > 0).all()
    assert lengths.tolist() == [5, 3, 4]
