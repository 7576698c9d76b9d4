"""Measures what new tokens gain: `bert-adapt` with and without them, in equal minutes, and how many tokens they save.

    OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 \\
        .venv/bin/python benchmarks/adapt.py --output_dir=runs/adapt

The domains are the English, German and French manual pages of this machine, rendered by `man`, presidential addresses,
and Chinese reviews. The first table has the share of held-out tokens that 500, 2,000 and 8,000 new tokens save ("new").
It compares them with the first pieces of a vocabulary trained on the domain (`bert-train-vocab`) that the old one lacks
("own"), and with one token for each word, the fewest that BERT's rules allow.

The second table adapts MiniLM to each of --domains, without new tokens and with --num_new_tokens, for --minutes each.
Both trainings mask whole words, so that a word must be guessed without its other pieces. Both models and the unchanged
MiniLM are then fine-tuned to tell from which section of the manual a sentence comes (or whether from an inaugural
address). Training and test sentences come from different pages. Finished cells are lines of cells.jsonl in
--output_dir; the same command continues with the others. With the defaults, a seed of a domain takes 13 minutes on one
core.
"""

import glob
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter

import numpy as np
from absl import app, flags
from machine import describe_machine

from keras_bert.tokenization.normalizer import split_words
from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks import flags as task_flags
from tasks.classify.task import Classify, ClassifySettings
from tasks.fine_tuning.command import run_task
from tasks.pretraining.adapt import adapt
from tasks.pretraining.adaptation.new_pieces import choose_pieces
from tasks.pretraining.adaptation.settings import AdaptSettings
from tasks.pretraining.train_vocab import VocabularySettings, train_vocab

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_MANUAL = "/usr/share/man"
_PRESET = "all_minilm_l6_v2_en"
_MIN_WORDS, _MIN_LINES, _LONGEST = 5, 5, 400
SECTIONS = "1578"
DOMAINS = {
    "manual_en": "uncased_en",
    "manual_de": "uncased_en",
    "manual_fr": "uncased_en",
    "addresses": "uncased_en",
    "reviews": "zh",
}

flags.DEFINE_string("output_dir", None, "Directory of texts, runs and finished cells.", required=True)
flags.DEFINE_string("data_dir", os.path.join(_ROOT, "..", "shared", "data"), "Directory of corpus, waimai and vocab.")
flags.DEFINE_list("domains", ["manual_en", "manual_de"], f"Domains to adapt to, of {', '.join(DOMAINS)} but the last.")
flags.DEFINE_integer("seeds", 3, "Trainings, the first of which is number 1.", lower_bound=1)
flags.DEFINE_integer("num_new_tokens", 2000, "Tokens to add.", lower_bound=1)
flags.DEFINE_float("learning_rate", 1e-4, "Peak rate of the adaptation.", lower_bound=0.0)
flags.DEFINE_float("minutes", 3.0, "Minutes of a training.", lower_bound=0.1)
flags.DEFINE_integer("rows", 400, "Sentences to fine-tune on; it is tested on twice as many.", lower_bound=10)
flags.DEFINE_integer("pages", 2500, "Manual pages of a language, at most.", lower_bound=40)


# === Text ===


def documents_of(domain: str) -> list[tuple[str, list[str]]]:
    """Returns documents, each a label and its lines; a line occurs once."""
    if domain.startswith("manual"):
        folder = _MANUAL if domain == "manual_en" else os.path.join(_MANUAL, domain.removeprefix("manual_"))
        paths = [path for path in glob.glob(f"{folder}/man[{SECTIONS}]/*.gz") if not os.path.islink(path)]
        # The pages of one program may be thousands.
        programs = Counter()
        paths = [
            path for path in sorted(paths) if programs.update([program := _program(path)]) or programs[program] <= 200
        ]
        paths = sorted(random.Random(0).sample(paths, min(len(paths), FLAGS.pages)))
        texts = [(os.path.basename(os.path.dirname(path)), _render(path)) for path in paths]
    elif domain == "addresses":
        paths = sorted(glob.glob(os.path.join(FLAGS.data_dir, "corpus", "*", "*.txt")))
        texts = [(os.path.basename(os.path.dirname(path)), open(path, encoding="utf-8").read()) for path in paths]
    else:
        rows = open(os.path.join(FLAGS.data_dir, "waimai", "train.csv"), encoding="utf-8").read().split("\n")[1:]
        return [(row[0], [row[2:]]) for row in rows if len(row) > 2]
    seen, documents = set(), []
    for label, text in texts:
        lines = (" ".join(line.split()) for line in text.split("\n"))
        lines = [line for line in lines if len(line.split()) >= _MIN_WORDS and not (line in seen or seen.add(line))]
        if len(lines) >= _MIN_LINES:
            documents.append((label, lines))
    return documents


