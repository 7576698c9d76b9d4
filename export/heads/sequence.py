"""Heads with one answer for each text, pair of texts, or text with its choices.

Shapes: B batch, S sequence, C classes or choices.
"""

from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import Head
from export.verification import probes
from keras_bert.answers import text_bounds
from keras_bert.answers.pieces import in_pieces
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
        answer = probes.on_cpu(lambda tensors: self.answer(model(tensors, training=False), tensors), encoded)
        return dict.fromkeys((signatures.SERVING_DEFAULT, signatures.TOKEN_IDS), (answer, self.undecided(answer)))

    def undecided(self, answer: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Finds the rows of a right answer whose strings and integers depend on rounding; see `Probe.undecided`."""
        return None

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
    """A head that names the most probable of C classes or choices; its model gives logits [B, C].

    Its `token_outputs` are the `probabilities`.
    """

    example_signature = signatures.CLASSIFY

    def answer(self, outputs, encoded):
        answer = super().answer(outputs, encoded)
        choice = tf.argmax(answer["probabilities"], axis=-1, output_type=tf.int32)
        return {"choice": choice, "score": tf.reduce_max(answer["probabilities"], axis=-1), **answer}

    def undecided(self, answer):
        return probes.undecided(answer["probabilities"])
