"""Lengths of examples before truncation, for the histograms of the report.

Shapes: R sequences.
"""

from collections.abc import Callable

import numpy as np

_CHUNK = 256  # Sequences tokenized by one call.


def lengths_before_cutting(
    lengths: np.ndarray, texts_of: Callable[[int], tuple[str, ...]], tokenizer, sequence_length: int
) -> np.ndarray:
    """Counts the tokens of sequences without truncation. Only those at the limit are tokenized again.

    Args:
        lengths: tokens of each sequence after truncation, int, shape (R,).
        texts_of: returns the one or two texts of the sequence of a given number.
        tokenizer: `BertTokenizer`.
        sequence_length: the limit of the truncation.

    Returns:
        int64, shape (R,), including [CLS] and each text's [SEP].
    """
    whole = np.array(lengths, np.int64)
    full = np.flatnonzero(whole >= sequence_length)
    for start in range(0, len(full), _CHUNK):
        numbers = full[start : start + _CHUNK]
        columns = [list(column) for column in zip(*map(texts_of, numbers.tolist()), strict=True)]
        counts = [np.asarray(tokenizer.tokenize(column).row_lengths()) for column in columns]
        whole[numbers] = sum(counts) + 1 + len(columns)
    return whole
