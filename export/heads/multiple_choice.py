"""Multiple choice: which of K texts goes with a text; what `bert-swag` trains.

Shapes: B batch, K choices, S sequence.
"""

import keras
import numpy as np
import tensorflow as tf

from export import probes, serving, signatures
from export.heads.base import Head
from export.verify import Probe
from keras_bert.preprocessor import BertPreprocessor
from tasks.swag.model import load_multiple_choice

_CHOICES = "choices"


class MultipleChoice(Head):
    """A multiple-choice model.

    Each choice becomes the sequence `[CLS] text [SEP] choice [SEP]`, as `tasks/swag/data.py` packs it.

    Args:
        model: encoder inputs of shape (B, K, S) to logits [B, K]; K is fixed in it.
        preprocessor: tokenizer and longest sequence.
    """

    task = "multiple_choice"

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor):
        super().__init__(model, preprocessor)
        self.num_choices = model.output_shape[-1]
        self._to_longest = BertPreprocessor(preprocessor.tokenizer, preprocessor.sequence_length, pad_to_longest=True)

    @classmethod
    def load(cls, directory: str, sequence_length: int | None = None) -> "MultipleChoice":
        loaded = load_multiple_choice(directory)
        return cls(loaded.model, BertPreprocessor(loaded.tokenizer, sequence_length or loaded.sequence_length))

    # === Graph ===

    def functions(self, model: keras.Model) -> dict[str, tf.types.experimental.ConcreteFunction]:
        backbone = serving.find_backbone(model)
        tokenizer, longest = self.preprocessor.tokenizer, self.preprocessor.sequence_length

        def from_texts(text, choices):
            with tf.control_dependencies([self._check(tf.shape(choices), tf.shape(text))]):
                choices = tf.identity(choices)
            bounded = serving.bound_texts(tf.reshape(choices, [-1]), tokenizer, longest)
            encoded = self._encode(serving.bound_texts(text, tokenizer, longest), bounded)
            answer = _answer(model(encoded, training=False))
            return {**answer, "choice_text": tf.gather(choices, answer["choice"], batch_dims=1)}

        def from_token_ids(token_ids, **ids):
            with tf.control_dependencies([self._check(tf.shape(token_ids), tf.shape(token_ids)[:1])]):
                token_ids = tf.identity(token_ids)
            return _answer(model(serving.encoder_inputs(backbone, token_ids, **ids), training=False))

        def from_examples(inputs):
            features = {"text": tf.io.FixedLenFeature([], tf.string)}
            features[_CHOICES] = tf.io.FixedLenFeature([self.num_choices], tf.string)
            columns = tf.io.parse_example(inputs, features)
            return {"classes": columns[_CHOICES], "scores": from_texts(**columns)["probabilities"]}

        return {
            signatures.SERVING_DEFAULT: serving.trace(from_texts, self._specs()),
            signatures.TOKEN_IDS: serving.trace(from_token_ids, signatures.token_specs(self.num_choices)),
            signatures.CLASSIFY: serving.trace(from_examples, signatures.example_specs()),
        }

    def _specs(self) -> dict[str, tf.TensorSpec]:
        choices = tf.TensorSpec([None, self.num_choices], tf.string, name=_CHOICES)
        return {**signatures.text_specs("text"), _CHOICES: choices}

    def _check(self, shape: tf.Tensor, batch: tf.Tensor) -> tf.Operation:
        """Fails unless there are K choices for each text: reshaping would mix up the choices of several texts."""
        message = f"Expected {self.num_choices} choices for each text. Received shapes:"
        right = tf.reduce_all(shape[:2] == tf.concat([batch, [self.num_choices]], axis=0))
        return tf.debugging.Assert(right, [message, shape, batch])

    def _encode(self, text: tf.Tensor, choices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Encodes texts [B] with their choices [B * K], in order, to int32 [B, K, S]."""
        encoded = self._to_longest((tf.repeat(text, self.num_choices), choices))
        return {
            name: tf.reshape(ids, [tf.size(text), self.num_choices, tf.shape(ids)[1]]) for name, ids in encoded.items()
        }

    # === Probes ===

    def probes(self, model: keras.Model) -> list[Probe]:
        found = []
        for batch in probes.batches():
            choices, encoded, requests = self._ask(batch)
            logits = probes.on_cpu(lambda tensors: model(tensors, training=False), encoded)
            probabilities = probes.on_cpu(tf.nn.softmax, logits)
            best = np.argmax(probabilities, axis=-1).astype(np.int32)
            answer = {"choice": best, "score": np.max(probabilities, axis=-1), "probabilities": probabilities}
            right = {
                signatures.SERVING_DEFAULT: {**answer, "choice_text": choices[np.arange(len(batch)), best]},
                signatures.TOKEN_IDS: answer,
                signatures.CLASSIFY: {"classes": choices, "scores": probabilities},
            }
            undecided = probes.undecided(probabilities)
            found += [Probe(name, request, right[name], undecided) for name, request in requests.items()]
        return found

    def warmup(self) -> list[tuple[str, dict[str, np.ndarray]]]:
        return list(self._ask(probes.as_bytes(probes.TEXTS[:1]))[2].items())

    def _ask(self, text: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, dict]]:
        """Returns choices [B, K], the texts behind each in the list; the model's inputs; and signature -> inputs."""
        everything = probes.as_bytes(probes.TEXTS)
        places = np.arange(len(text))[:, None] + np.arange(1, self.num_choices + 1)
        choices = everything[places % len(everything)]
        encoded = probes.on_cpu(lambda both: self._encode(both[0], tf.reshape(both[1], [-1])), [text, choices])
        lengths = np.sum(encoded["padding_mask"], axis=-1, dtype=np.int32)
        examples = [
            probes.example({"text": [one], _CHOICES: list(its_choices)})
            for one, its_choices in zip(text, choices, strict=True)
        ]
        requests = {
            signatures.SERVING_DEFAULT: {"text": text, _CHOICES: choices},
            signatures.TOKEN_IDS: {
                **{name: encoded[name] for name in ("token_ids", "segment_ids")},
                "lengths": lengths,
            },
            signatures.CLASSIFY: {"inputs": np.array(examples, dtype=object)},
        }
        return choices, encoded, requests

    # === What it says of itself ===

    def description(self) -> dict:
        count = self.num_choices
        outputs = {
            "choice": "int32: the number of the most probable choice, from 0",
            "score": "float: its probability",
            "probabilities": "float (choices): of each choice",
        }
        texts = {"text": signatures.TEXT_INPUTS["text"], _CHOICES: f"string ({count}): the choices"}
        ids = {
            "token_ids": f"int32 ({count}, length): ids of the tokens of text and choice, [CLS] and [SEP] included",
            "segment_ids": f"int32 ({count}, length): 0 for the text, 1 for the choice",
            "lengths": f"int32 ({count}): how many of the ids are real; the others are padding",
        }
        examples = {
            "inputs": f"string: a serialized `tf.Example` with the strings `text` (one) and `choices` ({count})"
        }
        classes = {"classes": f"string ({count}): the choices", "scores": f"float ({count}): their probabilities"}
        endings = ("plays it.", "eats it.", "sleeps.", "swims away.", "sings to it.", "reads it.", "paints it.")
        choices = [f"She {endings[number % len(endings)]}" for number in range(count)]
        return self.describe(
            "Multiple choice",
            f"Tells which of {count} texts goes best with a text.",
            {
                signatures.SERVING_DEFAULT: (texts, {**outputs, "choice_text": "string: its text"}),
                signatures.TOKEN_IDS: (ids, outputs),
                signatures.CLASSIFY: (examples, classes),
            },
            [{"text": "A woman sits at a piano.", _CHOICES: choices}],
            num_choices=count,
        )


def _answer(logits: tf.Tensor) -> dict[str, tf.Tensor]:
    probabilities = tf.nn.softmax(tf.cast(logits, tf.float32))  # [B, K]
    return {
        "choice": tf.argmax(probabilities, axis=-1, output_type=tf.int32),
        "score": tf.reduce_max(probabilities, axis=-1),
        "probabilities": probabilities,
    }
