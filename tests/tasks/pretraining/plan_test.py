"""The plan of data creation: each block's neighbours, and its shards."""

import collections

import numpy as np
import pytest

from tasks.pretraining.data.plan import NEIGHBOURS, Plan

MEBIBYTE = 1 << 20


def make(num_blocks, num_shards=1, block_bytes=MEBIBYTE, seed=3):
    rng = np.random.default_rng(num_blocks)
    numbers = np.arange(num_blocks)
    table = np.stack([numbers, 0 * numbers, rng.integers(1, 10**6, num_blocks), rng.integers(1, 500, num_blocks)], 1)
    return Plan(table, seed, num_shards, block_bytes)


@pytest.mark.parametrize("num_blocks", [1, 2, 17])
def test_a_small_text_is_its_own_sample(num_blocks):
    plan = make(num_blocks)
    assert plan.is_whole
    for block in range(num_blocks):
        neighbours = list(plan.neighbours(block))
        assert {block, *(number for number, _, _ in neighbours)} == set(range(num_blocks))
        assert len(neighbours) == num_blocks - 1 and {num_parts for _, _, num_parts in neighbours} <= {1}


@pytest.mark.parametrize(("block_bytes", "num_slices"), [(MEBIBYTE, 1), (3 * MEBIBYTE, 4), (16 * MEBIBYTE, 16)])
@pytest.mark.parametrize("num_blocks", [18, 100])
def test_every_document_is_in_as_many_samples(num_blocks, block_bytes, num_slices):
    plan = make(num_blocks, block_bytes=block_bytes)
    assert not plan.is_whole
    uses = collections.Counter()
    for block in range(num_blocks):
        neighbours = list(plan.neighbours(block))
        assert len(set(neighbours)) == len(neighbours) == NEIGHBOURS
        assert block not in {number for number, _, _ in neighbours}
        uses.update(neighbours)
    assert len(uses) == num_blocks * num_slices  # All slices of all blocks,
    assert set(uses.values()) == {NEIGHBOURS // num_slices}  # each equally often.
    assert uses.keys() == {(block, part, num_slices) for block in range(num_blocks) for part in range(num_slices)}
    again, other = make(num_blocks, block_bytes=block_bytes), make(num_blocks, block_bytes=block_bytes, seed=4)
    assert list(again.neighbours(0)) == list(plan.neighbours(0)) != list(other.neighbours(0))


@pytest.mark.parametrize(("num_blocks", "num_shards"), [(1, 1), (1, 7), (5, 3), (64, 1), (3, 64), (200, 40)])
def test_shards_get_equal_parts_and_every_instance_once(num_blocks, num_shards):
    plan = make(num_blocks, num_shards)
    blocks, sizes = collections.defaultdict(set), collections.Counter()
    for block in range(num_blocks):
        num_instances = int(plan.table[block, 2])  # One for each token.
        shares = plan.shares(block, num_instances)
        assert [first for _, first, _ in shares] == [0, *(last for _, _, last in shares)][:-1]
        assert shares[-1][2] == num_instances
        for shard, first, last in shares:
            blocks[shard].add(block)
            sizes[shard] += last - first
    assert max(sizes.values()) - min(sizes.values()) <= num_blocks  # Up to rounding.
    for shard in range(num_shards):
        assert set(plan.blocks_of(shard)) == blocks[shard]
    together = [block for shard in range(num_shards) for block in plan.blocks_of(shard)]
    assert num_blocks < 50 or together != sorted(together)  # Neither in the order of the text.
