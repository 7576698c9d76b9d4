"""Plants faults in real tables, and measures how many of them the data check finds.

    .venv/bin/python benchmarks/data_faults.py --output_dir=runs/data_faults

The tables are those of few_labels.py, without their own duplicates. 5% of --table_rows rows get a wrong label. Copies
of 3% of the rows are added, and as many dev rows as 2%, every second copy with different letter case and blanks.
`bert-classify --find_wrong_labels --drop_leaks` then reads the rows, embeds them with MiniLM and cross-validates. Its
training takes one step.

Columns: the planted duplicates and leaks that were counted; the share of the flipped labels among the first 5% of the
rows in the order of the list; the length of the list in rows; the share of the list that was flipped.

Finished cells are lines of cells.jsonl in --output_dir, and need not run again. benchmarks/cells/data_faults has the
cells of docs/benchmarks.md.
"""

import csv
import json
import os
import random
import resource
import sys
import tempfile
import unicodedata

import few_labels
import numpy as np
from absl import app, flags
from machine import describe_machine

FLAGS = flags.FLAGS
FLIPPED, COPIED, LEAKED = 0.05, 0.03, 0.02

flags.DEFINE_integer("table_rows", 2000, "Rows of a table before faults are planted.", lower_bound=100)
FLAGS.set_default("draws", 3)
FLAGS.set_default("tables", ["sst2", "squad"])


def plant(table: str, draw: int) -> tuple[list[dict], list[dict], dict[str, int]]:
    """Returns training rows with faults, each with `is_flipped`, dev rows, and the numbers of duplicates and leaks."""
    directory = os.path.join(FLAGS.output_dir, "tables", table)
    seen, tables = set(), []
    for split in ("dev", "train"):
        rows = []
        for row in few_labels.read_lines(os.path.join(directory, f"{split}.jsonl")):
            key = " ".join(unicodedata.normalize("NFKC", row["text"]).lower().split())
            if key not in seen and len(key.split()) > 2:
                rows.append({**row, "is_flipped": False})
            seen.add(key)
        tables.append(rows)
    generator = random.Random(draw)
    dev, train = generator.sample(tables[0], 200), generator.sample(tables[1], min(FLAGS.table_rows, len(tables[1])))
    labels, size = sorted({row["label"] for row in train}), len(train)
    numbers = {"duplicates": round(COPIED * size), "leaks": round(LEAKED * size)}
    for row in train[: round(FLIPPED * size)]:
        row["label"], row["is_flipped"] = generator.choice([label for label in labels if label != row["label"]]), True
    copies = generator.sample(train[round(FLIPPED * size) :], numbers["duplicates"])
    copies += generator.sample(dev, numbers["leaks"])
    for number, row in enumerate(copies):
        text = f" {row['text'].upper().replace(' ', '  ')}" if number % 2 else row["text"]
        train.append({**row, "text": text})
    generator.shuffle(train)
    return train, dev, numbers


def run_cell(cell: dict) -> dict:
    """Plants the faults, looks for them, and returns the cell with its figures."""
    from tasks import flags as task_flags
    from tasks.classify.task import Classify, ClassifySettings
    from tasks.fine_tuning.command import run_task

    train, dev, planted = plant(cell["table"], cell["draw"])
    with tempfile.TemporaryDirectory() as directory:
        for name, rows in (("train", train), ("dev", dev)):
            with open(os.path.join(directory, f"{name}.jsonl"), "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": row["text"], "label": row["label"]}) + "\n" for row in rows)
        words = [f"--{name}_file={directory}/{name}.jsonl" for name in ("train", "dev")]
        words += [
            "--text_column=text",
            "--label_column=label",
            "--few_labels=off",
            f"--num_train_epochs={40 / len(train):.3f}",
        ]
        words += ["--find_wrong_labels", "--drop_leaks", "--do_train", "--do_eval", f"--preset={few_labels.preset()}"]
        results = run_task(Classify(task_flags.parse(ClassifySettings, [f"--output_dir={directory}/run", *words])))
        with open(os.path.join(directory, "run", "doubtful_labels.tsv"), encoding="utf-8", newline="") as file:
            places = [row["place"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    is_flipped = [train[int(place.rpartition(":")[2]) - 1]["is_flipped"] for place in places]
    num_flipped, first = sum(row["is_flipped"] for row in train), round(0.05 * results["train_rows"])
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        **cell,
        **{name: f"{results[f'data_{name}']} of {number}" for name, number in planted.items()},
        "in_first": sum(is_flipped[:first]) / num_flipped,
        "listed": len(places) / results["train_rows"],
        "precision": float(np.mean(is_flipped)),
        "cpu": round(usage.ru_utime + usage.ru_stime),
    }


def table(cells: list[dict]) -> list[str]:
    """Returns the lines of the table in Markdown."""
    columns = [
        "table",
        "duplicates",
        "leaks",
        "flipped in the first 5%",
        "rows listed",
        "flipped of them",
        "processor s",
    ]
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for name in dict.fromkeys(cell["table"] for cell in cells):
        own = [cell for cell in cells if cell["table"] == name]
        line = [name, *("; ".join(dict.fromkeys(cell[key] for cell in own)) for key in ("duplicates", "leaks"))]
        for key in ("in_first", "listed", "precision"):
            values = [100 * cell[key] for cell in own]
            line.append(f"{np.mean(values):.1f}% ± {np.std(values):.1f} ({len(own)})")
        lines.append(f"| {' | '.join([*line, str(round(np.mean([cell['cpu'] for cell in own])))])} |")
    return lines


def main(_):
    if FLAGS.only:
        print(json.dumps(run_cell(json.loads(FLAGS.only))))
        return
    few_labels.write_tables()
    asked = [
        {"table": name, "draw": draw, "table_rows": FLAGS.table_rows}
        for name in FLAGS.tables
        for draw in range(1, FLAGS.draws + 1)
    ]
    path = os.path.join(FLAGS.output_dir, "cells.jsonl")
    cells = few_labels.run_missing(
        asked, path, lambda cell, _: [sys.executable, *sys.argv, f"--only={json.dumps(cell)}"]
    )
    print(describe_machine())
    print("\n".join(table(cells)))


if __name__ == "__main__":
    app.run(main)
