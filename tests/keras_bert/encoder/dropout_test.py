"""The masks of `HashedDropout`, by statistics whose bounds a fair coin misses once in a million draws."""

import numpy as np
import pytest

from keras_bert.encoder.dropout import HashedDropout

RATE, SHAPE = 0.1, (32, 64, 48)


def masks(seed: int, steps: int) -> np.ndarray:
    """Returns what was kept in each step, less its expectation, with a variance of 1."""
    layer = HashedDropout(RATE, seed=seed)
    outputs = np.stack([layer(np.ones(SHAPE, "float32"), training=True) for _ in range(steps)])
    return ((outputs > 0) - (1 - RATE)) / np.sqrt(RATE * (1 - RATE))


def in_standard_errors(product: np.ndarray) -> float:
    return abs(product.mean()) * np.sqrt(product.size)


def test_units_are_dropped_at_the_rate_and_the_others_scaled():
    inputs = np.linspace(1, 2, np.prod(SHAPE), dtype="float32").reshape(SHAPE)
    outputs = np.asarray(HashedDropout(RATE, seed=1)(inputs, training=True))
    np.testing.assert_allclose(outputs[outputs > 0], inputs[outputs > 0] / (1 - RATE), rtol=1e-6)
    assert in_standard_errors(masks(1, 8)) < 5


@pytest.mark.parametrize("seed", [0, 1, 2**31])
def test_steps_seeds_and_neighbours_have_independent_masks(seed):
    kept = masks(seed, 8)
    for distance in (1, 2, 3, 4):  # The states of steps differ in one bit, or in several.
        assert in_standard_errors(kept[distance:] * kept[:-distance]) < 5
    assert in_standard_errors(kept * masks(seed + 1, 8)) < 5
    for axis in (1, 2, 3):
        for distance in (1, 2, 16):
            earlier, later = (np.roll(kept, shift, axis) for shift in (0, distance))
            assert in_standard_errors(earlier * later) < 5


def test_masks_repeat_with_the_seed_and_serve_training_alone():
    np.testing.assert_array_equal(masks(3, 2), masks(3, 2))
    inputs = np.ones(SHAPE, "float32")
    np.testing.assert_array_equal(HashedDropout(RATE)(inputs, training=False), inputs)
    np.testing.assert_array_equal(HashedDropout(0.0)(inputs, training=True), inputs)
