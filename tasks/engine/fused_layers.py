"""Changes how an encoder's layers compute while a training step is traced: in few passes, or twice to save memory.

TensorFlow builds dense layers, dropout, LayerNorm and gelu from several ops each, and every op is a pass over memory.
On a CPU, XLA compiles the forward direction into one pass and the backward direction into another (`fused_ops.py`). A
step of pre-training then takes about 0.9 of its time (2 cores, oneDNN, 128 tokens: base with 8 rows, 4 layers of 512
with 32; benchmarks/pretraining_speed.py).

The model's own `call` keeps the paper's equations: `fused_layers` switches the layers inside encoder layers to the
fused form while a step is traced. They use this form for float32 tensors of known shape, since XLA compiles again for
each shape. Otherwise, and with quantization or LoRA, they compute as before.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator

import keras
import tensorflow as tf

from keras_bert.encoder.encoder_layer import BertEncoderLayer
from tasks.engine import fused_ops

# A gelu of fewer numbers is not compiled: it would save less in a minute than the 0.1 s that XLA takes to compile.
# (Base, 8 rows of 128 tokens: 3,145,728 numbers.)
_FEWEST_COMPILED = 2**17


class _Dense(keras.layers.Dense):
    """(T, in) to (T, out), with a bias and without an activation."""

    def call(self, inputs, training=None):
        if self.quantization_mode is not None or self.lora_enabled or not _is_fused(inputs):
            return super().call(inputs, training=training)
        return fused_ops.dense(inputs, *_values(self.kernel, self.bias))


class _Dropout(keras.layers.Dropout):
    """Dropout for inputs of any shape, with a different mask from Keras's.

    This mask, too, is a function of the state of the seed generator. The rate is rounded to a multiple of 1 / 65536,
    and the units that are kept are scaled for that rate, so that the expectation is exact.
    """

    def call(self, inputs, training=False):
        if not training or not 0.0 < self.rate < 1.0 or not _is_fused(inputs):
            return super().call(inputs, training=training)
        return fused_ops.dropout(inputs, self.rate, self.seed_generator.next())


class _LayerNormalization(keras.layers.LayerNormalization):
    """(T, H) to (T, H)."""

    def call(self, inputs):
        if not _is_fused(inputs):
            return super().call(inputs)
        return fused_ops.layer_norm(inputs, *_values(self.gamma, self.beta), self.epsilon)


class _EncoderLayer(BertEncoderLayer):
    def activate(self, rows):
        is_gelu = self.activation in ("gelu", "gelu_tanh")
        if not is_gelu or not _is_fused(rows) or rows.shape.num_elements() < _FEWEST_COMPILED:
            return super().activate(rows)
        return fused_ops.gelu(rows, approximate=self.activation == "gelu_tanh")


# A layer's class -> the one that computes its fused form.
FUSED = {
    BertEncoderLayer: _EncoderLayer,
    keras.layers.Dense: _Dense,
    keras.layers.Dropout: _Dropout,
    keras.layers.LayerNormalization: _LayerNormalization,
}


def fused_layers(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Lets a model's encoder layers, at any depth, compute their fused form.

    Enter this while tracing a training graph for a CPU, without `jit_compile`, which fuses more. With several replicas,
    which trace in threads of their own, it must not be entered.
    """
    return fused(layer for encoder_layer in _encoder_layers(model) for layer in encoder_layer._flatten_layers())


@contextlib.contextmanager
def fused(layers: Iterable[keras.layers.Layer]) -> Iterator[None]:
    """Lets layers of the classes in `FUSED` compute their fused form; subclasses stay as they are."""
    layers = list(dict.fromkeys(layer for layer in layers if type(layer) in FUSED))  # A shared one counts once.
    for layer in layers:
        layer.__class__ = FUSED[type(layer)]
    try:
        yield
    finally:
        for layer in layers:
            layer.__class__ = type(layer).__base__


@contextlib.contextmanager
def rematerialized(model: keras.Model) -> Iterator[None]:
    """Lets a model's encoder layers keep only their input for the gradients (Chen et al. 2016, section 3).

    The gradients of a layer first compute it once more, with the same dropout masks. Enter this while tracing the
    forward pass. If that pass is fused, so must be the gradients.
    """
    # Ask the model: with LoRA an encoder layer is not trainable, though layers in it are.
    trained = frozenset(map(id, model.trainable_variables))
    layers = _encoder_layers(model)
    for layer in layers:  # Keras would track an attribute that is set.
        vars(layer)["call"] = functools.partial(_call_rematerialized, layer, trained)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["call"]


def _call_rematerialized(layer: BertEncoderLayer, trained: frozenset[int], rows, layout, training=None):
    """Calls an encoder layer as `BertEncoderLayer.call` does.

    `tf.recompute_grad` would draw different masks, since each call changes a layer's seeds. Here the seeds are read
    first, and both computations start from them.
    """
    seeds = dropout_seeds(layer)
    others = [variable for variable in layer.variables if not any(variable is seed for seed in seeds)]
    weights = [variable for variable in others if id(variable) in trained]
    # Read here, since TensorFlow wants the gradients of every variable read inside, also of kernels that LoRA freezes.
    frozen = [(variable, tf.convert_to_tensor(variable.value)) for variable in others if id(variable) not in trained]
    states, moved = [tf.identity(seed.value) for seed in seeds], []

    def compute(states, rows, *values):
        mapping = [*frozen, *zip([*seeds, *weights], [*states, *values], strict=True)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            output = type(layer).call(layer, rows, layout=layout, training=training)
        moved[:] = [scope.get_current_value(seed) for seed in seeds]
        return output

    @tf.custom_gradient
    def run(*inputs):
        def gradient(upstream):
            # The recomputation adds a zero that depends on `upstream`. Otherwise it could run before its result is
            # needed, or be merged with the forward pass. XLA ignores `tf.control_dependencies`.
            first = tf.reshape(upstream, [-1])[:1]
            zero = tf.reduce_any(tf.math.is_nan(first) & tf.math.is_inf(first))
            rows, *values = inputs
            with tf.GradientTape() as tape:
                rows = rows + tf.cast(zero, rows.dtype)
                tape.watch([rows, *values])
                output = compute([state + tf.cast(zero, state.dtype) for state in states], rows, *values)
            return tape.gradient(output, [rows, *values], upstream)

        return compute(states, *map(tf.stop_gradient, inputs)), gradient  # No op inside is recorded on the tape.

    output = run(rows, *(tf.convert_to_tensor(weight.value) for weight in weights))
    for seed, state in zip(seeds, moved, strict=True):
        seed.assign(state)
    return output


def dropout_seeds(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Lists the states of the seed generators in a layer or model."""
    return [variable for variable in layer.variables if variable.path.endswith("seed_generator_state")]


def _encoder_layers(model: keras.Model) -> list[BertEncoderLayer]:
    """Lists the encoder layers, at any depth. Keras has no public method that visits all layers."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, BertEncoderLayer)]


def _is_fused(x) -> bool:
    return x.dtype == "float32" and x.shape.is_fully_defined()


def _values(*variables: keras.Variable) -> list:
    return [keras.ops.convert_to_tensor(variable) for variable in variables]
