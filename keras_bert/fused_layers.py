"""Dense, dropout, LayerNorm and gelu in few passes over memory, for an encoder that trains on a CPU.

TensorFlow makes each of them of several ops, and every op is a pass. Here XLA compiles what goes forward to one pass,
and what goes back to another (`fused_ops.py`). A step of pre-training takes about 0.9 of its time that way (2 cores,
oneDNN, 128 tokens: base with 8 rows, 4 layers of 512 with 32; benchmarks/pretraining_speed.py).

The functions compute this way inside `fused_layers` only, and there only what is float32 and of known shape, as XLA
compiles for each shape anew. Elsewhere, and for layers that were quantized or given LoRA, they call the layers.
"""

import contextlib
import contextvars
from collections.abc import Iterator

import keras

_are_fused = contextvars.ContextVar("are_fused", default=False)

# A gelu of fewer numbers is not compiled: a head's, at the masked positions, saves less in a minute than the 0.1 s
# that XLA takes for it. (Base, 8 x 20 masked positions: 122,880 numbers; an encoder layer: 3,145,728.)
_FEWEST_COMPILED = 2**17


@contextlib.contextmanager
def fused_layers() -> Iterator[None]:
    """To be entered while a TensorFlow graph is made that trains on a CPU without `jit_compile`, which fuses more."""
    token = _are_fused.set(True)
    try:
        yield
    finally:
        _are_fused.reset(token)


def dense(layer: keras.layers.Dense, rows):
    """What `layer(rows)` gives, of a layer with a bias and without an activation: (T, in) -> (T, out)."""
    is_itself = type(layer) is keras.layers.Dense and layer.quantization_mode is None and not layer.lora_enabled
    if not is_itself or not _is_fused(rows):
        return layer(rows)
    from keras_bert import fused_ops

    return fused_ops.dense(rows, *_values(layer.kernel, layer.bias))


def dropout(layer: keras.layers.Dropout, x, training):
    """What `layer(x, training=training)` gives, x of any shape, with another mask.

    As the layer's, the mask is a function of the state of its seed generator. Its rate is the nearest multiple of
    1 / 65536, and what is kept is scaled by that rate's inverse, so that the expectation stays exact.
    """
    if not training or not 0.0 < layer.rate < 1.0 or not _is_fused(x):
        return layer(x, training=training)
    from keras_bert import fused_ops

    return fused_ops.dropout(x, layer.rate, layer.seed_generator.next())


def layer_norm(layer: keras.layers.LayerNormalization, rows):
    """What `layer(rows)` gives: (T, H) -> (T, H)."""
    if not _is_fused(rows):
        return layer(rows)
    from keras_bert import fused_ops

    return fused_ops.layer_norm(rows, *_values(layer.gamma, layer.beta), layer.epsilon)


def gelu(x, approximate: bool):
    """What `keras.ops.gelu` gives, x of any shape."""
    if not _is_fused(x) or x.shape.num_elements() < _FEWEST_COMPILED:
        return keras.ops.gelu(x, approximate=approximate)
    from keras_bert import fused_ops

    return fused_ops.gelu(x, approximate)


def _is_fused(x) -> bool:
    return _are_fused.get() and x.dtype == "float32" and x.shape.is_fully_defined()


def _values(*variables: keras.Variable) -> list:
    return [keras.ops.convert_to_tensor(variable) for variable in variables]
