"""Bootstrap intervals against the binomial distribution and against SciPy's bootstrap."""

import time

import numpy as np
import pytest
from scipy import stats

from tasks.report import bootstrap


def test_accuracy_agrees_with_the_binomial_distribution():
    answers = np.arange(800) < 640
    low, high = bootstrap.interval(lambda rows: answers[rows].mean(), 800, samples=4000)
    # The number of right answers among 800 draws is binomial; a step of the count is 1 / 800.
    expected = stats.binom.ppf([0.025, 0.975], 800, 0.8) / 800
    np.testing.assert_allclose([low, high], expected, atol=2.5 / 800)


@pytest.mark.oracle
@pytest.mark.parametrize("statistic", [np.mean, np.median, np.std])
def test_equals_scipy_with_the_same_generator(statistic):
    values = np.random.default_rng(5).gamma(2.0, size=150)
    bounds = bootstrap.interval(lambda rows: statistic(values[rows]), 150, seed=3, samples=500)
    oracle = stats.bootstrap(
        (values,), statistic, n_resamples=500, confidence_level=0.95, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    np.testing.assert_allclose(bounds, oracle, rtol=1e-12)


@pytest.mark.oracle
def test_a_correlation_equals_scipys_of_paired_rows():
    generator = np.random.default_rng(1)
    gold = generator.normal(size=120)
    predicted = gold + generator.normal(size=120)
    bounds = bootstrap.interval(lambda rows: np.corrcoef(gold[rows], predicted[rows])[0, 1], 120, seed=8)
    oracle = stats.bootstrap(
        (gold, predicted),
        lambda x, y: stats.pearsonr(x, y).statistic,
        n_resamples=1000,
        paired=True,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(8),
    ).confidence_interval
    np.testing.assert_allclose(bounds, oracle, rtol=1e-9)


def test_nineteen_of_twenty_intervals_hold_the_true_mean():
    generator = np.random.default_rng(11)
    held = 0
    for seed in range(300):
        values = generator.normal(size=100)
        low, high = bootstrap.interval(lambda rows, values=values: values[rows].mean(), 100, seed=seed, samples=200)
        held += low <= 0.0 <= high
    assert 0.90 <= held / 300 <= 0.985


def test_is_a_function_of_the_seed():
    values = np.random.default_rng(0).normal(size=50)

    def interval(seed):
        return bootstrap.interval(lambda rows: values[rows].mean(), 50, seed=seed)

    assert interval(4) == interval(4)
    assert interval(4) != interval(5)


def test_rows_are_drawn_with_replacement_from_all_rows():
    seen = []
    bootstrap.interval(lambda rows: seen.append(rows) or 0.0, 10, samples=200)
    assert all(rows.shape == (10,) and rows.dtype == np.int64 for rows in seen)
    assert np.bincount(np.concatenate(seen), minlength=10).min() > 120  # 200 are expected.
    assert any(len(set(rows.tolist())) < 10 for rows in seen)


def test_one_row_gives_a_point():
    assert bootstrap.interval(lambda rows: 0.25, 1) == (0.25, 0.25)


def test_a_thousand_samples_of_two_thousand_rows_take_about_a_second():
    generator = np.random.default_rng(0)
    gold, predicted = generator.integers(0, 2, (2, 2000))

    def f1(rows):
        hits = (gold[rows] & predicted[rows]).sum()
        return 2.0 * hits / (gold[rows].sum() + predicted[rows].sum())

    started = time.process_time()
    bootstrap.interval(f1, 2000)
    assert time.process_time() - started < 1.0  # Measured: 0.03 s.
