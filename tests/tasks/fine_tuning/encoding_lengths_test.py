"""Lengths of texts before they were cut, against those of texts that nothing cuts."""

import numpy as np
import pytest
from toy_classifier import assets

from keras_bert import BertPreprocessor
from tasks.fine_tuning import encoding

TEXTS = [("the cat sat " * count, "on a mat " * (40 - count)) for count in range(40)]


@pytest.mark.parametrize("num_texts", [1, 2])
@pytest.mark.parametrize("limit", [8, 30, 124])
def test_lengths_are_those_without_a_limit(monkeypatch, num_texts, limit):
    monkeypatch.setattr(encoding, "_CUT_AT_ONCE", 7)
    tokenizer, asked = assets().tokenizer, []
    texts, text_pairs = ([*column] for column in zip(*TEXTS, strict=True))
    columns = (texts, text_pairs if num_texts == 2 else None)
    inputs = columns if num_texts == 2 else texts
    whole = np.asarray(BertPreprocessor(tokenizer, 1000)(inputs)["padding_mask"]).sum(axis=1)
    examples = encoding.encode_texts(*columns, tokenizer, limit, "texts")
    tokenize = tokenizer.tokenize
    monkeypatch.setattr(tokenizer, "tokenize", lambda texts: asked.extend(texts) or tokenize(texts))
    full_lengths = encoding.lengths_before_cutting(examples, *columns, tokenizer, limit)
    np.testing.assert_array_equal(full_lengths, whole)
    assert len(asked) == num_texts * np.count_nonzero(whole >= limit)  # The others are not tokenized again.
    assert examples.lengths.max() <= limit  # What was given is left as it was.


def test_an_example_is_as_long_as_its_longest_sequence():
    tokenizer = assets().tokenizer
    examples = encoding.encode_texts(["cat", "the cat sat"], None, tokenizer, 4, "texts", rows_per_example=2)
    assert encoding.lengths_before_cutting(examples, ["cat", "the cat sat"], None, tokenizer, 4).tolist() == [5]
