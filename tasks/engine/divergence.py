"""Detects a diverging training and saves the offending batch for inspection."""

import collections
import statistics

import numpy as np
import tensorflow as tf

from keras_bert.files import atomic_path

WINDOW = 100  # Steps in the running median of the loss; spikes are reported once half of them have been seen.


class Divergence:
    """Watches the figures of a training for non-finite values and loss spikes.

    Args:
        spike_factor: largest allowed multiple of the median loss over the last `WINDOW` steps; 0 allows any.
    """

    def __init__(self, spike_factor: float = 0.0):
        self._spike_factor = spike_factor
        self._losses: collections.deque[float] = collections.deque(maxlen=WINDOW)

    def find(self, names: list[str], values: np.ndarray) -> tuple[int, str] | None:
        """Checks the figures of the latest steps; `values[i, j]` is the figure `names[j]` of the i-th step.

        Returns:
            (index of the first bad step, reason), or None if all steps are fine.
        """
        for index, row in enumerate(values.tolist()):
            figures = dict(zip(names, row, strict=True))
            if reason := self._fault(figures):
                return index, reason
            self._losses.append(figures["loss"])
        return None

    def _fault(self, figures: dict[str, float]) -> str | None:
        if not np.isfinite(list(figures.values())).all():
            return ", ".join(f"{name} {value:g}" for name, value in figures.items())
        # Every overflow halves the loss scale. Below 1, the unscaled gradient itself exceeds float16.
        if figures.get("loss_scale", 1.0) < 1.0:
            return f"loss scale {figures['loss_scale']:g}, gradients overflow float16"
        if self._spike_factor and len(self._losses) >= WINDOW // 2:
            factor, loss, median = self._spike_factor, figures["loss"], statistics.median(self._losses)
            if loss > factor * median:
                return f"loss {loss:g} is over {factor:g} times the running median {median:g} (--spike_factor)"
        return None


def save_batch(path: str, dataset: tf.data.Dataset) -> None:
    """Writes the first `(features, labels)` batch of a dataset as .npz, one array per named tensor."""
    features, labels = next(iter(dataset.take(1)))
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **features, **labels)
