"""Random numbers computed from a seed and a counter, for whole arrays at once, and a shuffle without a list.

No generator carries state from one draw to the next, so any process can compute any number.
"""

import numpy as np

# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, figure 16).
GAMMA = np.uint64(0x9E3779B97F4A7C15)
STEPS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
LAST_SHIFT = np.uint64(31)

_ROUNDS = 8


def random_bits(seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Returns the numbers that SplitMix64 gives after `counters` steps from `seeds`: uint64, of their common shape."""
    bits = seeds.astype(np.uint64) + (counters.astype(np.uint64) + np.uint64(1)) * GAMMA
    for shift, factor in STEPS:
        bits ^= bits >> shift
        bits *= factor
    return bits ^ (bits >> LAST_SHIFT)


class Permutation:
    """A random order of `range(size)` that computes each number by itself and stores nothing of that size.

    A Feistel network on numbers of `2 h` bits, which is a bijection whatever its round function (Luby and Rackoff,
    1988); numbers outside the range go through it again until they are inside (cycle walking, Black and Rogaway, 2002).

    Args:
        size: int, at least 1, below 2 ** 62.
        seed: int, not negative.
    """

    def __init__(self, size: int, seed: int):
        self.size = size
        self._half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        self._keys = random_bits(np.array(seed % (1 << 64), np.uint64), np.arange(_ROUNDS))

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Returns the numbers at some positions of the order: int64, of their shape."""
        numbers = self._step(positions.astype(np.uint64))
        while (outside := numbers >= self.size).any():
            numbers[outside] = self._step(numbers[outside])
        return numbers.astype(np.int64)

    def _step(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (random_bits(key, right) & self._mask)
        return (left << self._half) | right
