"""Classification and regression on texts or pairs, as `bert-classify` trains them: a label, or a number.

Shapes: B batch, C classes.
"""

import keras
import tensorflow as tf

from export import signatures
from export.heads.base import About, TokenOutput
from export.heads.sequence import BestOfHead, SequenceHead
from export.verification import probes
from keras_bert.tokenization.preprocessor import BertPreprocessor


class Classification(BestOfHead):
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
    trained_settings = ("labels", "num_texts")
    token_outputs = {"probabilities": TokenOutput(("classes",), softmax=True)}

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, labels: list[str], num_texts: int = 1):
        super().__init__(model, preprocessor, num_texts)
        if len(set(labels)) != len(labels) or len(labels) < 2:
            raise ValueError(f"`labels` must be at least two different names. Received: labels={labels}")
        probes.check_labels(model, labels)
        self.labels = labels

    def answer(self, outputs, encoded):
        answer = super().answer(outputs, encoded)
        return {"label": tf.gather(tf.constant(self.labels), answer.pop("choice")), **answer}

    def answer_examples(self, texts, answer):
        classes = tf.tile(tf.constant([self.labels]), [tf.shape(answer["probabilities"])[0], 1])
        return {"classes": classes, "scores": answer["probabilities"]}

    def about(self):
        return About(
            f"Classifier of {self.kind}",
            f"Tells {self.kind} apart: {', '.join(self.labels)}.",
            self.instances("Returns the sorted list of names.", "It was a rainy day."),
            self.inputs,
            {
                "label": "string: the most probable class",
                "score": "float: its probability",
                "probabilities": "float (classes): of each class, in the order of `labels`",
            },
            example_outputs={
                "classes": "string (classes): the labels",
                "scores": "float (classes): their probabilities",
            },
            more={"labels": self.labels},
        )


class Regression(SequenceHead):
    """A regressor, of a task of scores such as STS-B.

    Args:
        model: encoder inputs to scores [B, 1].
        preprocessor: tokenizer and longest sequence.
        num_texts: 1, or 2 for a model of text pairs.

    Raises:
        ValueError: the model has more than one output.
    """

    task = "regression"
    trained_settings = ("num_texts",)
    example_signature = signatures.REGRESS
    token_outputs = {"score": TokenOutput((), column=0)}

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, num_texts: int = 1):
        super().__init__(model, preprocessor, num_texts)
        if model.output_shape[-1] != 1:
            raise ValueError(f"`model` must have one output. Received: {model.output_shape[-1]} outputs")

    def answer_examples(self, texts, answer):
        return {"outputs": answer["score"]}

    def about(self):
        number = "float: the number"
        return About(
            f"Scores of {self.kind}",
            f"Gives each of the {self.kind} a number, on the scale that it was trained on.",
            self.instances("A man is playing a guitar.", "Someone plays an instrument."),
            self.inputs,
            {"score": number},
            example_outputs={"outputs": number},
        )
