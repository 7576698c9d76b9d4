"""What the heads' probes are made of: ordinary and hostile texts, and answers by the eager path.

Shapes: B batch, S sequence, N numbers to be ranked.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from export.verify import TOLERANCE

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


def as_bytes(texts: Sequence[str | bytes]) -> np.ndarray:
    """Texts as an array of bytes objects, shape (B,), as requests and answers hold them."""
    return np.array([text.encode() if isinstance(text, str) else text for text in texts], dtype=object)


def batches(texts: Sequence[str | bytes] = TEXTS) -> Iterator[np.ndarray]:
    """All texts in one batch, one text alone, and no text at all."""
    everything = as_bytes(texts)
    yield from (everything, everything[:1], everything[:0])


def on_cpu(function, inputs):
    """Applies a function to tensors made of `inputs` where the fresh process computes too: a GPU rounds otherwise.

    Args:
        function: of one structure of tensors.
        inputs: arrays, in whatever structure `function` takes; arrays of bytes become string tensors.

    Returns:
        What it returns, as arrays.
    """
    with tf.device("CPU:0"):
        tensors = tf.nest.map_structure(lambda array: tf.constant(array, _string_if_object(array)), inputs)
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), function(tensors))


def _string_if_object(array: np.ndarray):
    return tf.string if array.dtype == object else None


def example(features: Mapping[str, Sequence[bytes]]) -> bytes:
    """A serialized `tf.Example` of lists of strings."""
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                name: tf.train.Feature(bytes_list=tf.train.BytesList(value=values)) for name, values in features.items()
            }
        )
    ).SerializeToString()


def undecided(numbers: np.ndarray, count: int = 1) -> np.ndarray:
    """Rows in which rounding decides which are the `count` largest numbers, or their order.

    Args:
        numbers: float, shape (B, N).
        count: how many are named in the answer.

    Returns:
        bool, shape (B,): whether two neighbours of the `count + 1` largest are equal to within the tolerance.
    """
    largest = np.sort(numbers, axis=-1)[:, ::-1][:, : count + 1]
    return (largest[:, :-1] - largest[:, 1:] <= 2 * TOLERANCE).any(axis=-1)
