"""Compares a pre-training step with Hugging Face's and KerasHub's: time, memory, and the time to the first step.

    .venv/bin/python benchmarks/pretraining_speed.py [--sizes=L4-H512,base] [--rounds=10] [--first_steps=1]
    .venv/bin/python benchmarks/pretraining_speed.py --sizes=base,base-512 --sides=0,1,2 --first_steps=0  # memory

Each side runs in a process of its own and has its turn in each round while the others wait; for the step itself see
benchmarks/pretraining_steps.py. Each ratio is the median over rounds of the time relative to torch's in the same round.
CPU seconds, summed over cores, are more reliable on a busy machine, if OMP_WAIT_POLICY=passive keeps torch from
spinning. Weights and tokens are the same on all sides, except for the weights of KerasHub's heads. `oneDNN` is
TF_ENABLE_ONEDNN_OPTS of the side's process, and `unset` leaves the choice to TensorFlow, which depends on the
processor. Memory is the largest resident size of the side's process. The time to the first step is in seconds after the
imports, in a fresh process with these weights, and includes building the step.
"""

import contextlib
import os
import statistics
import tempfile
from typing import NamedTuple

import sides
from absl import flags
from machine import describe_machine
from pretraining_steps import SIZES, VOCABULARY

from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("sizes", ["L4-H512", "base"], f"Of {', '.join(SIZES)}.")
flags.DEFINE_integer("rounds", 10, "Rounds after the one that warms up.", lower_bound=1)
flags.DEFINE_integer("first_steps", 1, "First steps of the last size, in a fresh process each; 0: none.", lower_bound=0)
flags.DEFINE_list("sides", [], "Only these rows of the table, by number from 0.")

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pretraining_steps.py")


class Side(NamedTuple):
    """A row of the table: a key of `pretraining_steps.SIDES`, and the oneDNN flag of its process."""

    title: str
    name: str
    onednn: str | None


SIDES = (
    Side("Hugging Face torch, masked positions only", "torch", None),
    Side("ours", "ours", "1"),
    Side("ours, --rematerialize", "rematerialized", "1"),
    Side("KerasHub", "keras_hub", "1"),
    Side("KerasHub", "keras_hub", "0"),
    Side("KerasHub, out of the box", "keras_hub", None),
)


def start(side: Side, size: str, directory: str) -> sides.Side:
    """Starts a side's process, with weights of a size."""
    environment = {"TF_ENABLE_ONEDNN_OPTS": side.onednn}
    return sides.Side(_SCRIPT, side.name, size, directory, environment=environment)


def write_weights(size: str, directory: str) -> str:
    """Writes random weights of a size, heads too, in Hugging Face's format."""
    from keras_bert.encoder.backbone import BertBackbone
    from keras_bert.formats import hugging_face
    from keras_bert.models import BertPretrainer
    from keras_bert.presets.weights import open_checkpoint

    path, saved = (os.path.join(directory, name) for name in (size, f"{size}_saved"))
    backbone = BertBackbone(vocabulary_size=VOCABULARY, activation="gelu", **SIZES[size][0])
    BertPretrainer(backbone, compile=False).save_to_preset(saved)
    with open_checkpoint(saved) as checkpoint:
        hugging_face.write(path, checkpoint, None)
    return path


def print_steps(size: str, directory: str, chosen: list[Side], rounds: int) -> None:
    """Prints a row for each side: seconds of a step, also relative to the first side's, and memory."""
    with contextlib.ExitStack() as stack:
        processes = []
        for side in chosen:
            processes.append(start(side, size, directory))
            stack.callback(processes[-1].stop)
        times = sides.take_turns(processes, [""] * (rounds + 1), warm_up=1)
    print(f"\n{size}, batch {SIZES[size][1]} x {SIZES[size][2]}, median of {rounds} rounds")
    print("| step of | oneDNN | seconds | CPU seconds | relative | relative CPU | MiB |\n" + "| --- " * 7 + "|")
    for side, row in zip(chosen, times, strict=True):
        rates = [(a / b, c / d) for (a, c, _), (b, d, _) in zip(row, times[0], strict=True)]
        medians = [
            statistics.median(column)
            for rows in (row, rates)
            for column in zip(*(turn[:2] for turn in rows), strict=True)
        ]
        cells = [f"{value:.2f}" for value in medians] + [f"{max(turn[2] for turn in row):,.0f}"]
        print(f"| {side.title} | {_flag(side)} | {' | '.join(cells)} |", flush=True)


def print_first_steps(size: str, directory: str, chosen: list[Side], repeats: int) -> None:
    """Prints a row for each side: seconds of building, of the first step, and their sum, each the median."""
    print(f"\nfirst step, {size}, batch {SIZES[size][1]} x {SIZES[size][2]}, median of {repeats}")
    print("| side | oneDNN | build | trace and run | sum |\n| --- | --- | --- | --- | --- |")
    for side in chosen:
        times = [_first_step(side, size, directory) for _ in range(repeats)]
        build, first, total = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {side.title} | {_flag(side)} | {build:.1f} s | {first:.1f} s | {total:.1f} s |", flush=True)


def _first_step(side: Side, size: str, directory: str) -> tuple[float, float, float]:
    process = start(side, size, directory)
    try:
        first, *_ = process.turn()
    finally:
        process.stop()
    return process.ready[0], first, process.ready[0] + first


def _flag(side: Side) -> str:
    return "-" if side.name == "torch" else side.onednn or "unset"


def main(argv: list[str]) -> None:
    """Prints the tables."""
    del argv
    chosen = [SIDES[int(number)] for number in FLAGS.sides] or list(SIDES)
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        weights = {size: write_weights(size, directory) for size in FLAGS.sizes}
        for size in FLAGS.sizes:
            print_steps(size, weights[size], chosen, FLAGS.rounds)
        if FLAGS.first_steps:
            print_first_steps(FLAGS.sizes[-1], weights[FLAGS.sizes[-1]], chosen, FLAGS.first_steps)


if __name__ == "__main__":
    task_flags.run(main)
