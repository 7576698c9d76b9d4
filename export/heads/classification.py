"""Classification and regression on texts or pairs, as `bert-classify` trains them: a label, some labels, or a number.

Shapes: B batch, C classes.
"""

import functools

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import About
from export.heads.sequence import BestOfHead, SequenceHead
from export.verification import probes
from export.verification.verify import TOLERANCE
from keras_bert.answers.explanations import Explanations
from keras_bert.answers.rules import NO_LABEL
from keras_bert.answers.sequence import ClassAnswers, LabelSetAnswers, ScoreAnswers

_CLASSES = {"classes": "string (classes): the labels", "scores": "float (classes): their probabilities"}
_MOST_BYTES = 100  # Limit on the texts of the probes of `explain`, since each word adds a sequence.

_EPSILON = 1e-7  # Below the resolution of a float32 probability near 1.


class ExplainedHead(SequenceHead):
    """A head with the signature `explain`, which computes each word's share in the answer by leaving it out."""

    @functools.cached_property
    def explanations(self) -> Explanations:
        return Explanations(self)

    def functions(self, model):
        def explain(**texts):
            return self.explanations.answer_texts(model, {name: texts[name] for name in self.text_inputs})

        return {**super().functions(model), signatures.EXPLAIN: signatures.trace(explain, self.text_inputs, tf.string)}

    def requests(self, texts, encoded):
        return {**super().requests(texts, encoded), signatures.EXPLAIN: _short_rows(texts)[0]}

    def expected(self, model, texts, encoded):
        right, (asked, is_short) = super().expected(model, texts, encoded), _short_rows(texts)
        run = functools.partial(model, training=False)
        answer = probes.on_cpu(lambda tensors: self.explanations.explain(model, run, tensors), asked)
        probabilities = right[signatures.SERVING_DEFAULT][0].get("probabilities")
        undecided = None if probabilities is None else probes.undecided(probabilities)[is_short]
        # A share is the difference of two log-odds, or scores, that may be far larger.
        score = np.float64(answer["score"])
        scores = np.log((score + _EPSILON) / (1 + _EPSILON - score)) if self.explanations.labels else score
        return {**right, signatures.EXPLAIN: (answer, undecided, float(np.abs(scores).max(initial=1.0)))}

    def described(self, about):
        explained = "the label's log-odds, log(p / (1 - p))" if self.explanations.labels else "the number"
        outputs = {
            **({"label": "string: the most probable class"} if self.explanations.labels else {}),
            "score": f"float: {'its probability' if self.explanations.labels else 'the number'}",
            "words": 'string (words): the words of the text that were read, then ""',
            "starts": "int32 (words): the character of the text at which each starts, then -1",
            "ends": "int32 (words): the character after its last, then -1",
            "shares": f"float (words): what leaving the word out takes from {explained}, then 0.0",
            "num_words": "int32: how many there are; lists are padded to the longest of the batch",
        }
        if self.num_texts == 2:
            outputs["texts"] = "int32 (words): 0 for a word of `text`, 1 for one of `text_pair`, then -1"
        inputs = about.inputs if self.long_texts is None else {"text": "string: its first sequence is explained"}
        return {**super().described(about), signatures.EXPLAIN: (inputs, outputs, self.explanations.padding)}


def _short_rows(texts):
    """Returns the rows whose texts are short, and whether each row is one of them: bool (B,)."""
    is_short = np.array([[len(text) <= _MOST_BYTES for text in column] for column in texts.values()], bool).all(axis=0)
    return {name: column[is_short] for name, column in texts.items()}, is_short


class LabelledHead(ExplainedHead):
    """A head with labels; `classify` returns all of them with their probabilities."""

    trained_settings = ("labels", "num_texts")
    example_signature = signatures.CLASSIFY

    def answer_examples(self, texts, answer):
        classes = tf.tile(tf.constant([self.labels]), [tf.shape(answer["probabilities"])[0], 1])  # [B, C]
        return {"classes": classes, "scores": answer["probabilities"]}


class Classification(ClassAnswers, LabelledHead, BestOfHead):
    """A classifier; see `ClassAnswers`."""

    task = "classification"
    settings, later_settings = ("max_tokens",), ("long_text", "temperature", "thresholds")

    def undecided(self, answer):
        undecided = super().undecided(answer)
        if self.thresholds is None:
            return undecided
        limits = np.take(self.thresholds, np.argmax(answer["probabilities"], axis=-1))
        return undecided | (np.abs(answer["score"] - limits) <= 2 * TOLERANCE)

    def about(self):
        in_doubt = "" if self.thresholds is None else f', or "{NO_LABEL}" where that is in doubt'
        is_ranking = self.num_texts == 2 and len(self.labels) == 2
        ranking = f" bert-serve's /rerank goes by the probability of {self.labels[1]}." if is_ranking else ""
        score = "its probability" if self.thresholds is None else "that of the most probable class"
        return About(
            f"Classifier of {self.kind}",
            f"Tells {self.kind} apart: {', '.join(self.labels)}.{ranking}",
            self.instances("Returns the sorted list of names.", "It was a rainy day."),
            self.inputs,
            {
                "label": f"string: the most probable class{in_doubt}",
                "score": f"float: {score}",
                "probabilities": "float (classes): of each class, in the order of `labels`",
            },
            example_outputs=_CLASSES,
            more={"labels": self.labels},
        )


class LabelSet(LabelSetAnswers, LabelledHead):
    """A classifier of rows with any number of labels; see `LabelSetAnswers`."""

    task = "multi_label_classification"
    settings, later_settings = ("max_tokens",), ("long_text", "thresholds")

    def expected(self, model, texts, encoded):
        right = super().expected(model, texts, encoded)
        of_all, _ = right[signatures.SERVING_DEFAULT]
        answer = probes.on_cpu(self.complete, of_all)
        distances = np.abs(of_all["probabilities"] - self.thresholds)
        # Rounding may decide whether a label is given, or which of two labels comes first.
        undecided = (distances <= TOLERANCE).any(axis=-1) | probes.undecided(of_all["probabilities"], len(self.labels))
        return {**right, signatures.SERVING_DEFAULT: (answer, undecided)}

    def about(self):
        row = "pair of texts" if self.num_texts == 2 else "text"
        of_all = "float (classes): of each class, in the order of `labels` in the description"
        return About(
            f"Labels of {self.kind}",
            f"Gives each {row} any number of these labels: {', '.join(self.labels)}.",
            self.instances("Returns the sorted list of names.", "It was a rainy day."),
            self.inputs,
            {
                "labels": 'string (labels): those that are likely enough, the likeliest first, then ""',
                "scores": "float (labels): their probabilities, then 0.0",
                "num_labels": "int32: how many there are; lists are padded to the longest of the batch",
                "probabilities": of_all,
            },
            token_outputs={"probabilities": of_all},
            example_outputs=_CLASSES,
            more={"labels": self.labels},
        )


class Regression(ScoreAnswers, ExplainedHead):
    """A regressor, of a task of scores such as STS-B; see `ScoreAnswers`."""

    task = "regression"
    settings, later_settings = ("max_tokens",), ("long_text",)
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
