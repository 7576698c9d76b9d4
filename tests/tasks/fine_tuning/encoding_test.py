"""Token ids of texts: joined without padding, the same in pieces as at once."""

import numpy as np
import pytest

from keras_bert import BertTokenizer
from tasks.fine_tuning import encoding

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(60))]
TEXTS = [" ".join(["w7"] * (number % 11) + [f"w{number}"]) for number in range(1, 51)]


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer():
    return BertTokenizer(PIECES)


def test_rows_are_joined_without_their_padding(tokenizer):
    examples = encoding.encode_texts(TEXTS, TEXTS[::-1], tokenizer, 32, "tokenize")
    assert examples.num_examples == 50 and examples.labels == {}
    for row in range(50):
        first, second = ([12] * (number % 11) + [number + 5] for number in (row + 1, 50 - row))
        span = slice(examples.row_splits[row], examples.row_splits[row + 1])
        assert examples.token_ids[span].tolist() == [2, *first, 3, *second, 3]
        assert examples.segment_ids[span].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)


@pytest.mark.parametrize("rows", [7, 50])
def test_encoding_in_pieces_equals_encoding_at_once(monkeypatch, tokenizer, rows):
    whole = encoding.encode_texts(TEXTS, None, tokenizer, 32, "tokenize")
    monkeypatch.setattr(encoding, "CHUNK", rows)
    pieces = encoding.encode_texts(TEXTS, None, tokenizer, 32, "tokenize")
    for name in ("token_ids", "segment_ids", "row_splits"):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))
