"""Holes: one whole word that occurs once, in sentences of some length."""

import pytest

from keras_bert import BertPreprocessor, BertTokenizer
from tasks.quickstart.masked_words import find_holes

PIECES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] . a ship sails on the sea 船 在 海 上 航 行 ， 很 远 ##ing ##s sail ships".split()
)


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("The ships sailing on . . . .", {"The", "ships", "on"}),  # "sail" is a part of a word.
        ("ship ship the the . . . .", set()),  # None occurs once.
        ("a . . . . . . .", {"a"}),
        ("sea ship sail on . .", set()),  # Too few tokens.
        ("sea " + ". " * 20, set()),  # Cut.
        ("船在海上航行，很远", set("船在海上航行很远")),
    ],
)
def test_a_hole_hides_one_whole_word(sentence, words):
    preprocessor = BertPreprocessor(BertTokenizer(PIECES), sequence_length=16)
    holes = find_holes(["", sentence, sentence], preprocessor, 5, 60)
    assert len(holes) == bool(words)
    for hole in holes:
        (word,) = (word for word in words if sentence.replace(word, "[MASK]", 1) == hole.text)
        assert hole.word == word.lower()
        whole = preprocessor([sentence])["token_ids"][0].numpy().tolist()[: len(hole.token_ids)]
        assert whole[: hole.position] + [4] + whole[hole.position + 1 :] == hole.token_ids
        assert PIECES[whole[hole.position]] == hole.word
    assert find_holes([sentence], preprocessor, 5, len(sentence) - 1) == []
