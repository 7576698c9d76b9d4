"""Words, answers in them and the projection of a prediction onto the context: by hand, and derived a second time."""

import random

import pytest
from squad_reference import original_part, words_of
from tokenizer_reference import ADVERSARIAL

from keras_bert.tokenization.normalizer import split_words
from tasks.squad.text import find_answer, join_pieces, project, split_context

TEXTS = [text for text in ADVERSARIAL if isinstance(text, str)]

# === Words ===


def test_five_characters_separate_words():
    assert split_context(" a\tb\r\nc\u202fd  e ") == (["a", "b", "c", "d", "e"], [1, 3, 6, 8, 11])


@pytest.mark.parametrize("char", ["\u00a0", "\u3000", "\u2009", "\u2028", "\x0b", "\x0c", "\x85"])
def test_no_other_white_space_separates_words(char):
    assert split_context(f"a{char}b").texts == [f"a{char}b"]


def test_a_context_of_white_space_has_no_words():
    assert split_context(" \t\n") == ([], []) and split_context("") == ([], [])


@pytest.mark.parametrize("text", TEXTS)
def test_words_equal_a_second_derivation(text):
    words = split_context(text)
    assert words.texts == words_of(text)[0]
    assert [text[start : start + len(word)] for word, start in zip(*words, strict=True)] == words.texts


def test_words_are_joined_by_one_blank():
    assert split_context("a \t b\nc d").join(1, 2) == "b c"


# === Answers ===

CONTEXT = " Rollo led\u202fthe (Norse) men,\u00a0who came"
#          0123456789   0123456789012345 6789012345


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("Rollo", 1, (0, 0)),
        ("Rollo led", 1, (0, 1)),
        ("led the", 7, (1, 2)),  # another blank between the words does not matter
        ("Norse", 16, (3, 3)),  # part of a word
        (" led ", 6, (0, 1)),  # a blank counts to the word before it
        (" Rollo", 0, (0, 0)),
        ("ollo", 1, (0, 0)),  # one character off, in the same word
        ("came", 32, (5, 5)),
    ],
)
def test_an_answer_is_found_in_its_words(text, start, expected):
    assert find_answer(split_context(CONTEXT), len(CONTEXT), text, start) == expected


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("Rollo", 7),  # it stands elsewhere
        ("rollo", 1),  # another case
        ("men,\u00a0who", 23),  # U+00A0 is white space in the answer, not in the context (google-research/bert)
        ("came", 33),  # beyond the end
        ("came", -1),  # the file does not say where
        ("", 3),
        ("  ", 6),
    ],
)
def test_an_answer_that_is_not_there_is_not_found(text, start):
    assert find_answer(split_context(CONTEXT), len(CONTEXT), text, start) is None


# === Projection ===


def test_pieces_are_joined():
    assert join_pieces(["##mith", "##son", "of", "a", "##b"]) == "mithson of ab"
    assert join_pieces(["#", "#", "x"]) == "# # x"  # two number signs of the text, no mark of a piece


@pytest.mark.parametrize(
    ("predicted", "original", "expected"),
    [
        ("steve smith", "Steve Smith's", "Steve Smith"),
        ("1895", "(1895-1943).", "1895"),
        ("1895 - 1943", "(1895-1943).", "1895-1943"),
        ("beyonce", "Beyonc\u00e9's", "Beyonc\u00e9"),  # an accent is no character of its own here
        ("cafe s", "Cafe\u0301's", "Cafe\u0301's"),  # not found: "cafe ' s"
        ("cafe", "Cafe\u0301's", "Cafe\u0301's"),  # there it is one: the lengths differ, hence the whole
        ("english", "English\u2014\u200b\u200bmany", "English\u2014\u200b\u200bmany"),  # characters that vanish
        ("seoul", "\uc11c\uc6b8(Seoul)", "\uc11c\uc6b8(Seoul)"),  # Hangul is decomposed
        ("a b", "a\u00a0b,", "a\u00a0b,"),  # U+00A0 counts in the original, as a blank in the normalized text not
        ("[UNK]", "\u2603!", "\u2603!"),  # not found
        ("the", "Athe The", "the"),  # the leftmost place, even inside another word
        ("\u4e2d\u6587", "\u4e2d\u6587\u3002", "\u4e2d\u6587\u3002"),  # joined by mistake: "\u4e2d \u6587 \u3002"
        ("\u4e2d \u6587", "\u4e2d\u6587\u3002", "\u4e2d\u6587"),
        ("", "Rollo", "Rollo"),
    ],
)
def test_a_prediction_is_projected(predicted, original, expected):
    assert project(predicted, original, lowercase=True) == expected


def test_a_cased_prediction_is_projected():
    assert project("Steve Smith", "Steve Smith's", lowercase=False) == "Steve Smith"
    assert project("steve smith", "Steve Smith's", lowercase=False) == "Steve Smith's"
    assert project("Beyonc\u00e9", "Beyonc\u00e9's", lowercase=False) == "Beyonc\u00e9"


@pytest.mark.parametrize("lowercase", [False, True])
def test_projections_equal_a_second_derivation(lowercase):
    generator = random.Random(1)
    num_changed = 0
    for text in TEXTS:
        words = split_words(text, lowercase)
        for _ in range(20 if words else 0):
            original = " ".join(split_context(text).texts[: generator.randint(1, 6)])
            start = generator.randrange(min(len(words), 8))
            predicted = " ".join(words[start : start + generator.randint(1, 4)])
            projected = project(predicted, original, lowercase)
            assert projected == original_part(predicted, original, lowercase), (predicted, original)
            num_changed += projected != original
    assert num_changed > 50
