"""Heads that make of each text, or pair of texts, one answer: what their graphs and probes have in common.

Shapes: B batch, S sequence.
"""

import abc
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf

from export import probes, serving, signatures
from export.heads.base import Head
from export.verify import Probe
from keras_bert.preprocessor import BertPreprocessor


class SequenceHead(Head):
    """A head whose model takes the encoder's inputs of a text or pair; see `Head`.

    Attributes:
        num_texts: 1, or 2 for a model of text pairs.
        example_signature: class attribute, the signature of `tf.Example`s: "classify", "regress", or None.
    """

    example_signature: str | None = None

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, num_texts: int = 1):
        super().__init__(model, preprocessor)
        if num_texts not in (1, 2):
            raise ValueError(f"`num_texts` must be 1 or 2. Received: num_texts={num_texts}")
        self.num_texts = num_texts

    @property
    def text_names(self) -> tuple[str, ...]:
        """Names of the inputs of `serving_default`."""
        return signatures.TEXT_NAMES[: self.num_texts]

    # === What a task says ===

    @abc.abstractmethod
    def answer(self, outputs, encoded: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """In the graph, from the model's outputs (and its inputs) to the outputs of `serving_default`."""

    @abc.abstractmethod
    def expected(self, outputs, encoded: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """The same in numpy, and `Probe.undecided`."""

    def example_answer(self, answer: Mapping) -> dict:
        """From an answer, in the graph or in numpy, to the outputs of `example_signature`."""
        raise NotImplementedError(f"{type(self).__name__} has no signature of examples.")

    # === Graph and probes ===

    def functions(self, model: keras.Model) -> dict[str, tf.types.experimental.ConcreteFunction]:
        encode = serving.text_encoder(self.preprocessor)
        backbone = serving.find_backbone(model)

        def answer(encoded):
            return self.answer(model(encoded, training=False), encoded)

        def from_texts(**texts):
            return answer(encode(*(texts[name] for name in self.text_names)))

        def from_token_ids(**ids):
            return answer(serving.encoder_inputs(backbone, **ids))

        def from_examples(inputs):
            features = {name: tf.io.FixedLenFeature([], tf.string) for name in self.text_names}
            return self.example_answer(from_texts(**tf.io.parse_example(inputs, features)))

        traced = {
            signatures.SERVING_DEFAULT: serving.trace(from_texts, signatures.text_specs(*self.text_names)),
            signatures.TOKEN_IDS: serving.trace(from_token_ids, signatures.token_specs()),
        }
        if self.example_signature:
            traced[self.example_signature] = serving.trace(from_examples, signatures.example_specs())
        return traced

    def probes(self, model: keras.Model) -> list[Probe]:
        """See `Head.probes`; the second text of a pair runs through the list backwards."""
        found = []
        for batch in probes.batches():
            columns = dict(zip(signatures.TEXT_NAMES, (batch, batch[::-1])[: self.num_texts], strict=False))
            encoded = probes.on_cpu(self._encode, columns)
            outputs = probes.on_cpu(lambda tensors: model(tensors, training=False), encoded)
            answer, undecided = self.expected(outputs, encoded)
            requests = self._requests(columns, encoded)
            for signature, request in requests.items():
                if signature == self.example_signature:  # It ranks nothing: every class is named.
                    found.append(Probe(signature, request, self.example_answer(answer)))
                else:
                    found.append(Probe(signature, request, answer, undecided))
        return found

    def warmup(self) -> list[tuple[str, dict[str, np.ndarray]]]:
        text = probes.as_bytes(probes.TEXTS[:1])
        columns = dict.fromkeys(self.text_names, text)
        return list(self._requests(columns, probes.on_cpu(self._encode, columns)).items())

    def _encode(self, columns: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """The whole, uncut texts through the preprocessor."""
        to_longest = BertPreprocessor(
            self.preprocessor.tokenizer, self.preprocessor.sequence_length, pad_to_longest=True
        )
        return to_longest(tuple(columns.values()))

    def _requests(self, columns: Mapping[str, np.ndarray], encoded: Mapping[str, np.ndarray]) -> dict[str, dict]:
        """Signature -> inputs: one question, asked in each way that there is."""
        lengths = np.sum(encoded["padding_mask"], axis=-1, dtype=np.int32)
        requests = {
            signatures.SERVING_DEFAULT: dict(columns),
            signatures.TOKEN_IDS: {
                **{name: encoded[name] for name in ("token_ids", "segment_ids")},
                "lengths": lengths,
            },
        }
        if self.example_signature:
            rows = zip(*columns.values(), strict=True)
            examples = [probes.example({name: [text] for name, text in zip(columns, row, strict=True)}) for row in rows]
            requests[self.example_signature] = {"inputs": np.array(examples, dtype=object)}
        return requests

    def signature_texts(self, outputs: dict[str, str], example_outputs: dict[str, str] | None = None) -> dict:
        """What `describe` takes as `signatures`."""
        names = " and ".join(f"`{name}`" for name in self.text_names)
        texts = {
            signatures.SERVING_DEFAULT: ({name: signatures.TEXT_INPUTS[name] for name in self.text_names}, outputs),
            signatures.TOKEN_IDS: (signatures.TOKEN_INPUTS, outputs),
        }
        if example_outputs is not None:
            inputs_text = {"inputs": f"string: a serialized `tf.Example` with the string feature {names}"}
            texts[self.example_signature] = (inputs_text, example_outputs)
        return texts

    def instances(self, *texts: str) -> list:
        """Example rows of one text each; of pairs one row, of the first two."""
        return list(texts) if self.num_texts == 1 else [dict(zip(self.text_names, texts, strict=False))]
