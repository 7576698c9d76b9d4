"""Decides from where a block draws random next sentences, and to which output shards its instances go.

Any worker computes both from a table with a row for each store.

M: blocks. Here and in `writing`, a block is one store of the tokenized text, of some MB.
"""

import random
from collections.abc import Iterator

import numpy as np

from tasks.pretraining.data.counter_random import random_order

NEIGHBOURS = 16
_NEIGHBOUR_BYTES = 1 << 20  # Maximum text that a neighbour contributes.


class Plan:
    """The blocks of a text.

    Random next sentences (google-research/bert, create_pretraining_data.py:279) should be uniform over the other
    documents of the text. But then every worker would have to read all of the text. Instead, each block has a sample of
    its own: the documents of 16 slices of other blocks, 1 MiB of text each. With documents of 4 kB, these are about
    4,000 documents, and two draws of a block give the same document once in 4,000 times, whatever the size of the text.
    The seed decides which slices a block has. Each slice serves the same number of blocks, so that over the whole text
    all documents are drawn equally often. (With one sample for all blocks, the same few documents would always have the
    label "random". A model would memorize them, and a quarter of its tokens would come from them.) For text of up to 17
    blocks of 1 MiB, the sample is the whole text, as in the original.

    Args:
        table: int64, shape (M, 4): number of a block of text, number of its store, number of tokens, of documents.
        seed: seed of the run.
        num_shards: number of output files.
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
        """Yields the slices from which a block draws random next sentences; all other blocks, if `is_whole`.

        A slice is `(block, part, number of parts)`, one of equal parts of the documents of a block.
        """
        for number, distance in enumerate(self._distances):
            yield ((block + distance) % len(self.table), number % self._num_slices, self._num_slices)

    def shares(self, block: int, num_instances: int) -> list[tuple[int, int, int]]:
        """Returns `(shard, start, stop)` for each shard that gets instances of a block, those in `[start, stop)`."""
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
        """Returns the blocks of a shard's instances, in their order in the shard."""
        is_in = (self._ends * self.num_shards > shard * self._num_tokens) & (
            (self._ends - self.table[:, 2]) * self.num_shards < (shard + 1) * self._num_tokens
        )
        return [int(block) for block in self._order if is_in[block]]
