"""Heads that read texts of any length in windows: the base classes, and the heads for entities and word scores.

Shapes: W windows, S sequence, N words of all texts, C columns of the logits.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import About, Head
from export.verification import probes
from keras_bert.answers.rules import SPECIAL_TOKENS
from keras_bert.answers.windowed import EntityAnswers, WindowedAnswers, WordAnswers, WordScoreAnswers

EXAMPLE = "Rollo, a Norse leader, was born in Norway and died in Rouen."


class WindowedHead(WindowedAnswers, Head):
    """A head that cuts a long text into windows, each a sequence for the model; see `Head`."""

    settings = ("doc_stride", "max_tokens")

    def expected_tokens(self, model: keras.Model, encoded: Mapping[str, Any]) -> tuple[np.ndarray, dict]:
        """Runs the model on `encode`'s windows; returns logits, float32 [W, S, C], and the answer of `token_ids`."""

        def run(inputs):
            logits = model(inputs, training=False)
            return logits, self.answer(logits, inputs)

        return probes.on_cpu(run, {name: encoded[name] for name in ("token_ids", "segment_ids", "padding_mask")})


class WordHead(WordAnswers, WindowedHead):
    """A head with an answer for each word of a text; see `WordAnswers`."""

    @classmethod
    def load(cls, trained, sequence_length=None, **settings):
        stride = trained[-1].get("doc_stride") or 0
        if sequence_length is not None and stride > sequence_length - SPECIAL_TOKENS:  # Shorter than in training.
            settings = {"doc_stride": None, **settings}
        return super().load(trained, sequence_length, **settings)

    # === Probes ===

    def probe_texts(self):
        return {"text": probes.as_bytes((EXAMPLE, *probes.TEXTS))}

    def encode(self, texts):
        """Encodes the windows of all texts eagerly; `rows` has the index of each window's text."""

        def lay_out_windows(text):
            _, windows, layout = self.lay_out(text, self.preprocessor.sequence_length - SPECIAL_TOKENS)
            return {**layout.inputs, "rows": windows.rows}

        return probes.on_cpu(lay_out_windows, texts["text"])

    def expected(self, model, texts, encoded):
        """Computes the right answers eagerly.

        A window and its text are undecided if rounding decides which logit of a token is the largest.
        """
        logits, by_token = self.expected_tokens(model, encoded)
        answer = probes.on_cpu(lambda text: self.answer_by(lambda _: tf.constant(logits), text), texts["text"])
        is_near = probes.undecided(probes.on_cpu(tf.nn.softmax, logits)) & (encoded["padding_mask"] == 1)  # [W, S]
        undecided = np.isin(np.arange(len(texts["text"])), encoded["rows"][is_near.any(axis=1)])
        return {signatures.SERVING_DEFAULT: (answer, undecided), signatures.TOKEN_IDS: (by_token, is_near.any(axis=1))}

    # === Description ===

    def about_spans(self, title: str, summary: str, texts: Mapping[str, str], scores: str, **more) -> About:
        """Describes the listed spans, with `texts` for the outputs before their places; `more` is for `About`."""
        outputs = {
            **texts,
            "starts": f"int32 ({self.listed}): the character of the text at which each starts, then -1",
            "ends": f"int32 ({self.listed}): the character after its last, then -1",
            "scores": f"float ({self.listed}): {scores}, then 0.0",
            f"num_{self.listed}": "int32: how many there are; lists are padded to the longest of the batch",
            "truncated": "bool: whether some of the text was not read",
        }
        return About(title, summary, [EXAMPLE], {"text": f"string: any bytes; {self.read_part}"}, outputs, **more)


class TokenClassification(EntityAnswers, WordHead):
    """A tagger of words, as `bert-ner` trains it, read as entities with their places; see `EntityAnswers`."""

    task = "token_classification"
    trained_settings = ("labels", "doc_stride")

    # === Other targets ===

    def comparable(self, request, outputs):
        is_real = np.arange(request["token_ids"].shape[1]) < request["lengths"][:, None]
        return {"scores": np.where(is_real, outputs["probabilities"].max(axis=-1), np.float32(0))}

    # === Description ===

    def about(self):
        return self.about_spans(
            "Entities",
            f"Finds entities in texts: {', '.join(filter(None, self.find_entities.types))}.",
            {
                "entities": 'string (entities): parts of the text, then ""',
                "types": 'string (entities): their types, then ""',
            },
            "mean probability of the tags of its words",
            token_outputs={
                "tags": 'string (sequence): of each token; "" beyond the lengths',
                "scores": "float (sequence): the tags' probabilities; 0.0 beyond the lengths",
            },
            more={"labels": self.labels},
        )


class TokenRegression(WordScoreAnswers, WordHead):
    """A model that scores words, as `bert-score-words` trains it; see `WordScoreAnswers`."""

    task = "token_regression"
    trained_settings = ("doc_stride",)

    def about(self):
        return self.about_spans(
            "Scores of words",
            "Gives each word of a text a number, on the scale that it was trained on.",
            {"words": 'string (words): the words of the text, then ""'},
            "the words' numbers",
            token_outputs={"scores": "float (sequence): of each token; 0.0 beyond the lengths"},
        )
