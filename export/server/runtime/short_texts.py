"""Answers short texts with tokens from Python, the encoder in ONNX Runtime, and the head in NumPy, without the graph.

A phrase then takes 0.83 of the time in 8 bits, 0.86 in float32 (docs/benchmarks.md): most of a graph's 370 ops tokenize
and lay out, and each of them is slow after a pause, when the processor's caches hold none of its code.

Needs none of the project's model code.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Mapping

import numpy as np
import tensorflow as tf

from export.base_path import HEAD_FILE, TEXTS_FILE
from export.server.runtime.head_graph import HeadGraph
from export.signatures import COUNT_TOKENS, SERVING_DEFAULT
from keras_bert.files import open_file, read_object
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer

# The limit on a request. The graph tokenizes without Python's lock, and bounds what it reads of each text.
_MOST_BYTES = 1 << 13
# The limit on the attention scores of a head, 32 MB with 16 heads; the graph computes more in pieces.
_MOST_SCORES = 1 << 19
_ENCODED = ("token_ids", "segment_ids", "padding_mask", "pooled_output", "sequence_output")


class ShortTexts:
    """Answers requests to `serving_default` and `count_tokens`.

    Args:
        directory: the version's directory.
        encode: the model's `OnnxEncoder`.
        outputs: the names of the outputs of `serving_default`.

    Raises:
        InputError: a file is damaged.
        NotImplementedError: the head needs the graph; see `HeadGraph`.
    """

    def __init__(self, directory: str, encode: Callable, outputs: Iterable[str]):
        self._encode, self._encoding = encode, read_object(os.path.join(directory, TEXTS_FILE))
        vocabulary, *settings = (self._encoding.pop(name) for name in ("vocabulary", "lowercase", "special_tokens"))
        self._tokenizer = PythonBertTokenizer(vocabulary, *settings, most_remembered=1 << 12)
        head = tf.compat.v1.GraphDef()
        with open_file(os.path.join(directory, HEAD_FILE)) as file:
            head.ParseFromString(file.read())
        self._head = HeadGraph(head, outputs)

    def __call__(self, signature_name: str, texts: Mapping[str, np.ndarray]) -> list | None:
        """Returns the outputs, or None for what the graph should answer, such as texts that are not UTF-8.

        Args:
            texts: the inputs of the signature, arrays of any shape.
        """
        if signature_name not in (SERVING_DEFAULT, COUNT_TOKENS):
            return None
        columns = [texts[name] for name in self._encoding["inputs"]]
        shapes = {array.shape for array in columns}
        if len(shapes) > 1 or columns[0].ndim != 1 or not 0 < sum(map(len, itertools.chain(*columns))) <= _MOST_BYTES:
            return None
        try:
            rows = [[text.decode() for text in texts] for texts in zip(*columns, strict=True)]
        except UnicodeDecodeError:
            return None
        sequences = [self._lay_out(*row) for row in rows]
        longest = max(len(tokens) for tokens, _ in sequences)
        if len(rows) * longest**2 > _MOST_SCORES:
            return None
        ids, segments, mask = zip(*(self._padded(*sequence, longest) for sequence in sequences), strict=True)
        ids = [np.array(values, np.int32) for values in (ids, segments, mask)]
        if signature_name == COUNT_TOKENS:
            return [np.count_nonzero(ids[-1], axis=-1).astype(np.int32)]
        return self._head(dict(zip(_ENCODED, [*ids, *self._encode(*ids)], strict=True)))

    def _lay_out(self, text: str, *pair: str) -> tuple[list[int], int]:
        """Returns the token ids of a row, and how many belong to the first segment; see `BertPreprocessor`."""
        tokenizer, room = self._tokenizer, self._encoding["sequence_length"] - 2 - len(pair)
        ids, others = tokenizer.tokenize(self._encoding.get("prompt", "") + text), []
        if pair:
            others = tokenizer.tokenize(*pair)
            ids = ids[: max(-(-room // 2), room - len(others))]
            others = [*others[: max(room - len(ids), 0)], tokenizer.sep_token_id]
        ids = [tokenizer.cls_token_id, *ids[:room], tokenizer.sep_token_id]
        return ids + others, len(ids)

    def _padded(self, ids: list[int], num_first: int, longest: int) -> tuple[list[int], ...]:
        """Returns token ids, segment ids and padding mask of a row; the mask marks what `PoolTokens` leaves out."""
        pad, marked = longest - len(ids), min(self._encoding.get("num_left_out", 0), len(ids))
        mask = [2] * marked + [1] * (len(ids) - marked)
        return (
            ids + [self._tokenizer.pad_token_id] * pad,
            [0] * num_first + [1] * (len(ids) - num_first) + [0] * pad,
            mask + [0] * pad,
        )
