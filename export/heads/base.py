"""What a head is: a trained model of one task with all that its served graph needs.

A head knows its task: `export.saved_model.export_head` rebuilds its model for serving, writes what `functions` traces,
and asks what `probes` knows the answers of before anything is published.
"""

import abc

import keras
import numpy as np
import tensorflow as tf

from export.serving import find_backbone
from export.verify import Probe
from keras_bert.errors import InputError
from keras_bert.preprocessor import BertPreprocessor


class Head(abc.ABC):
    """A trained model of one task with all that its served graph needs.

    Attributes:
        task: class attribute, the name by which `task.json` and the exported `model.json` know the task.
        settings: class attribute, names of the keyword arguments that `load` takes beside `sequence_length`: each is a
            flag of `bert-export` too.
        model: as loaded, of any float type; the task's inputs to its outputs, with a BertBackbone inside.
        preprocessor: tokenizer and `sequence_length`; the graph pads to the batch's longest whatever it does.

    Raises:
        InputError: the model has fewer positions than `sequence_length`.
    """

    task: str
    settings: tuple[str, ...] = ()

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor):
        backbone = find_backbone(model)
        longest = getattr(backbone, "max_sequence_length", preprocessor.sequence_length)
        if preprocessor.sequence_length > longest:
            raise InputError(
                f"A sequence length of {preprocessor.sequence_length}: the model has positions for {longest} tokens. "
                "Give --max_seq_length at most that many."
            )
        self.model = model
        self.preprocessor = preprocessor

    @classmethod
    @abc.abstractmethod
    def load(cls, directory: str, **settings) -> "Head":
        """Reads a trained model.

        Args:
            directory: what the task's command wrote; where the task needs no training of its own, any preset.
            **settings: some of `cls.settings` and `sequence_length`, to be taken instead of what the directory says.

        Raises:
            InputError: a file is missing or damaged, or the directory is of another task.
        """

    @abc.abstractmethod
    def functions(self, model: keras.Model) -> dict[str, tf.types.experimental.ConcreteFunction]:
        """Traces the signatures, `serving_default` among them (`export.serving.trace`).

        Args:
            model: the float32 rebuild of `self.model`, its backbone of the layout "unpadded".

        Returns:
            Signature name -> traced function of named tensors. Dimension 0 of each input and output is the batch; an
            empty batch must work.
        """

    @abc.abstractmethod
    def probes(self, model: keras.Model) -> list[Probe]:
        """Requests to every signature with the right answers, an empty batch and hostile texts among them.

        Args:
            model: the float32 reference, in the layout it was trained in; the answers are its own, by the eager path
                or by the task's Python, on the CPU (`export.probes.on_cpu`), never by `functions`.
        """

    @abc.abstractmethod
    def description(self) -> dict:
        """What a README, a page or a client shows, as JSON; see `describe`. Written into each version."""

    def warmup(self) -> list[tuple[str, dict[str, np.ndarray]]]:
        """Small requests, (signature, inputs), that a server runs as it loads the model: one to each signature."""
        smallest = {}
        for probe in self.probes(self.model):
            size = len(next(iter(probe.inputs.values())))
            if size and (probe.signature not in smallest or size < smallest[probe.signature][0]):
                smallest[probe.signature] = size, dict(probe.inputs)
        return [(signature, inputs) for signature, (_, inputs) in smallest.items()]

    def describe(
        self, title: str, summary: str, signatures: dict[str, tuple[dict, dict]], instances: list, **more
    ) -> dict:
        """Builds a `description`.

        Args:
            title: of the page, a few words.
            summary: one or two sentences.
            signatures: name -> (input name -> text, output name -> text).
            instances: example rows for `serving_default`, as REST's predict takes them under `instances`.
            **more: further JSON values, such as `labels`.

        Returns:
            Dict of `task`, `title`, `summary`, `sequence_length`, `labels` (empty where there are none), `signatures`
            (name -> {"inputs": {...}, "outputs": {...}}), `example` ({"instances": [...]}), and `more`.
        """
        return {
            "task": self.task,
            "title": title,
            "summary": summary,
            "sequence_length": self.preprocessor.sequence_length,
            "labels": [],
            "signatures": {
                name: {"inputs": inputs, "outputs": outputs} for name, (inputs, outputs) in signatures.items()
            },
            "example": {"instances": instances},
            **more,
        }
