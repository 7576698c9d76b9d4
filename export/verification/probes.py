"""Material for probes: ordinary and hostile texts, and helpers for their right answers.

Shapes: B batch, N numbers to be ranked.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from export.verification.verify import TOLERANCE

TEXTS = (
    "The cat sat on the mat.",
    "",
    " \t\n ",
    "Pass a list of strings; it returns a tensor.",
    "ΟΔΥΣΣΕΥΣ, Ἀχιλλεύς and naïve CAFÉ",
    "今天天气很好,我们去公园吧。",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467, control \x00\x07 characters, [MASK] [SEP]",
    b"invalid \xff\xfe UTF-8 \xe4\xb8",
    "a long text " * 1000,
    "\u4e2d\u6587" * 3000,
    "x" * 20_000 + " behind one endless word",
    " " * 20_000 + "behind white space",
    "." * 20_000,
)


def as_bytes(texts: Iterable[str | bytes]) -> np.ndarray:
    """Returns texts as an array of bytes objects, shape (B,), as requests and answers hold them."""
    return np.array([text.encode() if isinstance(text, str) else text for text in texts], dtype=object)


def on_cpu(function, inputs):
    """Applies a function of tensors on the CPU, where the fresh process computes too: a GPU rounds differently.

    Args:
        function: takes one structure of tensors.
        inputs: that structure, of arrays; arrays of bytes become string tensors.

    Returns:
        The function's result, as arrays.
    """
    with tf.device("CPU:0"):
        tensors = tf.nest.map_structure(
            lambda array: tf.constant(array, tf.string if array.dtype == object else None), inputs
        )
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), function(tensors))


def examples(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns columns of B strings, or of B lists of strings, as B serialized `tf.Example`s, shape (B,)."""
    rows = []
    for values in zip(*columns.values(), strict=True):
        features = {
            name: tf.train.Feature(bytes_list=tf.train.BytesList(value=np.atleast_1d(np.array(value, object))))
            for name, value in zip(columns, values, strict=True)
        }
        rows.append(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    return np.array(rows, dtype=object)


def undecided(numbers: np.ndarray, count: int = 1) -> np.ndarray:
    """Finds the rows in which rounding decides which are the `count` largest numbers, or their order.

    Args:
        numbers: float, shape (..., N).
        count: how many of them the answer names.

    Returns:
        bool, shape (...): True if two neighbours among the `count + 1` largest differ by at most twice the tolerance.
    """
    largest = np.sort(numbers, axis=-1)[..., : -count - 2 : -1]
    return (largest[..., :-1] - largest[..., 1:] <= 2 * TOLERANCE).any(axis=-1)
