"""Entities, as `bert-ner` trains them: a text of any length in, its entities out, with their places.

Shapes: B texts, W windows, S sequence, N words, C labels, E entities of the text that has most.
"""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from export.heads.base import About, TokenOutput
from export.heads.windowed import EXAMPLE, WordHead
from export.verification import probes
from keras_bert.answers.entities import EntityFinder
from keras_bert.tokenization.preprocessor import BertPreprocessor


class TokenClassification(WordHead):
    """A tagger of words, read as entities; see `WordHead`.

    Args:
        model: encoder inputs to logits [B, S, C].
        preprocessor: see `WordHead`.
        labels: C tags, "O", B- or I- and a type, in the order of the logits.
        **settings: `doc_stride` and `max_tokens` of `WordHead`.

    Raises:
        ValueError: the arguments do not fit together.
    """

    task = "token_classification"
    trained_settings = ("labels", "doc_stride")
    listed = "entities"
    columns = {"types": "", "scores": 0.0}
    token_outputs = {"probabilities": TokenOutput(("sequence", "classes"), softmax=True)}

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, labels: Sequence[str], **settings):
        super().__init__(model, preprocessor, **settings)
        self.labels = list(labels)
        probes.check_labels(model, self.labels)
        self._find_entities = EntityFinder(self.labels)

    # === Graph ===

    def answer_words(self, words, logits):
        entities = self._find_entities(words, tf.nn.softmax(logits))
        types = tf.gather(tf.constant(self._find_entities.types, tf.string), entities.types)
        return entities, {"types": types, "scores": entities.scores}

    def answer(self, outputs, encoded):
        probabilities = super().answer(outputs, encoded)["probabilities"]  # [B, S, C]
        is_token = encoded["padding_mask"] == 1
        tags = tf.gather(tf.constant(self.labels), tf.argmax(probabilities, axis=-1))
        scores = tf.reduce_max(probabilities, axis=-1)
        return {"tags": tf.where(is_token, tags, ""), "scores": tf.where(is_token, scores, 0.0)}

    # === Other targets ===

    def comparable(self, request, outputs):
        is_real = np.arange(request["token_ids"].shape[1]) < request["lengths"][:, None]
        return {"scores": np.where(is_real, outputs["probabilities"].max(axis=-1), np.float32(0))}

    # === Description ===

    def about(self):
        return About(
            "Entities",
            f"Finds entities in texts: {', '.join(filter(None, self._find_entities.types))}.",
            [EXAMPLE],
            {"text": f"string: any bytes; {self.read_part}"},
            {
                "entities": 'string (entities): parts of the text, then ""',
                "types": 'string (entities): theirs, then ""',
                "starts": "int32 (entities): the character of the text at which each starts, then -1",
                "ends": "int32 (entities): the character after its last, then -1",
                "scores": "float (entities): mean probability of the tags of its words, then 0.0",
                "num_entities": "int32: how many there are; the others fill up to the most of the batch",
                "truncated": "bool: whether some of the text was not read",
            },
            token_outputs={
                "tags": 'string (sequence): of each token; "" beyond the lengths',
                "scores": "float (sequence): the tags' probabilities; 0.0 beyond the lengths",
            },
            more={"labels": self.labels},
        )
