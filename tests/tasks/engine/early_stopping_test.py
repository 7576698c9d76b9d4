"""Training ends once its evaluations have ceased to improve, with the best weights, and resumes to the same end."""

import os

import numpy as np
import pytest
from toy_training import build_trainer, repeated, state

from tasks.engine.checkpoints import Checkpoints
from tasks.engine.progress import EarlyStopping, History

SCORES = {2: 0.1, 4: 0.5, 6: 0.4, 8: 0.5, 10: 0.3, 12: 0.9}  # Best at 4; patience 3 ends it at 10.


def history(*scores: float, metric: str = "score") -> History:
    return History(evaluations=[{"step": 2 * (number + 1), metric: score} for number, score in enumerate(scores)])


def test_the_best_step_is_the_first_of_equals():
    rule = EarlyStopping("score", 2)
    assert rule.best_step(History()) is None and not rule.is_over(History())
    assert rule.best_step(history(0.1, 0.5, 0.5)) == 4
    assert EarlyStopping("dev_loss", 2).best_step(history(0.3, 0.1, 0.2, metric="dev_loss")) == 4
    assert rule.best_step(history(float("nan"), -1.0)) == 4 and rule.best_step(history(float("nan"))) is None


def test_patience():
    rule = EarlyStopping("score", 2)
    assert not rule.is_over(history(0.5, 0.4)) and rule.is_over(history(0.5, 0.4, 0.5))
    assert not rule.is_over(history(0.5, 0.4, 0.6, 0.1)) and rule.is_over(history(float("nan"), float("nan")))


def train(directory, stop_after: int | None = None):
    """Trains with `SCORES`; `stop_after`: interrupted in the evaluation of that step, after the best was kept."""
    trainer = build_trainer(directory, dropout=0.1)

    def evaluate():
        step = int(trainer.step.numpy())
        if stop_after == step:
            raise KeyboardInterrupt
        return {"score": SCORES[step]}

    history = trainer.fit(
        repeated, 20, save_checkpoints_steps=2, evaluate=evaluate, early_stopping=EarlyStopping("score", 3)
    )
    return trainer, history


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A directory, and what `train` returned for it."""
    directory = tmp_path_factory.mktemp("undisturbed")
    return directory, *train(directory)


def test_it_ends_early_with_the_best_weights(undisturbed, tmp_path):
    directory, trainer, ended = undisturbed
    plain = build_trainer(tmp_path / "plain", dropout=0.1)
    plain.fit(repeated, 4)
    assert [row["step"] for row in ended.evaluations] == [2, 4, 6, 8, 10]
    assert int(trainer.step.numpy()) == 4
    for ours, expected in zip(trainer.model.get_weights(), plain.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, expected)
    assert sorted(os.listdir(directory / "best")) == [
        "checkpoint",
        "ckpt-4.data-00000-of-00001",
        "ckpt-4.index",
    ]
    again, history_again = train(directory, stop_after=12)  # Over: nothing is trained or evaluated.
    assert history_again == ended and int(again.step.numpy()) == 4
    for ours, expected in zip(again.model.get_weights(), plain.model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [4, 8])
def test_a_stopped_run_ends_the_same(undisturbed, tmp_path, stop_after):
    _, trainer, expected = undisturbed
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", stop_after)
    resumed, ended = train(tmp_path / "stopped")
    assert ended.evaluations == expected.evaluations
    for ours, theirs in zip(state(resumed)[: len(resumed.model.weights)], trainer.model.get_weights(), strict=False):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("is_saved", [False, True], ids=["before", "after"])
def test_a_kill_where_the_best_is_kept_leaves_the_best_weights(undisturbed, tmp_path, monkeypatch, is_saved):
    """Also where the machine is not deterministic, so that the same weights would score less the second time."""
    save = Checkpoints.save

    def killed(checkpoints, keep):
        is_best = os.path.basename(checkpoints.directory) == "best" and int(checkpoints.step.numpy()) == 4
        if is_saved or not is_best:
            save(checkpoints, keep)
        if is_best:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path)
    for step in (4, 6, 8):
        monkeypatch.setitem(SCORES, step, 0.0)
    trainer, ended = train(tmp_path)
    assert int(trainer.step.numpy()) == EarlyStopping("score", 3).best_step(ended) == 4
    for ours, expected in zip(trainer.model.get_weights(), undisturbed[1].model.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, expected)
