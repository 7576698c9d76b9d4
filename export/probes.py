"""Requests with the Keras model's own answers, on ordinary and on hostile texts: what `verify` asks.

The expected answers take the eager path: the preprocessor on the whole, uncut texts, and the Keras model on its
output. Shapes: B batch, S sequence, C classes.
"""

import keras
import numpy as np
import tensorflow as tf

from export import signatures
from export.verify import TOLERANCE, Probe
from keras_bert.preprocessor import BertPreprocessor

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


def classifier_probes(
    model: keras.Model, preprocessor: BertPreprocessor, labels: list[str], num_texts: int
) -> list[Probe]:
    """Probes for every signature of a classifier: all texts in one batch, one text alone, and no text at all.

    Args:
        model: float32, encoder inputs to logits [B, C].
        preprocessor: tokenizer and longest sequence.
        labels: the classes' names.
        num_texts: 1 or 2 texts an example; the second text runs through the list backwards.
    """
    everything = np.array([text.encode() if isinstance(text, str) else text for text in TEXTS], dtype=object)
    to_longest = BertPreprocessor(preprocessor.tokenizer, preprocessor.sequence_length, pad_to_longest=True)
    probes = []
    for batch in (everything, everything[:1], everything[:0]):
        texts = (batch, batch[::-1])[:num_texts]
        with tf.device("CPU:0"):  # where the fresh process computes: a GPU rounds otherwise
            tensors = tuple(tf.constant(column, tf.string) for column in texts)
            encoded = to_longest(tensors if num_texts > 1 else tensors[0])
            probabilities = tf.nn.softmax(model(encoded, training=False)).numpy()
        probes += _probes_of(texts, {name: value.numpy() for name, value in encoded.items()}, probabilities, labels)
    return probes


def _probes_of(texts, encoded, probabilities: np.ndarray, labels: list[str]) -> list[Probe]:
    names = np.array([label.encode() for label in labels], dtype=object)
    answer = {
        "label": names[np.argmax(probabilities, axis=-1)] if len(probabilities) else names[:0],
        "score": np.max(probabilities, axis=-1),
        "probabilities": probabilities,
    }
    best_two = np.sort(probabilities, axis=-1)[:, -2:]
    # Where the two best classes are equal to within the tolerance, rounding decides which one is named.
    undecided = best_two[:, 1] - best_two[:, 0] <= 2 * TOLERANCE
    ids = {
        "token_ids": encoded["token_ids"],
        "segment_ids": encoded["segment_ids"],
        "lengths": np.sum(encoded["padding_mask"], axis=-1, dtype=np.int32),
    }
    columns = dict(zip(signatures.TEXT_NAMES, texts, strict=False))
    examples = np.array([_example(columns, row) for row in range(len(probabilities))], dtype=object)
    classes = np.broadcast_to(names, probabilities.shape)
    return [
        Probe(signatures.SERVING_DEFAULT, columns, answer, undecided),
        Probe(signatures.TOKEN_IDS, ids, answer, undecided),
        Probe(signatures.CLASSIFY, {"inputs": examples}, {"classes": classes, "scores": probabilities}),
    ]


def _example(columns: dict[str, np.ndarray], row: int) -> bytes:
    features = {
        name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[column[row]])) for name, column in columns.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
