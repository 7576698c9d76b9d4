"""Compares packed with padded pre-training: real tokens per second of a training step on short documents.

    .venv/bin/python benchmarks/packing_speed.py [--num_layers=4 --hidden_dim=256] [--rounds=10]

Each paragraph of SQuAD 2.0 is a document. bert-create-pretraining-data makes them into instances of at most 512 tokens,
with google-research/bert's vocabulary. All sides train the same model on batches of the same number of rows, and take
turns: each round does a step of each on its next batch. The speed-ups are medians over rounds of the ratio of real
tokens per second. `padded, computed unpadded` is the padded rows in the backbone's layout "unpadded", whose shapes
depend on the data.
"""

import functools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from absl import flags
from machine import describe_machine

from tasks import flags as task_flags

FLAGS = flags.FLAGS

_DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "shared", "data")
flags.DEFINE_list(
    "squad_files",
    [os.path.join(_DATA, "squad2", name) for name in ("train.json", "dev.json")],
    "SQuAD's JSON, for its paragraphs.",
)
flags.DEFINE_string("vocab_file", os.path.join(_DATA, "vocab", "uncased_en.txt"), "WordPiece vocabulary.")
flags.DEFINE_integer("max_seq_length", 512, "Tokens of a row.", lower_bound=16)
flags.DEFINE_integer("num_layers", 4, "Of the model.", lower_bound=1)
flags.DEFINE_integer("hidden_dim", 256, "Of the model; heads have 64.", lower_bound=64)
flags.DEFINE_integer("batch_size", 8, "Rows of a batch.", lower_bound=1)
flags.DEFINE_integer("rounds", 10, "Rounds after the one that warms up.", lower_bound=1)

_MASKED_SHARE = 0.15


def paragraphs() -> Iterator[str]:
    """Yields paragraphs as documents: a sentence a line."""
    for path in FLAGS.squad_files:
        with open(path, encoding="utf-8") as file:
            articles = json.load(file)["data"]
        for article in articles:
            for paragraph in article["paragraphs"]:
                yield "\n".join(re.split(r"(?<=[.!?])\s+", paragraph["context"].strip()))


def create_records(directory: str) -> tuple[list[str], dict[str, int]]:
    """Writes the instances; returns their files and sizes."""
    text, records = os.path.join(directory, "text.txt"), os.path.join(directory, "records.tfrecord")
    with open(text, "w", encoding="utf-8") as file:
        file.write("\n\n".join(paragraphs()))
    sizes = {
        "max_seq_length": FLAGS.max_seq_length,
        "max_predictions_per_seq": round(FLAGS.max_seq_length * _MASKED_SHARE),
    }
    settings = {
        "input_file": text,
        "output_file": records,
        "vocab_file": FLAGS.vocab_file,
        "masked_lm_prob": _MASKED_SHARE,
        "dupe_factor": 1,
        "random_seed": 0,
        **sizes,
    }
    command = [sys.executable, "-m", "tasks.pretraining.create_data"]
    subprocess.run(
        [*command, *(f"--{name}={value}" for name, value in settings.items())], check=True, stdout=subprocess.DEVNULL
    )
    return [records], sizes


def build_step(layout: str, vocabulary_size: int, directory: str):
    """Returns a training step: a function of a batch that returns its figures."""
    import tensorflow as tf

    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.models import BertPretrainer
    from tasks.engine.optimization import build_optimizer
    from tasks.engine.training import Trainer
    from tasks.pretraining.train.losses import PretrainingObjective

    hidden = FLAGS.hidden_dim
    backbone = BertBackbone(
        vocabulary_size,
        FLAGS.num_layers,
        num_heads=hidden // 64,
        hidden_dim=hidden,
        intermediate_dim=4 * hidden,
        max_sequence_length=max(512, FLAGS.max_seq_length),
        layout=layout,
    )
    optimizer = build_optimizer("bert-2018", 1e-4, 10**6, 10**4)
    trainer = Trainer(BertPretrainer(backbone, compile=False), optimizer, PretrainingObjective(), output_dir=directory)
    return tf.function(trainer.train_step, autograph=False)


def measure(steps: dict, batches: dict, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Measures the seconds and real tokens of each step, round by round, without the first round."""
    timings = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            batch = next(batches[name])
            start = time.perf_counter()
            tokens = float(step(*batch)["real_tokens"])
            if number:
                timings[name].append((time.perf_counter() - start, tokens))
    return timings


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    for path in (*FLAGS.squad_files, FLAGS.vocab_file):
        if not os.path.exists(path):
            print(f"{path}: not there. Skipped; give --squad_files and --vocab_file.")
            return
    from keras_bert.tokenization.tokenizer import BertTokenizer
    from tasks.pretraining.data.shard_index import read_records
    from tasks.pretraining.train.batches import TrainBatches
    from tasks.pretraining.train.packed_data import plan_packing

    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        files, sizes = create_records(directory)
        start = time.perf_counter()
        vocabulary_size = BertTokenizer(FLAGS.vocab_file).vocabulary_size()
        records = read_records(files, vocabulary_size, **sizes)
        plan = plan_packing(records)
        seconds = time.perf_counter() - start
        print(
            f"{len(plan.row_of_record)} instances of {len(list(paragraphs()))} paragraphs, {plan.num_rows} rows "
            f"packed, checked and planned in {seconds:.1f} s"
        )
        make = functools.partial(TrainBatches, records, batch_size=FLAGS.batch_size, random_seed=0)
        layouts = {"padded": "rectangular", "padded, computed unpadded": "unpadded", "packed": "packed"}
        batches = {
            name: iter(make(packing=plan if layout == "packed" else None)(0)) for name, layout in layouts.items()
        }
        steps = {
            name: build_step(layout, vocabulary_size, os.path.join(directory, name)) for name, layout in layouts.items()
        }
        real = records.num_real_tokens / sizes["max_seq_length"]
        shares = {name: real / len(plan.row_of_record) for name in layouts} | {"packed": real / plan.num_rows}
        print_table(measure(steps, batches, FLAGS.rounds), shares)


def print_table(timings: dict[str, list[tuple[float, float]]], shares: dict[str, float]) -> None:
    """Prints a row for each side."""
    rates = {name: [tokens / seconds for seconds, tokens in steps] for name, steps in timings.items()}
    print(
        f"L{FLAGS.num_layers} H{FLAGS.hidden_dim}, {FLAGS.batch_size} x {FLAGS.max_seq_length}, "
        f"median of {FLAGS.rounds} rounds"
    )
    print("| rows | real tokens | seconds a step | real tokens a second | packed / this |")
    print("| --- | --- | --- | --- | --- |")
    for name, steps in timings.items():
        seconds = statistics.median(seconds for seconds, _ in steps)
        ratio = statistics.median(ours / theirs for ours, theirs in zip(rates["packed"], rates[name], strict=True))
        print(f"| {name} | {shares[name]:.1%} | {seconds:.2f} | {statistics.median(rates[name]):,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    task_flags.run(main)
