"""A pre-training step compared with Hugging Face's and KerasHub's, and the time to the first step.

    .venv/bin/python benchmarks/pretraining_speed.py [--sizes=L4-H512,base] [--rounds=10] [--first_steps=1]

Each side runs in a process of its own and has its turn in each round while the others wait; for the step itself see
benchmarks/pretraining_steps.py. Each ratio is the median over rounds of the time relative to torch's in the same round.
CPU seconds, summed over cores, are more reliable on a busy machine, if OMP_WAIT_POLICY=passive keeps torch from
spinning. Weights and tokens are the same on all sides, except for the weights of KerasHub's heads. `oneDNN` is
TF_ENABLE_ONEDNN_OPTS of the side's process, and `unset` leaves the choice to TensorFlow, which depends on the
processor. The time to the first step includes building it, in seconds after the imports, in a fresh process, with those
weights.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

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
_PAUSE = 0.3  # Seconds after a step, in which its threads stop spinning (libgomp's and oneDNN's do so for 0.2).


class Side(NamedTuple):
    """A row of the table: a key of `pretraining_steps.SIDES`, and the oneDNN flag of its process."""

    title: str
    name: str
    onednn: str | None


SIDES = (
    Side("Hugging Face torch, masked positions only", "torch", None),
    Side("ours", "ours", "1"),
    Side("KerasHub", "keras_hub", "1"),
    Side("KerasHub", "keras_hub", "0"),
    Side("KerasHub, out of the box", "keras_hub", None),
)


class Worker:
    """A process that does one step on each call."""

    def __init__(self, side: Side, size: str, directory: str | None = None):
        environment = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
        environment["TF_CPP_MIN_LOG_LEVEL"] = "3"
        if side.onednn is not None:
            environment["TF_ENABLE_ONEDNN_OPTS"] = side.onednn
        self._scratch = tempfile.TemporaryDirectory()  # a killed process leaves its own
        environment["TMPDIR"] = self._scratch.name
        command = [sys.executable, _SCRIPT, side.name, size, *([directory] if directory else [])]
        self._errors = tempfile.TemporaryFile(mode="w+")
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.build_seconds = self._read("ready")[0]

    def step(self) -> tuple[float, float]:
        """Does a step. Returns its seconds, and the CPU seconds of all its threads."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds, cpu_seconds = self._read("step")
        return seconds, cpu_seconds

    def _read(self, word: str) -> list[float]:
        for line in self._process.stdout:
            if line.split()[:1] == [word]:
                return [float(value) for value in line.split()[1:]]
        self._errors.seek(0)
        raise RuntimeError(f"{' '.join(self._process.args)} ended early:\n{self._errors.read()[-3000:]}")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()
        self._scratch.cleanup()


def write_weights(size: str, directory: str) -> str:
    """Writes random weights of a size, heads too, in Hugging Face's format."""
    from keras_bert.backbone import BertBackbone
    from keras_bert.formats import hugging_face
    from keras_bert.weights import checkpoint_of
    from tasks.pretraining.model import build_pretrainer

    path = os.path.join(directory, size)
    backbone = BertBackbone(vocabulary_size=VOCABULARY, activation="gelu", **SIZES[size][0])
    hugging_face.write(path, checkpoint_of(build_pretrainer(backbone)), None)
    return path


def print_steps(size: str, directory: str, sides: list[Side], rounds: int) -> None:
    """Prints a row for each side: seconds of a step, and relative to the first side's."""
    workers = [Worker(side, size, directory) for side in sides]
    try:
        times: list[list[tuple[float, float]]] = [[] for _ in sides]
        for number in range(rounds + 1):
            for worker, row in zip(workers, times, strict=True):
                seconds = worker.step()
                if number:
                    row.append(seconds)
                time.sleep(_PAUSE)
    finally:
        for worker in workers:
            worker.stop()
    print(f"\n{size}, batch {SIZES[size][1]} x 128, median of {rounds} rounds")
    print("| step of | oneDNN | seconds | CPU seconds | relative | relative CPU |\n" + "| --- " * 6 + "|")
    for side, row in zip(sides, times, strict=True):
        medians = [statistics.median(column) for column in zip(*row, strict=True)]
        pairs = [(a / b, c / d) for (a, c), (b, d) in zip(row, times[0], strict=True)]
        medians += [statistics.median(column) for column in zip(*pairs, strict=True)]
        print(f"| {side.title} | {_flag(side)} | " + " | ".join(f"{value:.2f}" for value in medians) + " |", flush=True)


def print_first_steps(size: str, directory: str, sides: list[Side], repeats: int) -> None:
    """Prints a row for each side: seconds of building, of the first step, and their sum, each the median."""
    print(f"\nfirst step, {size}, batch {SIZES[size][1]} x 128, median of {repeats}")
    print("| side | oneDNN | build | trace and run | sum |\n| --- | --- | --- | --- | --- |")
    for side in sides:
        times = [_first_step(side, size, directory) for _ in range(repeats)]
        build, first, total = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"| {side.title} | {_flag(side)} | {build:.1f} s | {first:.1f} s | {total:.1f} s |", flush=True)


def _first_step(side: Side, size: str, directory: str) -> tuple[float, float, float]:
    worker = Worker(side, size, directory)
    try:
        first, _ = worker.step()
    finally:
        worker.stop()
    return worker.build_seconds, first, worker.build_seconds + first


def _flag(side: Side) -> str:
    return "-" if side.name == "torch" else side.onednn or "unset"


def main(argv: list[str]) -> None:
    """Prints the tables."""
    del argv
    sides = [SIDES[int(number)] for number in FLAGS.sides] or list(SIDES)
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        weights = {size: write_weights(size, directory) for size in FLAGS.sizes}
        for size in FLAGS.sizes:
            print_steps(size, weights[size], sides, FLAGS.rounds)
        if FLAGS.first_steps:
            print_first_steps(FLAGS.sizes[-1], weights[FLAGS.sizes[-1]], sides, FLAGS.first_steps)


if __name__ == "__main__":
    task_flags.run(main)
