"""Computes the frozen features of words once, keeps them on disk, and makes batches of them.

Shapes: N sentences, W words of a file, K chosen layers, H hidden size, C tags, B batch, S words of a batch's longest
sentence.
"""

import os
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_bert.encoder import BertEncoderLayer
from keras_bert.files import atomic_path, exists, local_copy, read_json, write_json
from tasks.engine.settings import tokenizer_identity, weights_checksum
from tasks.features import data
from tasks.features.model import COMBINED, Extractor
from tasks.fine_tuning.examples import Examples, apply_model, eval_order, train_batches
from tasks.fine_tuning.task import Encoded
from tasks.text.conll import Documents

FEATURES_FILE, LENGTHS_FILE, IDENTITY_FILE = "features.npy", "lengths.npy", "identity.json"
BLOCK_SEQUENCES = 256  # Four layers of a base model at 128 tokens: 400 MB.


# === Computing ===


def identify_encoder(extractor: keras.Model, tokenizer) -> dict:
    """Returns what features depend on, as JSON values; the encoder is identified by its contents, not its path."""
    layers = [layer for layer in extractor.layers if isinstance(layer, BertEncoderLayer)]
    settings = [(layer.num_heads, layer.activation, layer.layer_norm_epsilon, layer.compute_dtype) for layer in layers]
    return {
        "encoder_checksum": weights_checksum(extractor),
        "encoder_settings": repr(sorted(set(settings))),
        **tokenizer_identity(tokenizer),
    }


def load_features(
    directory: str, documents: Documents, extractor: keras.Model, tokenizer, spec, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Maps the features of a file's words from disk; computes them first if they are missing or outdated.

    Args:
        directory: directory for `features.npy`, `lengths.npy` and `identity.json`, written atomically.
        documents: the words.
        extractor: `FeatureExtractor` with "concatenate".
        tokenizer: BertTokenizer.
        spec: `tasks.features.task.FeatureSpec`.
        batch_size: sequences per batch.

    Returns:
        `(features, lengths)`: float32, shape (W, K * H), mapped from disk; int64, shape (N,), tokens of each sentence.
    """
    splits = (documents.sentence_splits.tolist(), documents.document_splits.tolist(), documents.has_document_lines)
    identity = {
        **identify_encoder(extractor, tokenizer),
        "layers": list(spec.layers),
        "max_seq_length": spec.max_seq_length,
        "document_context": spec.document_context,
        "words_checksum": zlib.crc32(repr((documents.tokens, splits)).encode()),
    }
    path = os.path.join(directory, IDENTITY_FILE)
    if not exists(path) or read_json(path) != identity:
        *encoded, sentence_lengths = data.encode_words(documents, tokenizer, spec.max_seq_length, spec.document_context)
        with atomic_path(directory) as temporary:
            os.makedirs(temporary)
            description = f"features of {os.path.basename(directory)}"
            _compute(os.path.join(temporary, FEATURES_FILE), *encoded, Extractor(extractor, batch_size), description)
            np.save(os.path.join(temporary, LENGTHS_FILE), sentence_lengths)
            write_json(os.path.join(temporary, IDENTITY_FILE), identity)
    directory = local_copy(directory)
    vectors = np.load(os.path.join(directory, FEATURES_FILE), mmap_mode="r")
    return vectors, np.load(os.path.join(directory, LENGTHS_FILE))


def _compute(path: str, examples: Examples, places: np.ndarray, extractor: Extractor, description: str) -> None:
    """Writes the features of each word's first token, block by block."""
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (len(places), extractor.widths[COMBINED]))
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


class WordFeatures(NamedTuple):
    """The words of a file.

    Attributes:
        vectors: float32, shape (W, K * H), features of the words.
        splits: int64, shape (N + 1,), offsets of the sentences.
        labels: int32, shape (W,), class of each word, -1 for an unknown tag; None for a file without tags.
    """

    vectors: np.ndarray
    splits: np.ndarray
    labels: np.ndarray | None


class EncodedFeatures(Encoded):
    """Sentences of word features, without token ids; `source` is a `WordFeatures`."""

    @property
    def num_examples(self):
        return len(self.source.splits) - 1

    def make_train_dataset(self, batch_size, seed, start_step, num_steps, length):
        """Makes the training batches, `({features, padding_mask}, {labels, weights})`.

        See `tasks.fine_tuning.examples.make_train_dataset`. Unless `length` is None, shapes are static, with room for
        the longest sentence.
        """
        batches = train_batches(np.diff(self.source.splits), batch_size, seed, start_step, num_steps)
        return self._dataset(batches, None if length is None else batch_size, with_labels=True)

    def compute_outputs(self, model, batch_size, description):
        """Runs the BiLSTM on every sentence; returns logits, float32, shape (W, C), in the file's order."""
        logits = np.empty((len(self.source.vectors), model.output_shape[-1]), np.float32)
        for numbers, batch in apply_model(model, self._make_eval_dataset, batch_size, description):
            _, places, mask = self._batch(numbers, batch.shape[1])
            logits[places] = batch[mask]
        return logits

    def _make_eval_dataset(self, batch_size: int, *, is_full: bool, is_static: bool):
        order = eval_order(np.diff(self.source.splits), batch_size, is_full)
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        return self._dataset(batches, batch_size if is_static else None, with_labels=False), order

    def _dataset(self, batches: Sequence[np.ndarray], static_size: int | None, with_labels: bool) -> tf.data.Dataset:
        vectors, splits, _ = self.source
        shape = (None, None) if static_size is None else (static_size, int(np.diff(splits).max()))
        features = tf.TensorSpec((*shape, vectors.shape[1]), tf.float32)
        signature = ({"features": features, "padding_mask": tf.TensorSpec(shape, tf.int32)},)
        if with_labels:
            signature += ({"labels": tf.TensorSpec(shape, tf.int32), "weights": tf.TensorSpec(shape, tf.float32)},)

        def generate():
            for numbers in batches:
                yield self._train_batch(numbers, shape[1]) if with_labels else (self._batch(numbers, shape[1])[0],)

        dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
        return dataset.apply(tf.data.experimental.assert_cardinality(len(batches))).prefetch(2)

    def _batch(self, numbers: np.ndarray, length: int | None = None) -> tuple[dict, np.ndarray, np.ndarray]:
        """Returns the model's inputs, the indices of the words in the file, and their mask in the batch, [B, S]."""
        vectors, splits, _ = self.source
        counts = splits[numbers + 1] - splits[numbers]
        within = np.arange(length or counts.max())
        mask = within < counts[:, np.newaxis]  # [B, S]
        places = (splits[numbers][:, np.newaxis] + within)[mask]
        padded = np.zeros((*mask.shape, vectors.shape[1]), np.float32)
        padded[mask] = vectors[places]
        return {"features": padded, "padding_mask": mask.astype(np.int32)}, places, mask

    def _train_batch(self, numbers: np.ndarray, length: int | None) -> tuple[dict, dict]:
        features, places, mask = self._batch(numbers, length)
        labels = np.full(mask.shape, -1, np.int32)
        labels[mask] = self.source.labels[places]
        return features, {"labels": np.maximum(labels, 0), "weights": (labels >= 0).astype(np.float32)}
