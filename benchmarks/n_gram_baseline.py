"""Scores n-grams with logistic regression: a baseline without a large model for classifiers of single texts.

    .venv/bin/python benchmarks/n_gram_baseline.py --data_dir=../shared/data/waimai --text_column=review --analyzer=char
    .venv/bin/python benchmarks/n_gram_baseline.py --data_dir=../shared/data/sst2 --task_name=sst2

TF-IDF of n-grams with logistic regression, both from scikit-learn. The longest n-gram, binary or logarithmic counts,
the rarest n-gram kept, and the regularization are chosen by the accuracy on a tenth of the training rows, drawn by
--random_seed. The model is then trained on all of them and scored on the dev file.
"""

import itertools
import time

from absl import flags
from tqdm import tqdm

from tasks import flags as task_flags

FLAGS = flags.FLAGS

GRID = {"n_grams": [1, 2, 3], "counts": ["binary", "logarithmic"], "min_df": [1, 2], "c": [1.0, 3.0, 10.0, 30.0]}

flags.DEFINE_string("data_dir", None, "Directory of train and dev files, as of bert-classify.")
flags.DEFINE_string("task_name", "table", "Task, as of bert-classify.")
flags.DEFINE_string("text_column", None, "Column with the text; default: the task's.")
flags.DEFINE_enum("analyzer", "word", ["word", "char"], "What the n-grams consist of.")
flags.DEFINE_integer("random_seed", 0, "Seed of the rows that the settings are chosen on.", lower_bound=0)


def read_rows() -> list[tuple[list[str], list[str]]]:
    """Returns the texts and labels of the train file and of the dev file.

    Raises:
        InputError: a file cannot be read.
    """
    from tasks.classify.task import Classify, ClassifySettings
    from tasks.text.bad_rows import BadRows

    names = ("data_dir", "task_name", "text_column")
    task = Classify(ClassifySettings(output_dir="", **{name: FLAGS[name].value for name in names}))
    tables = [task.read(split, BadRows())[0].rows for split in ("train", "dev")]
    return [(table.texts, table.labels) for table in tables]


def vectorizer(n_grams: int, counts: str, min_df: int):
    """Returns a TF-IDF vectorizer of n-grams of 1 to `n_grams` words or characters."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        analyzer=FLAGS.analyzer,
        ngram_range=(1, n_grams),
        binary=counts == "binary",
        sublinear_tf=counts == "logarithmic",
        min_df=min_df,
    )


def predict(features: tuple, labels: list[str], c: float):
    """Trains on the first features and their labels, and returns the labels predicted for the second."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=c, solver="liblinear", random_state=0).fit(features[0], labels).predict(features[1])


def choose(texts: list[str], labels: list[str], seed: int) -> dict:
    """Returns the settings with the highest accuracy on a tenth of the rows, the first of equals."""
    from sklearn.metrics import accuracy_score
    from sklearn.model_selection import train_test_split

    *splits, first, second = train_test_split(texts, labels, test_size=0.1, random_state=seed, stratify=labels)
    best, chosen = -1.0, {}
    tables = list(itertools.product(GRID["n_grams"], GRID["counts"], GRID["min_df"]))
    for n_grams, counts, min_df in tqdm(tables, desc="choose settings", mininterval=0.5):
        counter = vectorizer(n_grams, counts, min_df)
        features = counter.fit_transform(splits[0]), counter.transform(splits[1])
        for c in GRID["c"]:
            score = float(accuracy_score(second, predict(features, first, c)))
            if score > best:
                best, chosen = score, {"n_grams": n_grams, "counts": counts, "min_df": min_df, "c": c}
    return {**chosen, "accuracy": best}


def main(argv: list[str]) -> None:
    """Prints the chosen settings, the accuracy and Matthews' correlation."""
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    del argv
    started = time.monotonic()
    (texts, labels), (dev_texts, dev_labels) = read_rows()
    chosen = choose(texts, labels, FLAGS.random_seed)
    held_out = chosen.pop("accuracy")
    c = chosen.pop("c")
    counter = vectorizer(**chosen)
    predicted = predict((counter.fit_transform(texts), counter.transform(dev_texts)), labels, c)
    majority = max(map(dev_labels.count, set(dev_labels))) / len(dev_labels)
    print(f"{len(texts)} training rows, {len(dev_texts)} dev rows, {time.monotonic() - started:.0f} s")
    print(f"chosen: {chosen | {'c': c}}, accuracy {held_out:.2%} on a tenth of the training rows")
    print(f"dev accuracy: {accuracy_score(dev_labels, predicted):.2%} (the more frequent label: {majority:.2%})")
    print(f"Matthews correlation: {100 * matthews_corrcoef(dev_labels, predicted):.1f}")


if __name__ == "__main__":
    flags.mark_flag_as_required("data_dir")
    task_flags.run(main)
