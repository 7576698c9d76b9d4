"""Builds double-array tries in the layout of darts-clone, which tensorflow-text's kernels read.

A trie is a vector of uint32 units (github.com/s-yata/darts-clone, `darts.h`). The child of node `i` along byte `c` is
unit `i ^ offset(i) ^ c`, provided that the label of that unit is `c`. The bits of an inner unit are:
    0-7   the label, the byte that leads here
    8     the node ends a key, whose value is at unit `i ^ offset(i)`
    9     the offset counts in steps of 256 (never set here)
    10-30 the offset
A value unit holds the value in bits 0-30 and has bit 31 set, so that no byte equals its label.
"""

import numpy as np

_BLOCK = 256  # A child's index differs from its parent's base only in the low eight bits.
_HAS_VALUE = 1 << 8
_IS_VALUE = 1 << 31
_END = 0  # In a tree, the entry for the value of the key that ends there. No key holds a zero byte.


def build(entries: dict[bytes, int]) -> np.ndarray:
    """Builds the trie of `entries`, and stores equal parts once.

    Args:
        entries: the value of each key, 0 <= value < 2**31. Keys are not empty and contain no zero byte. The offsets
            have room for 2**21 units; our normalizer's characters take 34,560.

    Returns:
        uint32, shape (units,). The size is a multiple of 256, so that a look-up never leaves the vector.
    """
    root: dict = {}
    for key, value in sorted(entries.items()):
        node = root
        for byte in key:
            node = node.setdefault(byte, {})
        node[_END] = value
    return np.array(_Placement(root).units, dtype=np.uint32)


class _Placement:
    """Places the tree from its leaves up: each inner node gets a base at which the units of all its children are free.

    Nodes with equal children share one base. That is safe, since the units below a base belong to no other base.
    """

    def __init__(self, root: dict):
        self.units: list[int] = []
        self._free: list[np.ndarray] = []  # For each block, bool: which of its units are free.
        self._unused: list[np.ndarray] = []  # For each block, bool: which of its units are not yet a node's base.
        self._start: dict[int, int] = {}  # The block where the last search for as many children ended.
        self._bases: dict[tuple, int] = {}  # The base of a node by its children: label, flags, and value or base.
        self._grow()
        self._free[0][0] = False
        self.units[0] = self._place(root) << 10

    def _grow(self) -> None:
        self.units.extend([0] * _BLOCK)
        self._free.append(np.ones(_BLOCK, dtype=bool))
        self._unused.append(np.ones(_BLOCK, dtype=bool))

    def _place(self, node: dict) -> int:
        """Places the children of a node, and returns its base."""
        children = tuple(
            (byte, _IS_VALUE, child) if byte == _END else (byte, _HAS_VALUE if _END in child else 0, self._place(child))
            for byte, child in sorted(node.items())
        )
        if children in self._bases:
            return self._bases[children]
        base = self._bases[children] = self._find_base(np.array([label for label, _, _ in children]))
        for label, flags, target in children:
            index = base ^ label
            self.units[index] = target | flags if flags == _IS_VALUE else label | flags | (index ^ target) << 10
        return base

    def _find_base(self, labels: np.ndarray) -> int:
        """Reserves room in the first block that has it, starting where the last search for as many children ended."""
        block = self._start.get(len(labels), 0)
        while True:
            if block == len(self._free):
                self._grow()
            fits = self._free[block][np.arange(_BLOCK)[:, np.newaxis] ^ labels].all(axis=1) & self._unused[block]
            if fits.any():
                break
            block += 1
        low = int(fits.argmax())
        self._start[len(labels)] = block
        self._free[block][low ^ labels] = False
        self._unused[block][low] = False
        return block * _BLOCK + low
