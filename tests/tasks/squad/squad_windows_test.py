"""Windows of questions and contexts: worked out by hand, and against a second, slow derivation."""

import dataclasses

import numpy as np
import pytest
from repository import SHARED, needs_data
from squad_reference import windows_of
from tokenizer_reference import ADVERSARIAL, read_ids

from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.squad.data import Question, first_answer, read_squad
from tasks.squad.windows import DEFAULTS, make_windows
from tasks.text.bad_rows import BadRows
from tasks.text.word_windows import best_windows

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
PIECES = ["born", "1895", "1943", "(", ")", "-", ".", "japan", "japanese", "was", "##s", "caf", "##e"]
VOCABULARY = [*SPECIALS, *LETTERS, *PIECES]
TOKENIZER = PythonBertTokenizer(VOCABULARY)


def question(context, text="x y", answers=(), is_impossible=False):
    return Question("q", text, context, list(answers), is_impossible, "dev.json: question 'q'")


def windows_of_one(context, sequence_length=10, doc_stride=2, max_query_length=2, **kwargs):
    sizes = {"sequence_length": sequence_length, "doc_stride": doc_stride, "max_query_length": max_query_length}
    return make_windows([question(context, **kwargs)], TOKENIZER, dataclasses.replace(DEFAULTS, **sizes))


def rows(windows, values):
    return [part.tolist() for part in np.split(values, windows.examples.row_splits[1:-1])]


def texts(windows):
    return [" ".join(VOCABULARY[number] for number in row) for row in rows(windows, windows.examples.token_ids)]


def positions(windows):
    labels = windows.examples.labels
    return list(zip(labels["start_positions"].tolist(), labels["end_positions"].tolist(), strict=True))


# === Cutting ===


def test_a_short_context_is_one_window():
    windows = windows_of_one("a  bs\nc")
    assert texts(windows) == ["[CLS] x y [SEP] a b ##s c [SEP]"]
    assert windows.examples.segment_ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1]
    assert windows.token_word.tolist() == [-1, -1, -1, -1, 0, 1, 1, 2, -1]
    assert windows.is_max_context.tolist() == [False] * 4 + [True] * 4 + [False]
    assert windows.question_index.tolist() == [0]
    assert windows.vocabulary == VOCABULARY and windows.lowercase


def test_windows_overlap_and_the_stride_counts_pieces():
    windows = windows_of_one("a b cs ds e f g")  # 9 pieces; 10 - 2 - 3 = 5 of them in a window
    assert texts(windows) == [
        "[CLS] x y [SEP] a b c ##s d [SEP]",
        "[CLS] x y [SEP] c ##s d ##s e [SEP]",
        "[CLS] x y [SEP] d ##s e f g [SEP]",
    ]
    assert rows(windows, windows.token_word)[1] == [-1, -1, -1, -1, 2, 2, 3, 3, 4, -1]
    assert windows.question_index.tolist() == [0, 0, 0]


def test_a_stride_longer_than_the_room_skips_no_token():
    windows = windows_of_one("a b c d e f g", doc_stride=128)
    assert texts(windows) == ["[CLS] x y [SEP] a b c d e [SEP]", "[CLS] x y [SEP] f g [SEP]"]


def test_a_context_that_just_fits_is_one_window():
    assert len(texts(windows_of_one("a b c d e"))) == 1 and len(texts(windows_of_one("a b c d e f"))) == 2


def test_a_long_question_is_cut():
    assert texts(windows_of_one("a b c", text="x y z")) == ["[CLS] x y [SEP] a b c [SEP]"]
    # What a short question leaves is the context's.
    assert texts(windows_of_one("a b c d e f", text="x")) == ["[CLS] x [SEP] a b c d e f [SEP]"]


def test_words_split_at_five_characters_and_tokens_at_more():
    windows = windows_of_one("a\u202fb\u00a0c")
    assert texts(windows) == ["[CLS] x y [SEP] a b c [SEP]"]
    assert windows.token_word[4:7].tolist() == [0, 1, 1]


def test_words_that_a_token_belongs_to():
    windows = windows_of_one("Cafe\u0301, caf\u00e9\u200b")
    assert texts(windows) == ["[CLS] x y [SEP] caf ##e [UNK] caf ##e [SEP]"]
    assert windows.token_word[4:9].tolist() == [0, 0, 0, 1, 1]


