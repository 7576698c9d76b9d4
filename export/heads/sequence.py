"""Heads with one answer for each text, pair of texts, or text with its choices.

Shapes: B batch, S sequence, C classes or choices.
"""

import abc
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from export import signatures
from export.graph import text_bounds
from export.graph.pieces import in_pieces
from export.heads.base import Answer, Head
from export.verification import probes
from keras_bert.tokenization.preprocessor import BertPreprocessor

_PAIR_SHIFT = 3  # A pair's second text is so far behind its first in `probes.TEXTS`; an ordinary one for row 0.


class SequenceHead(Head):
    """A head whose model encodes a row's texts as one sequence; see `Head`.

    Attributes:
        num_texts: 1, or 2 for a model of text pairs.
    """

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, num_texts: int = 1):
        super().__init__(model, preprocessor)
        if num_texts not in (1, 2):
            raise ValueError(f"`num_texts` must be 1 or 2. Received: num_texts={num_texts}")
        self.num_texts = num_texts
        self.text_inputs = dict.fromkeys(list(signatures.TEXT_INPUTS)[:num_texts], ())
        self._to_longest = BertPreprocessor(preprocessor.tokenizer, preprocessor.sequence_length, pad_to_longest=True)

    # === What a task says ===

    @abc.abstractmethod
    def answer(self, outputs, encoded: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Builds the graph from the model's outputs (and its inputs) to those of `token_ids`, each row by itself."""

    @abc.abstractmethod
    def expected_answer(self, outputs, encoded: Mapping[str, np.ndarray]) -> Answer:
        """Computes in numpy what `answer` computes in the graph."""

    # === Graph ===

    def answer_texts(self, model, texts):
        return in_pieces(model, self.encode_in_graph(texts), self.answer)

    def encode_in_graph(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Encodes the inputs of `serving_default` to the model's, int32 [B, S], S as long as the batch's longest."""
        tokenizer, length = self.preprocessor.tokenizer, self.preprocessor.sequence_length
        bounded = {
            name: text_bounds.bound_texts(tf.reshape(text, [-1]) if self.text_inputs[name] else text, tokenizer, length)
            for name, text in texts.items()
        }
        return self.pack(bounded)

    def answer_token_ids(self, model, encoded):
        return in_pieces(model, encoded, self.answer)

    def pack(self, texts: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Encodes flat columns of texts, truncated to the preprocessor's length, to the model's inputs."""
        return self._to_longest(tuple(texts.values()))

    # === Probes ===

    def probe_texts(self):
        columns = [np.roll(probes.as_bytes(probes.TEXTS), -_PAIR_SHIFT * number) for number in range(self.num_texts)]
        return dict(zip(self.text_inputs, columns, strict=True))

    def encode(self, texts):
        return probes.on_cpu(self.pack, {name: column.reshape(-1) for name, column in texts.items()})

    def expected(self, model, texts, encoded):
        outputs = probes.on_cpu(lambda tensors: model(tensors, training=False), encoded)
        answer = self.expected_answer(outputs, encoded)
        return {signatures.SERVING_DEFAULT: answer, signatures.TOKEN_IDS: answer}

    # === Description ===

    @property
    def kind(self) -> str:
        """The word for the rows: "texts", or "pairs of texts"."""
        return "pairs of texts" if self.num_texts == 2 else "texts"

    def instances(self, *texts: str) -> list:
        """Returns a row for each text; or one row, of the first two, if the model reads pairs."""
        return list(texts) if self.num_texts == 1 else [dict(zip(self.text_inputs, texts, strict=False))]

    @property
    def inputs(self) -> dict[str, str]:
        """`About.inputs`."""
        return {name: signatures.TEXT_INPUTS[name] for name in self.text_inputs}


class BestOfHead(SequenceHead):
    """A head that names the most probable of C classes or choices; its model gives logits [B, C]."""

    def answer(self, outputs, encoded):
        probabilities = tf.nn.softmax(tf.cast(outputs, tf.float32))  # [B, C]
        return {
            "choice": tf.argmax(probabilities, axis=-1, output_type=tf.int32),
            "score": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
        }

    def expected_answer(self, outputs, encoded):
        probabilities = probes.softmax(outputs)
        answer = {
            "choice": np.argmax(probabilities, axis=-1).astype(np.int32),
            "score": np.max(probabilities, axis=-1),
            "probabilities": probabilities,
        }
        return answer, probes.undecided(probabilities)
