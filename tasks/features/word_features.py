"""Frozen features of words, computed once and kept on disk.

Shapes: N sentences, W words, T tokens of a file, K chosen layers, H hidden, B batch, S words of a batch's longest.
"""

import os
import zlib
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_bert.encoder import BertEncoderLayer
from keras_bert.files import atomic_path, read_json, write_json
from tasks.conll import Documents
from tasks.examples import Examples, train_batches
from tasks.features import data
from tasks.features.extractor import Extractor
from tasks.features.model import COMBINED

FEATURES_FILE, LENGTHS_FILE, IDENTITY_FILE = "features.npy", "lengths.npy", "identity.json"
BLOCK_SEQUENCES = 256  # A base model's last four layers at 128 tokens: 400 MB.


class WordFeatures(NamedTuple):
    """The words of a file.

    Attributes:
        vectors: float32, shape (W, K * H), mapped from disk.
        sentence_splits: int64, shape (N + 1,).
        sentence_lengths: int64, shape (N,): tokens of each sentence.
    """

    vectors: np.ndarray
    sentence_splits: np.ndarray
    sentence_lengths: np.ndarray


# === Computing ===


def identify_encoder(extractor: keras.Model, tokenizer) -> dict:
    """What the features of a text depend on, as JSON values: the encoder by its content, since a path may move."""
    weights = 0
    for weight in extractor.get_weights():
        weights = zlib.crc32(np.ascontiguousarray(weight), weights)
    layers = [layer for layer in extractor.layers if isinstance(layer, BertEncoderLayer)]
    settings = [(layer.num_heads, layer.activation, layer.layer_norm_epsilon, layer.compute_dtype) for layer in layers]
    return {
        "encoder_checksum": weights,
        "encoder_settings": repr(sorted(set(settings))),
        "vocabulary_checksum": zlib.crc32("\n".join(tokenizer.get_vocabulary()).encode()),
        "do_lower_case": tokenizer.lowercase,
    }


def load_word_features(
    directory: str,
    documents: Documents,
    extractor: keras.Model,
    tokenizer,
    *,
    max_seq_length: int,
    document_context: bool,
    layers: list[int],
    batch_size: int,
    description: str,
) -> WordFeatures:
    """Maps the features of a file's words from disk; computes them first where they are not there, or of other input.

    Args:
        directory: gets `features.npy`, `lengths.npy` and `identity.json`, all or none.
        documents: the words.
        extractor: of `build_feature_extractor` with "concatenate".
        tokenizer: BertTokenizer.
        max_seq_length, document_context: as in `tasks.features.data.encode_words`.
        layers: numbers of the extractor's layers.
        batch_size: sequences of a batch.
        description: the progress bar's title.
    """
    identity = {
        **identify_encoder(extractor, tokenizer),
        "layers": list(layers),
        "max_seq_length": max_seq_length,
        "document_context": document_context,
        "words_checksum": checksum_of(documents),
    }
    path = os.path.join(directory, IDENTITY_FILE)
    if not os.path.exists(path) or read_json(path) != identity:
        encoded = data.encode_words(documents, tokenizer, max_seq_length, document_context)
        with atomic_path(directory) as temporary:
            os.makedirs(temporary)
            _compute(os.path.join(temporary, FEATURES_FILE), encoded, Extractor(extractor, batch_size), description)
            np.save(os.path.join(temporary, LENGTHS_FILE), encoded.sentence_lengths)
            write_json(os.path.join(temporary, IDENTITY_FILE), identity)
    vectors = np.load(os.path.join(directory, FEATURES_FILE), mmap_mode="r")
    lengths = np.load(os.path.join(directory, LENGTHS_FILE))
    return WordFeatures(vectors, documents.sentence_splits, lengths)


def checksum_of(documents: Documents) -> int:
    """A fingerprint of the words, their sentences and documents; not of their tags."""
    splits = (documents.sentence_splits.tolist(), documents.document_splits.tolist(), documents.has_document_lines)
    return zlib.crc32(repr((documents.tokens, splits)).encode())


