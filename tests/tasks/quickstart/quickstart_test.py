"""The whole road on a little text: interrupted, continued, served, and refused under other settings."""

import json
import os
import random
import signal
import subprocess
import sys
import time
import types

import numpy as np
import processes
import pytest
import tensorflow as tf

from export.run import ExportSettings
from keras_bert import BertMaskedLM, BertPreprocessor, BertTokenizer
from keras_bert.errors import InputError
from keras_bert.files import write_json
from tasks import flags
from tasks.embedding.data import read_table
from tasks.embedding.task import EmbeddingSettings
from tasks.fine_tuning.model_files import load_model
from tasks.quickstart import learning_curve, pipeline, search
from tasks.quickstart import run as stages
from tasks.quickstart.run import quickstart
from tasks.quickstart.settings import QuickstartSettings
from tasks.text.bad_rows import BadRows

TOPICS = {
    "ships": "ship harbour sailor anchor wave storm captain mast rope tide",
    "bread": "flour oven yeast dough baker crust butter loaf salt kitchen",
    "stars": "orbit planet comet telescope night moon light dust galaxy sun",
}
SIZES = {
    "num_train_steps": 2,
    "num_train_epochs": 1,
    "vocab_size": 200,
    "train_batch_size": 8,
    "max_seq_length": 16,
    "num_labels": 3,
    "rows_per_label": 16,
}


def settings(directory, **changes):
    files = {"input_file": f"{directory}/text/*.txt", "output_dir": f"{directory}/run"}
    return {**files, **SIZES, **changes}


def write_texts(directory):
    """One file a topic: 12 documents of 6 sentences of 8 words."""
    rng = random.Random(0)
    (directory / "text").mkdir()
    for topic, words in TOPICS.items():
        documents = [
            "\n".join("the " + " ".join(rng.choices(words.split(), k=7)) + "." for _ in range(6)) for _ in range(12)
        ]
        (directory / "text" / f"{topic}.txt").write_text("\n\n".join(documents) + "\n")


def start(directory):
    command = [sys.executable, "-u", "-m", "tasks.quickstart"]
    command += [f"--{name}={value}" for name, value in settings(directory).items()]
    # A session of its own: Ctrl-C in a terminal reaches the whole group, and so does the test's. A file, not a pipe:
    # a pipe that nobody reads fills up.
    with open(directory / "out.log", "w") as out:
        return processes.popen(command, stdout=out, stderr=out, start_new_session=True)


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, f"ended before {path.name} was there"
        time.sleep(0.1)


def unfinished_files(directory):
    return [name for _, names, files in os.walk(directory) for name in [*names, *files] if ".partial" in name]


def shrink_learning_curve(monkeypatch):
    """Two seeds, few steps; and the training that `bert-classify` has done is done again, after others."""
    measure = learning_curve.measure
    monkeypatch.setattr(learning_curve, "measure", lambda *args, known: measure(*args, known={}))
    for name, value in {"_SIZES": (4, 100), "_NUM_SEEDS": 2, "_MIN_FINE_TUNING_STEPS": 6}.items():
        monkeypatch.setattr(stages, name, value)


def check_learning_curve(run, metrics, weights):
    """The curve's figures and weights are those of `bert-classify` alone, and its rows the first of each label."""
    small, whole = metrics["learning curve"]["results"]
    assert [small["rows"], whole["rows"]] == [4, 16]
    assert whole["pretrained"][0] == metrics["fine-tuning"]["accuracy"]
    assert len(weights) == 8 and all(0 <= share <= 1 for row in (small, whole) for share in row["random"])
    for ours, expected in zip(weights["train.tsv", True, 12345], alone(run / "classifier"), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)
    for ours, other in zip(weights["train.tsv", True, 12346], weights["train.tsv", True, 12345], strict=True):
        assert ours.shape == other.shape
    header, *rows = (run / "corpus" / "train.tsv").read_text().splitlines()
    first, *few = (run / "corpus" / "train_4.tsv").read_text().splitlines()
    assert first == header
    for topic in TOPICS:
        assert [row for row in few if row.endswith(topic)] == [row for row in rows if row.endswith(topic)][:4]
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")


def alone(directory):
    return load_model(str(directory / "model"), "classification", "bert-classify")[0].get_weights()


