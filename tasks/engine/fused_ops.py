"""The computations of `fused_layers.py`: XLA compiles each direction of a function into one pass.

Shapes: T rows, H hidden.
"""

import functools
import math

import tensorflow as tf

_compiled = functools.partial(tf.function, autograph=False, jit_compile=True)

# === Dense ===


@tf.custom_gradient
def dense(rows, kernel, bias):
    """Returns rows (T, in) times kernel (in, out), plus bias (out,)."""

    def gradient(upstream):
        of_kernel, of_bias = tf.matmul(rows, upstream, transpose_a=True), tf.raw_ops.BiasAddGrad(out_backprop=upstream)
        return _times_transposed(upstream, kernel), of_kernel, of_bias

    return tf.nn.bias_add(tf.matmul(rows, kernel), bias), gradient


def _times_transposed(upstream: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Returns upstream (T, out) times the transposed kernel.

    oneDNN's product slows down with the distance between a kernel's rows: 163 GFLOP/s for 768 x 3072 and 1024 rows. A
    copy, transposed beforehand, takes 1 ms of 29 and allows 210 (base, 2 cores; no gain for kernels that are not wide).
    The detour through three axes keeps TensorFlow's optimizer from merging the two ops again.
    """
    inputs, outputs = kernel.shape
    if outputs <= inputs or outputs % 2:
        return tf.matmul(upstream, kernel, transpose_b=True)
    copy = tf.transpose(tf.reshape(kernel, (inputs, 2, outputs // 2)), (1, 2, 0))
    return tf.matmul(upstream, tf.reshape(copy, (outputs, inputs)))


# === Dropout ===

_STEPS = 2**16  # A unit's fate takes 16 random bits.
_PHILOX_ROUNDS = 10
_MULTIPLIER, _WEYL = 0xD256D193, 0x9E3779B9
_WORD = 2**32 - 1


def dropout(x: tf.Tensor, rate: float, seed: tf.Tensor) -> tf.Tensor:
    """Zeros each unit with probability `rate`, rounded to 1 / 65536, and divides the others by 1 - `rate`.

    Args:
        x: float32, of any known shape.
        rate: float in (0, 1).
        seed: int, shape (2,); only the low 32 bits of each are used.
    """
    dropped = min(max(round(rate * _STEPS), 1), _STEPS - 1)
    threshold, scale = tf.constant(dropped, tf.uint16), tf.constant(_STEPS / (_STEPS - dropped))
    count = math.prod(x.shape)
    bits = tf.reshape(tf.bitcast(_random_words(seed, -(-count // 4)), tf.uint16), [-1])
    bits = tf.reshape(bits[:count], x.shape)

    @tf.custom_gradient
    def drop(x):
        return _keep(x, bits, threshold, scale), lambda upstream: _keep(upstream, bits, threshold, scale)

    return drop(x)


@_compiled
def _keep(x, bits, threshold, scale):
    return tf.where(bits >= threshold, x * scale, 0.0)


@_compiled
def _random_words(seed, count: int):
    """Philox 2 x 32 (Salmon et al. 2011, section 3.3), 10 rounds: uint64, shape (count,).

    TensorFlow's generator is its sibling, 4 x 32. XLA can vectorize this one, which takes a third of the time. The key
    is seed[0], the counter's high word seed[1].
    """
    xor, and_, shift = tf.bitwise.bitwise_xor, tf.bitwise.bitwise_and, tf.bitwise.right_shift
    word, half = tf.constant(_WORD, tf.uint64), tf.constant(32, tf.uint64)
    key, high = tf.unstack(and_(tf.cast(seed, tf.uint64), word))
    low, high = tf.cast(tf.range(count), tf.uint64), tf.fill([count], high)
    for _ in range(_PHILOX_ROUNDS):
        product = low * tf.constant(_MULTIPLIER, tf.uint64)
        low, high = xor(xor(shift(product, half), key), high), and_(product, word)
        key = and_(key + tf.constant(_WEYL, tf.uint64), word)
    return tf.bitwise.bitwise_or(low, tf.bitwise.left_shift(high, half))


# === LayerNorm ===


def layer_norm(rows, gamma, beta, epsilon: float):
    """Returns gamma (x - mean) / sqrt(variance + epsilon) + beta for each row: rows (T, H), gamma and beta (H,)."""

    @tf.custom_gradient
    def normalize(rows, gamma, beta):
        output = _layer_norm(rows, gamma, beta, epsilon)
        return output, lambda upstream: _layer_norm_gradient(rows, gamma, upstream, epsilon)

    return normalize(rows, gamma, beta)


def _standardize(rows, epsilon: float) -> tuple:
    """Returns rows of mean 0 and variance 1, and the factors that scaled them, (T, 1)."""
    centered = rows - tf.reduce_mean(rows, axis=-1, keepdims=True)
    factor = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True) + epsilon)
    return centered * factor, factor


@_compiled
def _layer_norm(rows, gamma, beta, epsilon: float):
    return _standardize(rows, epsilon)[0] * gamma + beta


@_compiled
def _layer_norm_gradient(rows, gamma, upstream, epsilon: float) -> tuple:
    """Returns the gradients (Ba et al. 2016, supplement): changes of a row's mean or length have no effect."""
    standard, factor = _standardize(rows, epsilon)
    inner = upstream * gamma
    shift = tf.reduce_mean(inner, axis=-1, keepdims=True)
    stretch = tf.reduce_mean(inner * standard, axis=-1, keepdims=True)
    of_rows = factor * (inner - shift - standard * stretch)
    return of_rows, tf.reduce_sum(upstream * standard, axis=0), tf.reduce_sum(upstream, axis=0)


# === Gelu ===

_TANH_SCALE, _TANH_CUBE = math.sqrt(2.0 / math.pi), 0.044715  # google-research/bert modeling.py:264
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)  # Density of the normal distribution at 0.


def gelu(x: tf.Tensor, approximate: bool) -> tf.Tensor:
    """Returns x times the normal distribution's Phi(x), by erf, or approximately by tanh."""

    @tf.custom_gradient
    def activate(x):
        return _gelu(x, approximate), lambda upstream: _gelu_gradient(x, upstream, approximate)

    return activate(x)


def _phi(x, approximate: bool):
    if approximate:
        return 0.5 * (1.0 + tf.tanh(_TANH_SCALE * (x + _TANH_CUBE * x * x * x)))
    return 0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))


@_compiled
def _gelu(x, approximate: bool):
    return x * _phi(x, approximate)


@_compiled
def _gelu_gradient(x, upstream, approximate: bool):
    phi = _phi(x, approximate)
    if approximate:  # tanh' = 1 - tanh^2 = 4 phi (1 - phi)
        slope = 2.0 * phi * (1.0 - phi) * _TANH_SCALE * (1.0 + 3.0 * _TANH_CUBE * x * x)
    else:
        slope = _DENSITY * tf.exp(-0.5 * x * x)
    return upstream * (phi + x * slope)
