"""Random pre-training instances, and TFRecord files of them, for the tests of reading, packing and masking."""

import os

import numpy as np
import tensorflow as tf
from tensorflow_examples import serialize_instance

from tasks.pretraining.data.counter_random import random_bits
from tasks.pretraining.data.masking import MaskedBatch, MaskingRules, mask_batch

CLS, SEP, MASK = 1, 2, 3
FIRST_WORD = 5  # 0 to 4 are special.


def draw_tokens(count, size, vocabulary_size, seed=0):
    """`token_ids` (count, size) of `[CLS] a [SEP] b [SEP]`, their lengths, and those of segment 0."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(size / 3), 0.6, count), 6, size).astype(np.int64)
    token_ids = np.zeros((count, size), np.int32)
    first_lengths = rng.integers(3, lengths - 1)
    for row, length in enumerate(lengths):
        token_ids[row, :length] = rng.integers(FIRST_WORD, vocabulary_size, length)
        token_ids[row, [0, first_lengths[row] - 1, length - 1]] = CLS, SEP, SEP
    return token_ids, lengths, first_lengths


def masking_rules(vocabulary_size, max_predictions_per_seq, whole_words=False) -> MaskingRules:
    """Under `whole_words` three WordPieces in ten continue a word."""
    continues_word = np.random.default_rng(9).random(vocabulary_size) < 0.3
    continues_word[:FIRST_WORD] = False
    given = continues_word if whole_words else None
    return MaskingRules(CLS, SEP, MASK, vocabulary_size, 0.15, max_predictions_per_seq, given)


def mask(token_ids, lengths, rules, seed=0) -> MaskedBatch:
    """Instances as `bert-create-pretraining-data` masks them."""
    return mask_batch(token_ids, lengths, rules, random_bits(np.array(seed, np.uint64), np.arange(len(token_ids))))


def write_records(directory, batch: MaskedBatch, lengths, first_lengths, num_files=1) -> list[str]:
    """Writes instance n to file n mod `num_files`; its next-sentence label is n mod 2."""
    sizes = {"max_seq_length": batch.token_ids.shape[1], "max_predictions_per_seq": batch.mask_ids.shape[1]}
    paths = [os.path.join(directory, f"{number}.tfrecord") for number in range(num_files)]
    writers = [tf.io.TFRecordWriter(path) for path in paths]
    for number, masked in enumerate(batch.num_masked):
        record = serialize_instance(
            batch.token_ids[number, : lengths[number]],
            int(first_lengths[number]),
            batch.mask_positions[number, :masked],
            batch.mask_ids[number, :masked],
            bool(number % 2),
            **sizes,
        )
        writers[number % num_files].write(record)
    for writer in writers:
        writer.close()
    return paths