def _compute(path: str, encoded: data.EncodedWords, extractor: Extractor, description: str) -> None:
    """Writes the features block after block: the words' first tokens, in their order."""
    examples, places = encoded.examples, encoded.places
    shape = (len(places), extractor.widths[COMBINED])
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    with tqdm(total=len(places), desc=description, unit="word", mininterval=0.5) as progress:
        for first in range(0, examples.num_examples, BLOCK_SEQUENCES):
            splits = examples.row_splits[first : first + BLOCK_SEQUENCES + 1]
            start, stop = splits[[0, -1]]
            span = slice(*np.searchsorted(places, [start, stop]))
            part = Examples(examples.token_ids[start:stop], examples.segment_ids[start:stop], splits - start)
            vectors[span] = extractor(part)[COMBINED][places[span] - start]
            progress.update(span.stop - span.start)
    vectors.flush()


# === Batches ===


def make_train_dataset(
    features: WordFeatures,
    tags: np.ndarray,
    batch_size: int,
    seed: int,
    start_step: int,
    num_steps: int,
    length: int | None = None,
) -> tf.data.Dataset:
    """Makes the training batches from `start_step` up to `num_steps`; see `tasks.examples.make_train_dataset`.

    Args:
        features: of the words.
        tags: int32, shape (W,); -1 for a tag to be left out of the loss.
        batch_size, seed, start_step, num_steps: as there.
        length: words to pad every sentence to; None pads to the batch's longest.

    Returns:
        Batches `({features, padding_mask}, {tags, tag_weights})` for `TaggingObjective`.
    """
    batches = train_batches(np.diff(features.sentence_splits), batch_size, seed, start_step, num_steps)
    return _make_dataset(features, tags, list(batches), batch_size if length else None, length)


def make_eval_dataset(
    features: WordFeatures, tags: np.ndarray, batch_size: int
) -> tuple[tf.data.Dataset, list[np.ndarray]]:
    """Makes the batches of one pass, sorted by length; returns the sentences' numbers of each batch too."""
    order = np.argsort(np.diff(features.sentence_splits), kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return _make_dataset(features, tags, batches, None, None), batches


def _make_dataset(
    features: WordFeatures, tags: np.ndarray, batches: list[np.ndarray], rows: int | None, length: int | None
) -> tf.data.Dataset:
    def generate():
        for numbers in batches:
            yield _batch(features, tags, numbers, length)

    shape = (rows, length)
    signature = (
        {
            "features": tf.TensorSpec((*shape, features.vectors.shape[1]), tf.float32),
            "padding_mask": tf.TensorSpec(shape, tf.int32),
        },
        {"tags": tf.TensorSpec(shape, tf.int32), "tag_weights": tf.TensorSpec(shape, tf.float32)},
    )
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(len(batches))).prefetch(2)


def _batch(features: WordFeatures, tags: np.ndarray, numbers: np.ndarray, length: int | None) -> tuple[dict, dict]:
    starts, stops = features.sentence_splits[numbers], features.sentence_splits[numbers + 1]
    width = length or int((stops - starts).max())
    vectors = np.zeros((len(numbers), width, features.vectors.shape[1]), np.float32)
    mask = np.zeros((len(numbers), width), np.int32)
    numbers_of_tags = np.full((len(numbers), width), -1, np.int32)
    for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        vectors[row, : stop - start] = features.vectors[start:stop]
        mask[row, : stop - start] = 1
        numbers_of_tags[row, : stop - start] = tags[start:stop]
    weights = (numbers_of_tags >= 0).astype(np.float32)
    return {"features": vectors, "padding_mask": mask}, {"tags": np.maximum(numbers_of_tags, 0), "tag_weights": weights}


# === Tags ===


def number_tags(documents: Documents, tags: list[str]) -> np.ndarray:
    """The number of each word's tag in `tags`: int32, shape (W,); -1 for one that is not there."""
    numbers = {tag: number for number, tag in enumerate(tags)}
    return np.array([numbers.get(tag, -1) for tag in documents.tags], np.int32)


def checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array))
