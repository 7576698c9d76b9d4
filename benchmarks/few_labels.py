"""Classifiers from a few rows a label, beside SetFit: accuracy and processor time.

    .venv/bin/python benchmarks/few_labels.py --tables=TABLES --preset=all_minilm_l6_v2_en --cells=ours.jsonl \\
        --peer_cells=setfit.jsonl

TABLES/NAME/train.jsonl and dev.jsonl hold lines of `{"text": ..., "label": ...}`. A cell is a table, a number of rows a
label and a draw of these rows, which `sample` makes from the number of the draw. Each cell runs `bert-classify` with
its defaults in a process of its own and then scores all of dev; finished cells are kept in --cells, a line of JSON
each, and are not run again. The processor time is that of the whole training, from reading the rows to the saved model;
imports and the scoring are left out.

--peer_cells has such lines of SetFit 1.2, which ran on the same weights and rows, by this file's `sample`:
`TrainingArguments(num_iterations=20, max_steps=min(500, 40 * rows / 16), batch_size=16, seed=draw)`, else its defaults.
The processor time there is from loading the model to the end of `Trainer.train`.
"""

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict

import numpy as np
from absl import app, flags
from machine import describe_machine

FLAGS = flags.FLAGS

flags.DEFINE_string("tables", None, "Directory with a directory of each table.", required=True)
flags.DEFINE_list("names", ["sst2", "packages", "squad"], "Tables.")
flags.DEFINE_string("preset", "all_minilm_l6_v2_en", "Encoder and vocabulary.")
flags.DEFINE_list("rows", ["8", "16", "64"], "Rows a label.")
flags.DEFINE_integer("draws", 10, "Draws of rows, the first of which is number 1.", lower_bound=1)
flags.DEFINE_string("few_labels", "auto", "As in bert-classify.")
flags.DEFINE_string("cells", None, "File of finished cells.", required=True)
flags.DEFINE_string("peer_cells", None, "File of SetFit's finished cells.")
flags.DEFINE_string("only", None, "Runs a single cell, as JSON, and prints it; for the processes of the cells.")


def sample(rows: list[dict], count: int, draw: int) -> list[dict]:
    """Draws `count` rows of each label."""
    generator, by_label = random.Random(1000 * count + draw), defaultdict(list)
    for row in rows:
        by_label[row["label"]].append(row)
    chosen = [row for label in sorted(by_label) for row in generator.sample(by_label[label], count)]
    generator.shuffle(chosen)
    return chosen


def read_lines(path: str) -> list[dict]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def run_cell(cell: dict) -> dict:
    """Trains and scores; returns the cell with its figures."""
    import tasks.fine_tuning.session
    import tasks.fine_tuning.sweep  # noqa: F401
    from tasks import flags as task_flags
    from tasks.classify.task import Classify, ClassifySettings
    from tasks.fine_tuning.command import run_task

    def processor_seconds() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    directory = os.path.join(FLAGS.tables, cell["table"])
    dev_file = os.path.join(directory, "dev.jsonl")
    with tempfile.TemporaryDirectory() as output_dir:
        train_file = os.path.join(output_dir, "train.jsonl")
        with open(train_file, "w", encoding="utf-8") as file:
            for row in sample(read_lines(os.path.join(directory, "train.jsonl")), cell["rows"], cell["draw"]):
                file.write(json.dumps(row) + "\n")

        def call(*words: str) -> dict:
            columns = ["--text_column=text", "--label_column=label", "--eval_batch_size=32"]
            settings = task_flags.parse(ClassifySettings, [f"--output_dir={output_dir}/run", *columns, *words])
            return run_task(Classify(settings))

        start = processor_seconds()
        method = f"--few_labels={cell['few_labels']}"
        call("--do_train", method, f"--train_file={train_file}", f"--preset={FLAGS.preset}")
        seconds = processor_seconds() - start
        results = call("--do_eval", f"--dev_file={dev_file}")
    chosen = {name: results[name] for name in ("train_few_labels", "train_few_labels_accuracy") if name in results}
    counts = Counter(row["label"] for row in read_lines(dev_file))
    scores = {"accuracy": results["accuracy"], "majority": max(counts.values()) / counts.total()}
    return {**cell, **scores, "cpu": round(seconds, 2), **chosen}


def run_missing_cells() -> list[dict]:
    """Runs the cells that are not in --cells, each in a process of its own; returns all that are asked for."""
    asked = [
        {"table": table, "rows": int(rows), "draw": draw, "few_labels": FLAGS.few_labels}
        for draw in range(1, FLAGS.draws + 1)
        for rows in FLAGS.rows
        for table in FLAGS.names
    ]
    finished = read_lines(FLAGS.cells)
    for cell in asked:
        if any(cell.items() <= other.items() for other in finished):
            continue
        command = [sys.executable, *sys.argv, f"--only={json.dumps(cell)}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{cell} failed:\n{done.stderr[-3000:]}")
        line = done.stdout.splitlines()[-1]
        print(line, flush=True)
        with open(FLAGS.cells, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    return [line for line in read_lines(FLAGS.cells) if any(cell.items() <= line.items() for cell in asked)]


def table(ours: list[dict], peers: list[dict]) -> list[str]:
    """Returns the lines of the table in Markdown; the two sides are compared on the draws that both have."""
    lines = [
        "| table | rows a label | ours | lowest | majority | processor s | chosen | ours, SetFit's draws | SetFit "
        "| processor s | ratio |",
        "| --- " * 11 + "|",
    ]
    for name, rows in dict.fromkeys((cell["table"], cell["rows"]) for cell in ours):
        own = {cell["draw"]: cell for cell in ours if (cell["table"], cell["rows"]) == (name, rows)}
        other = {cell["draw"]: cell for cell in peers if (cell["table"], cell["rows"]) == (name, rows)}
        scores, seconds = ([cell[key] for cell in own.values()] for key in ("accuracy", "cpu"))
        methods = [cell.get("train_few_labels", "off") for cell in own.values()]
        chosen = ", ".join(f"{methods.count(method)} {method}" for method in dict.fromkeys(methods))
        majority = next(iter(own.values()))["majority"]
        line = [name, str(rows), f"{np.mean(scores):.3f} ± {np.std(scores):.3f} ({len(scores)})", f"{min(scores):.3f}"]
        line += [f"{majority:.3f}", f"{np.mean(seconds):.0f}", chosen]
        shared = [draw for draw in other if draw in own]
        if shared:
            both = [[cells[draw]["accuracy"] for draw in shared] for cells in (own, other)]
            times = [np.mean([cells[draw]["cpu"] for draw in shared]) for cells in (own, other)]
            line += [f"{np.mean(both[0]):.3f}", f"{np.mean(both[1]):.3f} ± {np.std(both[1]):.3f} ({len(shared)})"]
            line += [f"{times[1]:.0f}", f"{times[0] / times[1]:.2f}"]
        lines.append("| " + " | ".join([*line, *[""] * (11 - len(line))]) + " |")
    return lines


def main(_):
    if FLAGS.only:
        print(json.dumps(run_cell(json.loads(FLAGS.only))))
        return
    ours = run_missing_cells()
    print(describe_machine())
    print("\n".join(table(ours, read_lines(FLAGS.peer_cells or ""))))


if __name__ == "__main__":
    app.run(main)
