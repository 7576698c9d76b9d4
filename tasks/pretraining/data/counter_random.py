"""Computes random numbers from a seed and a counter, for whole arrays at once.

No state is carried from one draw to the next, so any process can compute any number.
"""

import numpy as np

# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, figure 16).
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_STEPS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = np.uint64(31)


def random_bits(seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Returns the outputs of SplitMix64 after `counters` steps from `seeds`: uint64, of their broadcast shape."""
    bits = seeds.astype(np.uint64) + (counters.astype(np.uint64) + np.uint64(1)) * _GAMMA
    for shift, factor in _STEPS:
        bits ^= bits >> shift
        bits *= factor
    return bits ^ (bits >> _LAST_SHIFT)


def random_order(size: int, seed: int, stream: int = 0) -> np.ndarray:
    """Returns `range(size)` in random order: int64, shape (size,).

    Args:
        size: number of elements.
        seed: int, not negative.
        stream: int, not negative. Each stream has a different order.
    """
    keys = random_bits(np.array([seed % (1 << 64)], np.uint64), np.array([stream]))
    return np.argsort(random_bits(keys, np.arange(size)))
