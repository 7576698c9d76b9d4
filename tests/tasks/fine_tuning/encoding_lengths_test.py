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

    def lengths(sequence_length):
        columns = tuple(list(column) for column in zip(*TEXTS, strict=True))[:num_texts]
        inputs = columns if num_texts == 2 else columns[0]
        return np.asarray(BertPreprocessor(tokenizer, sequence_length)(inputs)["padding_mask"]).sum(axis=1)

    def texts_of(number):
        asked.append(number)
        return TEXTS[number][:num_texts]

    cut, whole = lengths(limit), lengths(1000)
    full_lengths = encoding.lengths_before_cutting(cut, texts_of, tokenizer, limit)
    np.testing.assert_array_equal(full_lengths, whole)
    assert asked == np.flatnonzero(whole >= limit).tolist()  # The others are not tokenized again.
    assert cut.max() <= limit  # What was given is left as it was.
