"""The token ids and labels of a table."""

import numpy as np
import pytest

from tasks.glue import data
from tasks.glue.tables import Table


class WordPreprocessor:
    """Stands in for `BertPreprocessor`: one id a word, 2 + words (+ 1 + words of the pair), dense and padded."""

    def __call__(self, inputs):
        firsts, seconds = inputs if isinstance(inputs, tuple) else (inputs, None)
        rows = [[2, *map(int, text.split()), 3] for text in firsts]
        segments = [[0] * len(row) for row in rows]
        for row, segment, second in zip(rows, segments, seconds or [], strict=seconds is not None):
            row += [*map(int, second.split()), 3]
            segment += [1] * (len(row) - len(segment))
        longest = max(map(len, rows))
        pad = np.array([[*row, *[0] * (longest - len(row))] for row in rows], np.int32)
        mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows], np.int32)
        segment_ids = np.array([[*row, *[0] * (longest - len(row))] for row in segments], np.int32)
        return {"token_ids": pad, "segment_ids": segment_ids, "padding_mask": mask}


TEXTS = [" ".join(["7"] * (i % 11) + [str(i)]) for i in range(1, 51)]


def table(pairs: bool = True, labels: list | None = None) -> Table:
    return Table("x", list(range(50)), list(range(50)), 50, TEXTS, TEXTS[::-1] if pairs else None, labels)


def test_rows_are_joined_without_their_padding():
    encoded = data.encode_table(table(labels=["ab"[i % 2] for i in range(50)]), WordPreprocessor(), ["b", "a"])
    assert encoded.num_examples == 50
    for i in range(50):
        first, second = ([7] * (n % 11) + [n] for n in (i + 1, 50 - i))
        row = slice(encoded.row_splits[i], encoded.row_splits[i + 1])
        assert encoded.token_ids[row].tolist() == [2, *first, 3, *second, 3]
        assert encoded.segment_ids[row].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert encoded.labels["labels"].tolist() == [1, 0] * 25 and encoded.labels["labels"].dtype == np.int32


def test_scores_are_floats_and_a_table_to_predict_has_no_labels():
    scores = data.encode_table(table(pairs=False, labels=[0.5] * 50), WordPreprocessor(), [])
    assert scores.labels["labels"].tolist() == [0.5] * 50 and scores.labels["labels"].dtype == np.float32
    assert data.encode_table(table(), WordPreprocessor(), ["b", "a"]).labels == {}


@pytest.mark.parametrize("rows", [7, 50])
def test_encoding_in_pieces_equals_encoding_at_once(monkeypatch, rows):
    whole = data.encode_table(table(), WordPreprocessor(), [])
    monkeypatch.setattr(data, "ENCODE_ROWS", rows)
    for got, expected in zip(data.encode_table(table(), WordPreprocessor(), [])[:3], whole[:3], strict=True):
        np.testing.assert_array_equal(got, expected)
