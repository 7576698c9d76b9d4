"""Runs one side of `pretraining_speed.py`: builds a pre-training step, and does one per line of standard input.

    .venv/bin/python benchmarks/pretraining_steps.py SIDE SIZE [DIRECTORY]

It prints `ready SECONDS`, the time of building after the imports, and after each step `done SECONDS CPU_SECONDS
MEBIBYTES`, the last being the largest resident size of the process so far. SIDE is a key of SIDES, SIZE a key of SIZES.
DIRECTORY has weights in Hugging Face's format; without it they are random.

A step computes the masked-LM loss at 20 positions of 128 tokens, or 80 of 512, and the next-sentence loss, with dropout
0.1, clips gradients at the global norm 1.0, and applies AdamW with decay 0.01 at a linearly decreasing learning rate.
"""

import functools
import queue
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
from sides import serve, timed

VOCABULARY = 30522
RATE, NUM_STEPS = 1e-4, 10**6
_BASE = {"num_layers": 12, "hidden_dim": 768, "num_heads": 12, "intermediate_dim": 3072}
# Sizes of the model, sequences in a batch, and their tokens.
SIZES = {
    "L2-H128": ({"num_layers": 2, "hidden_dim": 128, "num_heads": 2, "intermediate_dim": 512}, 4, 128),
    "L4-H512": ({"num_layers": 4, "hidden_dim": 512, "num_heads": 8, "intermediate_dim": 2048}, 32, 128),
    "base": (_BASE, 8, 128),
    "base-512": (_BASE, 8, 512),
}


def batch(size: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Makes features and labels of random tokens without padding, the same on every side."""
    rng = np.random.default_rng(0)
    _, count, length = SIZES[size]
    tokens, masked = (count, length), length * 20 // 128
    features = {
        "token_ids": rng.integers(1000, VOCABULARY, tokens).astype("int32"),
        "segment_ids": np.repeat([[0, 1]], length // 2, axis=1).repeat(count, axis=0).astype("int32"),
        "padding_mask": np.ones(tokens, "int32"),
        "mask_positions": np.sort(rng.permuted(np.tile(np.arange(1, length), (count, 1)), axis=1)[:, :masked]).astype(
            "int32"
        ),
    }
    labels = {
        "mask_ids": rng.integers(1000, VOCABULARY, (count, masked)).astype("int32"),
        "mask_weights": np.ones((count, masked), "float32"),
        "next_sentence_labels": rng.integers(0, 2, count).astype("int32"),
    }
    return features, labels


# === Sides: each imports, and returns a function that builds, which returns one that does a step ===


def ours(size: str, directory: str | None, rematerialize: bool = False) -> Callable:
    """Makes the step of `tasks.engine.training.Trainer.fit`, with one step per call of the graph."""
    import tensorflow as tf

    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.models import BertPretrainer
    from tasks.engine.optimization import build_optimizer
    from tasks.engine.training import Trainer
    from tasks.pretraining.train.losses import PretrainingObjective

    def build() -> Callable:
        if directory:
            model = BertPretrainer.from_preset(directory)
        else:
            model = BertPretrainer(
                BertBackbone(vocabulary_size=VOCABULARY, activation="gelu", **SIZES[size][0]), compile=False
            )
        optimizer = build_optimizer("adamw", RATE, NUM_STEPS)
        options = {"output_dir": tempfile.mkdtemp(), "steps_per_call": 1, "rematerialize": rematerialize}
        trainer = Trainer(model, optimizer, PretrainingObjective(), **options)
        return _steps_of_fit(trainer, tf, batch(size))

    return build


def _steps_of_fit(trainer, tf, features_and_labels) -> Callable:
    """Runs `fit` step by step, using that it requests the next batch after each step."""
    wanted, given = queue.Queue(), queue.Queue()

    def batches() -> Iterator:
        while True:
            wanted.put(None)
            given.get()
            yield features_and_labels

    def make_dataset(start: int):
        signature = tf.nest.map_structure(
            lambda array: tf.TensorSpec(array.shape, tf.as_dtype(array.dtype)), features_and_labels
        )
        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return tf.data.Dataset.from_generator(batches, output_signature=signature).with_options(options)

    def train() -> None:
        trainer.fit(make_dataset, NUM_STEPS, save_checkpoints_steps=NUM_STEPS)

    threading.Thread(target=train, daemon=True).start()
    wanted.get()

    def step() -> None:
        given.put(None)
        wanted.get()

    return step


def keras_hub(size: str, directory: str | None) -> Callable:
    """Makes the step of KerasHub's compiled encoder and masked-LM head, by `train_on_batch`."""
    import keras
    import keras_nlp

    def build() -> Callable:
        if directory:
            backbone = keras_nlp.models.BertBackbone.from_preset(directory)
        else:
            backbone = keras_nlp.models.BertBackbone(vocabulary_size=VOCABULARY, **SIZES[size][0])
        positions = keras.Input((None,), dtype="int32", name="mask_positions")
        encoded = backbone(backbone.input)
        head = keras_nlp.layers.MaskedLMHead(token_embedding=backbone.token_embedding, intermediate_activation="gelu")
        outputs = {
            "masked_lm": head(encoded["sequence_output"], mask_positions=positions),
            "next_sentence": keras.layers.Dense(2)(encoded["pooled_output"]),
        }
        model = keras.Model({**backbone.input, "mask_positions": positions}, outputs)
        schedule = keras.optimizers.schedules.PolynomialDecay(RATE, NUM_STEPS, 0.0)
        optimizer = keras.optimizers.AdamW(schedule, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0)
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss={"masked_lm": loss, "next_sentence": loss})
        features, labels = batch(size)
        targets = {"masked_lm": labels["mask_ids"], "next_sentence": labels["next_sentence_labels"]}

        def step() -> None:
            model.train_on_batch(features, targets)

        return step

    return build