def check_masked_words(run, asked):
    """Each hole is one token of a held-out sentence, and its words are the model's own, the best first."""
    assert len(asked) == 5
    sentences = set((run / "corpus" / "held_out.txt").read_text().splitlines())
    preset = str(run / "pretrained" / "preset")
    tokenizer = BertTokenizer.from_preset(preset, special_tokens_in_strings=True)
    model = BertMaskedLM.from_preset(preset, preprocessor=None)
    for hole in asked:
        assert hole["text"].replace("[MASK]", hole["word"]) in sentences
        encoded = BertPreprocessor(tokenizer, 16, pad_to_longest=True)([hole["text"]])
        places = np.flatnonzero(encoded["token_ids"][0] == tokenizer.mask_token_id)
        assert len(places) == 1 and len(tokenizer(hole["word"])) == 1
        logits = model.predict({**encoded, "mask_positions": places[None].astype("int32")}, verbose=0)[0, 0]
        best = np.argsort(-logits)[:5]
        assert [word for word, _ in hole["best"]] == [tokenizer.get_vocabulary()[place] for place in best]
        probabilities = np.exp(logits - logits.max())[best] / np.exp(logits - logits.max()).sum()
        np.testing.assert_allclose([share for _, share in hole["best"]], probabilities, rtol=1e-4)


class SearchCommands:
    """Reads the flags of the commands and writes what they would: embedding_test.py runs them."""

    FOUND = ["ships: the sea", "bread: the oven"]

    def __call__(self, command, **given):
        kind = {"bert-embed": EmbeddingSettings, "bert-export": ExportSettings}[command]
        read = flags.parse(kind, [f"--{name}={value}" for name, value in given.items()])
        if command == "bert-embed":
            assert all(
                read_table(path, None, None, BadRows("refuse")).num_texts == 2
                for path in (read.train_file, read.dev_file)
            )
            write_json(f"{read.output_dir}/metrics.json", {"recall@10": 0.5})
            return
        module = tf.Module()

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
        def query(text):
            return {"passages": tf.repeat(tf.constant([self.FOUND]), tf.size(text), 0)}

        tf.saved_model.save(module, f"{read.export_dir}/1", signatures={"query": query})


def test_interrupted_then_continued_to_answers(tmp_path, monkeypatch, capfd):
    write_texts(tmp_path)
    process = start(tmp_path)
    wait_for(tmp_path / "run" / "pretrained" / "flags.json", process)  # The fourth stage has begun.
    os.killpg(process.pid, signal.SIGINT)
    status, said = process.wait(timeout=900), (tmp_path / "out.log").read_text()
    assert status == 130, said
    assert "Traceback" not in said
    assert unfinished_files(tmp_path) == []

    # The commands of the stages are forked: each would take seconds to import TensorFlow.
    forking = types.SimpleNamespace(Popen=processes.popen, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(pipeline, "subprocess", forking)

    shrink_learning_curve(monkeypatch)
    train, weights = learning_curve.SharedTraining.train, {}

    def train_and_keep(self, task):
        accuracy = train(self, task)
        key = (os.path.basename(task.settings.train_file), task.settings.load_weights, task.settings.random_seed)
        weights[key] = self._model.get_weights()
        return accuracy

    monkeypatch.setattr(learning_curve.SharedTraining, "train", train_and_keep)
    monkeypatch.setattr(search, "run_command", SearchCommands())
    monkeypatch.setenv("PATH", "")  # Without g++, the export is verified in Python alone.
    metrics = quickstart(QuickstartSettings(**settings(tmp_path)))
    out = capfd.readouterr().out
    for stage in ("[1] corpus", "[2] vocabulary", "[3] pre-training data"):
        assert f"{stage}: done before, kept." in out
    assert "[4] pre-training\n$ bert-pretrain" in out
    assert json.loads((tmp_path / "run" / "metrics.json").read_text()) == metrics
    assert metrics["corpus"]["labels"] == sorted(TOPICS)
    assert metrics["corpus"]["documents"] == 36
    check_learning_curve(tmp_path / "run", metrics, weights)
    check_masked_words(tmp_path / "run", metrics["masked words"]["asked"])
    assert [answer["label"] in TOPICS for answer in metrics["serving"]["answers"]] == [True] * 3
    for name in ("search", "search, random start"):
        assert metrics[name]["recall@10"] == 0.5 and 0 < metrics[name]["bm25_recall@10"] <= 1
    assert metrics["search export"]["found"] == SearchCommands.FOUND
    assert "\n  how do I read a csv file\n    -> ships: the sea\n    -> bread: the oven\n" in out
    for line in ("stage", "corpus", "pre-training", "masked words", "learning curve", "serving", "total"):
        assert any(row.startswith(line) for row in out.splitlines())
    assert (tmp_path / "run" / "pretrained" / "curve.png").stat().st_size > 10_000
    assert unfinished_files(tmp_path) == []

    with pytest.raises(InputError, match="random_seed was 12345, is 7"):
        quickstart(QuickstartSettings(**settings(tmp_path, random_seed=7)))
