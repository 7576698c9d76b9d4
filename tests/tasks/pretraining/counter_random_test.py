"""Numbers, and orders, from seeds and counters."""

import numpy as np
import pytest
import scipy.stats

from tasks.pretraining.data.counter_random import random_bits, random_order


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


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000])
def test_an_order_holds_every_number_once(size):
    assert sorted(random_order(size, seed=7).tolist()) == list(range(size))


def test_seeds_and_streams_give_other_orders():
    keys = [(seed, stream) for seed in (0, 1, 2, 1 << 64, 1 << 70) for stream in range(4)]
    orders = {tuple(random_order(50, *key).tolist()) for key in keys}
    assert len(orders) == 12  # A seed counts modulo 2 ** 64.
    assert random_order(50, 3, 2).tolist() == random_order(50, 3, 2).tolist()


@pytest.mark.slow(keep=["5"])
@pytest.mark.parametrize("size", [5, 30, 64])
def test_every_number_comes_to_every_place_equally_often(size):
    table = np.zeros((size, size))
    for seed in range(100 * size):
        table[np.arange(size), random_order(size, seed)] += 1
    # Rows and columns are fixed at 100 * size: (size - 1) ** 2 degrees of freedom.
    statistic = ((table - 100) ** 2 / 100).sum() * (size - 1) / size
    assert scipy.stats.chi2.sf(statistic, (size - 1) ** 2) > 0.001


def test_neighbours_are_torn_apart():
    numbers = random_order(100_000, seed=3)
    correlation = np.corrcoef(numbers[:-1], numbers[1:])[0, 1]
    assert abs(correlation) < 4 / 100_000**0.5
    assert (np.abs(np.diff(numbers)) == 1).sum() < 20  # 2 in expectation
