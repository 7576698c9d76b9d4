"""Tables from TensorFlow Datasets: by a stand-in for the package, and by the package itself where it is installed."""

import importlib.machinery
import os
import subprocess
import sys
import types

import numpy as np
import pytest
from run_tasks import read_tables

from keras_bert.errors import InputError
from tasks.classify.data import choose_task, read_tfds
from tasks.text.bad_rows import BadRows


class ClassLabel:
    def __init__(self, *names):
        self.names = list(names)


def example(idx: int, label, **texts) -> dict:
    """As `tfds.as_numpy` gives it: bytes and NumPy scalars."""
    texts = {name: text.encode() for name, text in texts.items()}
    return {"idx": np.int32(idx), "label": label, **texts}


DATA = {
    "glue/sst2": (
        {"idx": None, "sentence": None, "label": ClassLabel("negative", "positive")},
        {  # Stored in another order than that of the files, as the package does.
            "train": [
                example(1, np.int64(1), sentence="schön"),
                example(2, np.int64(0), sentence="b"),
                example(0, np.int64(0), sentence="c"),
            ],
            "validation": [example(0, np.int64(1), sentence="d")],
            "test": [example(1, np.int64(-1), sentence="e"), example(0, np.int64(-1), sentence="f")],
        },
    ),
    "glue/mnli": (
        {
            "idx": None,
            "premise": None,
            "hypothesis": None,
            "label": ClassLabel("entailment", "neutral", "contradiction"),
        },
        {
            f"{split}{suffix}": [example(0, np.int64(2), premise=suffix or "t", hypothesis="h")]
            for split, suffixes in {
                "train": [""],
                "validation": ["_matched", "_mismatched"],
                "test": ["_matched", "_mismatched"],
            }.items()
            for suffix in suffixes
        },
    ),
    "glue/stsb": (
        {"idx": None, "sentence1": None, "sentence2": None, "label": object()},
        {"train": [example(0, np.float32(2.5), sentence1="a", sentence2="b")]},
    ),
    "reviews": (
        {"text": None, "label": ClassLabel("bad", "good")},
        {"train": [{"text": b"a", "label": np.int64(1)}, {"text": b"b", "label": np.int64(0)}]},
    ),
}


class Builder:
    def __init__(self, name: str):
        features, self._splits = DATA[name]
        self.info = types.SimpleNamespace(features=features, splits={split: None for split in self._splits})

    def download_and_prepare(self):
        pass

    def as_dataset(self, split: str):
        name, _, part = split.partition("[:")
        return self._splits[name][: int(part[:-1]) if part else None]


@pytest.fixture(name="package")
def _package(monkeypatch):
    """A stand-in with the package's calls, and the data directories it was asked for."""
    asked = []

    def builder(name: str, data_dir: str | None = None):
        asked.append(data_dir)
        if name not in DATA:
            raise ValueError(f"Dataset {name} not found.\nThere are thousands.")
        return Builder(name)

    spec = importlib.machinery.ModuleSpec("tensorflow_datasets", None)
    package = types.SimpleNamespace(builder=builder, as_numpy=lambda dataset: iter(dataset), asked=asked, __spec__=spec)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", package)
    return package


def test_glue_by_name_alone(package):
    inputs = read_tables("train", "eval", "predict", tfds_name="glue/sst2", data_dir="here")
    train, dev, test = (part.rows for part in inputs.parts)
    assert inputs.spec.labels == ["0", "1"]
    assert train.texts == ["c", "schön", "b"] and train.labels == ["0", "1", "0"]
    assert dev.labels == ["1"] and dev.place(0) == "glue/sst2[validation]:0"
    assert test.texts == ["f", "e"] and test.labels is None
    assert choose_task("table", "glue/sst2").test[0].submission == "SST-2.tsv" and set(package.asked) == {"here"}


