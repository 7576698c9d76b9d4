"""Multiple choice, as `bert-swag` trains it: names the one of K texts that goes with a text.

Shapes: B batch, K choices, S sequence.
"""

import keras
import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import About, TokenOutput
from export.heads.sequence import BestOfHead
from export.verification import probes
from keras_bert.tokenization.preprocessor import BertPreprocessor

_ENDINGS = ("plays it.", "eats it.", "sleeps.", "swims away.", "sings to it.", "reads it.", "paints it.")


class MultipleChoice(BestOfHead):
    """A multiple-choice model.

    Each choice becomes the sequence `[CLS] text [SEP] choice [SEP]`, packed as `tasks/swag/data.py` packs it.

    Args:
        model: encoder inputs of shape (B, K, S) to logits [B, K]; it fixes K.
        preprocessor: tokenizer and longest sequence.
    """

    task = "multiple_choice"
    token_outputs = {"probabilities": TokenOutput(("choices",), softmax=True)}

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor):
        super().__init__(model, preprocessor)
        self.num_choices = model.output_shape[-1]
        self.text_inputs = {"text": (), "choices": (self.num_choices,)}
        self.token_inputs = {name: (self.num_choices, *axes) for name, axes in signatures.TOKEN_AXES.items()}

    # === Graph ===

    def answer_texts(self, model, texts):
        text, choices = texts.values()
        with tf.control_dependencies([self.check(tf.shape(choices), tf.shape(text))]):
            choices = tf.identity(choices)
        answer = super().answer_texts(model, {"text": text, "choices": choices})
        return {**answer, "choice_text": tf.gather(choices, answer["choice"], batch_dims=1)}

    def answer_token_ids(self, model, encoded):
        shape = tf.shape(encoded["token_ids"])
        with tf.control_dependencies([self.check(shape, shape[:1])]):
            encoded = {name: tf.identity(ids) for name, ids in encoded.items()}
        return super().answer_token_ids(model, encoded)

    def answer_examples(self, texts, answer):
        return {"classes": texts["choices"], "scores": answer["probabilities"]}

    def check(self, shape: tf.Tensor, batch: tf.Tensor) -> tf.Operation:
        """Returns an op that fails unless each text has K choices; reshaping would mix those of several texts."""
        message = f"Expected {self.num_choices} choices for each text. Received shapes:"
        right = tf.reduce_all(shape[:2] == tf.concat([batch, [self.num_choices]], axis=0))
        return tf.debugging.Assert(right, [message, shape, batch])

    def pack(self, texts):
        """Encodes texts [B] with their choices [B * K], in order, to int32 [B, K, S]."""
        text, choices = texts["text"], texts["choices"]
        encoded = super().pack({"text": tf.repeat(text, self.num_choices), "choices": choices})
        shape = [tf.size(text), self.num_choices]
        return {name: tf.reshape(ids, [*shape, tf.shape(ids)[1]]) for name, ids in encoded.items()}

    # === Probes ===

    def probe_texts(self):
        texts = probes.as_bytes(probes.TEXTS)
        places = np.arange(len(texts))[:, None] + np.arange(1, self.num_choices + 1)
        return {"text": texts, "choices": texts[places % len(texts)]}

    def expected(self, model, texts, encoded):
        right = super().expected(model, texts, encoded)
        answer, undecided = right[signatures.SERVING_DEFAULT]
        chosen = np.take_along_axis(texts["choices"], answer["choice"][:, None], axis=1)[:, 0]
        return {**right, signatures.SERVING_DEFAULT: ({**answer, "choice_text": chosen}, undecided)}

    # === Description ===

    def about(self):
        count = self.num_choices
        outputs = {
            "choice": "int32: the number of the most probable choice, from 0",
            "score": "float: its probability",
            "probabilities": "float (choices): of each choice",
        }
        choices = [f"She {_ENDINGS[number % len(_ENDINGS)]}" for number in range(count)]
        return About(
            "Multiple choice",
            f"Tells which of {count} texts goes best with a text.",
            [{"text": "A woman sits at a piano.", "choices": choices}],
            {"text": signatures.TEXT_INPUTS["text"], "choices": f"string ({count}): the choices"},
            {**outputs, "choice_text": "string: its text"},
            token_outputs=outputs,
            example_outputs={
                "classes": f"string ({count}): the choices",
                "scores": f"float ({count}): their probabilities",
            },
            more={"num_choices": count},
        )
