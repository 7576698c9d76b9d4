"""Decides where a block draws random next sentences from, and which output shards its instances go to.

Any worker computes both from a table with a row for each store.

M: blocks; here and in `writing` a block is one store of the tokenized text, of some MB.
"""

import random
from collections.abc import Iterator

import numpy as np

from tasks.pretraining.data.counter_random import random_order

NEIGHBOURS = 16
_NEIGHBOUR_BYTES = 1 << 20  # Most text that a neighbour gives.


class Plan:
    """The blocks of a text.

    Random next sentences (google-research/bert, create_pretraining_data.py:279) should be uniform over the other
    documents of the text. For that, every worker would have to read all of the text. So each block has a sample of its
    own instead: the documents of 16 slices of other blocks, 1 MiB of text each. With documents of 4 kB these are about
    4,000, and two draws of a block meet the same document once in 4,000 times, whatever the size of the text. The seed
    decides which slices a block has. Each slice serves the same number of blocks, so that over the whole text each
    document is drawn equally often. (With one sample for all blocks, the same few documents would come with the label
    "random" again and again: a model would learn them by heart, and a quarter of its tokens would come from them.)
    Text of up to 17 blocks of 1 MiB is its own sample: all of its documents, as in the original.

    Args:
        table: int64, shape (M, 4): number of a block of text, number of its store, its tokens, its documents.
        seed: the seed of the run.
        num_shards: output files.
        block_bytes: size of a block of text.
    """

    def __init__(self, table: np.ndarray, seed: int, num_shards: int, block_bytes: int):
        self.table = table
        self.num_shards = num_shards
        self.first_documents = np.cumsum(table[:, 3]) - table[:, 3]
        others, rng = len(table) - 1, random.Random(seed)
        self._distances = range(1, others + 1) if others <= NEIGHBOURS else rng.sample(range(1, others + 1), NEIGHBOURS)
        # A power of two, so that it divides the number of neighbours.
        self._num_slices = 1 << (-(-block_bytes // _NEIGHBOUR_BYTES) - 1).bit_length()
        self.is_whole = others <= NEIGHBOURS and self._num_slices == 1
        # Shards get equal parts of the tokens of all blocks in a random order.
        self._order = random_order(len(table), seed)
        ends = np.cumsum(table[self._order, 2])
        self._num_tokens = int(ends[-1])
        self._ends = np.empty_like(ends)
        self._ends[self._order] = ends

    def neighbours(self, block: int) -> Iterator[tuple[int, int, int]]:
        """Yields the slices that a block draws random next sentences from; all of other blocks, if `is_whole`.

        A slice is (block, part, number of parts), one of equal parts of the documents of a block.
        """
        for number, distance in enumerate(self._distances):
            yield ((block + distance) % len(self.table), number % self._num_slices, self._num_slices)

    def shares(self, block: int, num_instances: int) -> list[tuple[int, int, int]]:
        """Returns (shard, first, behind the last) of a block's instances, for each shard that gets some of them."""
        end, tokens = int(self._ends[block]), int(self.table[block, 2])
        start, shards = end - tokens, self.num_shards
        first, last = start * shards // self._num_tokens, -(-end * shards // self._num_tokens)
        inner = [
            num_instances * (shard * self._num_tokens - start * shards) // (tokens * shards)
            for shard in range(first + 1, last)
        ]
        bounds = [0, *inner, num_instances]
        return list(zip(range(first, last), bounds[:-1], bounds[1:], strict=True))

    def blocks_of(self, shard: int) -> list[int]:
        """Returns the blocks of which a shard has instances, in their order there."""
        is_in = (self._ends * self.num_shards > shard * self._num_tokens) & (
            (self._ends - self.table[:, 2]) * self.num_shards < (shard + 1) * self._num_tokens
        )
        return [int(block) for block in self._order if is_in[block]]
