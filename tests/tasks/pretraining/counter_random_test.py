"""Numbers from seeds and counters, and shuffles without a list."""

import numpy as np
import pytest
import scipy.stats

from tasks.pretraining.data.counter_random import Permutation, random_bits


def test_bits_are_those_of_splitmix64():
    # The first outputs for seed 1234567 of the reference implementation (https://prng.di.unimi.it/splitmix64.c).
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert random_bits(np.array(1234567, np.uint64), np.arange(4)).tolist() == expected


def test_bits_depend_on_seed_and_counter_of_each_element():
    seeds, counters = np.array([[3], [4]], np.uint64), np.arange(5)
    bits = random_bits(seeds, counters)
    assert bits.shape == (2, 5) and bits.dtype == np.uint64
    assert len(set(bits.ravel().tolist())) == 10
    assert bits[1, 2] == random_bits(np.array([4], np.uint64), np.array([2]))[0]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 1000, 4097])
def test_a_permutation_holds_every_number_once(size):
    order = Permutation(size, seed=7)
    numbers = order(np.arange(size))
    assert sorted(numbers.tolist()) == list(range(size))
    assert np.array_equal(order(np.arange(size)[::-1]), numbers[::-1])


def test_a_permutation_of_a_large_range_costs_what_is_asked_of_it():
    order = Permutation(10**15, seed=0)
    positions = np.array([0, 1, 10**15 - 1])
    numbers = order(positions)
    assert ((numbers >= 0) & (numbers < 10**15)).all()
    assert len(set(numbers.tolist())) == 3 and np.array_equal(order(positions[::-1]), numbers[::-1])


def test_seeds_give_other_orders():
    orders = {tuple(Permutation(50, seed)(np.arange(50)).tolist()) for seed in range(20)}
    assert len(orders) == 20


@pytest.mark.slow(keep=["5"])
@pytest.mark.parametrize("size", [5, 30, 64])
def test_every_number_comes_to_every_place_equally_often(size):
    table = np.zeros((size, size))
    for seed in range(100 * size):
        table[np.arange(size), Permutation(size, seed)(np.arange(size))] += 1
    # Rows and columns are fixed at 100 * size: (size - 1) ** 2 degrees of freedom.
    statistic = ((table - 100) ** 2 / 100).sum() * (size - 1) / size
    assert scipy.stats.chi2.sf(statistic, (size - 1) ** 2) > 0.001


def test_neighbours_are_torn_apart():
    numbers = Permutation(100_000, seed=3)(np.arange(100_000))
    correlation = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(correlation) < 4 / 100_000**0.5
    assert (np.abs(np.diff(numbers)) == 1).sum() < 20  # 2 in expectation
