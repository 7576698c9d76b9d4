"""Orthogonal updates of matrices, as `keras.optimizers.Muon` makes them."""

from collections import defaultdict
from collections.abc import Callable

from keras import ops

_SIZE = 0.2  # Root mean square of an update, about that of Adam's (Liu et al. 2025, arXiv:2502.16982, 2.2).


def orthogonal_updates(momenta: list, slices: list[int], iterate: Callable) -> list:
    """Replaces each matrix by a nearly orthogonal one close to it, times 0.2 sqrt(max(rows, columns)).

    Matrices of one shape, or of its transpose, go through the Newton-Schulz iteration together. At 128 units a
    single matrix would leave most of the processor idle.

    Args:
        momenta: float tensors, of shape (rows, slices * columns).
        slices: number of matrices side by side in each tensor, each of which becomes orthogonal by itself.
        iterate: `zeropower_via_newtonschulz5` of a `keras.optimizers.Muon`.

    Returns:
        Tensors of the same shapes.
    """
    matrices = [
        matrix for momentum, count in zip(momenta, slices, strict=True) for matrix in ops.split(momentum, count, -1)
    ]
    groups = defaultdict(list)
    for index, matrix in enumerate(matrices):
        groups[tuple(sorted(matrix.shape))].append(index)
    for (_, longest), indexes in groups.items():
        wide = [_widen(matrices[index]) for index in indexes]
        updates = iterate(ops.stack(wide), 5) * (_SIZE * longest**0.5)
        for index, update in zip(indexes, ops.unstack(updates, len(indexes)), strict=True):
            matrices[index] = ops.transpose(update) if matrices[index].shape[0] > matrices[index].shape[1] else update
    remaining = iter(matrices)
    return [ops.concatenate([next(remaining) for _ in range(count)], -1) for count in slices]


def _widen(matrix):
    return ops.transpose(matrix) if matrix.shape[0] > matrix.shape[1] else matrix
