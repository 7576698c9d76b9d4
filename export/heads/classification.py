"""Classification and regression on texts or pairs, as `bert-classify` trains them: a label, or a number.

Shapes: B batch, C classes.
"""

import tensorflow as tf

from export import signatures
from export.heads.base import About
from export.heads.sequence import BestOfHead, SequenceHead
from keras_bert.answers.sequence import ClassAnswers, ScoreAnswers


class Classification(ClassAnswers, BestOfHead):
    """A classifier; see `ClassAnswers`."""

    task = "classification"
    trained_settings = ("labels", "num_texts")

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


class Regression(ScoreAnswers, SequenceHead):
    """A regressor, of a task of scores such as STS-B; see `ScoreAnswers`."""

    task = "regression"
    trained_settings = ("num_texts",)
    example_signature = signatures.REGRESS

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
