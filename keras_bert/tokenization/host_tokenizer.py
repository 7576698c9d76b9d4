"""HostTokenizer: replaces GraphTokenizer by PythonBertTokenizer on platforms without tensorflow-text.

The graph calls back into this Python process, so it runs eagerly and in tf.data but cannot be exported.

Shapes: B texts.
"""

import itertools

import numpy as np
import tensorflow as tf

from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer


class HostTokenizer:
    """Splits text into WordPieces in Python.

    Args:
        pieces: the vocabulary, in the order of the ids.
        lowercase: bool.
    """

    def __init__(self, pieces: list[str], lowercase: bool):
        self._tokenizer = PythonBertTokenizer(pieces, lowercase)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of `texts`, string [B]; int32 ragged [B, None]."""
        return _call(lambda text: (self._tokenizer.tokenize(text),), texts, num_columns=1)[0]

    def tokenize_with_offsets(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, ...]:
        """Returns ids, starts and ends in characters of `texts`; each int32 ragged [B, None]."""
        return _call(self._tokenizer.tokenize_with_offsets, texts, num_columns=3)


def _call(function, texts: tf.Tensor, num_columns: int) -> tuple[tf.RaggedTensor, ...]:
    """Applies `function`, which turns a text's bytes into lists of the same length, to each text."""

    def run(texts: np.ndarray) -> list[np.ndarray]:
        rows = [function(text) for text in texts]
        columns = [list(itertools.chain.from_iterable(row[column] for row in rows)) for column in range(num_columns)]
        row_splits = np.cumsum([0, *(len(row[0]) for row in rows)], dtype=np.int64)
        return [row_splits, *(np.array(column, dtype=np.int32) for column in columns)]

    row_splits, *columns = tf.numpy_function(run, [texts], [tf.int64] + [tf.int32] * num_columns, stateful=False)
    for tensor in (row_splits, *columns):
        tensor.set_shape([None])
    return tuple(tf.RaggedTensor.from_row_splits(column, row_splits, validate=False) for column in columns)
