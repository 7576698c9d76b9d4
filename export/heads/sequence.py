"""Heads with one answer for each text, pair of texts, or text with its choices.

Shapes: B batch, S sequence, C classes or choices.
"""

from collections.abc import Mapping

import numpy as np

from export import signatures
from export.heads.base import Head
from export.verification import probes
from keras_bert.answers.sequence import BestOfAnswers, SequenceAnswers

_PAIR_SHIFT = 3  # A pair's second text is so far behind its first in `probes.TEXTS`; an ordinary one for row 0.


class SequenceHead(SequenceAnswers, Head):
    """A head whose model encodes a row's texts as one sequence; see `Head`."""

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


class BestOfHead(BestOfAnswers, SequenceHead):
    """A head that names the most probable of C classes or choices; its model gives logits [B, C]."""

    example_signature = signatures.CLASSIFY

    def undecided(self, answer):
        return probes.undecided(answer["probabilities"])
