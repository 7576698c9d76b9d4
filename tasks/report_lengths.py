"""How long examples are before they are cut, for the histograms of report.html.

Shapes: R sequences.
"""

from collections.abc import Callable

import numpy as np

_CHUNK = 256  # Sequences tokenized by one call.


def lengths_before_cutting(
    lengths: np.ndarray, texts_of: Callable[[int], tuple[str, ...]], tokenizer, sequence_length: int
) -> np.ndarray:
    """Counts the tokens that sequences would have without a limit; those below it are as they are.

    Args:
        lengths: tokens of each sequence after cutting: int, shape (R,).
        texts_of: gives the one or two texts of the sequence of a number.
        tokenizer: `BertTokenizer`.
        sequence_length: the limit.

    Returns:
        int64, shape (R,), [CLS] and each text's [SEP] included.
    """
    whole = np.array(lengths, np.int64)
    full = np.flatnonzero(whole >= sequence_length)
    for start in range(0, len(full), _CHUNK):
        numbers = full[start : start + _CHUNK]
        columns = [list(column) for column in zip(*map(texts_of, numbers.tolist()), strict=True)]
        counts = [np.asarray(tokenizer.tokenize(column).row_lengths()) for column in columns]
        whole[numbers] = sum(counts) + 1 + len(columns)
    return whole
