"""Dropout with cheap masks, for Keras's JAX backend."""

import math

import keras
import numpy as np
from keras import ops


class HashedDropout(keras.layers.Dropout):
    """Dropout whose mask is a hash of each unit's index and of the seed generator's state.

    XLA computes the hash where the mask is used. The masks of JAX's own generator, Threefry, take 4 to 9% of a
    training step on a GPU.

    Call arguments:
        inputs: float, any shape of at most 2^32 units.

    Returns:
        float, as `inputs`.
    """

    def call(self, inputs, training=False):
        if not training or not self.rate:
            return inputs
        seed, step = ops.unstack(ops.cast(self.seed_generator.next(), "uint32"))
        places = ops.reshape(ops.arange(math.prod(inputs.shape), dtype="uint32"), inputs.shape)
        # Neighbouring steps differ in a bit or two, so seed and step are mixed in separately.
        bits = _mix(_mix(places ^ seed) ^ step)
        is_kept = bits >= np.uint32(self.rate * 2**32)
        return ops.where(is_kept, inputs / (1.0 - self.rate), ops.zeros_like(inputs))


def _mix(bits):
    """Maps uint32 to uint32 bijectively; each bit depends on all bits (C. Wellons, hash-prospector, "lowbias32")."""
    bits = (bits ^ ops.right_shift(bits, 16)) * np.uint32(0x7FEB352D)
    bits = (bits ^ ops.right_shift(bits, 15)) * np.uint32(0x846CA68B)
    return bits ^ ops.right_shift(bits, 16)
