"""Measures texts longer than a sequence: accuracy of each `--long_text`, and time and memory by number of tokens.

    .venv/bin/python benchmarks/long_texts.py --output_dir=runs/long_texts

needle: shuffled paragraphs of SQuAD with one sentence whose verb decides between two labels and occurs nowhere else. On
dev, this sentence comes after 3,000 tokens; in training, it does so in every tenth text, and comes after up to 200
tokens in the others. articles: from which of SQuAD's seven articles are these paragraphs of 1,000 to 4,000 tokens?
Train and dev have no paragraph in common. cost: seconds and peak memory of a process that trains on batches of 8 texts,
and of one that asks the exported graph for 8 texts, by their length.

A cell is a table, a way to read, and a seed (or a length). Each cell runs in a process of its own, `bert-classify` for
the tables. The encoder is the lowest layers of MiniLM, so that a CPU is enough. Finished cells are lines of cells.jsonl
in --output_dir. The same command continues with the others, and prints the tables of all.
"""

import json
import os
import random
import resource
import subprocess
import sys
import time

import numpy as np
from absl import app, flags
from machine import describe_machine

FLAGS = flags.FLAGS
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LONG_TEXTS = ("truncate", "head_tail", "mean", "max")

flags.DEFINE_string("output_dir", None, "Directory of the tables and of the finished cells.", required=True)
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory with squad2.")
flags.DEFINE_string("preset", "all_minilm_l6_v2_en", "Encoder whose lowest layers are trained.")
flags.DEFINE_integer("num_layers", 1, "How many of them.", lower_bound=1)
flags.DEFINE_list("parts", ["needle", "articles", "cost"], "What to measure.")
flags.DEFINE_integer("seeds", 3, "Seeds, the first of which is number 1.", lower_bound=1)
flags.DEFINE_integer("rows", 500, "Training rows of needle.", lower_bound=14)
flags.DEFINE_list("lengths", ["1000", "2000", "4000", "8000"], "Tokens of a text, for cost.")
flags.DEFINE_string("only", None, "Runs a single cell, as JSON, and prints it; for the processes of the cells.")

# === Tables ===

_SUBJECTS = ("the committee", "the council", "the court", "the board", "the ministry", "the jury")
_OBJECTS = ("the application", "the proposal", "the appeal", "the plan", "the request", "the petition")
_VERBS = {"yes": ("approved", "accepted", "granted"), "no": ("rejected", "refused", "denied")}
_LONG, _SHORT, _BEHIND = 3000, 200, 50  # Tokens before the sentence, and behind it. A word of SQuAD has 1.3.
_SHARE_OF_LONG = 0.1  # In training.
_TRAINING = {"needle": (3, 8), "articles": (10, 4)}  # Epochs, and rows of a step.
_DEV_ROWS, _ARTICLE_ROWS = 96, 35  # Of needle; of articles, for training and for dev.
_TOKENS_A_WORD = 1.3


def _articles() -> dict[str, list[str]]:
    with open(os.path.join(FLAGS.data_dir, "squad2", "train.json"), encoding="utf-8") as file:
        articles = json.load(file)["data"]
    return {article["title"]: [paragraph["context"] for paragraph in article["paragraphs"]] for article in articles}


def _filler(generator: random.Random, paragraphs: list[str], tokens: float) -> str:
    """Joins paragraphs in random order, cut to about so many tokens."""
    deciding = {verb for verbs in _VERBS.values() for verb in verbs}
    words = [word for text in generator.sample(paragraphs, len(paragraphs)) for word in text.split()]
    words = [word for word in words if word.strip(".,;").lower() not in deciding]
    return " ".join(words[: int(tokens / _TOKENS_A_WORD)])


def needle_rows(split: str, generator: random.Random) -> list[tuple[str, str]]:
    paragraphs, rows = [text for texts in _articles().values() for text in texts], []
    for number in range(FLAGS.rows if split == "train" else _DEV_ROWS):
        label = ("yes", "no")[number % 2]
        words = (generator.choice(_SUBJECTS), generator.choice(_VERBS[label]), generator.choice(_OBJECTS))
        before = _LONG if split == "dev" or generator.random() < _SHARE_OF_LONG else generator.uniform(0, _SHORT)
        before, behind = (_filler(generator, paragraphs, tokens) for tokens in (before, _BEHIND))
        rows.append((f"{before}. {' '.join(words)}. {behind}", label))
    return rows


def article_rows(split: str, generator: random.Random) -> list[tuple[str, str]]:
    articles, rows = _articles(), []
    for number in range(_ARTICLE_ROWS):
        title = sorted(articles)[number % len(articles)]
        paragraphs = articles[title][("train", "dev").index(split) :: 2]
        rows.append((_filler(generator, paragraphs, generator.uniform(1000, 4000)), title))
    return rows


def write_table(name: str, seed: int) -> list[str]:
    """Writes the two files of a table; returns their flags."""
    made = []
    for split in ("train", "dev"):
        path = os.path.join(FLAGS.output_dir, f"{name}_{seed}_{split}.jsonl")
        rows = {"needle": needle_rows, "articles": article_rows}[name](split, random.Random(f"{name} {split} {seed}"))
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
        made.append(f"--{split}_file={path}")
    return made


# === Cells ===


def write_preset() -> str:
    """Writes the lowest layers of the encoder as a preset, where it lacks; returns its directory."""
    directory = os.path.join(FLAGS.output_dir, f"preset_{FLAGS.num_layers}")
    if not os.path.exists(os.path.join(directory, "config.json")):
        from export.heads.embeddings import Embeddings
        from keras_bert.presets.catalog import resolve_preset

        source = resolve_preset(FLAGS.preset, "tokenizer") or FLAGS.preset
        head = Embeddings.load_preset(source, source, layer=FLAGS.num_layers)
        head.model.save_to_preset(directory)
        head.preprocessor.tokenizer.save_to_preset(directory)
    return directory


