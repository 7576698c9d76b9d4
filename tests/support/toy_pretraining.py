"""A toy BERT with its pre-training heads, and batches whose masks are uneven, for the tests of the training engine."""

import keras
import numpy as np
import tensorflow as tf

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.models import BertPretrainer
from tasks.engine.optimization import build_optimizer
from tasks.engine.training import Trainer
from tasks.pretraining.train.losses import PretrainingObjective

VOCABULARY, LENGTH, PREDICTIONS, BATCH = 37, 12, 4, 16


def build_model(dropout: float = 0.0, num_layers: int = 2, layout: str = "rectangular") -> keras.Model:
    keras.utils.set_random_seed(11)
    return BertPretrainer(
        BertBackbone(
            vocabulary_size=VOCABULARY,
            num_layers=num_layers,
            num_heads=2,
            hidden_dim=16,
            intermediate_dim=32,
            max_sequence_length=LENGTH,
            dropout=dropout,
            attention_dropout=dropout,
            layout=layout,
        ),
        compile=False,
    )


def draw(count: int) -> tuple[dict, dict]:
    """The first half of every batch has at most one masked token an example, the second all it may have."""
    rng = np.random.default_rng(5)
    lengths = rng.integers(PREDICTIONS + 2, LENGTH + 1, count)
    masked = np.where(np.arange(count) % BATCH < BATCH // 2, np.arange(count) % 2, PREDICTIONS)
    features = {
        "token_ids": rng.integers(5, VOCABULARY, (count, LENGTH)),
        "segment_ids": (np.arange(LENGTH) >= lengths[:, None] // 2).astype(int),
        "padding_mask": (np.arange(LENGTH) < lengths[:, None]).astype(int),
        "mask_positions": np.tile(np.arange(1, PREDICTIONS + 1), (count, 1)),
    }
    labels = {
        "mask_ids": rng.integers(5, VOCABULARY, (count, PREDICTIONS)).astype("int32"),
        "mask_weights": (np.arange(PREDICTIONS) < masked[:, None]).astype("float32"),
        "next_sentence_labels": rng.integers(0, 2, count).astype("int32"),
    }
    return {name: value.astype("int32") for name, value in features.items()}, labels


def batches(start_step: int) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(draw(3 * BATCH)).batch(BATCH, drop_remainder=True)
    return data.repeat().skip(start_step)


def build_trainer(
    directory,
    strategy=None,
    *,
    dropout=0.0,
    num_layers=2,
    layout="rectangular",
    num_steps=20,
    optimizer="bert-2018",
    lr_schedule="linear",
    **options,
) -> Trainer:
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        model = build_model(dropout, num_layers, layout)
        optimizer = build_optimizer(optimizer, 0.01, num_steps, 2, lr_schedule=lr_schedule)
    return Trainer(model, optimizer, PretrainingObjective(), output_dir=str(directory), strategy=strategy, **options)
