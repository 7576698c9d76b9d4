"""What a trained model answers to texts. The graphs of exports and `answer` of the task models decode by it alike.

Shapes: B batch, S sequence.
"""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_bert.answers.pieces import in_pieces
from keras_bert.encoder.heads import PoolTokens
from keras_bert.tokenization.preprocessor import BertPreprocessor

Axes = tuple[str | int, ...]  # Dimensions behind the batch: a fixed size, or the name of a free one.


class TokenOutput(NamedTuple):
    """One float output that every target computes from token ids, by the following steps in this order.

    Attributes:
        axes: dimensions behind the batch.
        source: which of the Keras model's outputs to start from; None: its only one.
        pool: as in `PoolTokens`, "mean" averages over the real tokens, "cls" takes the first one; None leaves the
            sequence.
        column: index along the last axis, which then goes away; None keeps all columns.
        softmax: whether to apply softmax to the last axis.
        padding: value at positions beyond a row's length; None leaves what the model computes there.
    """

    axes: Axes
    source: str | None = None
    pool: str | None = None
    column: int | None = None
    softmax: bool = False
    padding: float | None = None

    def of(self, outputs, padding_mask: tf.Tensor) -> tf.Tensor:
        """Builds the graph from the Keras model's outputs and padding mask, int32 (B, S), to this output."""
        value = outputs if self.source is None else outputs[self.source]
        if self.pool is not None:
            value = PoolTokens(self.pool, dtype="float32")(value, padding_mask)
        if self.column is not None:
            value = value[..., self.column]
        if self.softmax:
            value = tf.nn.softmax(value)
        return value if self.padding is None else tf.where(padding_mask == 1, value, self.padding)


class Answers(abc.ABC):
    """The answers of a trained model of one task, as ops.

    Attributes:
        text_inputs: what it reads, all strings: name -> dimensions behind the batch.
        padding: the outputs that are filled up to the batch's longest row: `values` has what fills each, and `count`
            names the output with the length of each row. They have at least one column. Empty: no output is filled up.
        token_outputs: the outputs that other targets (ONNX, LiteRT) compute from the same token ids.
        model: holds a BertBackbone.
        preprocessor: tokenizer and `sequence_length`. The graph pads to the batch's longest whatever `pad_to_longest`.
    """

    text_inputs: Mapping[str, Axes] = {"text": ()}
    padding: Mapping[str, Any] = {}
    token_outputs: Mapping[str, TokenOutput]

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor):
        self.model = model
        self.preprocessor = preprocessor

    @abc.abstractmethod
    def answer_texts(self, model: keras.Model, texts: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Builds the graph from texts, `text_inputs` by name, to the answer.

        Like `answer_token_ids`, it runs the model by `keras_bert.answers.pieces.in_pieces`, which bounds the memory.
        """

    def answer_token_ids(self, model: keras.Model, encoded: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Builds the graph from the encoder's inputs, checked, and further `token_inputs` to the outputs."""
        return in_pieces(model, encoded, self.answer)

    def answer(self, outputs, encoded: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Builds the graph from the model's outputs (and its inputs) to the answer to token ids, each row by itself.

        By default these are `token_outputs`.
        """
        return {name: output.of(outputs, encoded["padding_mask"]) for name, output in self.token_outputs.items()}

    def check_labels(self, labels: list[str]) -> None:
        """Checks that there is a label for each of the model's outputs.

        Raises:
            ValueError: there are more or fewer.
        """
        count, outputs = len(labels), self.model.output_shape[-1]
        if count != outputs:
            raise ValueError(
                f"`labels` must name each of the model's outputs. Received: {count} labels, {outputs} outputs"
            )