def run_table(table: str, long_text: str, seed: int) -> dict:
    """Trains and scores by `bert-classify`."""
    output_dir = os.path.join(FLAGS.output_dir, "runs", f"{table}_{long_text}_{seed}")
    command = [sys.executable, "-m", "tasks.classify.run", f"--preset={write_preset()}", f"--output_dir={output_dir}"]
    command += [*write_table(table, seed), f"--long_text={long_text}", f"--random_seed={seed}", "--few_labels=off"]
    epochs, batch_size = _TRAINING[table]
    command += [f"--num_train_epochs={epochs}", f"--train_batch_size={batch_size}", "--learning_rate=5e-4"]
    command += ["--max_seq_length=64"]
    command += ["--text_column=text", "--label_column=label", "--save_checkpoints_steps=100000"]
    subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(os.path.join(output_dir, "metrics.json"), encoding="utf-8") as file:
        return {"accuracy": json.load(file)["accuracy"]}


def run_cost(stage: str, tokens: int) -> dict:
    """Measures training steps, or answers of the exported graph, on 8 texts of so many tokens, read in windows."""
    import keras
    import tensorflow as tf

    from export import saved_model
    from export.heads.classification import Classification
    from keras_bert import BertTextClassifier
    from tasks.engine.train_step import TrainStep
    from tasks.fine_tuning.encoding import encode_texts
    from tasks.fine_tuning.examples import make_eval_dataset
    from tasks.fine_tuning.objectives import CrossEntropy

    model = BertTextClassifier.from_preset(write_preset(), labels=["no", "yes"], sequence_length=128)
    texts = ["word " * (tokens - 2)] * 8
    if stage == "train":
        examples = encode_texts(texts, None, model.preprocessor.tokenizer, 128, "tokenize", long_text="mean")
        [batch] = make_eval_dataset(examples._replace(labels={"labels": np.arange(8, dtype=np.int32) % 2}), 8)[0]
        strategy, step = tf.distribute.get_strategy(), tf.Variable(0, dtype=tf.int64)
        options = {"strategy": strategy, "step": step, "pooling": "mean"}
        train = TrainStep(model, keras.optimizers.Adam(1e-5), CrossEntropy(), **options)
        run = tf.function(lambda: strategy.run(train, args=batch), autograph=False)
    else:
        head = Classification(model, model.preprocessor, model.labels, long_text="mean")
        directory = os.path.join(FLAGS.output_dir, f"graph_{tokens}")
        saved_model.write_graph(head, saved_model.rebuild_for_serving(head.model), directory)
        loaded = tf.saved_model.load(directory)
        run = lambda: loaded.signatures["serving_default"](text=tf.constant(texts))  # noqa: E731
    run()
    started = time.process_time()
    run()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": time.process_time() - started, "megabytes": peak}


def all_cells() -> list[dict]:
    cells = [
        {"part": part, "long_text": long_text, "seed": seed}
        for part in FLAGS.parts
        if part != "cost"
        for seed in range(1, FLAGS.seeds + 1)
        for long_text in LONG_TEXTS
    ]
    stages = ("train", "serve") if "cost" in FLAGS.parts else ()
    return cells + [{"part": stage, "tokens": int(tokens)} for stage in stages for tokens in FLAGS.lengths]


def print_tables(cells: list[dict]) -> None:
    print(describe_machine())
    print("| | " + " | ".join(LONG_TEXTS) + " |\n| --- | " + " | ".join(["---"] * len(LONG_TEXTS)) + " |")
    for part in ("needle", "articles"):
        scores = [
            [cell["accuracy"] for cell in cells if (cell["part"], cell.get("long_text")) == (part, long_text)]
            for long_text in LONG_TEXTS
        ]
        if all(scores):
            print(
                f"| {part} | " + " | ".join(f"{np.mean(column):.1%} ± {np.std(column):.1%}" for column in scores) + " |"
            )
    print("| tokens of a text | " + " | ".join(FLAGS.lengths) + " |\n| --- | " + "--- | " * len(FLAGS.lengths))
    for part in ("train", "serve"):
        costs = {cell["tokens"]: cell for cell in cells if cell["part"] == part}
        shown = [costs.get(int(tokens)) for tokens in FLAGS.lengths]
        if all(shown):
            print(
                f"| {part} | "
                + " | ".join(f"{cost['seconds']:.1f} s, {cost['megabytes']:.0f} MB" for cost in shown)
                + " |"
            )


def main(_) -> None:
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    if FLAGS.only:
        cell = json.loads(FLAGS.only)
        is_cost = "tokens" in cell
        figures = run_cost(cell["part"], cell["tokens"]) if is_cost else run_table(*cell.values())
        print(json.dumps(cell | figures))
        return
    path = os.path.join(FLAGS.output_dir, "cells.jsonl")
    done = [json.loads(line) for line in open(path, encoding="utf-8")] if os.path.exists(path) else []
    environment = {**os.environ, "PYTHONPATH": _ROOT}
    for cell in all_cells():
        if any(cell.items() <= result.items() for result in done):
            continue
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], f"--only={json.dumps(cell)}"]
        run = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        line = run.stdout.splitlines()[-1]
        print(line, flush=True)
        done.append(json.loads(line))
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
    print_tables(done)


if __name__ == "__main__":
    app.run(main)