def test_mnli_has_two_of_each(package):
    inputs = read_tables("train", "eval", "predict", tfds_name="glue/mnli")
    assert [part.rows.texts for part in inputs.parts] == [["t"], *[["_matched"], ["_mismatched"]] * 2]
    assert inputs.parts[0].rows.labels == ["contradiction"]  # Number 2 there, 0 in google-research/bert's order.
    assert inputs.spec.labels == ["contradiction", "entailment", "neutral"]


def test_scores_are_numbers(package):
    inputs = read_tables("train", tfds_name="glue/stsb")
    assert inputs.parts[0].rows.labels == [2.5] and inputs.spec.is_regression


def test_any_other_set_has_its_own_label_names_and_splits(package):
    inputs = read_tables("train", "eval", tfds_name="reviews", train_file="train", dev_file="train[:1]")
    assert inputs.spec.labels == ["bad", "good"] and inputs.parts[0].rows.labels == ["good", "bad"]
    assert inputs.parts[1].rows.texts == ["a"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tfds_name": "nope"}, "--tfds_name=nope: Dataset nope not found. See tfds.list_builders"),
        ({"tfds_name": "reviews", "train_file": "validation"}, "no split 'validation'. There are: train."),
        ({"tfds_name": "reviews", "text_column": "review"}, "no feature 'review'. There are: text, label."),
        ({"tfds_name": "glue/sst2", "train_file": "test"}, r"glue/sst2\[test\]:0: feature 'label' is -1: no label"),
    ],
)
def test_what_can_be_wrong(package, settings, message):
    with pytest.raises(InputError, match=message):
        read_tables("train", **settings)


def test_a_failing_download_is_one_line(package, monkeypatch):
    def fail(self):
        raise ConnectionError("no route to host\nand so on")

    monkeypatch.setattr(Builder, "download_and_prepare", fail)
    with pytest.raises(InputError, match=r"cannot be downloaded and prepared \(ConnectionError: no route to host\)"):
        read_tables("train", tfds_name="reviews")


def test_the_task_follows_from_the_name():
    assert choose_task("table", "glue/qqp:2.0.0").text_column == "question1"
    assert choose_task("sst2", "my/own").name == "sst2" and choose_task("table", "imdb_reviews").name == "table"


_WITH_THE_PACKAGE = """
import sys
import tensorflow as tf
import tensorflow_datasets as tfds
features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "idx": tfds.features.Scalar(tf.int32),
                                       "label": tfds.features.ClassLabel(names=["bad", "good"])})
texts = {"train": ["eins", "zwei", "drei"], "test": ["vier"]}
splits = {name: tf.data.Dataset.from_tensor_slices(
              {"text": rows, "idx": list(range(len(rows))), "label": [i % 2 for i in range(len(rows))]})
          for name, rows in texts.items()}
builder = tfds.dataset_builders.TfDataBuilder(
    name="toy_reviews", version="1.0.0", data_dir=sys.argv[1], split_datasets=splits, features=features)
builder.download_and_prepare()

from run_tasks import read_tables
inputs = read_tables("train", "eval", "predict", tfds_name="toy_reviews", data_dir=sys.argv[1], dev_file="train[:34%]")
print([(part.rows.texts, part.rows.labels) for part in inputs.parts])
"""


@pytest.mark.oracle
def test_a_set_that_the_package_itself_has_written(tmp_path):
    pytest.importorskip("tensorflow_datasets", reason="tensorflow-datasets is not installed")
    pytest.importorskip("importlib_resources", reason="tensorflow-datasets writes with importlib_resources")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", _WITH_THE_PACKAGE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    whole, part, test = eval(done.stdout.strip().splitlines()[-1])
    assert whole == (["eins", "zwei", "drei"], ["bad", "good", "bad"]) and test == (["vier"], None)
    assert len(part[0]) == 1


def test_bad_rows_go_through_the_same_door(package):
    bad_rows = BadRows("skip")
    table = read_tfds("glue/sst2", None, "train", choose_task("table", "glue/sst2"), bad_rows)
    assert len(table.texts) == 3 and bad_rows.count == 0
