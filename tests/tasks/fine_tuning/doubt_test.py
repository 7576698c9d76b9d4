"""Temperature and least confidence: against scikit-learn, by hand, and on rows that the choice has not seen."""

import numpy as np
import pytest
from scipy import stats
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import brier_score_loss
from sklearn.metrics import f1_score as oracle_f1

from tasks.classify import metrics
from tasks.fine_tuning import doubt
from tasks.fine_tuning.metrics import cross_entropies, log_softmax


def draw(count: int, sharpness: float, seed: int, num_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels; the labels are drawn by the softmax of the logits over `sharpness`."""
    generator = np.random.default_rng(seed)
    logits = sharpness * 2 * generator.normal(size=(count, num_classes))
    noise = generator.gumbel(size=logits.shape)
    return logits, (logits / sharpness + noise).argmax(axis=1)


class Logits(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose logits are its inputs."""

    classes_ = np.arange(3)

    def __sklearn_is_fitted__(self):
        return True

    def decision_function(self, inputs):
        return inputs

    def fit(self, inputs, labels):
        raise NotImplementedError

    predict = fit


@pytest.mark.oracle
@pytest.mark.parametrize("sharpness", [0.4, 3.0])
def test_temperature_and_brier_score_are_scikit_learn_s(sharpness):
    logits, labels = draw(500, sharpness, seed=1)
    oracle = CalibratedClassifierCV(FrozenEstimator(Logits()), method="temperature").fit(logits, labels)
    temperature = doubt.fit_temperature(logits, labels)
    shares = np.exp(log_softmax(logits / temperature))
    np.testing.assert_allclose(shares, oracle.predict_proba(logits), atol=1e-6)
    assert temperature == pytest.approx(sharpness, rel=0.2)
    expected = brier_score_loss(labels, np.exp(log_softmax(logits)), scale_by_half=False)
    assert doubt.brier_score(logits, labels) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("sharpness", "is_chosen"), [(3.0, True), (1.0, False), (0.4, True)])
def test_a_temperature_is_chosen_where_it_helps_unseen_rows(sharpness, is_chosen):
    unseen = draw(5000, sharpness, seed=99)
    for seed in range(10):
        temperature = doubt.choose(*draw(400, sharpness, seed), None, None).temperature
        assert (temperature != 1.0) == is_chosen
        before, after = (cross_entropies(unseen[1], unseen[0] / by).mean() for by in (1.0, temperature))
        assert after < before if is_chosen else after == before


def test_few_rows_and_rows_without_mistakes_choose_none():
    logits, labels = draw(doubt.LEAST_ROWS - 1, 3.0, seed=1)
    assert doubt.choose(logits, labels, None, None).temperature == 1.0
    logits, _ = draw(400, 0.4, seed=1)
    assert doubt.choose(logits, logits.argmax(axis=1), None, None).temperature == 1.0


def test_the_least_confidence_by_hand():
    confidence = np.array([0.9, 0.6, 0.8, 0.7, 0.5, 0.5])
    is_right = np.array([True, False, True, True, True, False])
    # The surest 3 are right: 3 of 4 with a mistake more. With the fifth and sixth, which are equal: 4 of 7.
    assert doubt.least_confidence(confidence, is_right, 0.75) == pytest.approx(0.65)
    assert doubt.least_confidence(confidence, is_right, 4 / 7) == 0.0
    assert doubt.least_confidence(confidence, is_right, 0.8) == doubt.NEVER
    assert doubt.least_confidence(np.full(18, 0.99), np.ones(18, bool), 0.95) == doubt.NEVER  # 18 of 19 is too little.
    assert doubt.least_confidence(np.full(19, 0.99), np.ones(19, bool), 0.95) == 0.0


def test_the_wanted_precision_is_that_of_unseen_rows():
    logits, labels = draw(20_000, 1.0, seed=5)
    num_within = 0
    for start in range(0, 15_000, 1500):
        seen, unseen = slice(start, start + 1000), slice(start + 1000, start + 1500)
        choice = doubt.choose(logits[seen], labels[seen], 0.9, None)
        details, *_ = doubt.assess(logits[unseen], labels[unseen], choice, 0.9)
        low, high = details["answered_precision_interval"]
        num_within += low <= 0.9 <= high and 0.1 < details["coverage"] < 0.9
    assert num_within >= 9


def test_rows_that_were_chosen_on_are_scored_by_a_choice_on_others():
    logits, labels = draw(300, 3.0, seed=7)
    choice = doubt.choose(logits, labels, 0.8, None)
    seen, panels, notes = doubt.assess(logits, labels, choice, 0.8, ("temperature", "thresholds"))
    as_if_unseen, *_ = doubt.assess(logits, labels, choice, 0.8)
    assert seen["temperature"] == choice.temperature == doubt.fit_temperature(logits, labels)
    assert seen["calibrated_loss"] > as_if_unseen["calibrated_loss"]
    assert "each tenth of the rows by the temperature of the others" in notes[0]
    assert [heading for heading, *_ in panels] == [
        "Share of right answers by confidence",
        "Share of mistakes among the surest",
    ]
    nothing, _, notes = doubt.assess(logits, labels, doubt.Choice(threshold=doubt.NEVER), 0.99)
    assert nothing["coverage"] == 0.0 and "answered_precision" not in nothing
    assert notes == [
        "The wanted precision of 0.99 cannot be reached on these rows at any confidence. No label is given."
    ]


def test_a_threshold_a_label_is_the_best_for_f1_or_has_the_precision():
    generator = np.random.default_rng(3)
    labels = (generator.random((2000, 3)) < (0.5, 0.1, 0.002)).astype(np.float32)
    logits = 2 * labels + generator.normal(size=labels.shape) - (1.0, 3.0, 3.0)
    thresholds, shares = metrics.best_thresholds(logits, labels), metrics.probabilities(logits)
    for label in range(2):
        of_each = [oracle_f1(labels[:, label], shares[:, label] >= least) for least in np.linspace(0.005, 0.995, 199)]
        assert oracle_f1(labels[:, label], shares[:, label] >= thresholds[label]) >= max(of_each)
    assert thresholds[2] == 0.5  # Too few rows have it.
    assert metrics.unseen_thresholds(logits[:1], labels[:1]).tolist() == [[0.5] * 3]  # There are no other rows.
    half, unseen = metrics.choose(logits), metrics.choose(logits, metrics.unseen_thresholds(logits, labels))
    assert metrics.macro_f1(labels > 0, unseen) > metrics.macro_f1(labels > 0, half) + 0.1
    precise = metrics.best_thresholds(logits, labels, 0.9)
    of_each = metrics.label_scores(labels, logits, "abc", metrics.unseen_thresholds(logits, labels, 0.9))
    assert precise[2] == doubt.NEVER and of_each["c"]["predicted"] == 0
    for name in "ab":
        ends = stats.binomtest(of_each[name]["correct"], of_each[name]["predicted"]).proportion_ci(method="wilson")
        assert ends.low <= 0.9 <= ends.high
