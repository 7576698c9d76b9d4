"""The interface between a task and its served form.

A head is a trained model of one task together with everything that exporting it takes: the inputs and outputs of its
signatures, the graph behind them, requests with known answers, and a description. The code that exports, verifies,
documents or serves a model uses only its head, and names no task.

Shapes: B batch, S sequence.
"""

import abc
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from export import signatures
from export.verification import probes
from export.verification.verify import Probe
from keras_bert.answers import text_bounds
from keras_bert.answers.base import Answers, Axes
from keras_bert.errors import InputError
from keras_bert.tokenization.preprocessor import BertPreprocessor

# Outputs by name, `Probe.undecided`, and optionally `Probe.scale`.
Answer = tuple[dict[str, np.ndarray], np.ndarray | None] | tuple[dict[str, np.ndarray], np.ndarray | None, float]


class About(NamedTuple):
    """The text of a head's description.

    Attributes:
        title: a few words.
        summary: one or two sentences.
        instances: example rows for `serving_default`, as REST's predict takes them.
        inputs, outputs: text of each input and output of `serving_default`.
        token_inputs: the same for inputs of `token_ids` that not every head has.
        token_outputs: the same for the outputs of `token_ids`; None: they are those of `serving_default`.
        example_outputs: the same for the outputs of `example_signature`.
        more: further JSON values, such as `labels`.
    """

    title: str
    summary: str
    instances: list
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    token_inputs: Mapping[str, str] = {}
    token_outputs: Mapping[str, str] | None = None
    example_outputs: Mapping[str, str] = {}
    more: Mapping[str, Any] = {}


