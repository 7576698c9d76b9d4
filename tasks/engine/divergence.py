"""Detects a diverging training and saves the offending batch for inspection."""

import numpy as np
import tensorflow as tf

from keras_bert.files import atomic_path


def find_divergence(names: list[str], values: np.ndarray) -> tuple[int, str] | None:
    """Finds the first step whose figures are not finite, or whose gradients overflow whatever the loss scale.

    Args:
        names: names of the figures.
        values: shape (steps, figures).

    Returns:
        (index of the step, reason), or None if all steps are fine.
    """
    for index, row in enumerate(values.tolist()):
        figures = dict(zip(names, row, strict=True))
        if not np.isfinite(row).all():
            return index, ", ".join(f"{name} {value:g}" for name, value in figures.items())
        # Every overflow halves the loss scale. Below 1, the unscaled gradient itself exceeds float16.
        if figures.get("loss_scale", 1.0) < 1.0:
            return index, f"loss scale {figures['loss_scale']:g}, gradients overflow float16"
    return None


def save_batch(path: str, dataset: tf.data.Dataset) -> None:
    """Writes the first `(features, labels)` batch of a dataset as .npz, one array per named tensor."""
    features, labels = next(iter(dataset.take(1)))
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **features, **labels)
