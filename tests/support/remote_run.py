"""A whole run with a URL for every path: text, vocabulary, data, pre-training, fine-tuning, export, an answer."""

import json
import os
import signal
import sys

import numpy as np
from run_tasks import classify
from toy_classifier import ANIMALS, COLUMNS, FILLER, TOOLS, toy_rows

from export.base_path import existing_versions
from export.run import ExportSettings, export
from export.server.servable import ServedModel
from export.server.server_settings import ServerSettings
from keras_bert import files
from tasks.engine.checkpoints import Checkpoints
from tasks.pretraining.create_data import create_pretraining_data
from tasks.pretraining.data.settings import DataSettings
from tasks.pretraining.run import pretrain
from tasks.pretraining.train.settings import PretrainingSettings
from tasks.pretraining.train_vocab import VocabularySettings, train_vocab

NUM_STEPS = 8
_SIZES = {"max_seq_length": 16, "max_predictions_per_seq": 3}
_TRAINING = {"train_batch_size": 16, "max_seq_length": 24, "num_train_epochs": 2, "random_seed": 3}


def create_data(root: str) -> dict:
    """Writes text and tables, then a vocabulary and records of the text."""
    rng = np.random.default_rng(0)
    words = [*ANIMALS, *TOOLS, *FILLER]
    for name in ("a", "b"):
        lines = [" ".join(rng.choice(words, 6)) if number % 9 else "" for number in range(200)]
        files.write_lines(f"{root}/text/{name}.txt", lines)
    for split, count in (("train", 80), ("dev", 20)):
        files.write_table(f"{root}/tables/{split}.tsv", ("words", "kind"), toy_rows(count, 0))
    rows = enumerate(text for text, _ in toy_rows(10, 2))
    files.write_table(f"{root}/tables/test.tsv", ("id", "words"), rows)
    text, vocabulary = f"{root}/text/*.txt", f"{root}/vocab.txt"
    train_vocab(VocabularySettings(input_file=text, vocab_file=vocabulary, vocab_size=120, num_workers=1))
    output = {"output_file": f"{root}/data/train.tfrecord", "num_shards": 2, "num_workers": 1}
    return create_pretraining_data(DataSettings(input_file=text, vocab_file=vocabulary, **output, **_SIZES))


def pre_train(root: str) -> dict:
    settings = {
        "input_file": f"{root}/data/train.tfrecord-*",
        "eval_input_file": f"{root}/data/train.tfrecord-*",
        "vocab_file": f"{root}/vocab.txt",
        "output_dir": f"{root}/pretrained",
        "preset": "tiny",
        "num_layers": 1,
        "hidden_dim": 32,
        "num_heads": 2,
        "train_batch_size": 16,
        "num_train_steps": NUM_STEPS,
        "num_warmup_steps": 1,
        "save_checkpoints_steps": NUM_STEPS // 2,
        "do_train": True,
        "do_eval": True,
        "max_eval_steps": 2,
        "jit_compile": False,
        **_SIZES,
    }
    return pretrain(PretrainingSettings(**settings))


def pre_train_and_die(root: str) -> None:
    """Kills this process behind the first checkpoint."""
    save = Checkpoints.save

    def save_and_die(self, keep):
        save(self, keep)
        os.kill(os.getpid(), signal.SIGKILL)

    Checkpoints.save = save_and_die
    pre_train(root)


def fine_tune(root: str) -> dict:
    places = {"preset": f"{root}/pretrained/preset", "data_dir": f"{root}/tables", "output_dir": f"{root}/tuned"}
    stages = dict.fromkeys(("do_train", "do_eval", "do_predict"), True)
    return classify(**places, **stages, **COLUMNS, **_TRAINING)


def serve(root: str) -> list[str]:
    """Exports the fine-tuned model; returns the labels that the export gives to two texts."""
    export(ExportSettings(model_dir=f"{root}/tuned/model", export_dir=f"{root}/served/kinds", with_cc="off"))
    number, directory = existing_versions(f"{root}/served/kinds")[-1]
    model = ServedModel(directory, "kinds", number, ServerSettings(runtime="tensorflow"))
    answers = model.run("serving_default", {"text": np.array([b"cat", b"saw"])})
    return [label.decode() for label in answers["label"]]


STAGES = {stage.__name__: stage for stage in (create_data, pre_train, pre_train_and_die, fine_tune, serve)}

if __name__ == "__main__":
    print(json.dumps([STAGES[name](sys.argv[1]) for name in sys.argv[2:]], default=float))
