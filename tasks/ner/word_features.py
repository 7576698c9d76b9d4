"""Computes the features of each word's first token once, and keeps them on disk.

Shapes: N words of a file, K chosen layers, H hidden size.
"""

import hashlib
import os

import keras
import numpy as np

from keras_bert.files import atomic_path, exists, keep_copies, local_copy
from tasks.engine.settings import weights_checksum
from tasks.fine_tuning.examples import Predictor
from tasks.fine_tuning.word_task import make_examples
from tasks.text.word_windows import Windows


@keep_copies()  # The copy of a remote file may be removed while it is mapped, on POSIX.
def load_features(directory: str, windows: Windows, extractor: keras.Model, batch_size: int) -> np.ndarray:
    """Maps the features of a file's words from disk, and computes them first if necessary.

    Args:
        directory: directory of the features, written atomically. The name of the file is a hash of encoder and windows.
        windows: the file's windows.
        extractor: `tasks.features.model.FeatureExtractor`.
        batch_size: windows per batch.

    Returns:
        float32, shape (N, K * H), mapped from disk.
    """
    config = extractor.get_config()
    encoder = {**config["backbone"], "name": None, "trainable": None, "layers": config["layers"]}
    digest = hashlib.sha256(repr((weights_checksum(extractor), encoder)).encode())
    for array in (windows.token_ids, windows.row_splits, windows.places):
        digest.update(array)
    name = f"{digest.hexdigest()[:16]}.npy"
    if not exists(os.path.join(directory, name)):
        with atomic_path(directory) as temporary:
            os.makedirs(temporary)
            _compute(os.path.join(temporary, name), windows, extractor, batch_size)
    return np.load(local_copy(os.path.join(directory, name)), mmap_mode="r")


def _compute(path: str, windows: Windows, extractor: keras.Model, batch_size: int) -> None:
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (len(windows.places), extractor.output_shape[-1]))
    limits = np.searchsorted(windows.places, windows.row_splits)  # The words of window i: limits[i] to limits[i + 1].
    for numbers, batch in Predictor(extractor).batches(make_examples(windows), batch_size, "features"):
        for number, states in zip(numbers, batch, strict=False):
            words = slice(limits[number], limits[number + 1])
            vectors[words] = states[windows.places[words] - windows.row_splits[number]]
    vectors.flush()
