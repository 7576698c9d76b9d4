"""Random numbers computed from a seed and a counter, for whole arrays at once, and a shuffle without a list.

Whoever computes a number gets the same one: no generator is carried from one draw to the next.
"""

import numpy as np

# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014, figure 16).
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))

_ROUNDS = 8


def random_bits(seeds: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """The number that SplitMix64 gives after `counters` steps from `seeds`: uint64, of their common shape."""
    bits = seeds.astype(np.uint64) + (counters.astype(np.uint64) + np.uint64(1)) * _GAMMA
    for shift, factor in zip(_SHIFTS[:2], _FACTORS, strict=True):
        bits ^= bits >> shift
        bits *= factor
    return bits ^ (bits >> _SHIFTS[2])


class Permutation:
    """A random order of `range(size)`, computed number by number: nothing of the size of the range is stored.

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
        """What stands at the positions: int64, of their shape."""
        return self._walk(positions, self._forward)

    def inverse(self, numbers: np.ndarray) -> np.ndarray:
        """Where the numbers stand: int64, of their shape."""
        return self._walk(numbers, self._backward)

    def _walk(self, numbers: np.ndarray, step) -> np.ndarray:
        numbers = step(numbers.astype(np.uint64))
        while (outside := numbers >= self.size).any():
            numbers[outside] = step(numbers[outside])
        return numbers.astype(np.int64)

    def _forward(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys:
            left, right = right, left ^ (random_bits(key, right) & self._mask)
        return (left << self._half) | right

    def _backward(self, numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> self._half, numbers & self._mask
        for key in self._keys[::-1]:
            left, right = right ^ (random_bits(key, left) & self._mask), left
        return (left << self._half) | right