def test_a_context_without_tokens_has_no_window():
    questions = [question("a"), question("\u200b \u200b"), question("b c")]
    windows = make_windows(questions, TOKENIZER, DEFAULTS)
    assert windows.question_index.tolist() == [0, 2] and windows.examples.num_examples == 2
    assert windows.question_lengths.tolist() == [6, 5, 7]  # [CLS] x y [SEP] context [SEP]
    windows = make_windows(questions[1:2], TOKENIZER, DEFAULTS)
    assert windows.examples.num_examples == 0 and len(windows.examples.labels["start_positions"]) == 0


# === Maximum context ===


def test_each_token_counts_where_it_has_most_context():
    windows = windows_of_one("a b c d e f g h i j")  # windows of tokens 0-4, 2-6, 4-8 and 6-9
    # d and f have one token beside them in two windows of one length: the first. h has one in windows of 5 and 4.
    best = {"a": 0, "b": 0, "c": 0, "d": 0, "e": 1, "f": 1, "g": 2, "h": 2, "i": 3, "j": 3}
    for number, (row, marks) in enumerate(zip(texts(windows), rows(windows, windows.is_max_context), strict=True)):
        tokens = row.split()
        assert marks[:4] + marks[-1:] == [False] * 5
        assert marks[4:-1] == [best[token] == number for token in tokens[4:-1]]


def test_the_length_of_a_window_counts_a_hundredth():
    # Token 3 has one token beside it in windows of 4 and of 5 tokens, 1.04 against 1.05.
    assert best_windows([(1, 5), (2, 7)], np.arange(8), 0.01)[3] == 1
    # 3 tokens beside it in a window of 7, 1 in a window of 300: 3.07 against 4.0.
    assert best_windows([(0, 7), (2, 302)], np.arange(302), 0.01)[3] == 1
    # 3 in a window of 7, 1 in a window of 200: 3.07 against 3.0.
    assert best_windows([(0, 7), (2, 202)], np.arange(202), 0.01)[3] == 0


# === Labels ===


def test_labels_are_positions_in_the_window_and_0_outside():
    windows = windows_of_one("a b c d e f g h i j", answers=[("d e", 6)])
    assert positions(windows) == [(7, 8), (5, 6), (0, 0), (0, 0)]
    assert windows.examples.labels["lengths"].tolist() == np.diff(windows.examples.row_splits).tolist()
    assert windows.examples.labels["start_positions"].dtype == np.int32


def test_an_answer_at_a_window_s_edges_is_inside():
    windows = windows_of_one("a b c d e f", answers=[("a b c d e", 0)])
    assert positions(windows) == [(4, 8), (0, 0)]
    windows = windows_of_one("a b c d e f", answers=[("a b c d e f", 0)])
    assert positions(windows) == [(0, 0), (0, 0)]


@pytest.mark.parametrize("answers", [[], [("b", 2)]])
def test_impossible_questions_train_to_0(answers):
    windows = windows_of_one("a b c", answers=answers, is_impossible=True)
    assert positions(windows) == [(0, 0)]


def test_the_first_answer_in_its_place_is_the_label():
    windows = windows_of_one("a b c", answers=[("c", 1), ("b", 2), ("a", 0)])
    assert positions(windows) == [(5, 5)]


@pytest.mark.parametrize(
    ("context", "answer", "start", "tokens"),
    [
        ("born (1895-1943).", "1895", 6, "1895"),  # a part of the word that is a token of its own
        ("born (1895-1943).", "1895-1943", 6, "1895 - 1943"),
        ("born (1895-1943).", "born", 0, "born"),
        ("a japanese b", "japan", 2, "japanese"),  # a part that is none: the whole word
        ("a cafes b", "cafe", 2, "caf ##e"),
        ("a (b-b) c", "b", 5, "b"),
        ("was born", "as b", 1, "was born"),
    ],
)
def test_the_label_shrinks_to_the_answer_s_own_tokens(context, answer, start, tokens):
    windows = windows_of_one(context, answers=[(answer, start)], sequence_length=32)
    ((first, last),) = positions(windows)
    assert " ".join(texts(windows)[0].split()[first : last + 1]) == tokens


def test_of_two_places_in_the_word_the_left_one_is_the_label():
    windows = windows_of_one("a (b-b) c", answers=[("b", 5)], sequence_length=32)
    assert positions(windows) == [(6, 6)]  # "(" is at 5


def test_an_answer_that_leaves_no_token_trains_to_0():
    windows = windows_of_one("a \u200b b", answers=[("\u200b", 2)])
    assert positions(windows) == [(0, 0)]


