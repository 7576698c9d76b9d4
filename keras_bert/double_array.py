"""Double-array tries in the layout of darts-clone, as tensorflow-text's kernels read them.

A trie is a vector of uint32 units (github.com/s-yata/darts-clone, `darts.h`). The child of node `i` along byte
`c` is unit `i ^ offset(i) ^ c`, and it is a child indeed if its label is `c`. Bits of an inner unit:
    0-7   label, the byte that leads here
    8     the node ends a key: its value is at unit `i ^ offset(i)`
    9     the offset counts in steps of 256 (never set here)
    10-30 offset
A value unit holds the value in bits 0-30 and has bit 31 set, so that no byte equals its label.
"""

import bisect

import numpy as np

_BLOCK = 256  # a child's index differs from its parent's base in the low eight bits only
_MAX_OFFSET = 1 << 21
_HAS_VALUE = 1 << 8
_IS_VALUE = 1 << 31


def build(entries: dict[bytes, int]) -> np.ndarray:
    """Builds the trie of `entries`.

    Args:
        entries: value (0 <= value < 2**31) of each key. Keys are not empty, hold no zero byte, and none is
            the beginning of another (true of the UTF-8 forms of single code points).

    Returns:
        uint32, shape (units,); the size is a multiple of 256, so that a look-up never leaves the vector.

    Raises:
        ValueError: a key or value breaks these conditions, or the trie outgrows the layout.
    """
    root: dict = {}
    for key, value in sorted(entries.items()):
        _insert(root, key, value)
    return _Placement(root).units()


def _insert(root: dict, key: bytes, value: int) -> None:
    """Adds one key to the tree of nested dicts; a leaf is the value itself."""
    if not key or 0 in key or not 0 <= value < _IS_VALUE:
        raise ValueError(f"A key needs bytes other than zero, and a value of 31 bits. Received: {key!r}: {value}")
    node = root
    for byte in key[:-1]:
        node = node.setdefault(byte, {})
        if not isinstance(node, dict):
            raise ValueError(f"No key may be the beginning of another. Received: {key!r}")
    if key[-1] in node:
        raise ValueError(f"No key may be the beginning of another. Received: {key!r}")
    node[key[-1]] = value


class _Placement:
    """Finds each inner node's base, a place where all its children's units are free, then appends the values.

    Leaves of equal value share one value unit: safe, as nothing is looked up beyond a leaf.
    """

    def __init__(self, root: dict):
        self._units: list[int] = []  # -1 where free
        self._free: list[int] = []  # the free units, ascending
        self._used_bases: set[int] = set()
        self._leaves: list[tuple[int, int, int]] = []  # unit, label, value
        self._grow()
        self._take(0)
        self._place_children(0, 0, root)

    def units(self) -> np.ndarray:
        values = sorted({value for _, _, value in self._leaves})
        start = len(self._units)
        size = -(-(start + len(values)) // _BLOCK) * _BLOCK
        if size > _MAX_OFFSET:
            raise ValueError(f"A double array has at most {_MAX_OFFSET} units. Received: entries for {size}")
        units = np.zeros(size, dtype=np.uint32)
        units[:start] = np.array(self._units).clip(min=0)
        units[start : start + len(values)] = np.array(values, dtype=np.uint32) | _IS_VALUE
        place = {value: start + rank for rank, value in enumerate(values)}
        for index, label, value in self._leaves:
            units[index] = label | _HAS_VALUE | (index ^ place[value]) << 10
        return units

    def _grow(self) -> None:
        start = len(self._units)
        self._units.extend([-1] * _BLOCK)
        self._free.extend(range(start, start + _BLOCK))

    def _take(self, index: int) -> None:
        self._units[index] = 0
        del self._free[bisect.bisect_left(self._free, index)]

    def _place_children(self, index: int, label: int, children: dict[int, dict | int]) -> None:
        base = self._find_base(list(children))
        self._used_bases.add(base)
        self._units[index] = label | (index ^ base) << 10
        for byte in children:
            self._take(base ^ byte)
        for byte, child in children.items():
            if isinstance(child, dict):
                self._place_children(base ^ byte, byte, child)
            else:
                self._leaves.append((base ^ byte, byte, child))

    def _find_base(self, labels: list[int]) -> int:
        while True:
            for unit in self._free:
                base = unit ^ labels[0]
                if base not in self._used_bases and all(self._units[base ^ label] < 0 for label in labels):
                    return base
            self._grow()