def _program(path: str) -> str:
    return re.split(r"[-_.]", os.path.basename(path))[0]


def _render(path: str) -> str:
    with gzip.open(path) as file:
        if file.read(4) == b".so ":
            return ""
    environment = {**os.environ, "MANWIDTH": "10000", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["man", "-l", "-P", "cat", path], env=environment, capture_output=True)
    return re.sub(".\b", "", done.stdout.decode("utf-8", "ignore"))


def write_domain(domain: str) -> str:
    """Writes the text of a domain and its labelled sentences, unless they are there; returns their directory."""
    directory = os.path.join(FLAGS.output_dir, domain)
    if os.path.exists(os.path.join(directory, "dev.tsv")):
        return directory
    os.makedirs(directory, exist_ok=True)
    documents = documents_of(domain)
    with open(os.path.join(directory, "text.txt"), "w", encoding="utf-8") as file:
        file.write("\n\n".join("\n".join(lines) for _, lines in documents) + "\n")
    for number, split in enumerate(("train", "dev")):
        by_label = {}
        for label, lines in documents[number::2]:
            by_label.setdefault(label, []).extend(line[:_LONGEST] for line in lines)
        by_label = {label: lines for label, lines in by_label.items() if len(lines) >= FLAGS.rows}
        generator, count = random.Random(number), (1 + number) * FLAGS.rows // max(1, len(by_label))
        rows = [(line, label) for label, lines in sorted(by_label.items()) for line in generator.sample(lines, count)]
        generator.shuffle(rows)
        with open(os.path.join(directory, f"{split}.tsv"), "w", encoding="utf-8") as file:
            file.writelines(f"{line}\t{label}\n" for line, label in [("sentence", "label"), *rows])
    return directory


# === Tokens ===


def count_row(domain: str) -> list[str]:
    """Returns the savings of a domain: of 500, 2,000 and 8,000 new tokens in two ways, and the most."""
    directory = write_domain(domain)
    vocab_file = os.path.join(FLAGS.data_dir, "vocab", f"{DOMAINS[domain]}.txt")
    with open(os.path.join(directory, "text.txt"), encoding="utf-8") as file:
        documents = file.read().split("\n\n")
    held_out = "\n".join(documents[9::10])
    train = "\n\n".join(text for number, text in enumerate(documents) if number % 10 != 9)
    counts = Counter(split_words(train, True))
    train_file, own_file = (os.path.join(directory, name) for name in ("train.txt", "own_vocab.txt"))
    with open(train_file, "w", encoding="utf-8") as file:
        file.write(train)
    train_vocab(VocabularySettings(input_file=[train_file], vocab_file=own_file, vocab_size=30_000))
    old = PythonBertTokenizer(vocab_file, True)
    pieces, before = old.get_vocabulary(), len(old.tokenize(held_out))
    own = [piece for piece in PythonBertTokenizer(own_file, True).get_vocabulary() if piece not in {*pieces}]
    saved = []
    for count in (500, 2000, 8000):
        for added in ([piece.piece for piece in choose_pieces(counts, pieces, count)], own[:count]):
            tokens = len(PythonBertTokenizer([*pieces, *added], True).tokenize(held_out))
            saved.append(f"{1 - tokens / before:.1%}")
    return [domain, f"{before / len(held_out):.4f}", *saved, f"{1 - len(split_words(held_out, True)) / before:.1%}"]


