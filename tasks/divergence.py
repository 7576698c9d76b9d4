"""A training that goes wrong: found in its figures, and the batch of that step kept for inspection."""

import collections
import statistics

import numpy as np
import tensorflow as tf

from keras_bert.files import atomic_path

WINDOW = 100  # Steps whose median loss a spike is measured by; half as many must have been seen.


class Divergence:
    """Looks for numbers that are not finite and for spikes of the loss.

    Args:
        spike_factor: the loss may be up to this multiple of the median of the last `WINDOW` steps; 0: any.
    """

    def __init__(self, spike_factor: float = 0.0):
        self._spike_factor = spike_factor
        self._losses: collections.deque[float] = collections.deque(maxlen=WINDOW)

    def find(self, names: list[str], values: np.ndarray) -> tuple[int, str] | None:
        """Looks at the figures of the steps just done; `values[i, j]` is `names[j]` of the i-th of them.

        Returns:
            Index of the first step that went wrong, and what did; None if all is well.
        """
        for index, row in enumerate(values):
            figures = dict(zip(names, row.tolist(), strict=True))
            reason = self._reason(figures)
            if reason:
                return index, reason
            self._losses.append(figures["loss"])
        return None

    def _reason(self, figures: dict[str, float]) -> str | None:
        if not np.isfinite(list(figures.values())).all():
            return ", ".join(f"{name} {value:g}" for name, value in figures.items())
        # Each gradient that overflows halves the scale. Below 1 it is the gradient itself that has left float16.
        if figures.get("loss_scale", 1.0) < 1.0:
            return f"loss scale {figures['loss_scale']:g}, gradients overflow float16"
        if self._spike_factor and len(self._losses) >= WINDOW // 2:
            median = statistics.median(self._losses)
            if figures["loss"] > self._spike_factor * median:
                return (
                    f"loss {figures['loss']:g} is over {self._spike_factor:g} times the running median {median:g} "
                    "(--spike_factor)"
                )
        return None


def save_batch(path: str, dataset: tf.data.Dataset) -> None:
    """Writes the first batch of a dataset of `(features, labels)` as .npz, an array by each tensor's name."""
    features, labels = next(iter(dataset.take(1)))
    arrays = {}
    for kind, part in (("features", features), ("labels", labels)):
        for name, tensor in part.items() if isinstance(part, dict) else [(kind, part)]:
            arrays[name] = tensor.numpy()
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)