class Head(Answers):
    """A trained model of one task with everything that exporting it takes; `Answers` decodes its outputs.

    Attributes:
        task: class attribute, the task's name in `task.json` and in the exported `model.json`.
        settings: class attribute, keyword arguments that `load` accepts besides `sequence_length`; each is a flag of
            `bert-export`.
        trained_settings: class attribute, constructor arguments that a trained model's `task.json` contains.
        later_settings: class attribute, further ones, which the `task.json` of an older version may lack.
        example_signature: class attribute, the verb that takes `tf.Example`s: "classify", "regress" or None.
        text_inputs: inputs of `serving_default`, string.
        token_inputs: inputs of `token_ids`, all int32: name -> dimensions after the batch's.
        padding: the padded outputs of `serving_default`, by which servers split batches.
        variables: state of the graph besides the model's weights.
        more_models: Keras models in the graph besides the head's own, as served; their weights are stored, too.
        model: as loaded, of any float type; contains a BertBackbone.

    Raises:
        InputError: the model has fewer positions than `sequence_length`.
    """

    task: str
    settings: tuple[str, ...] = ()
    trained_settings: tuple[str, ...] = ()
    later_settings: tuple[str, ...] = ()
    example_signature: str | None = None
    token_inputs: Mapping[str, Axes] = signatures.TOKEN_AXES
    variables: tuple[tf.Variable, ...] = ()
    more_models: tuple[keras.Model, ...] = ()

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor):
        backbone = text_bounds.find_backbone(model)
        longest = getattr(backbone, "max_sequence_length", preprocessor.sequence_length)
        if preprocessor.sequence_length > longest:
            raise InputError(
                f"A sequence length of {preprocessor.sequence_length}: the model has positions for {longest} tokens. "
                "Give --max_seq_length at most that many."
            )
        super().__init__(model, preprocessor)

    @classmethod
    def load(cls, trained: tuple, sequence_length: int | None = None, **settings) -> "Head":
        """Builds the head of a trained model.

        Args:
            trained: model, tokenizer and content of `task.json`.
            sequence_length: int; None: as in training.
            **settings: some of `cls.settings`, which override the values from training.
        """
        model, tokenizer, task = trained
        trained_settings = {name: task[name] for name in cls.trained_settings + cls.later_settings if name in task}
        preprocessor = BertPreprocessor(tokenizer, sequence_length or task["sequence_length"])
        return cls(model, preprocessor, **{**trained_settings, **settings})

    # === The graph ===

    def functions(self, model: keras.Model) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Traces the signatures.

        Args:
            model: the float32 rebuild of `self.model`, its backbone of the layout "unpadded".

        Returns:
            Signature name -> traced function of named tensors. Dimension 0 of every input and output is the batch,
            which may be empty.
        """

        def from_texts(**texts):
            return self.answer_texts(model, {name: texts[name] for name in self.text_inputs})

        def from_examples(inputs):
            features = {name: tf.io.FixedLenFeature(axes, tf.string) for name, axes in self.text_inputs.items()}
            texts = tf.io.parse_example(inputs, features)
            return self.answer_examples(texts, answer(**texts))  # Tracing it again would take most of an export's time.

        answer = signatures.trace(from_texts, self.text_inputs, tf.string)
        traced = {signatures.SERVING_DEFAULT: answer, signatures.TOKEN_IDS: self.function_of_token_ids(model)}
        if self.example_signature:
            traced[self.example_signature] = signatures.trace(from_examples, {"inputs": ()}, tf.string)
        return traced

    def function_of_token_ids(self, model: keras.Model) -> tf.types.experimental.ConcreteFunction:
        """Traces `token_ids` alone; see `functions`."""
        backbone = text_bounds.find_backbone(model)

        def from_token_ids(token_ids, segment_ids, lengths, **more):
            with tf.control_dependencies(text_bounds.check_token_ids(backbone, token_ids, segment_ids, lengths)):
                token_ids, segment_ids, lengths = (tf.identity(ids) for ids in (token_ids, segment_ids, lengths))
            mask = tf.sequence_mask(lengths, tf.shape(token_ids)[-1], dtype=tf.int32)  # By `lengths` alone.
            encoded = {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": mask}
            return self.answer_token_ids(model, {**encoded, **more})

        return signatures.trace(from_token_ids, self.token_inputs, tf.int32)

    def encoding(self) -> dict | None:
        """Describes how texts become token ids, as JSON for `export.server.runtime.short_texts`.

        None, the default, if another process cannot compute the answer from the encoder's outputs for these ids.
        """
        return None

    def answer_examples(self, texts: Mapping, answer: Mapping) -> dict[str, tf.Tensor]:
        """Turns an answer of `serving_default` into the outputs of `example_signature`."""
        raise NotImplementedError(f"{type(self).__name__} has no signature of examples.")

    # === Requests with known answers ===

    def probes(self, model: keras.Model) -> list[Probe]:
        """Makes requests to every signature with their right answers: all of `probe_texts`, the first row, and no row.

        Args:
            model: the float32 reference, in the layout it was trained in. The answers are computed from it eagerly or
                in NumPy, on the CPU (`export.verification.probes.on_cpu`), never by `functions`.
        """
        asked = []
        for limit in (None, 1, 0):
            texts = {name: column[:limit] for name, column in self.probe_texts().items()}
            encoded = self.encode(texts)
            right = self.expected(model, texts, encoded)
            if self.example_signature:
                answer, _ = right[signatures.SERVING_DEFAULT]  # Never undecided: it has all classes, in a fixed order.
                by_example = probes.on_cpu(lambda both: self.answer_examples(*both), [texts, answer])
                right[self.example_signature] = by_example, None
            asked += [Probe(name, inputs, *right[name]) for name, inputs in self.requests(texts, encoded).items()]
        return asked

    def warmup(self) -> list[tuple[str, dict[str, np.ndarray]]]:
        """Returns a small request to each signature, (signature, inputs), which a server runs as it loads the model."""
        texts = {name: column[:1] for name, column in self.probe_texts().items()}
        asked = self.requests(texts, self.encode(texts)).items()
        return [(signature, {name: values[:1] for name, values in inputs.items()}) for signature, inputs in asked]

    def requests(self, texts: Mapping[str, np.ndarray], encoded: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
        """Returns the same texts as a request to each signature: signature -> input name -> array."""
        asked = {signatures.SERVING_DEFAULT: dict(texts), signatures.TOKEN_IDS: self.token_request(encoded)}
        if self.example_signature:
            asked[self.example_signature] = {"inputs": probes.examples(texts)}
        return asked

    def token_request(self, encoded: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Returns the inputs of `token_ids` for what `encode` returned."""
        values = {**encoded, "lengths": np.sum(encoded["padding_mask"] > 0, axis=-1, dtype=np.int32)}
        return {name: values[name] for name in self.token_inputs}

    @abc.abstractmethod
    def probe_texts(self) -> dict[str, np.ndarray]:
        """Returns `text_inputs` as arrays of bytes objects, (B, *dimensions): an ordinary row, then hostile ones."""

    @abc.abstractmethod
    def encode(self, texts: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Encodes texts without the graph.

        Returns:
            The Keras model's inputs, int32 arrays, `padding_mask` in place of `lengths`; and whatever else `expected`
            needs.
        """

    @abc.abstractmethod
    def expected(self, model: keras.Model, texts: Mapping, encoded: Mapping[str, Any]) -> dict[str, Answer]:
        """Returns the right answers of `serving_default` and `token_ids`; see `probes`."""

    # === Other targets ===

    def sample(self, sentences: Iterator[str], count: int) -> dict[str, np.ndarray]:
        """Makes `count` rows of `text_inputs` out of ordinary sentences."""
        return {
            name: probes.as_bytes(itertools.islice(sentences, count * math.prod(axes))).reshape(count, *axes)
            for name, axes in self.text_inputs.items()
        }

    def comparable(self, request: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Converts another target's `token_outputs` to the float outputs of the signature `token_ids`."""
        return dict(outputs)

    # === Description ===

    @abc.abstractmethod
    def about(self) -> About:
        """Returns the text of the model's description."""

    def description(self) -> dict:
        """Describes the model, as JSON, for READMEs, pages and clients; it is written into each version.

        Returns:
            Dict of `task`, `title`, `summary`, `sequence_length`, `labels` (empty where there are none), `signatures`
            (name -> {"inputs": {...}, "outputs": {...}, "padding": {...}}), `example` ({"instances": [...]}) and
            `About.more`. A signature with `padding`, even an empty one, answers each row independently.
        """
        about = self.about()
        parts = ("inputs", "outputs", "padding")
        return {
            "task": self.task,
            "title": about.title,
            "summary": about.summary,
            "sequence_length": self.preprocessor.sequence_length,
            "labels": [],
            "signatures": {
                name: dict(zip(parts, map(dict, described), strict=True))
                for name, described in self.described(about).items()
            },
            "example": {"instances": about.instances},
            **about.more,
        }

    def described(self, about: About) -> dict[str, tuple[Mapping, Mapping, Mapping]]:
        """Describes each signature by its inputs, outputs and `padding`."""
        ids = signatures.describe_tokens(self.token_inputs, about.token_inputs)
        described = {
            signatures.SERVING_DEFAULT: (about.inputs, about.outputs, self.padding),
            signatures.TOKEN_IDS: (ids, about.outputs if about.token_outputs is None else about.token_outputs, {}),
        }
        if self.example_signature:
            examples = signatures.describe_examples(self.text_inputs)
            described[self.example_signature] = (examples, about.example_outputs, {})
        return described
