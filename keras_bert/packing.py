"""Which rows belong together: the layouts that turn a padded rectangle of tokens into rows and back.

Shapes: B batch, S sequence, T rows, H hidden, N heads. The encoder works on rows, `[T, ...]`; only attention needs
to know which rows form a sequence. A layout answers that, and is all that changes between

- `rectangular`: every position is a row, T = B * S. Static shapes: TPU and XLA.
- `unpadded`: only real tokens are rows, T = number of real tokens; attention runs on the batch trimmed to its
  longest sequence. Shapes follow the data: CPU and GPU serving and training.

A third layout, several examples in one row, needs a block-diagonal `attention_bias` of shape `[B, 1, S, S]`, positions
that restart, and one first row an example: all three are asked of the layout (`attention_bias`, `add_positions`,
`first_rows`), so that it is one more class here and nothing else in the encoder changes.

Layouts are named tuples of tensors, so that Keras passes them between layers as it passes tensors.
"""

from typing import NamedTuple

import keras
from keras import ops

# google-research/bert modeling.py:712. Far from float16's limit (65504), and exp(-10000) is 0 in every float type.
MASKED_SCORE = -10000.0
LAYOUTS = ("rectangular", "unpadded")


class RectangularLayout(NamedTuple):
    """Every position of the rectangle is a row; row `b * S + s` is position `s` of sequence `b`.

    Attributes:
        attention_bias: float, shape (B, 1, 1, S) or (B, 1, S, S), added to the attention scores.
    """

    attention_bias: keras.KerasTensor

    def flatten(self, rectangle):
        """Turns `[B, S, ...]` into rows `[T, ...]`."""
        return ops.reshape(rectangle, (-1, *rectangle.shape[2:]))

    def unflatten(self, rows):
        """Turns rows `[T, ...]` into the rectangle of attention, `[B, S, ...]`."""
        batch, _, _, sequence = ops.shape(self.attention_bias)
        return ops.reshape(rows, (batch, sequence, *rows.shape[1:]))

    def restore(self, rows):
        """Turns rows `[T, ...]` into the rectangle of the inputs, `[B, S, ...]`."""
        return self.unflatten(rows)

    def add_positions(self, rows, table):
        """Adds to each row `[T, H]` its position's row of `table` `[max_sequence_length, H]`."""
        sequence = ops.shape(self.attention_bias)[3]
        return self.flatten(self.unflatten(rows) + table[:sequence])

    def first_rows(self, rows):
        """Picks each sequence's first row, [CLS]: `[T, H]` to `[B, H]`."""
        return self.unflatten(rows)[:, 0]


class UnpaddedLayout(NamedTuple):
    """Only real tokens are rows, in reading order; attention sees the batch trimmed to its longest sequence S'.

    Attributes:
        attention_bias: float, shape (B, 1, 1, S').
        position_of_row: int32, shape (T,), index of each row's token in the flattened rectangle, b * S + s.
        row_of_position: int32, shape (B, S), row of each position; 0 where there is padding.
        is_real: bool, shape (B, S).
    """

    attention_bias: keras.KerasTensor
    position_of_row: keras.KerasTensor
    row_of_position: keras.KerasTensor
    is_real: keras.KerasTensor

    def flatten(self, rectangle):
        """Turns `[B, S or S', ...]` into rows `[T, ...]`."""
        sequence = ops.shape(self.is_real)[1]
        index = self.position_of_row
        if len(rectangle.shape) > 2:  # Activations live on the trimmed rectangle, ids on the whole one.
            trimmed = ops.shape(self.attention_bias)[3]
            index = index // sequence * trimmed + index % sequence
        return ops.take(ops.reshape(rectangle, (-1, *rectangle.shape[2:])), index, axis=0)

    def unflatten(self, rows):
        """Turns rows `[T, ...]` into the trimmed rectangle `[B, S', ...]`; padding repeats row 0, to be masked."""
        trimmed = ops.shape(self.attention_bias)[3]
        return ops.take(rows, self.row_of_position[:, :trimmed], axis=0)

    def restore(self, rows):
        """Turns rows `[T, H]` into the rectangle of the inputs, `[B, S, H]`, with zeros at padding."""
        return ops.take(rows, self.row_of_position, axis=0) * ops.cast(self.is_real, rows.dtype)[..., None]

    def add_positions(self, rows, table):
        """Adds to each row `[T, H]` its position's row of `table` `[max_sequence_length, H]`."""
        return rows + ops.take(table, self.position_of_row % ops.shape(self.is_real)[1], axis=0)

    def first_rows(self, rows):
        """Picks each sequence's first row, [CLS]: `[T, H]` to `[B, H]`."""
        return ops.take(rows, self.row_of_position[:, 0], axis=0)


@keras.saving.register_keras_serializable(package="keras_bert")
class TokenLayout(keras.layers.Layer):
    """Makes a layout from a padding mask.

    Args:
        kind: str, one of `LAYOUTS`.

    Call arguments:
        padding_mask: int or bool, shape (batch, sequence), 1 for real tokens. Each sequence's first position
            ([CLS]) counts as real whatever the mask says.

    Returns:
        `RectangularLayout` or `UnpaddedLayout`.
    """

    def __init__(self, kind: str = "rectangular", **kwargs):
        super().__init__(**kwargs)
        if kind not in LAYOUTS:
            raise ValueError(f"`kind` must be one of {', '.join(LAYOUTS)}. Received: kind={kind!r}")
        self.kind = kind

    def call(self, padding_mask):
        mask = ops.cast(padding_mask, self.compute_dtype)
        bias = (1.0 - mask)[:, None, None, :] * MASKED_SCORE
        if self.kind == "rectangular":
            return RectangularLayout(bias)
        sequence = ops.shape(padding_mask)[1]
        places = ops.arange(sequence, dtype="int32")
        is_real = ops.logical_or(ops.cast(padding_mask, "bool"), places[None, :] == 0)
        longest = ops.max(ops.max(ops.where(is_real, places + 1, 0), axis=1, initial=0), axis=0, initial=0)
        flat = ops.cast(ops.reshape(is_real, (-1,)), "int32")
        row = ops.reshape(ops.cumsum(flat) - 1, ops.shape(padding_mask))
        return UnpaddedLayout(
            attention_bias=bias[..., :longest],
            position_of_row=ops.cast(ops.nonzero(flat)[0], "int32"),
            row_of_position=ops.where(is_real, row, 0),
            is_real=is_real,
        )

    def get_config(self):
        return {**super().get_config(), "kind": self.kind}
