"""Layouts, which turn a padded rectangle of tokens into rows and back.

Shapes: B batch, S sequence, T rows, H hidden, N heads. The encoder works on rows, `[T, ...]`; only attention needs to
know which rows form a sequence. A layout answers that. The layouts are

- `rectangular`: every position is a row, T = B * S. Its static shapes suit TPU and XLA.
- `unpadded`: only real tokens are rows, T = number of real tokens; attention runs on the batch trimmed to its longest
  sequence. Its shapes depend on the data, which suits serving and training on CPU and GPU.
- `packed`: as rectangular, but a sequence holds several examples. Each attends only to itself and counts its positions
  from 0 (Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination"). The padding mask holds the
  number of each token's example, 1, 2, ... Static shapes with little padding suit pre-training.

Layouts are named tuples of tensors, so that Keras passes them between layers as it passes tensors.
"""

from typing import NamedTuple

import keras
from keras import ops

from keras_bert.config import LAYOUTS
from keras_bert.encoder.layer import BertLayer, keep_arguments

# google-research/bert modeling.py:712. It is far from float16's limit (65504), and exp(-10000) is 0 in every float
# dtype.
MASKED_SCORE = -10000.0


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


class PackedLayout(NamedTuple):
    """Every position of the rectangle is a row, and each sequence holds several examples.

    Attributes:
        attention_bias: float, shape (B, 1, S, S), block-diagonal.
        positions: int32, shape (B, S), of each token within its example.
    """

    attention_bias: keras.KerasTensor
    positions: keras.KerasTensor

    flatten = RectangularLayout.flatten
    unflatten = RectangularLayout.unflatten
    restore = RectangularLayout.restore
    first_rows = RectangularLayout.first_rows  # of the first example in each sequence

    def add_positions(self, rows, table):
        """Adds to each row `[T, H]` its position's row of `table` `[max_sequence_length, H]`."""
        return rows + ops.take(table, self.flatten(self.positions), axis=0)


class UnpaddedLayout(NamedTuple):
    """Only real tokens are rows, in reading order; attention sees the batch trimmed to its longest sequence S'.

    Attributes:
        attention_bias: float, shape (B, 1, 1, S') or (B, 1, S', S').
        position_of_row: int32, shape (T,), index of each row's token in the flattened rectangle, b * S + s.
        row_of_position: int32, shape (B, S), row of each position; 0 at padding.
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
        if len(rectangle.shape) > 2:  # Activations have the trimmed shape [B, S', ...], ids the whole one, [B, S].
            trimmed = ops.shape(self.attention_bias)[3]
            index = index // sequence * trimmed + index % sequence
        return ops.take(ops.reshape(rectangle, (-1, *rectangle.shape[2:])), index, axis=0)

    def unflatten(self, rows):
        """Turns rows `[T, ...]` into the trimmed rectangle `[B, S', ...]`; padding repeats row 0, which is masked."""
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


_BY_SIZE = {len(layout._fields): layout for layout in (RectangularLayout, PackedLayout, UnpaddedLayout)}


def as_layout(layout):
    """Rebuilds a layout from its tensors, which a `.keras` file of a model on `backbone.output` holds as a list."""
    return _BY_SIZE[len(layout)](*layout) if type(layout) in (list, tuple) else layout


@keras.saving.register_keras_serializable(package="keras_bert")
class TokenLayout(BertLayer):
    """Makes a layout from a padding mask.

    Args:
        kind: str, one of `LAYOUTS`.
        attention: str, `"bidirectional"`, or `"left_to_right"`: no token attends to later ones.

    Call arguments:
        padding_mask: int or bool, shape (B, S), not 0 for real tokens. For `unpadded`, each sequence's first position
            ([CLS]) is a row whatever the mask says. For `packed`, the number of the token's example: 1 for tokens of
            the first, 2 for those of the second, and so on, 0 for padding.

    Returns:
        `RectangularLayout`, `UnpaddedLayout` or `PackedLayout`.
    """

    def __init__(self, kind: str = "rectangular", attention: str = "bidirectional", **kwargs):
        super().__init__(**kwargs)
        if kind not in LAYOUTS:
            raise ValueError(f"A `layout`'s `kind` must be one of {', '.join(LAYOUTS)}. Received: kind={kind!r}")
        if kind == "unpadded" and keras.backend.backend() == "jax":
            raise ValueError(
                "JAX has no shapes that follow the data, as layout='unpadded' needs. Choose 'rectangular' or 'packed'."
            )
        keep_arguments(self, locals())

    def call(self, padding_mask):
        if self.kind == "packed":
            return self._packed(padding_mask)
        mask = ops.cast(ops.cast(padding_mask, "bool"), self.compute_dtype)
        bias = self._without_later(ops.expand_dims(1.0 - mask, (1, 2)) * MASKED_SCORE)
        return RectangularLayout(bias) if self.kind == "rectangular" else self._unpadded(padding_mask, bias)

    def _without_later(self, bias):
        """Masks later keys as well if attention is left to right: [B, 1, 1 or S, S] to [B, 1, S, S]."""
        if self.attention == "bidirectional":
            return bias
        positions = ops.arange(ops.shape(bias)[3], dtype="int32")
        is_later = positions[None, :] > positions[:, None]  # [S, S], query by key
        return ops.minimum(bias, ops.cast(is_later, bias.dtype) * MASKED_SCORE)

    def _packed(self, padding_mask) -> PackedLayout:
        example = ops.cast(padding_mask, "int32")
        is_same = ops.equal(example[:, :, None], example[:, None, :])  # [B, S, S]
        bias = ops.cast(ops.logical_not(is_same), self.compute_dtype)[:, None] * MASKED_SCORE
        sequence = ops.shape(padding_mask)[1]
        positions = ops.arange(sequence, dtype="int32")
        starts = ops.min(ops.where(is_same, positions, sequence), axis=-1)  # [B, S]
        return PackedLayout(self._without_later(bias), positions - ops.cast(starts, "int32"))

    def _unpadded(self, padding_mask, bias) -> UnpaddedLayout:
        sequence = ops.shape(padding_mask)[1]
        positions = ops.arange(sequence, dtype="int32")
        # [CLS] is always real, so that every sequence has a row to pool.
        is_real = ops.logical_or(ops.cast(padding_mask, "bool"), positions[None, :] == 0)
        longest = ops.max(ops.max(ops.where(is_real, positions + 1, 0), axis=1, initial=0), axis=0, initial=0)
        flat = ops.cast(ops.reshape(is_real, (-1,)), "int32")
        row = ops.reshape(ops.cumsum(flat) - 1, ops.shape(padding_mask))
        return UnpaddedLayout(
            attention_bias=bias[..., :longest] if bias.shape[2] == 1 else bias[..., :longest, :longest],
            position_of_row=ops.cast(ops.nonzero(flat)[0], "int32"),
            row_of_position=ops.where(is_real, row, 0),
            is_real=is_real,
        )
