"""A training that goes wrong stops and keeps the batch; repaired, it goes on from the last good checkpoint."""

import numpy as np
import pytest
import tensorflow as tf
from toy_training import build_trainer, draw, repeated

from keras_bert.errors import InputError
from tasks.engine.divergence import WINDOW, Divergence

NAMES = ["loss", "gradient_norm"]


def rows(losses):
    return np.array([[loss, 1.0] for loss in losses], np.float32)


def test_numbers_that_are_not_finite():
    divergence = Divergence()
    assert divergence.find(NAMES, rows([3.0, 2.0, 1e30])) is None
    assert divergence.find(NAMES, rows([3.0, np.nan, np.nan])) == (1, "loss nan, gradient_norm 1")
    assert divergence.find(NAMES, np.array([[1.0, np.inf]])) == (0, "loss 1, gradient_norm inf")


def test_spikes_are_measured_by_the_running_median():
    divergence = Divergence(spike_factor=3.0)
    assert divergence.find(NAMES, rows([2.0] * (WINDOW // 2 - 1) + [7.0])) is None  # Too early to tell.
    assert divergence.find(NAMES, rows([5.9] * 3)) is None
    index, reason = divergence.find(NAMES, rows([2.0, 6.1, 9.0]))
    assert index == 1 and reason == "loss 6.1 is over 3 times the running median 2 (--spike_factor)"
    # The level rises once half of the window has.
    assert divergence.find(NAMES, rows([5.0] * WINDOW)) is None
    assert divergence.find(NAMES, rows([14.0])) is None
    assert Divergence().find(NAMES, rows([1.0] * WINDOW + [1e6])) is None  # Off.


def poisoned(step_of_poison):
    """Batches of `repeated`; the one of a step (from 1) has weights that are not numbers."""

    def make_dataset(start_step):
        def poison(step, batch):
            features, labels = batch
            bad = tf.where(step == step_of_poison - 1, np.float32(np.nan), 1.0)
            return features, {**labels, "weights": labels["weights"] * bad}

        return tf.data.Dataset.zip(tf.data.Dataset.range(start_step, 100), repeated(start_step)).map(poison)

    return make_dataset


def test_the_batch_is_kept_and_a_repaired_training_goes_on(tmp_path):
    path = tmp_path / "run" / "diverged_step_8.npz"
    with pytest.raises(InputError) as error:
        build_trainer(tmp_path / "run", steps_per_call=2).fit(poisoned(8), 12, save_checkpoints_steps=5)
    assert str(error.value).startswith("Training diverged at step 8: loss nan, token_loss nan, pair_loss")
    assert f"Its batch is in {path}." in str(error.value)
    features, labels = draw(48)
    kept = np.load(path)
    assert sorted(kept.files) == ["ids", "pair", "targets", "weights"]
    np.testing.assert_array_equal(kept["ids"], features["ids"][16:32])  # Step 8 has the second of three batches.
    np.testing.assert_array_equal(kept["pair"], labels["pair"][16:32])
    assert np.isnan(kept["weights"]).all()
    assert build_trainer(tmp_path / "run").restore() == 5
    history = build_trainer(tmp_path / "run").fit(repeated, 12)
    expected = build_trainer(tmp_path / "undisturbed").fit(repeated, 12)
    assert history.training == expected.training


def test_a_spike_stops_the_training(tmp_path):
    trainer = build_trainer(tmp_path, spike_factor=1.0, num_steps=400)  # Any loss above the median is a spike.
    with pytest.raises(InputError, match=r"diverged at step \d+: loss .* over 1 times the running median"):
        trainer.fit(repeated, 400)
    [path] = tmp_path.glob("diverged_step_*.npz")
    assert WINDOW // 2 < int(path.stem.rpartition("_")[2]) < 400
