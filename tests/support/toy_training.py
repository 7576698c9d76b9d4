"""A toy model, objective and data set for the tests of the training engine."""

import subprocess
import sys

import cheap_graphs
import keras
import numpy as np
import processes
import tensorflow as tf

from tasks.engine.optimization import build_optimizer
from tasks.engine.training import Objective, Trainer

cheap_graphs.begin()  # As tests/conftest.py does: a script and the test that runs it compute the same bits.

VOCABULARY, WIDTH, LENGTH = 11, 6, 4  # of the toy model


class ToyObjective(Objective):
    """A weighted token loss, as masked LM, and a loss of each example, as next sentence."""

    epsilon = 1e-5

    def weights(self, features, labels):
        return {"token": tf.reduce_sum(labels["weights"]), "pair": tf.cast(tf.shape(labels["pair"])[0], tf.float32)}

    def sums(self, outputs, labels):
        token = tf.nn.sparse_softmax_cross_entropy_with_logits(labels["targets"], outputs["token"])
        pair = tf.nn.sparse_softmax_cross_entropy_with_logits(labels["pair"], outputs["pair"])
        return {"token": tf.reduce_sum(labels["weights"] * token), "pair": tf.reduce_sum(pair)}

    def metric_sums(self, outputs, labels):
        right = tf.argmax(outputs["token"], -1, output_type=tf.int32) == labels["targets"]
        return {
            "token_accuracy": (
                tf.reduce_sum(labels["weights"] * tf.cast(right, tf.float32)),
                tf.reduce_sum(labels["weights"]),
            ),
            "nothing": (tf.constant(0.0), tf.constant(0.0)),
        }


class TiedOutput(keras.layers.Layer):
    def __init__(self, embedding):
        super().__init__(name="output")
        self.embedding = embedding

    def build(self, shape):
        self.bias = self.add_weight(shape=(VOCABULARY,), name="output_bias", initializer="zeros")

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.embedding.embeddings)) + self.bias


def build_model(dropout: float = 0.0) -> keras.Model:
    """A tied table, a LayerNorm, dropout, and a `pooler` that the losses do not depend on."""
    keras.utils.set_random_seed(3)
    ids = keras.Input([LENGTH], dtype="int32", name="ids")
    embedding = keras.layers.Embedding(VOCABULARY, WIDTH, name="table")
    x = keras.layers.LayerNormalization(epsilon=1e-12, name="norm")(embedding(ids))
    x = keras.layers.Dropout(dropout)(x)
    x = keras.layers.Dense(WIDTH, name="dense", activation="tanh", dtype=keras.config.dtype_policy())(x)
    x = keras.layers.Dropout(dropout)(x)
    outputs = {
        "token": keras.layers.Activation("linear", dtype="float32")(TiedOutput(embedding)(x)),
        "pair": keras.layers.Dense(2, name="pair", dtype="float32")(x[:, 0]),
        "unused": keras.layers.Dense(2, name="pooler")(x[:, 0]),
    }
    return keras.Model({"ids": ids}, outputs)


def draw(count: int):
    """Examples whose weights are uneven: of the first half of every 16 examples nearly all are 0."""
    rng = np.random.default_rng(5)
    weights = rng.random((count, LENGTH)).astype("float32")
    weights[(np.arange(count) % 16 < 8) & (np.arange(count) % 16 != 3)] = 0.0
    labels = {
        "weights": weights,
        "targets": rng.integers(0, VOCABULARY, (count, LENGTH)).astype("int32"),
        "pair": rng.integers(0, 2, count).astype("int32"),
    }
    return {"ids": rng.integers(0, VOCABULARY, (count, LENGTH)).astype("int32")}, labels


def dataset(count: int, batch_size: int, drop_remainder: bool = True) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(draw(count)).batch(batch_size, drop_remainder=drop_remainder)


def repeated(start_step: int) -> tf.data.Dataset:
    return dataset(48, 16).repeat().skip(start_step)


def build_trainer(directory, strategy=None, *, dropout=0.0, optimizer=None, num_steps=20, **options) -> Trainer:
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        model = build_model(dropout)
        optimizer = optimizer() if optimizer else build_optimizer("bert-2018", 0.01, num_steps, 2)
    return Trainer(model, optimizer, ToyObjective(), output_dir=str(directory), strategy=strategy, **options)


def state(trainer: Trainer) -> list[np.ndarray]:
    """Weights and optimizer variables."""
    return [variable.numpy() for variable in [*trainer.model.weights, *trainer.optimizer.variables]]


def run_as_script(path: str, mode: str, directory) -> subprocess.CompletedProcess:
    """Runs a test file as a script, in a process of its own."""
    command = [sys.executable, path, mode, str(directory)]
    return processes.run(command, capture_output=True, text=True, timeout=300)
