"""Heads with one answer for each text, pair of texts, or text with its choices.

Shapes: B batch, S sequence, C classes or choices.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import Head
from export.verification import probes
from keras_bert.answers.sequence import BestOfAnswers, SequenceAnswers

_PAIR_SHIFT = 3  # From a pair's first text to its second in `probes.TEXTS`, so that row 0 has two ordinary texts.


class SequenceHead(SequenceAnswers, Head):
    """A head whose model encodes a row's texts as one sequence; see `Head`."""

    def encoding(self):
        if self.long_texts is not None:
            return None
        tokenizer = self.preprocessor.tokenizer
        return {
            "inputs": list(self.text_inputs),
            "vocabulary": tokenizer.get_vocabulary(),
            "lowercase": tokenizer.lowercase,
            "special_tokens": tokenizer.special_tokens_in_strings,
            "sequence_length": self.preprocessor.sequence_length,
        }

    # === Probes ===

    def probe_texts(self):
        return {key: np.roll(probes.as_bytes(probes.TEXTS), -_PAIR_SHIFT * n) for n, key in enumerate(self.text_inputs)}

    def encode(self, texts):
        """Encodes texts eagerly; if they are cut into windows, `rows` has the index of each window's text."""
        if self.long_texts is not None:
            encoded, rows = probes.on_cpu(self.read_windows, texts["text"])
            return {**encoded, "rows": rows}
        return probes.on_cpu(self.pack, {name: column.reshape(-1) for name, column in texts.items()})

    def expected(self, model, texts, encoded):
        def run(tensors):
            outputs = pooled = model({name: tensors[name] for name in model.input}, training=False)
            if "rows" in tensors:
                pooled = self.pool(outputs, tensors["rows"], tf.constant([len(texts["text"])]))
            return self.answer(outputs, tensors), self.answer(pooled, tensors)

        by_token, by_text = ((answer, self.undecided(answer)) for answer in probes.on_cpu(run, encoded))
        return {signatures.SERVING_DEFAULT: by_text, signatures.TOKEN_IDS: by_token}

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
        return {name: f"{signatures.TEXT_INPUTS[name]}{self.read_part}" for name in self.text_inputs}

    @property
    def read_part(self) -> str:
        """How a long text is read, for a description; "" if it is truncated."""
        if self.long_texts is None:
            return ""
        count, room = self.long_texts.max_tokens, self.long_texts.room
        how = {
            "head_tail": f"of more than {room} the middle is left out",
            "mean": f"in windows of {room}, whose outputs are averaged",
            "max": f"in windows of {room}, and the largest of each output is taken",
        }
        return f"; its first {count} tokens are read, {how[self.long_text]}"


class BestOfHead(BestOfAnswers, SequenceHead):
    """A head that names the most probable of C classes or choices; its model returns logits [B, C]."""

    example_signature = signatures.CLASSIFY

    def undecided(self, answer):
        return probes.undecided(answer["probabilities"])
