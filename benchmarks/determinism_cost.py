"""Measures the cost of `--deterministic_ops`: the time of a pre-training step relative to one without the flag.

    .venv/bin/python benchmarks/determinism_cost.py

Uses one model and one batch shape in two processes, since TensorFlow cannot disable determinism again. They take turns,
and each round gives one ratio. Prints the median of the rounds and their range.
"""

import contextlib
import os
import statistics
import tempfile

from absl import flags
from machine import describe_machine
from sides import Side, serve, take_turns, timed

from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_integer("num_layers", 4, "Layers of the encoder.", lower_bound=1)
flags.DEFINE_integer("hidden_dim", 256, "Width of the encoder.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Instances of a step, of 128 tokens with 20 masked.", lower_bound=1)
flags.DEFINE_integer("steps", 5, "Steps of a round.", lower_bound=1)
flags.DEFINE_integer("rounds", 7, "Rounds, each with both in turn.", lower_bound=1)
flags.DEFINE_enum("worker", None, ["plain", "deterministic"], "What the benchmark's own processes are started with.")

_LENGTH, _PREDICTIONS, _VOCABULARY = 128, 20, 30522


def build_round():
    """Returns a call that does the steps of a round."""
    import numpy as np
    import tensorflow as tf

    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.models import BertPretrainer
    from tasks.engine.build_trainer import build_trainer, prepare_devices
    from tasks.fine_tuning.settings import FineTuningSettings
    from tasks.pretraining.train.losses import PretrainingObjective

    settings = FineTuningSettings(output_dir=tempfile.gettempdir(), deterministic_ops=FLAGS.worker == "deterministic")
    sizes = {
        "vocabulary_size": _VOCABULARY,
        "num_layers": FLAGS.num_layers,
        "num_heads": max(1, FLAGS.hidden_dim // 64),
        "hidden_dim": FLAGS.hidden_dim,
        "intermediate_dim": 4 * FLAGS.hidden_dim,
    }
    rng = np.random.default_rng(0)
    shape, masked = (FLAGS.batch_size, _LENGTH), (FLAGS.batch_size, _PREDICTIONS)
    features = {
        "token_ids": rng.integers(0, _VOCABULARY, shape).astype("int32"),
        "segment_ids": np.zeros(shape, "int32"),
        "padding_mask": np.ones(shape, "int32"),
        "mask_positions": np.tile(np.arange(1, _PREDICTIONS + 1, dtype="int32"), (FLAGS.batch_size, 1)),
    }
    labels = {
        "mask_ids": rng.integers(0, _VOCABULARY, masked).astype("int32"),
        "mask_weights": np.ones(masked, "float32"),
        "next_sentence_labels": rng.integers(0, 2, FLAGS.batch_size).astype("int32"),
    }
    strategy = prepare_devices(settings)
    build_model = lambda: BertPretrainer(BertBackbone(**sizes), compile=False)  # noqa: E731
    trainer = build_trainer(settings, build_model, PretrainingObjective(), strategy, (1000, 100))
    step = tf.function(lambda: trainer.strategy.run(trainer.train_step, args=(features, labels)), autograph=False)
    step()

    def run() -> None:
        for _ in range(FLAGS.steps):
            step()["loss"].numpy()

    return run


def main(argv: list[str]) -> None:
    """Prints the cost."""
    del argv
    if FLAGS.worker:
        run = build_round()
        serve(lambda _: timed(run))
        return
    given = [f"--{name}={getattr(FLAGS, name)}" for name in ("num_layers", "hidden_dim", "batch_size", "steps")]
    with contextlib.ExitStack() as stack:
        both = []
        for worker in ("plain", "deterministic"):
            both.append(Side(os.path.abspath(__file__), f"--worker={worker}", *given))
            stack.callback(both[-1].stop)
        turns = take_turns(both, [""] * FLAGS.rounds, warm_up=0)
    plain, deterministic = ([seconds for seconds, _ in row] for row in turns)
    ratios = [seconds / plain_seconds for seconds, plain_seconds in zip(deterministic, plain, strict=True)]
    print(describe_machine())
    print(
        f"a step of {FLAGS.num_layers} layers of {FLAGS.hidden_dim}, batch {FLAGS.batch_size} x {_LENGTH}: "
        f"{statistics.median(plain) / FLAGS.steps:.3f} s; with --deterministic_ops "
        f"{statistics.median(ratios):.2f} times that (rounds: {min(ratios):.2f} to {max(ratios):.2f})"
    )


if __name__ == "__main__":
    task_flags.run(main)
