"""Classification of texts or pairs: label, score and probabilities; what `bert-classify` trains.

Shapes: B batch, C classes.
"""

import keras
import numpy as np
import tensorflow as tf

from export import probes, signatures
from export.heads.sequence import SequenceHead
from keras_bert.preprocessor import BertPreprocessor
from tasks.glue.model import load_classifier


class Classification(SequenceHead):
    """A classifier.

    Args:
        model: encoder inputs to logits [B, C].
        preprocessor: tokenizer and longest sequence.
        labels: names of the C classes, in the order of the logits.
        num_texts: 1, or 2 for a model of text pairs.

    Raises:
        ValueError: the arguments do not fit together.
    """

    task = "classification"
    example_signature = signatures.CLASSIFY

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, labels: list[str], num_texts: int = 1):
        super().__init__(model, preprocessor, num_texts)
        if len(set(labels)) != len(labels) or len(labels) < 2:
            raise ValueError(f"`labels` must be at least two different names. Received: labels={labels}")
        if model.output_shape[-1] != len(labels):
            raise ValueError(
                f"`labels` must name each of the model's outputs. Received: {len(labels)} labels, "
                f"{model.output_shape[-1]} outputs"
            )
        self.labels = labels

    @classmethod
    def load(cls, directory: str, sequence_length: int | None = None) -> "Classification":
        classifier = load_classifier(directory)
        preprocessor = BertPreprocessor(classifier.tokenizer, sequence_length or classifier.sequence_length)
        return cls(classifier.model, preprocessor, classifier.labels, classifier.num_texts)

    def answer(self, outputs, encoded):
        probabilities = tf.nn.softmax(tf.cast(outputs, tf.float32))  # [B, C]
        return {
            "label": tf.gather(tf.constant(self.labels), tf.argmax(probabilities, axis=-1)),
            "score": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
        }

    def example_answer(self, answer):
        probabilities = answer["probabilities"]
        if isinstance(probabilities, np.ndarray):
            return {
                "classes": np.broadcast_to(probes.as_bytes(self.labels), probabilities.shape),
                "scores": probabilities,
            }
        classes = tf.tile(tf.constant([self.labels]), [tf.shape(probabilities)[0], 1])
        return {"classes": classes, "scores": probabilities}

    def expected(self, outputs, encoded):
        probabilities = probes.on_cpu(tf.nn.softmax, outputs)
        best = np.argmax(probabilities, axis=-1) if len(probabilities) else np.zeros([0], int)
        answer = {
            "label": probes.as_bytes(self.labels)[best],
            "score": np.max(probabilities, axis=-1),
            "probabilities": probabilities,
        }
        return answer, probes.undecided(probabilities)

    def description(self) -> dict:
        outputs = {
            "label": "string: the most probable class",
            "score": "float: its probability",
            "probabilities": "float (classes): of each class, in the order of `labels`",
        }
        example_outputs = {"classes": "string (classes): the labels", "scores": "float (classes): their probabilities"}
        kind = "pairs of texts" if self.num_texts == 2 else "texts"
        return self.describe(
            f"Classifier of {kind}",
            f"Tells {kind} apart: {', '.join(self.labels)}.",
            self.signature_texts(outputs, example_outputs),
            self.instances("Returns the sorted list of names.", "It was a rainy day."),
            labels=self.labels,
        )
