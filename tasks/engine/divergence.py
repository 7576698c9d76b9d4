"""Detects a diverging training."""

import numpy as np


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
