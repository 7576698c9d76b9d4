"""Measures what more text costs: vocabulary, data creation, the first batch of training, and resuming, by text size.

    .venv/bin/python benchmarks/pretraining_growth.py

The text consists of copies of ../shared/data/corpus. In each copy, one word in 20 is replaced by a made-up word, whose
syllables spell a number. The numbers come from a Pareto distribution of exponent 0.6, so that the number of distinct
words grows with the text's size to the power of 0.6, as in real text (Heaps' law). Each stage is a process of its own.
Memory is the largest sum of the resident sets of its processes, sampled twenty times per second. The last lines
estimate the cost of a terabyte: the growth of processor time between the two largest sizes, divided among the workers.
"""

import os
import random
import re
import sys
import tempfile

import data_creation
import pretraining_start
from absl import flags
from machine import describe_machine
from process_cost import Cost, measure

from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_list("text_megabytes", ["10", "100", "1000"], "Sizes of the text.")
flags.DEFINE_integer("passes", 1, "--dupe_factor of data creation.", lower_bound=1)
flags.DEFINE_integer("cluster_workers", 64, "Workers of one core each, for the terabyte.", lower_bound=1)

_MADE_UP_SHARE = 0.05
_HEAPS = 0.6
_SYLLABLES = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
_TERABYTE = 1e6  # In megabytes.
_STAGES = ("vocabulary", "data creation", "first batch", "resume at 90%")


def made_up_word(number: int) -> str:
    """Spells a number from 1 on in syllables."""
    syllables = []
    while number:
        number, digit = divmod(number - 1, len(_SYLLABLES))
        syllables.append(_SYLLABLES[digit])
    return "".join(syllables) + "x"


def write_text(path: str, num_bytes: int) -> None:
    """Writes copies of the corpus, each with other made-up words, until the file has a given size."""
    rng = random.Random(0)
    documents = ["\n".join(document) for document in data_creation.read_documents()]
    words = re.split("( )", "\n\n".join(documents) + "\n\n")
    places = [place for place, word in enumerate(words) if word.isalpha()]
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < num_bytes:
            copy = list(words)
            for place in rng.choices(places, k=int(_MADE_UP_SHARE * len(places))):
                copy[place] = made_up_word(int(rng.paretovariate(_HEAPS)))
            text = "".join(copy)
            end = text.find("\n\n", num_bytes - file.tell()) + 2
            file.write(text[:end] if end > 1 else text)


def run_stages(directory: str, text: str) -> list[Cost]:
    """Runs all stages; those of training report the seconds to the batch, without the start of the process."""
    vocab_file, records = os.path.join(directory, "vocab.txt"), os.path.join(directory, "text.tfrecord")
    python = [sys.executable, "-m"]
    costs = [
        measure([*python, "tasks.pretraining.train_vocab", f"--input_file={text}", f"--vocab_file={vocab_file}"]),
        measure(
            [*python, "tasks.pretraining.create_data", f"--input_file={text}", f"--output_file={records}"]
            + [f"--vocab_file={vocab_file}", f"--dupe_factor={FLAGS.passes}"]
        ),
    ]
    for share in (0.0, 0.9):
        worker = [f"--worker={directory}", f"--share={share}", f"--batch_size={FLAGS.batch_size}"]
        cost = measure([sys.executable, pretraining_start.__file__, *worker])
        costs.append(cost._replace(seconds=float(cost.last_line)))
    return costs


def print_terabyte(sizes: list[float], costs: list[list[Cost]], shares: list[float]) -> None:
    """Prints what a terabyte would cost, by the growth from the second largest size to the largest."""
    (small, large), (before, after) = sizes[-2:], costs[-2:]
    workers = FLAGS.cluster_workers
    print(f"\n1 TB of text on {workers} workers of one such core, by the growth from {small:.0f} to {large:.0f} MB:")
    for stage, small_cost, large_cost in zip(_STAGES[:2], before, after, strict=False):
        rate = (large_cost.cpu_seconds - small_cost.cpu_seconds) / (large - small)
        hours = rate * _TERABYTE / 3600
        print(f"{stage}: {rate:.3f} CPU s per MB, {hours:.0f} core hours, {hours / workers:.1f} h on all workers")
    print(f"records: {shares[0]:.2f} TB in {FLAGS.passes} passes; indexes, which each host reads: {shares[1]:.4f} TB")


def main(_) -> None:
    """Prints the table."""
    print(describe_machine(), flush=True)
    sizes = [float(size) for size in FLAGS.text_megabytes]
    costs = []
    print("MB of text  " + "  ".join(f"{stage:>26}" for stage in _STAGES), flush=True)
    for size in sizes:
        with tempfile.TemporaryDirectory() as directory:
            text = os.path.join(directory, "text.txt")
            write_text(text, int(size * 1e6))
            costs.append(run_stages(directory, text))
            outputs = (os.path.join(directory, name) for name in ("text.tfrecord", ".text.tfrecord.index.npz"))
            shares = [os.path.getsize(output) / os.path.getsize(text) for output in outputs]
        cells = (f"{cost.seconds:8.1f} s {cost.peak_megabytes:6.0f} MB" for cost in costs[-1])
        print(f"{size:>10.0f}  " + "  ".join(f"{cell:>26}" for cell in cells), flush=True)
    for size, stage_costs in zip(sizes[1:], costs[1:], strict=True):
        pairs = zip(stage_costs, costs[0], strict=True)
        ratios = (f"{a.seconds / b.seconds:8.1f} x {a.peak_megabytes / b.peak_megabytes:6.2f} x " for a, b in pairs)
        print(f"{size / sizes[0]:>8.0f} x  " + "  ".join(f"{ratio:>26}" for ratio in ratios))
    if len(sizes) > 1:
        print_terabyte(sizes, costs, shares)


if __name__ == "__main__":
    task_flags.run(main)
