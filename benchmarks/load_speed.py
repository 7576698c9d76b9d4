"""Times `from_preset("base")` on a local file, compared with reading the file and building the model.

    .venv/bin/python benchmarks/load_speed.py [--preset=base] [--rounds=5]

Random weights of the preset's sizes are written once, in each format, to a temporary directory (440 MB per format for
base). Each round times, in turn, reading the file's bytes, building a backbone with random weights, and loading each
format. Prints medians, and the ratio of loading to reading plus building. The file is in the page cache throughout.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable

from absl import flags
from machine import describe_machine

from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("preset", "base", "Whose sizes.")
flags.DEFINE_integer("rounds", 5, "Rounds, interleaved.", lower_bound=1)

FORMATS = ("hugging_face", "keras_preset", "google")


def write_formats(directory: str, preset: str) -> dict[str, str]:
    """Writes random weights in each format; returns the directories."""
    from keras_bert import BertBackbone, formats
    from keras_bert.presets.weights import open_checkpoint

    saved = os.path.join(directory, "saved")
    BertBackbone.from_preset(preset, load_weights=False).save_to_preset(saved)
    places = {name: os.path.join(directory, name) for name in FORMATS}
    with open_checkpoint(saved) as checkpoint:
        for name, place in places.items():
            formats.modules()[name].write(place, checkpoint, None)
    return places


def read_bytes(place: str) -> None:
    """Reads every file of a directory to the end."""
    for parent, _, files in os.walk(place):
        for file in files:
            with open(os.path.join(parent, file), "rb") as opened:
                while opened.read(1 << 24):
                    continue


def timed(function: Callable) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(places: dict[str, str], preset: str, rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each round, by the name of the measurement."""
    from keras_bert import BertBackbone

    timings: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        round_timings = {"build": timed(lambda: BertBackbone.from_preset(preset, load_weights=False))}
        for name, place in places.items():
            round_timings[f"read {name}"] = timed(lambda place=place: read_bytes(place))
            round_timings[f"load {name}"] = timed(lambda place=place: BertBackbone.from_preset(place))
        for name, seconds in round_timings.items():
            timings.setdefault(name, []).append(seconds)
    return {name: seconds[1:] for name, seconds in timings.items()}  # the first round warms up


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    print(describe_machine())
    with tempfile.TemporaryDirectory() as directory:
        timings = measure(write_formats(directory, FLAGS.preset), FLAGS.preset, FLAGS.rounds)
    median = {name: statistics.median(seconds) for name, seconds in timings.items()}
    print(f"preset {FLAGS.preset}; build {median['build']:.2f} s; median of {FLAGS.rounds} rounds\n")
    print("| format | read | load | load / (read + build) |\n| --- | --- | --- | --- |")
    for name in FORMATS:
        rounds = zip(timings[f"load {name}"], timings[f"read {name}"], timings["build"], strict=True)
        ratio = statistics.median(load / (read + build) for load, read, build in rounds)
        print(f"| {name} | {median[f'read {name}']:.2f} s | {median[f'load {name}']:.2f} s | {ratio:.2f} |")


if __name__ == "__main__":
    task_flags.run(main)
