"""Tests whether the words that an explanation ranks highest decide the answer.

    .venv/bin/python benchmarks/explain.py --output_dir=runs/explain

For each seed, `bert-classify` trains on SST-2, once with frozen embeddings and once all weights. `explain` reads rows
of dev with at least 8 words. Then the three words with the largest shares are deleted from each text, or three
random words instead. Measured are the log-odds of the answered label: by how much they fall (comprehensiveness in
DeYoung et al., arXiv:1911.03429), and by how much they change up or down, as means over the texts.

Finished cells are lines of cells.jsonl in --output_dir. The same command continues with the others, and prints the
table of all.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections import defaultdict

import numpy as np
from absl import app, flags
from few_labels import preset, read_lines, run_missing, sample, write_tables
from machine import describe_machine

FLAGS = flags.FLAGS

flags.DEFINE_integer("seeds", 3, "Seeds of training rows and of random words.", lower_bound=1)
flags.DEFINE_integer("texts", 60, "Rows of dev to explain.", lower_bound=1)

_TRAINING = {"frozen": (256, ["--few_labels=frozen"]), "all": (500, ["--few_labels=off", "--num_train_epochs=1"])}
_DELETED, _LEAST_WORDS = 3, 8


def run_cell(cell: dict) -> dict:
    """Trains, explains and deletes; returns the cell with its figures."""
    import keras_bert
    import tasks.fine_tuning.session
    import tasks.fine_tuning.sweep  # noqa: F401
    from tasks import flags as task_flags
    from tasks.classify.task import Classify, ClassifySettings
    from tasks.fine_tuning.command import run_task

    count, words = _TRAINING[cell["weights"]]
    train, dev = (read_lines(os.path.join(FLAGS.output_dir, "tables", "sst2", f"{n}.jsonl")) for n in ("train", "dev"))
    with tempfile.TemporaryDirectory() as output_dir:
        path = os.path.join(output_dir, "train.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in sample(train, count, cell["seed"]))
        words += [f"--output_dir={output_dir}", f"--train_file={path}", "--text_column=text", "--label_column=label"]
        words += [f"--preset={preset()}", f"--random_seed={cell['seed']}", "--do_train"]
        run_task(Classify(task_flags.parse(ClassifySettings, words)))
        model = keras_bert.BertTextClassifier.from_preset(os.path.join(output_dir, "model"))
    generator = random.Random(cell["seed"])
    texts = [row["text"] for row in dev if len(row["text"].split()) >= _LEAST_WORDS]
    texts = generator.sample(texts, min(len(texts), cell["texts"]))
    answers = model.answer(texts)
    start = time.process_time()
    rows = model.explain(texts)
    seconds = (time.process_time() - start) / len(texts)
    highest = [np.argsort(-np.array(row["shares"]))[:_DELETED].tolist() for row in rows]
    chosen = [generator.sample(range(row["num_words"]), _DELETED) for row in rows]
    highest, chosen = (_moved(model, texts, rows, words, answers) for words in (highest, chosen))
    return {**cell, "highest": highest, "random": chosen, "cpu_ms": round(1000 * seconds)}


def _moved(model, texts: list[str], rows: list[dict], chosen: list[list[int]], answers: list[dict]) -> dict:
    """Returns the mean fall, and change, of the answered label's log-odds as the chosen words are deleted."""
    shorter = []
    for text, row, numbers in zip(texts, rows, chosen, strict=True):
        for number in sorted(numbers, reverse=True):
            text = text[: row["starts"][number]] + text[row["ends"][number] :]
        shorter.append(text)
    labels = [model.labels.index(answer["label"]) for answer in answers]
    before, after = (
        np.array([answer["probabilities"][label] for answer, label in zip(both, labels, strict=True)])
        for both in (answers, model.answer(shorter))
    )
    fall = np.log(before / (1 - before)) - np.log(after / (1 - after))
    return {"fall": round(float(fall.mean()), 3), "change": round(float(np.abs(fall).mean()), 3)}


def table(cells: list[dict]) -> list[str]:
    header = ["weights", "seeds", "fall", "of random words", "ratio", "change", "of random words", "ratio"]
    lines = ["| " + " | ".join([*header, "ms of CPU a text"]) + " |", "| --- " * 9 + "|"]
    groups = defaultdict(list)
    for cell in cells:
        groups[cell["weights"]].append(cell)
    for weights, own in groups.items():
        columns = [weights, str(len(own))]
        for figure in ("fall", "change"):
            moved, other = (np.array([cell[of][figure] for cell in own]) for of in ("highest", "random"))
            ratio = np.mean(moved) / np.mean(other)
            columns += [*(f"{np.mean(v):.2f} ± {np.std(v):.2f}" for v in (moved, other)), f"{ratio:.1f}"]
        columns.append(f"{np.mean([cell['cpu_ms'] for cell in own]):.0f}")
        lines.append("| " + " | ".join(columns) + " |")
    return lines


def main(_):
    if FLAGS.only:
        print(json.dumps(run_cell(json.loads(FLAGS.only))))
        return
    FLAGS.tables = ["sst2"]
    write_tables()
    cells = [
        {"weights": weights, "seed": seed, "texts": FLAGS.texts}
        for seed in range(1, FLAGS.seeds + 1)
        for weights in _TRAINING
    ]
    path = os.path.join(FLAGS.output_dir, "cells.jsonl")
    done = run_missing(cells, path, lambda cell, _: [sys.executable, *sys.argv, f"--only={json.dumps(cell)}"])
    print(describe_machine())
    print("\n".join(table(done)))


if __name__ == "__main__":
    app.run(main)
