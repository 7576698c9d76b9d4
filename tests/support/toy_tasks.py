"""Small task models, and toy sets that they can learn in seconds: which animal a text names."""

import functools
import json
import shutil
import zipfile

import keras
import numpy as np
import tensorflow as tf

from keras_bert import BertBackbone, BertTokenizer

ANIMALS = ["cat", "dog", "hen", "cow"]
FILLER = ["the", "a", "old", "big", "red", "sat", "ran", "here", "there", "##s", "?", "who"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ANIMALS, *FILLER]
LENGTH = 12


@functools.cache
def tokenizer() -> BertTokenizer:
    """The same one for all, since each traces functions of its own."""
    return BertTokenizer(VOCABULARY)


def backbone(**changes) -> BertBackbone:
    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32, "max_sequence_length": 24}
    return BertBackbone(len(VOCABULARY), **{**sizes, "initializer_range": 0.2, "dropout": 0.0, **changes})


def texts(count: int = 64) -> tuple[list[str], list[int]]:
    """Texts of up to five words, and the number of the animal that each names."""
    generator = np.random.default_rng(0)
    numbers = [number % len(ANIMALS) for number in range(count)]
    rows = []
    for number in numbers:
        words = list(generator.choice(FILLER[:9], generator.integers(0, 5)))
        words.insert(generator.integers(0, len(words) + 1), ANIMALS[number])
        rows.append(" ".join(words))
    return rows, numbers


def compile_for_test(model: keras.Model, rate: float = 0.02) -> keras.Model:
    """Compiles with the model's own loss and metrics, and a rate at which a toy is learned in a few epochs."""
    model.compile(optimizer=keras.optimizers.Adam(rate), jit_compile=False)
    return model


def learns(model: keras.Model, samples, epochs: int = 6) -> dict[str, list[float]]:
    """Fits a dataset of the samples; checks that the loss falls by half; returns the history.

    An epoch holds the samples twice, and one iterator serves all epochs: tf.data takes a second to begin one of texts.
    """
    compile_for_test(model)
    batches = tf.data.Dataset.from_tensor_slices(samples).batch(16)
    settings = {"epochs": epochs // 2 + 1, "steps_per_epoch": 2 * len(batches)}
    history = model.fit(batches.repeat(), **settings, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0], history["loss"]
    return history


def shaken(model: keras.Model) -> keras.Model:
    """Gives a model weights that are all different, biases too."""
    generator = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(generator.normal(1.0 if "gamma" in weight.path else 0.0, 0.3, size=weight.shape))
    return model


def rename(file, directory, old, new):
    """Gives the class of a `.keras` file or a preset another registered name; of a file, in a copy."""
    if file.is_dir():
        shutil.copytree(file, directory)
        task = directory / "task.json"
        task.write_text(json.dumps({**json.loads(task.read_text()), "registered_name": new}))
        return directory
    with zipfile.ZipFile(file) as before, zipfile.ZipFile(directory, "w") as after:
        for name in before.namelist():
            content = before.read(name)
            after.writestr(
                name, content.replace(f'"{old}"'.encode(), f'"{new}"'.encode()) if name == "config.json" else content
            )
    return directory
