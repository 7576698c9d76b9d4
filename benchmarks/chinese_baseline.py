"""Character n-grams on the Chinese reviews: the baseline for recipes/chinese/run.sh.

    .venv/bin/python benchmarks/chinese_baseline.py [--data_dir=../shared/data/waimai]

TF-IDF of character n-grams with logistic regression, both from scikit-learn. The longest n-gram, binary or logarithmic
counts, the rarest n-gram kept, and the regularization are chosen by the accuracy on a tenth of the training rows, drawn
by --random_seed. The model is then trained on all of them and scored on the dev file.
"""

import csv
import itertools
import os
import time

from absl import flags
from tqdm import tqdm

from keras_bert.errors import InputError
from tasks import flags as task_flags

FLAGS = flags.FLAGS

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GRID = {"n_grams": [1, 2, 3], "counts": ["binary", "logarithmic"], "min_df": [1, 2], "c": [1.0, 3.0, 10.0, 30.0]}

flags.DEFINE_string(
    "data_dir", os.path.join(_ROOT, "..", "shared", "data", "waimai"), "Directory of train.csv, dev.csv."
)
flags.DEFINE_integer("random_seed", 0, "Seed of the rows that the settings are chosen on.", lower_bound=0)


def read_reviews(path: str) -> tuple[list[str], list[str]]:
    """Reads texts and labels from a CSV file with the columns label and review.

    Raises:
        InputError: there is no such file.
    """
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file. Give --data_dir, the directory of train.csv and dev.csv.")
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["review"] for row in rows], [row["label"] for row in rows]


def vectorizer(n_grams: int, counts: str, min_df: int):
    """Returns a TF-IDF vectorizer of n-grams of 1 to `n_grams` characters."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        analyzer="char",
        ngram_range=(1, n_grams),
        binary=counts == "binary",
        sublinear_tf=counts == "logarithmic",
        min_df=min_df,
    )


def accuracy(features: tuple, labels: tuple, c: float) -> float:
    """Trains on the first of each pair, scores on the second."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=c, solver="liblinear", random_state=0).fit(features[0], labels[0])
    return float(model.score(features[1], labels[1]))


def choose(texts: list[str], labels: list[str], seed: int) -> dict:
    """Returns the settings with the highest accuracy on a tenth of the rows, the first of equals."""
    from sklearn.model_selection import train_test_split

    *parts, first, second = train_test_split(texts, labels, test_size=0.1, random_state=seed, stratify=labels)
    best, chosen = -1.0, {}
    tables = list(itertools.product(GRID["n_grams"], GRID["counts"], GRID["min_df"]))
    for n_grams, counts, min_df in tqdm(tables, desc="choose settings", mininterval=0.5):
        counter = vectorizer(n_grams, counts, min_df)
        features = counter.fit_transform(parts[0]), counter.transform(parts[1])
        for c in GRID["c"]:
            score = accuracy(features, (first, second), c)
            if score > best:
                best, chosen = score, {"n_grams": n_grams, "counts": counts, "min_df": min_df, "c": c}
    return {**chosen, "accuracy": best}


def main(argv: list[str]) -> None:
    """Prints the chosen settings and the accuracy."""
    del argv
    started = time.monotonic()
    (texts, labels), (dev_texts, dev_labels) = (
        read_reviews(os.path.join(FLAGS.data_dir, name)) for name in ("train.csv", "dev.csv")
    )
    chosen = choose(texts, labels, FLAGS.random_seed)
    held_out = chosen.pop("accuracy")
    c = chosen.pop("c")
    counter = vectorizer(**chosen)
    features = counter.fit_transform(texts), counter.transform(dev_texts)
    score = accuracy(features, (labels, dev_labels), c)
    majority = max(map(dev_labels.count, set(dev_labels))) / len(dev_labels)
    print(f"{len(texts)} training rows, {len(dev_texts)} dev rows, {time.monotonic() - started:.0f} s")
    print(f"chosen: {chosen | {'c': c}}, accuracy {held_out:.2%} on a tenth of the training rows")
    print(f"dev accuracy: {score:.2%} (the more frequent label: {majority:.2%})")


if __name__ == "__main__":
    task_flags.run(main)