# === Training ===


def run_cell(cell: dict) -> dict:
    """Adapts and fine-tunes; returns the figures."""
    directory, seed = write_domain(cell["domain"]), cell["seed"]
    run, start = os.path.join(directory, f"{cell['side']}_{seed}"), time.process_time()
    figures, preset = {}, _PRESET
    if cell["side"] != "as it is":
        shutil.rmtree(run, ignore_errors=True)
        words = [f"--preset={_PRESET}", f"--input_file={directory}/text.txt", f"--output_dir={run}"]
        words += [f"--num_new_tokens={cell['tokens'] if cell['side'] == 'new words' else 0}", "--max_seq_length=64"]
        words += [f"--time_budget_minutes={cell['minutes']}", "--train_batch_size=16"]
        words += [
            f"--learning_rate={cell['rate']}",
            f"--random_seed={seed}",
            "--save_checkpoints_steps=100000",
            "--eval_batch_size=32",
        ]
        metrics = adapt(task_flags.parse(AdaptSettings, words))
        names = ("tokens_per_character", "masked_lm_loss_per_character", "masked_lm_loss", "train_steps")
        figures, preset = {name: metrics[name] for name in names}, os.path.join(run, "preset")
    figures["cpu"], accuracies = round(time.process_time() - start, 1), []
    for restart in range(3):
        words = [
            f"--preset={preset}",
            f"--output_dir={run}_classifier_{restart}",
            f"--random_seed={10 * seed + restart}",
        ]
        words += [f"--{split}_file={directory}/{split}.tsv" for split in ("train", "dev")]
        words += ["--text_column=sentence", "--label_column=label", "--do_train", "--do_eval", "--max_seq_length=64"]
        words += ["--learning_rate=1e-4", "--train_batch_size=16", "--num_train_epochs=2", "--few_labels=off"]
        words += ["--save_checkpoints_steps=100000", "--eval_batch_size=32"]
        accuracies.append(run_task(Classify(task_flags.parse(ClassifySettings, words)))["accuracy"])
    return {**figures, "accuracy": float(np.mean(accuracies)), "accuracies": accuracies}


def main(_):
    path, done = os.path.join(FLAGS.output_dir, "cells.jsonl"), []
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            done = [json.loads(line) for line in file]
    print(describe_machine())
    header = [
        "held-out tokens",
        "a character",
        *(f"{n:,} {way}" for n in (500, 2000, 8000) for way in ("new", "own")),
        "a word",
    ]
    print(f"\n| {' | '.join(header)} |\n{'| --- ' * len(header)}|")
    for domain in DOMAINS:
        print(f"| {' | '.join(count_row(domain))} |", flush=True)
    rows = {}
    shared = {"minutes": FLAGS.minutes, "tokens": FLAGS.num_new_tokens, "rows": FLAGS.rows, "pages": FLAGS.pages}
    shared |= {"rate": FLAGS.learning_rate}
    for seed in range(1, FLAGS.seeds + 1):
        for domain in FLAGS.domains:
            for side in ("as it is", "old words", "new words"):
                cell = {"domain": domain, "side": side, "seed": seed, **shared}
                scores = next((line["scores"] for line in done if cell.items() <= line.items()), None)
                if scores is None:
                    scores = run_cell(cell)
                    with open(path, "a", encoding="utf-8") as file:
                        file.write(json.dumps({**cell, "scores": scores}) + "\n")
                rows.setdefault((domain, side), []).append(scores)
    names = ("tokens_per_character", "masked_lm_loss_per_character", "masked_lm_loss", "train_steps", "cpu", "accuracy")
    print(f"\n| domain | side | {' | '.join(names)} |\n{'| --- ' * (len(names) + 2)}|")
    for (domain, side), cells in rows.items():
        columns = [[cell[name] for cell in cells if name in cell] for name in names]
        shown = [f"{np.mean(values):.4g} ± {np.std(values):.2g}" if values else "" for values in columns]
        print(f"| {domain} | {side} | {' | '.join(shown)} |")


if __name__ == "__main__":
    app.run(main)
