"""Makes rows with SWAG's columns from plain text: which of four sentences of a document comes next?

    .venv/bin/python benchmarks/swag_rows.py --output_dir=runs/swag_data \\
        [--train_text='../shared/data/corpus/state_union/*.txt'] [--dev_text='../shared/data/corpus/inaugural/*.txt']

This is a substitute if SWAG is not available. bert-swag reads the files like SWAG's, but the wrong choices are real
sentences of the same document, at least three away from the context, instead of a language model's sentences that other
models could not tell from right ones. So the scores say nothing about SWAG. They show whether the command learns, and
what peers score.

Each file is a document. Each sentence is a context at most once, contexts and choices have 5 to 40 words, and the
choices of a row differ. Writes --num_train_rows rows to train.csv and --num_dev_rows rows to val.csv, in random order.
"""

import csv
import os
import random

from absl import flags

from keras_bert.errors import InputError
from keras_bert.files import atomic_path, expand_files, read_lines
from tasks import flags as task_flags
from tasks.pretraining.data.corpus import sentence_splitter

FLAGS = flags.FLAGS

_CORPUS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "..", "shared", "data", "corpus")
NUM_CHOICES = 4
WORDS = range(5, 41)
DISTANCE = 3  # Sentences from a context to its wrong choices. Nearer ones often continue it as well.

flags.DEFINE_string("train_text", os.path.join(_CORPUS, "state_union", "*.txt"), "Text files of the training rows.")
flags.DEFINE_string("dev_text", os.path.join(_CORPUS, "inaugural", "*.txt"), "Text files of the rows to score on.")
flags.DEFINE_integer("num_train_rows", 2000, "Rows of train.csv.", lower_bound=1)
flags.DEFINE_integer("num_dev_rows", 1000, "Rows of val.csv.", lower_bound=1)
flags.DEFINE_string("output_dir", None, "Directory for train.csv and val.csv.", required=True)
flags.DEFINE_integer("random_seed", 12345, "Seed of choices and orders.", lower_bound=0)


def make_rows(documents: dict[str, list[str]], num_rows: int, seed: int) -> list[dict]:
    """Makes rows from the sentences of documents, given by name.

    Raises:
        InputError: the documents are too few or too short for so many rows.
    """
    draw = random.Random(seed)
    rows = []
    for name, sentences in documents.items():
        useful = [place for place, sentence in enumerate(sentences) if len(sentence.split()) in WORDS]
        known = set(useful)
        for place in useful:
            if place + 1 not in known:
                continue
            right = sentences[place + 1]
            wrong = sorted({sentences[far] for far in useful if abs(far - place) >= DISTANCE} - {right})
            if len(wrong) >= NUM_CHOICES - 1:
                rows.append(_row(f"{name}:{place}", sentences[place], right, wrong, draw))
    if len(rows) < num_rows:
        raise InputError(f"{len(documents)} documents give {len(rows)} rows. Expected {num_rows}: give more text.")
    return draw.sample(rows, num_rows)


def _row(name: str, context: str, right: str, wrong: list[str], draw: random.Random) -> dict:
    choices = draw.sample(wrong, NUM_CHOICES - 1)
    label = draw.randrange(NUM_CHOICES)
    choices.insert(label, right)
    row = {
        "video-id": name,
        "fold-ind": 0,
        "startphrase": context,
        "sent1": context,
        "sent2": "",
        "gold-source": "gold",
    }
    return {**row, **{f"ending{number}": choice for number, choice in enumerate(choices)}, "label": label}


def read_documents(pattern: str) -> dict[str, list[str]]:
    """Reads the sentences of each file that matches a pattern.

    Raises:
        InputError: no such file, or one that is not UTF-8.
    """
    split = sentence_splitter("sentencex", "en")
    return {
        os.path.basename(path): [
            " ".join(sentence.split()) for _, line in read_lines(path) for sentence in split(line) if sentence.strip()
        ]
        for path in expand_files([pattern])
    }


def main(argv: list[str]) -> None:
    """Writes train.csv and val.csv."""
    del argv
    os.makedirs(FLAGS.output_dir, exist_ok=True)
    for split, text, num_rows in (
        ("train", FLAGS.train_text, FLAGS.num_train_rows),
        ("val", FLAGS.dev_text, FLAGS.num_dev_rows),
    ):
        rows = make_rows(read_documents(text), num_rows, FLAGS.random_seed)
        path = os.path.join(FLAGS.output_dir, f"{split}.csv")
        with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["", *rows[0]])
            writer.writeheader()
            writer.writerows({"": number, **row} for number, row in enumerate(rows))
        print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    task_flags.run(main)
