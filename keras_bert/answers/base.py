"""Decodes a trained model's outputs into answers to texts, in exported graphs and in the models' `answer` methods.

Shapes: B batch, S sequence.
"""

import abc
import functools
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_bert.answers.pieces import in_pieces
from keras_bert.encoder.heads import PoolTokens
from keras_bert.tokenization.preprocessor import BertPreprocessor

_ROWS = 256  # Per call from Python. The encoder's memory is bounded by `in_pieces`.

Axes = tuple[str | int, ...]  # Dimensions after the batch's: a fixed size, or the name of a free one.


class TokenOutput(NamedTuple):
    """A float output that every target computes from token ids.

    The steps run in this order: pool, column, temperature, softmax, sigmoid, padding.

    Attributes:
        axes: dimensions after the batch's.
        source: name of the Keras model's output to start from; None: its only output.
        pool: the `pooling` of `PoolTokens`; None keeps the sequence.
        column: index along the last axis, which is then dropped; None keeps all columns.
        softmax: whether to apply softmax to the last axis.
        sigmoid: whether to apply the sigmoid to each number.
        padding: value at positions beyond a row's length; None keeps what the model computes there.
        temperature: divides the logits before the softmax.
    """

    axes: Axes
    source: str | None = None
    pool: str | None = None
    column: int | None = None
    softmax: bool = False
    sigmoid: bool = False
    padding: float | None = None
    temperature: float = 1.0

    def of(self, outputs, padding_mask: tf.Tensor) -> tf.Tensor:
        """Computes this output, float32 (B, *axes), from the Keras model's outputs and padding mask, int32 (B, S)."""
        value = outputs if self.source is None else outputs[self.source]
        if self.pool is not None:
            value = PoolTokens(self.pool, dtype="float32")(value, padding_mask)
        if self.column is not None:
            value = value[..., self.column]
        if self.temperature != 1.0:
            value = value / self.temperature
        if self.softmax:
            value = tf.nn.softmax(value)
        if self.sigmoid:
            value = tf.sigmoid(value)
        return value if self.padding is None else tf.where(padding_mask == 1, value, self.padding)


