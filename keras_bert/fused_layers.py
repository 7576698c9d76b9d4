"""Dense, dropout, LayerNorm and gelu in few passes over memory, for an encoder that trains on a CPU.

TensorFlow builds each of them from several ops, and every op is a pass. Here XLA compiles the forward direction into
one pass and the backward direction into another (`fused_ops.py`). A step of pre-training then takes about 0.9 of its
time (2 cores, oneDNN, 128 tokens: base with 8 rows, 4 layers of 512 with 32; benchmarks/pretraining_speed.py).

The functions compute this way only within `fused_layers`, and there only float32 tensors of known shape, since XLA
compiles anew for each shape. Otherwise, and for layers with quantization or LoRA, they call the layers.
"""

import contextlib
import contextvars

import keras

from keras_bert.layer import switched_on

_are_fused = contextvars.ContextVar("are_fused", default=False)

# A gelu of fewer numbers is not compiled: in a head, at the masked positions, it would save less in a minute than the
# 0.1 s that XLA takes to compile. (Base, 8 x 20 masked positions: 122,880 numbers; an encoder layer: 3,145,728.)
_FEWEST_COMPILED = 2**17


def fused_layers() -> contextlib.AbstractContextManager[None]:
    """Enter while tracing a CPU training graph without `jit_compile`, which fuses more."""
    return switched_on(_are_fused)


def dense(layer: keras.layers.Dense, rows):
    """Returns `layer(rows)` for a layer with a bias and without an activation: (T, in) -> (T, out)."""
    is_itself = type(layer) is keras.layers.Dense and layer.quantization_mode is None and not layer.lora_enabled
    if not is_itself or not _is_fused(rows):
        return layer(rows)
    from keras_bert import fused_ops

    return fused_ops.dense(rows, *_values(layer.kernel, layer.bias))


def dropout(layer: keras.layers.Dropout, x, training):
    """Returns `layer(x, training=training)` for x of any shape, with another mask.

    Like the layer's mask, this one is a function of the state of its seed generator. The rate is rounded to a multiple
    of 1 / 65536, and the units that stay are scaled for that rate, so that the expectation is exact.
    """
    if not training or not 0.0 < layer.rate < 1.0 or not _is_fused(x):
        return layer(x, training=training)
    from keras_bert import fused_ops

    return fused_ops.dropout(x, layer.rate, layer.seed_generator.next())


def layer_norm(layer: keras.layers.LayerNormalization, rows):
    """Returns `layer(rows)`: (T, H) -> (T, H)."""
    if not _is_fused(rows):
        return layer(rows)
    from keras_bert import fused_ops

    return fused_ops.layer_norm(rows, *_values(layer.gamma, layer.beta), layer.epsilon)


def gelu(x, approximate: bool):
    """Returns the same as `keras.ops.gelu`, for x of any shape."""
    if not _is_fused(x) or x.shape.num_elements() < _FEWEST_COMPILED:
        return keras.ops.gelu(x, approximate=approximate)
    from keras_bert import fused_ops

    return fused_ops.gelu(x, approximate)


def _is_fused(x) -> bool:
    return _are_fused.get() and x.dtype == "float32" and x.shape.is_fully_defined()


def _values(*variables: keras.Variable) -> list:
    return [keras.ops.convert_to_tensor(variable) for variable in variables]
