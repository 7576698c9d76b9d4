"""A training that goes wrong stops and keeps the batch; repaired, it goes on from the last good checkpoint."""

import numpy as np
import pytest
import tensorflow as tf
from toy_training import build_trainer, repeated

from keras_bert.errors import InputError
from tasks.engine.divergence import find_divergence

NAMES = ["loss", "gradient_norm"]


def rows(losses):
    return np.array([[loss, 1.0] for loss in losses], np.float32)


def test_numbers_that_are_not_finite():
    assert find_divergence(NAMES, rows([3.0, 2.0, 1e30])) is None
    assert find_divergence(NAMES, rows([3.0, np.nan, np.nan])) == (1, "loss nan, gradient_norm 1")
    assert find_divergence(NAMES, np.array([[1.0, np.inf]])) == (0, "loss 1, gradient_norm inf")


def poisoned(step_of_poison):
    """Batches of `repeated`; the one of a step (from 1) has weights that are not numbers."""

    def make_dataset(start_step):
        def poison(step, batch):
            features, labels = batch
            bad = tf.where(step == step_of_poison - 1, np.float32(np.nan), 1.0)
            return features, {**labels, "weights": labels["weights"] * bad}

        return tf.data.Dataset.zip(tf.data.Dataset.range(start_step, 100), repeated(start_step)).map(poison)

    return make_dataset


def test_the_step_is_named_and_a_repaired_training_goes_on(tmp_path):
    with pytest.raises(InputError) as error:
        build_trainer(tmp_path / "run", steps_per_call=2).fit(poisoned(8), 12, save_checkpoints_steps=5)
    assert str(error.value).startswith("Training diverged at step 8: loss nan, token_loss nan, pair_loss")
    assert build_trainer(tmp_path / "run").restore() == 5
    history = build_trainer(tmp_path / "run").fit(repeated, 12)
    expected = build_trainer(tmp_path / "undisturbed").fit(repeated, 12)
    assert history.training == expected.training
