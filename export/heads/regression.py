"""Regression on texts or pairs: one score; what `bert-classify` trains on a task of scores, such as STS-B.

Shapes: B batch.
"""

import keras
import tensorflow as tf

from export import signatures
from export.heads.sequence import SequenceHead
from keras_bert.preprocessor import BertPreprocessor
from tasks.glue.model import load_classifier


class Regression(SequenceHead):
    """A regressor.

    Args:
        model: encoder inputs to scores [B, 1].
        preprocessor: tokenizer and longest sequence.
        num_texts: 1, or 2 for a model of text pairs.

    Raises:
        ValueError: the model has more than one output.
    """

    task = "regression"
    example_signature = signatures.REGRESS

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, num_texts: int = 1):
        super().__init__(model, preprocessor, num_texts)
        if model.output_shape[-1] != 1:
            raise ValueError(f"`model` must have one output. Received: {model.output_shape[-1]} outputs")

    @classmethod
    def load(cls, directory: str, sequence_length: int | None = None) -> "Regression":
        regressor = load_classifier(directory)
        preprocessor = BertPreprocessor(regressor.tokenizer, sequence_length or regressor.sequence_length)
        return cls(regressor.model, preprocessor, regressor.num_texts)

    def answer(self, outputs, encoded):
        return {"score": tf.cast(outputs[:, 0], tf.float32)}

    def example_answer(self, answer):
        return {"outputs": answer["score"]}

    def expected(self, outputs, encoded):
        return {"score": outputs[:, 0]}, None

    def description(self) -> dict:
        kind = "pairs of texts" if self.num_texts == 2 else "texts"
        return self.describe(
            f"Scores of {kind}",
            f"Gives each of the {kind} a number, on the scale that it was trained on.",
            self.signature_texts({"score": "float: the number"}, {"outputs": "float: the number"}),
            self.instances("A man is playing a guitar.", "Someone plays an instrument."),
        )
