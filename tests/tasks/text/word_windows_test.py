"""From words to windows: every word is scored once, with most context; nothing is cut; document context is maximal."""

import numpy as np
import pytest

from keras_bert.answers.rules import check_stride
from keras_bert.errors import InputError
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.fine_tuning import word_task
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll
from tasks.text.word_windows import extend, make_windows, slice_tokens, tokenize_words

LETTERS = [chr(code) for code in range(97, 123)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
TOKENIZER = PythonBertTokenizer(VOCABULARY)


def documents_of(tmp_path, text):
    path = tmp_path / "a.conll"
    path.write_text(
        "".join(f"{line} O\n" if line and not line.startswith("-") else f"{line}\n" for line in text.split("\n"))
    )
    return read_conll(str(path), bad_rows=BadRows())


def show(made):
    """Each window as its pieces, without [CLS] and [SEP], which are checked; scored pieces in capitals."""
    scored, shown = set(made.places.tolist()), []
    for start, stop in zip(made.row_splits[:-1], made.row_splits[1:], strict=True):
        pieces = [VOCABULARY[number] for number in made.token_ids[start:stop]]
        assert (pieces[0], pieces[-1]) == ("[CLS]", "[SEP]") and not scored & {start, stop - 1}
        shown.append(
            " ".join(piece.upper() if place in scored else piece for place, piece in enumerate(pieces[1:-1], start + 1))
        )
    return shown


# === Words ===


def test_words_are_tokenized_one_by_one_and_none_vanishes():
    ids, splits = tokenize_words(["ab", "\u0007", "[MASK]", "É", "\u00ad", "-"], TOKENIZER)
    assert [VOCABULARY[number] for number in ids] == [
        "a",
        "##b",
        "[UNK]",
        "[UNK]",
        "m",
        "##a",
        "##s",
        "##k",
        "[UNK]",
        "e",
        "[UNK]",
        "[UNK]",
    ]
    np.testing.assert_array_equal(splits, [0, 2, 3, 9, 10, 11, 12])


def test_only_first_pieces_are_labelled(tmp_path):
    documents = documents_of(tmp_path, "abc\nd\n\nef")
    made = make_windows(documents, TOKENIZER, 16, 7)
    assert show(made) == ["A ##b ##c D", "E ##f"]
    np.testing.assert_array_equal(made.places, [1, 4, 7])
    np.testing.assert_array_equal(made.sentence_lengths, [6, 4])
    examples = word_task.make_examples(made, np.array([2, -1, 1]))
    np.testing.assert_array_equal(examples.token_labels["labels"], [0, 2, 0, 0, 0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(examples.token_labels["weights"], [0, 1, 0, 0, 0, 0, 0, 1, 0, 0])
    assert examples.token_labels["weights"].dtype == np.float32 and not examples.segment_ids.any()
    assert word_task.make_examples(made).token_labels == {}


# === Long sentences ===


def test_a_long_sentence_is_read_in_overlapping_windows(tmp_path):
    documents = documents_of(tmp_path, "\n".join("abcdefghij"))
    made = make_windows(documents, TOKENIZER, 8, 3)  # 6 pieces a window
    # Context of d: 2 pieces in the first window, 0 in the second. Of e: 1 (f behind) and 1 (d before): the first.
    assert show(made) == ["A B C D E f", "d e F G H i", "g h I J"]
    assert len(made.row_splits) == 4 and made.sentence_lengths.tolist() == [12]


def test_a_word_longer_than_a_window_is_labelled_once(tmp_path):
    documents = documents_of(tmp_path, "x\nabcdefghij\ny")
    made = make_windows(documents, TOKENIZER, 6, 2)
    assert show(made) == ["X A ##b ##c", "##b ##c ##d ##e", "##d ##e ##f ##g", "##f ##g ##h ##i", "##h ##i ##j Y"]


def test_slices_cover_everything_and_are_few():
    for room in range(1, 8):
        for stride in range(1, room + 1):
            for length in range(1, 30):
                spans = slice_tokens(5, 5 + length, room, stride)
                assert spans[0][0] == 5 and spans[-1][1] == 5 + length
                assert all(0 < stop - start <= room for start, stop in spans)
                for (start, stop), (next_start, _) in zip(spans, spans[1:], strict=False):
                    assert next_start == start + stride <= stop and stop - start == room
                assert len(spans) == 1 + max(0, -(-(length - room) // stride))


def test_the_stride_s_bounds():
    assert check_stride(128, None) == 63 and check_stride(128, 126) == 126 and check_stride(4, None) == 1
    with pytest.raises(InputError, match="doc_stride=127: a sequence of 128 tokens holds 126 sub-tokens"):
        check_stride(128, 127)


# === Document context ===


def test_a_sentence_gets_its_document_s_neighbours_evenly(tmp_path):
    documents = documents_of(tmp_path, "a\nb\nc\n\nd\ne\n\nf\ng\nh")
    made = make_windows(documents, TOKENIZER, 8, 3, "document")  # 6 pieces: 3, 4 and 3 of context
    assert show(made) == ["A B C d e f", "b c D E f g", "c d e F G H"]
    assert show(make_windows(documents, TOKENIZER, 32, 3, "document")) == [
        "A B C d e f g h",
        "a b c D E f g h",
        "a b c d e F G H",
    ]
    assert show(make_windows(documents, TOKENIZER, 8, 3, "none")) == ["A B C", "D E", "F G H"]


def test_context_ends_with_the_document(tmp_path):
    documents = documents_of(tmp_path, "-DOCSTART-\n\na\n\nb\n\n-DOCSTART-\n\nc\n\nd")
    assert show(make_windows(documents, TOKENIZER, 32, 9, "document")) == ["A b", "a B", "C d", "c D"]


def test_context_is_made_of_whole_words(tmp_path):
    documents = documents_of(tmp_path, "a\nbcd\n\ne\n\nfgh\ni")
    # 3 pieces of context: 1 before e, which would be ##d, and 2 behind it, f ##g.
    assert show(make_windows(documents, TOKENIZER, 6, 2, "document"))[1] == "E"
    assert show(make_windows(documents, TOKENIZER, 9, 2, "document"))[1] == "b ##c ##d E f ##g ##h"


def test_a_long_sentence_s_last_window_is_filled_too(tmp_path):
    documents = documents_of(tmp_path, "a\n\n" + "\n".join("bcdefghi") + "\n\nj\nk")
    made = make_windows(documents, TOKENIZER, 8, 4, "document")
    # "f" has one piece on its short side in both windows: the first counts.
    assert show(made)[1:3] == ["B C D E F g", "e f G H I j"]
    assert show(made)[0] == "A b c d e f"


def test_every_word_is_scored_once_in_a_window_of_most_context(tmp_path):
    """Any text, sizes and strides: compared with a plain search over all windows that a sentence may have."""
    generator = np.random.default_rng(0)
    for trial in range(40):
        sentences = [
            ["".join(generator.choice(LETTERS, generator.integers(1, 6))) for _ in range(count)]
            for count in generator.integers(1, 14, 8)
        ]
        text = "\n\n".join("\n".join(words) for words in sentences)
        documents = documents_of(tmp_path, text)
        length = int(generator.integers(4, 24))
        stride = int(generator.integers(1, length - 1))
        context = ("none", "document")[trial % 2]
        made = make_windows(documents, TOKENIZER, length, stride, context)
        lengths = np.diff(made.row_splits)
        assert lengths.max() <= length and len(set(made.places.tolist())) == len(documents.tokens)
        firsts = [VOCABULARY[number] for number in made.token_ids[made.places]]
        assert firsts == [word[0] for word in documents.tokens]
        _check_context(made, documents, length, stride, context)


def _check_context(made, documents, length, stride, context):
    _, word_splits = tokenize_words(documents.tokens, TOKENIZER)
    sentences = word_splits[documents.sentence_splits]
    row = np.searchsorted(made.row_splits, made.places, side="right") - 1
    had = np.minimum(made.places - made.row_splits[row] - 1, made.row_splits[row + 1] - 2 - made.places)
    best = []
    for start, stop in zip(sentences, sentences[1:], strict=False):
        spans = slice_tokens(start, stop, length - 2, stride)
        if context == "document":
            spans = [extend(span, length - 2, np.array([0, sentences[-1]]), word_splits) for span in spans]
        for piece in word_splits[:-1][(word_splits[:-1] >= start) & (word_splits[:-1] < stop)]:
            best.append(max(min(piece - first, last - 1 - piece) for first, last in spans if first <= piece < last))
    np.testing.assert_array_equal(had, best)


def test_extended_spans_stay_in_bounds_and_lose_at_most_a_word_a_side():
    generator = np.random.default_rng(1)
    for _ in range(500):
        word_splits = np.cumsum([0, *generator.integers(1, 4, 20)])
        start, stop = np.sort(generator.choice(word_splits, 2, replace=False)).tolist()
        room = stop - start + int(generator.integers(0, 12))
        first, last = extend((start, stop), room, np.array([0, word_splits[-1]]), word_splits)
        assert 0 <= first <= start and stop <= last <= word_splits[-1] and last - first <= room
        assert {first, last} <= set(word_splits.tolist())
        assert last - first >= min(room, word_splits[-1]) - 2 * 2
