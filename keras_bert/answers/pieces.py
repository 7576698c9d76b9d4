"""Runs a model on many sequences in pieces, in the graph, so that memory does not grow with their number.

Shapes: B rows, K sequences in a row, S sequence.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_bert.answers.text_bounds import as_one_op, find_backbone
from keras_bert.encoder.backbone import BertBackbone

# Elements of the largest array that an encoder layer computes for a piece: 32 MB of float32, about five of which are
# alive at a time. 32 sequences of 128 tokens are one piece for MiniLM, and so are 4 of 384.
MOST_NUMBERS = 1 << 23

_INPUTS = ("token_ids", "segment_ids", "padding_mask")

Tensors = Mapping[str, tf.Tensor]


def in_pieces(model: keras.Model, encoded: Tensors, answer: Callable[[Any, Tensors], Tensors]) -> dict[str, tf.Tensor]:
    """Computes `answer(model(encoded), encoded)`, in pieces of the rows if all at once would take much memory.

    Rows of similar length share a piece, so that a long row does not make the pieces of short ones small.

    Args:
        model: contains a BertBackbone.
        encoded: the model's inputs, int32 [B, S] or [B, K, S] with a fixed K, and further columns of B rows.
        answer: computes named tensors from the model's outputs and inputs, row by row. Its results are kept for all
            rows, so they must be smaller than the states of all tokens.
    """
    backbone = find_backbone(model)
    specs = {name: tf.TensorSpec([None, *value.shape[1:-1], None], value.dtype) for name, value in encoded.items()}

    def answer_piece(rows):
        # TensorFlow's optimizer does not know the shapes of arguments, and warns of a softmax of unknown rank at every
        # log level.
        rows = {name: tf.ensure_shape(values, specs[name].shape) for name, values in rows.items()}
        return answer(model({name: rows[name] for name in _INPUTS}, training=False), rows)

    run_piece = tf.function(answer_piece, input_signature=[specs], autograph=False).get_concrete_function()
    loop = as_one_op(lambda rows: _loop(run_piece, rows, backbone), specs)
    shape = tf.shape(encoded["padding_mask"])
    fits = shape[0] <= _most_rows(encoded, shape[-1], backbone)  # An empty batch fits, too.
    outputs = tf.cond(fits, lambda: run_piece(dict(encoded)), lambda: loop(dict(encoded)))
    # A softmax that follows would cause the same warning.
    return {name: tf.ensure_shape(value, run_piece.structured_outputs[name].shape) for name, value in outputs.items()}


def outputs_in_pieces(model: keras.Model, encoded: Tensors) -> tf.Tensor:
    """Returns a model's only output for the inputs `encoded`, float [B, ...]; see `in_pieces`."""
    return in_pieces(model, encoded, lambda outputs, _: {"outputs": outputs})["outputs"]


def _most_rows(encoded: Tensors, longest: tf.Tensor, backbone: BertBackbone) -> tf.Tensor:
    """Returns the number of rows in a piece whose longest sequence has `longest` tokens: int32, at least 1."""
    mask = encoded["padding_mask"]
    inner = longest * tf.maximum(longest * backbone.num_heads, backbone.intermediate_dim)  # Scores, or inner units.
    states = tf.shape(mask)[-1] * backbone.hidden_dim  # With padding, as the head reads them.
    num_sequences = mask.shape[1] if len(mask.shape) > 2 else 1
    return tf.maximum(MOST_NUMBERS // num_sequences // tf.maximum(inner, states), 1)


def _loop(run_piece: Callable, encoded: Tensors, backbone: BertBackbone) -> dict[str, tf.Tensor]:
    mask = encoded["padding_mask"]
    lengths = tf.reduce_max(tf.reshape(tf.reduce_sum(mask, axis=-1), [tf.shape(mask)[0], -1]), axis=1)
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)

    def add_piece(start, number, done):
        limit = start + _most_rows(encoded, lengths[order[start]], backbone)
        piece = run_piece({name: tf.gather(values, order[start:limit]) for name, values in encoded.items()})
        return limit, number + 1, {name: array.write(number, piece[name]) for name, array in done.items()}

    arrays = {
        name: tf.TensorArray(spec.dtype, size=0, dynamic_size=True, infer_shape=False, element_shape=spec.shape)
        for name, spec in run_piece.structured_outputs.items()
    }
    state = (tf.constant(0), tf.constant(0), arrays)
    *_, done = tf.while_loop(
        lambda start, *_: start < tf.size(order), add_piece, state, parallel_iterations=1, name="pieces"
    )
    places = tf.math.invert_permutation(order)
    return {name: tf.gather(array.concat(), places) for name, array in done.items()}