class Answers(abc.ABC):
    """The answers of a trained model of one task, as ops.

    Attributes:
        text_inputs: the inputs, all strings: name -> dimensions after the batch's.
        padding: the outputs that are padded to the batch's longest row, but to one column at least: `values` maps each
            to its padding value, and `count` names the output that holds each row's length. Empty: none is padded.
        token_outputs: the outputs that other targets (ONNX, LiteRT) compute from token ids.
        model: contains a BertBackbone.
        preprocessor: gives the tokenizer and `sequence_length`. The graph pads to the batch's longest row, whatever its
            `pad_to_longest` says.
    """

    text_inputs: Mapping[str, Axes] = {"text": ()}
    padding: Mapping[str, Any] = {}
    token_outputs: Mapping[str, TokenOutput]

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor):
        self.model = model
        self.preprocessor = preprocessor

    @abc.abstractmethod
    def answer_texts(self, model: keras.Model, texts: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Builds the graph from texts, string (B, *dimensions) by the names of `text_inputs`, to the answer.

        Like `answer_token_ids`, it runs the model through `keras_bert.answers.pieces.in_pieces` to bound the memory.
        """

    def answer_token_ids(self, model: keras.Model, encoded: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Builds the graph from the encoder's inputs, int32 (B, S) and checked, to the answer."""
        return in_pieces(model, encoded, self.answer)

    def answer(self, outputs, encoded: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Builds the graph from the model's outputs and inputs to the answer to token ids, row by row.

        By default the answer is `token_outputs`.
        """
        return {name: output.of(outputs, encoded["padding_mask"]) for name, output in self.token_outputs.items()}

    # === In Python ===

    def rows(self, inputs) -> list[dict] | dict:
        """Answers texts.

        Args:
            inputs: a batch, list of str, for each of `text_inputs`, in a tuple if there are several; or a single row.

        Returns:
            A list with a dict for each row, or a single row's dict: each output as a Python value, without padding.

        Raises:
            ValueError: `inputs` are not texts, or their number, shapes or sizes are not those of `text_inputs`.
        """
        columns, is_one = self._columns(inputs)
        rows = [row for outputs in self.batches(columns) for row in self._rows_of(outputs)]
        return rows[0] if is_one else rows

    def arrays(self, inputs) -> dict[str, np.ndarray]:
        """Answers texts as `rows` does, but returns each output as one array of all rows; no output may be padded."""
        columns, is_one = self._columns(inputs)
        batches = list(self.batches(columns))
        outputs = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        return {name: values[0] for name, values in outputs.items()} if is_one else outputs

    def batches(self, columns: dict[str, tf.Tensor]) -> Iterator[dict[str, np.ndarray]]:
        """Yields the outputs of each batch of rows; if there are no rows, those of one empty batch."""
        for start in range(0, max(len(next(iter(columns.values()))), 1), _ROWS):
            texts = {name: column[start : start + _ROWS] for name, column in columns.items()}
            yield {name: values.numpy() for name, values in self._run(texts).items()}

    @functools.cached_property
    def _run(self):
        specs = {name: tf.TensorSpec([None, *axes], tf.string) for name, axes in self.text_inputs.items()}

        def run(texts):
            return self.answer_texts(self.model, {name: texts[name] for name in specs})

        return tf.function(run, input_signature=[specs], autograph=False)

    def _columns(self, inputs) -> tuple[dict[str, tf.Tensor], bool]:
        """Returns the columns of texts by name, and whether `inputs` are a single row."""
        sizes = {name: ("batch", *axes) for name, axes in self.text_inputs.items()}
        expected = f"`inputs` must be texts of the shapes {sizes}, pairs a tuple of two batches."
        try:
            parts = inputs if isinstance(inputs, tuple) else (inputs,)
            given = [tf.convert_to_tensor(part, tf.string) for part in parts]
        except (TypeError, ValueError) as error:
            raise ValueError(f"{expected} Received: {reprlib.repr(inputs)}") from error
        is_one = given[0].shape.rank == 0
        columns = [column[tf.newaxis] if is_one else column for column in given]
        if [column.shape for column in columns] != [columns[0].shape[:1] + axes for axes in self.text_inputs.values()]:
            raise ValueError(f"{expected} Received the shapes: {[tuple(column.shape) for column in given]}")
        return dict(zip(self.text_inputs, columns, strict=True)), is_one

    def _rows_of(self, outputs: dict[str, np.ndarray]) -> Iterator[dict]:
        count, filled = self.padding.get("count"), self.padding.get("values", ())
        plain = {name: plain_values(values) for name, values in outputs.items()}
        for values in zip(*plain.values(), strict=True):
            row = dict(zip(plain, values, strict=True))
            yield {name: value[: row[count]] if name in filled else value for name, value in row.items()}

    def check_labels(self, labels: list[str], thresholds: Sequence[float] | None = None) -> None:
        """Checks that there is one label, and one threshold if any are given, for each of the model's outputs.

        Raises:
            ValueError: there are more or fewer.
        """
        count, outputs = len(labels), self.model.output_shape[-1]
        if count != outputs:
            raise ValueError(
                f"`labels` must name each of the model's outputs. Received: {count} labels, {outputs} outputs"
            )
        if thresholds is not None and np.shape(thresholds) != (count,):
            raise ValueError(f"`thresholds` must be one for each label. Received: {thresholds=}, {labels=}")


def gives_logits(model: keras.Model, activation: Callable = keras.activations.softmax) -> bool:
    """Returns whether a model's outputs are logits, that is, its last layer does not apply `activation`."""
    return getattr(model.layers[-1], "activation", None) is not activation


def plain_values(values: np.ndarray) -> list:
    """Converts an array to Python values: bytes to str, and each float32 to its shortest decimal representation."""
    if values.dtype == object:
        values = np.frompyfunc(lambda text: text.decode("utf-8", "replace"), 1, 1)(values)
    elif values.dtype.kind == "f":
        values = values.astype(str).astype(float)
    return values.tolist()