# === A second derivation ===


def assert_equal_to_reference(questions, vocabulary, lowercase, gold=None, **sizes):
    """Compares all windows; `gold`: (text, start) of each question's answer, or None."""
    spec = dataclasses.replace(DEFAULTS, **sizes)
    windows = make_windows(questions, PythonBertTokenizer(vocabulary, lowercase), spec)
    ids, row = read_ids(vocabulary), 0
    for number, qa in enumerate(questions):
        for expected in windows_of(qa, ids, lowercase, **sizes, gold=gold[number] if gold else None):
            start, end = windows.examples.row_splits[row : row + 2]
            assert windows.examples.token_ids[start:end].tolist() == expected.ids
            assert windows.examples.segment_ids[start:end].tolist() == expected.segments
            words = [expected.word_at.get(place, -1) for place in range(end - start)]
            assert windows.token_word[start:end].tolist() == words
            marks = [expected.is_best_at.get(place, False) for place in range(end - start)]
            assert windows.is_max_context[start:end].tolist() == marks
            assert windows.question_index[row] == number
            if gold is not None:
                assert positions(windows)[row] == expected.answer, qa.where
            row += 1
    assert row == windows.examples.num_examples > len(questions) / 2
    return windows


@needs_data
@pytest.mark.parametrize(("name", "lowercase"), [("uncased_en.txt", True), ("cased_en.txt", False)])
def test_windows_of_real_questions_equal_a_second_derivation(name, lowercase):
    questions = read_squad(
        str(SHARED / "squad2" / "dev.json"), with_answers=True, version_2_with_negative=True, bad_rows=BadRows()
    )[::11]
    gold = [qa.answers[0] if qa.answers else None for qa in questions]
    sizes = {"sequence_length": 96, "doc_stride": 32, "max_query_length": 12}
    windows = assert_equal_to_reference(questions, str(SHARED / "vocab" / name), lowercase, gold=gold, **sizes)
    assert np.bincount(windows.question_index).max() >= 5
    assert (windows.examples.labels["end_positions"] > 0).sum() > 60


@pytest.mark.parametrize("lowercase", [False, True])
def test_windows_of_adversarial_texts_equal_a_second_derivation(lowercase):
    contexts = [text for text in ADVERSARIAL if isinstance(text, str)]
    questions = [question(context, text=contexts[-number]) for number, context in enumerate(contexts)]
    vocabulary = [*VOCABULARY, "##a", "##b", "##c", "\u4e2d", "[", "]", "#", *(chr(code) for code in range(65, 91))]
    assert_equal_to_reference(questions, vocabulary, lowercase, sequence_length=24, doc_stride=5, max_query_length=6)


@needs_data
def test_tokens_stem_from_their_words():
    questions = read_squad(
        str(SHARED / "squad2" / "dev.json"), with_answers=False, version_2_with_negative=True, bad_rows=BadRows()
    )[::40]
    tokenizer = PythonBertTokenizer(str(SHARED / "vocab" / "cased_en.txt"), lowercase=False)
    windows = make_windows(questions, tokenizer, dataclasses.replace(DEFAULTS, sequence_length=128, doc_stride=64))
    has_several = np.bincount(windows.question_index, minlength=len(questions)) > 1
    np.testing.assert_array_equal(windows.question_lengths > 128, has_several)
    assert 0 < has_several.sum() < len(questions)
    numbers = np.repeat(windows.question_index, windows.examples.lengths)
    inside = np.flatnonzero((windows.token_word >= 0) & (windows.examples.token_ids != tokenizer.unk_token_id))
    for token in inside.tolist():
        piece = windows.vocabulary[windows.examples.token_ids[token]]
        assert piece.removeprefix("##") in questions[numbers[token]].context.split(" ")[windows.token_word[token]]
    assert len(inside) > 5000


def test_first_answer_of_a_question_without_any():
    assert first_answer(question("a b")) is None


def test_the_windows_of_a_million_tokens_need_no_table_of_both():
    spans = [(start, start + 382) for start in range(0, 1_000_000, 128)]
    best = best_windows(spans, np.arange(1_000_000), 0.01)  # Such a table would have 60 GB.
    starts = np.arange(0, 1_000_000, 128)
    for place in (0, 254, 255, 500_000, 999_999):
        assert best[place] == np.argmax(np.minimum(place - starts, starts + 381 - place))