def torch(size: str, directory: str | None) -> Callable:
    """Makes the step of Hugging Face's BertForPreTraining, whose decoder is applied at masked positions only."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    def build() -> Callable:
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        config = BertConfig(vocab_size=VOCABULARY, **dict(zip(names, SIZES[size][0].values(), strict=True)))
        model = BertForPreTraining.from_pretrained(directory) if directory else BertForPreTraining(config)
        model.train()
        features, labels = ({name: torch.tensor(value) for name, value in part.items()} for part in batch(size))
        groups = [
            {"params": [weight for weight in model.parameters() if weight.ndim > 1], "weight_decay": 0.01},
            {"params": [weight for weight in model.parameters() if weight.ndim == 1], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / NUM_STEPS)
        rows = (features["mask_positions"] + torch.arange(SIZES[size][1])[:, None] * SIZES[size][2]).flatten()

        def step() -> None:
            encoded = model.bert(
                input_ids=features["token_ids"],
                token_type_ids=features["segment_ids"],
                attention_mask=features["padding_mask"],
            )
            masked = encoded.last_hidden_state.reshape(-1, config.hidden_size)[rows]
            logits, next_sentence = model.cls(masked, encoded.pooler_output)
            cross_entropy = torch.nn.functional.cross_entropy
            loss = cross_entropy(logits, labels["mask_ids"].flatten().long())
            loss = loss + cross_entropy(next_sentence, labels["next_sentence_labels"].long())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()

        return step

    return build


rematerialized = functools.partial(ours, rematerialize=True)
SIDES = {"ours": ours, "rematerialized": rematerialized, "keras_hub": keras_hub, "torch": torch}


def main(side: str, size: str, directory: str | None = None) -> None:
    build = SIDES[side](size, directory)
    start = time.perf_counter()
    step = build()

    def work(_: str) -> tuple[float, float, float]:
        return *timed(step), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10

    serve(work, time.perf_counter() - start)


if __name__ == "__main__":
    main(*sys.argv[1:])
