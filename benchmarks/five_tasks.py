"""Scores encoders by fine-tuning each on slices of five tasks.

    .venv/bin/python benchmarks/five_tasks.py --presets=runs/laptop/pretrained/preset --output_dir=runs/five_tasks
    .venv/bin/python benchmarks/five_tasks.py --presets=runs/laptop/pretrained/preset --random   # its sizes alone

The tasks are GLUE's SST-2 and RTE (accuracy), CoLA (Matthews), STS-B (Pearson), and WNUT-17 (entity F1). Training rows
are drawn once, at most 1,600 per task; dev rows are all that --data_dir has: 1,999, 363, 1,050, 1,500 and 1,009.
Sequences are cut to 64 tokens. Prints, in points, mean and range over the seeds of each task and of the mean of the
five. With 2 layers of 128, a cell (a start and a seed) takes about 2 minutes of one core.

Finished cells are lines of cells.jsonl in --output_dir, and are not repeated.
"""

import json
import os
import sys
import tempfile
import time

from absl import flags
from machine import describe_machine
from tables import FIVE_TASKS, do_cell, five_tasks_columns, write_slice

from tasks import flags as task_flags

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Figure, extension of the files, whether they have a header, names of the columns if they have not.
TASKS = {
    "sst2": ("accuracy", "tsv", True, None),
    "cola": ("matthews_correlation", "tsv", False, None),
    "rte": ("accuracy", "tsv", True, None),
    "stsb": ("pearson", "csv", False, ["sentence1", "sentence2", "score"]),
    "wnut17": ("f1", "conll", False, None),
}
_ROWS, _EPOCHS, _LENGTH = 1600, 3.0, 64

flags.DEFINE_list("presets", None, "Presets to start from.")
flags.DEFINE_bool("random", False, "Start from random weights of the presets' sizes.")
flags.DEFINE_float("learning_rate", 1e-3, "Learning rate; 1e-3 suits encoders of 128 units.")
flags.DEFINE_list("seeds", ["1", "2", "3"], "Seeds.")
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with the tasks' folders.")
flags.DEFINE_string("output_dir", "runs/five_tasks", "Directory of the slices and of the finished cells.")
flags.DEFINE_string("cell", None, "A cell, as JSON: what the benchmark's own processes are started with.")


def fine_tune(cell: dict) -> dict:
    """Fine-tunes on each task; returns the scores and the processor's seconds."""
    from tasks.classify.task import Classify
    from tasks.fine_tuning.command import run_task
    from tasks.ner.task import Ner

    scores = {}
    for name, (figure, extension, has_header, column_names) in TASKS.items():
        files = {}
        for split, limit in (("train", _ROWS), ("dev", sys.maxsize)):
            source = os.path.join(FLAGS.data_dir, name, f"{split}.{extension}")
            target = os.path.join(FLAGS.output_dir, "data", f"{name}_{split}")
            files[f"{split}_file"], _ = write_slice(source, target, limit, has_header=has_header)
        task = Ner if name == "wnut17" else Classify
        options = {} if task is Ner else {"task_name": name, "column_names": column_names, "few_labels": "off"}
        with tempfile.TemporaryDirectory() as output_dir:
            settings = task.Settings(
                **files,
                **options,
                preset=cell["preset"],
                load_weights=not cell["random"],
                output_dir=output_dir,
                max_seq_length=_LENGTH,
                learning_rate=cell["learning_rate"],
                optimizer="adamw",
                num_train_epochs=_EPOCHS,
                eval_batch_size=64,
                save_checkpoints_steps=1_000_000,
                random_seed=cell["seed"],
                do_train=True,
                do_eval=True,
            )
            scores[name] = run_task(task(settings))[figure]
    return {"scores": scores, "cpu_seconds": round(time.process_time(), 1)}


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    if FLAGS.cell:
        print(json.dumps(fine_tune(json.loads(FLAGS.cell))))
        return
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    path = os.path.join(FLAGS.output_dir, "cells.jsonl")
    places = [f"--{name}={FLAGS[name].value}" for name in ("data_dir", "output_dir")]
    print(f"{describe_machine()}\n| start | {' | '.join(FIVE_TASKS)} |\n|{' --- |' * (1 + len(FIVE_TASKS))}")
    for preset in FLAGS.presets:
        start = {"preset": preset, "random": FLAGS.random, "learning_rate": FLAGS.learning_rate}
        cells = [
            do_cell(path, {**start, "seed": int(seed)}, os.path.abspath(__file__), *places) for seed in FLAGS.seeds
        ]
        print(
            f"| {'random weights of ' * FLAGS.random}{preset} | {' | '.join(five_tasks_columns(cells))} |", flush=True
        )


if __name__ == "__main__":
    task_flags.run(main)
