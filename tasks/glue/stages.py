"""The stages of `bert-classify`: train, evaluate, predict; each writes its files to the run's output directory.

Shapes: N rows of a table, C classes.
"""

import csv
import dataclasses
import os
import time
import zlib
from collections import Counter

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_json, write_json
from keras_bert.preprocessor import BertPreprocessor
from keras_bert.tokenizer import BertTokenizer
from tasks.build_trainer import build_trainer
from tasks.checkpoints import keep_settings
from tasks.glue import data, metrics
from tasks.glue.losses import ClassificationObjective
from tasks.glue.model import Classifier, build_classifier, load_classifier, save_classifier
from tasks.settings import CHANGEABLE, TrainingSettings, identify
from tasks.training import Trainer

MODEL_DIRECTORY = "model"
METRICS_FILE = "metrics.json"
PREDICTIONS_FILE = "predictions.tsv"
CONFUSION_FILE = "confusion_matrix.png"


@dataclasses.dataclass(frozen=True)
class Settings(TrainingSettings):
    """How a classifier is trained; the defaults are the paper's (appendix A.3). The flags have the same names.

    Attributes:
        preset: encoder and vocabulary to start from.
        load_weights: False starts from random weights.
        max_seq_length: tokens of a row at most; with `jit_compile` every row is padded to it.
        num_train_epochs: passes over the rows.
        warmup_proportion: share of the steps over which the learning rate rises.
    """

    preset: str
    load_weights: bool = True
    max_seq_length: int = 128
    num_train_epochs: float = 3.0
    warmup_proportion: float = 0.1


def train(
    table: data.Table, labels: list[str], settings: Settings, *, output_dir: str, dev: data.Table | None = None
) -> Classifier:
    """Fine-tunes a preset on a table and writes `output_dir/model`; continues from the last checkpoint there.

    Args:
        table: the rows, with labels.
        labels: the labels in the order of their class numbers.
        settings: how to train.
        output_dir: where the model, its checkpoints, events, curve and metrics.json are written.
        dev: rows to evaluate on at every checkpoint, for the curve; or None.

    Returns:
        The trained `Classifier`.

    Raises:
        InputError: the preset does not fit, or `output_dir` holds a training with other settings.
    """
    started = time.perf_counter()
    num_steps = data.count_steps(len(table.texts), settings.train_batch_size, settings.num_train_epochs)
    num_texts = 1 if table.text_pairs is None else 2
    classifier, trainer = _start(settings, labels, num_texts, num_steps, output_dir)
    keep_settings(output_dir, _identity(table, classifier, settings))
    encoded = _encode(classifier, table, "train")
    held_out = None
    if dev is not None:
        held_out, _ = data.make_eval_dataset(_encode(classifier, dev, "dev"), settings.eval_batch_size)
    length = settings.max_seq_length if settings.jit_compile else None  # XLA compiles every shape anew
    batch = (settings.train_batch_size, settings.random_seed)
    first_step = trainer.restore()
    trainer.fit(
        lambda step: data.make_train_dataset(encoded, *batch, start_step=step, num_steps=num_steps, length=length),
        num_steps,
        save_checkpoints_steps=settings.save_checkpoints_steps,
        evaluate=None if held_out is None else lambda: trainer.evaluate(held_out),
        description="fine-tuning",
    )
    save_classifier(os.path.join(output_dir, MODEL_DIRECTORY), *classifier)
    counts = Counter(table.labels)
    results = {
        "train_rows": len(table.texts),
        "train_label_counts": {label: counts[label] for label in labels},
        "train_steps": num_steps,
    }
    if first_step < num_steps:
        results["train_seconds"] = round(time.perf_counter() - started, 2)
    else:  # A finished training: what an earlier call measured is still true.
        results = {**read_metrics(output_dir), **results}
    write_json(os.path.join(output_dir, METRICS_FILE), results)
    return classifier


def _start(
    settings: Settings, labels: list[str], num_texts: int, num_steps: int, output_dir: str
) -> tuple[Classifier, Trainer]:
    """Builds the untrained classifier of a preset, and its trainer."""
    tokenizer = BertTokenizer.from_preset(settings.preset)

    def build_model():
        backbone = BertBackbone.from_preset(settings.preset, load_weights=settings.load_weights)
        _check_preset(settings, backbone, tokenizer)
        return build_classifier(backbone, len(labels))

    trainer = build_trainer(
        settings,
        build_model,
        ClassificationObjective(),
        output_dir=output_dir,
        num_train_steps=num_steps,
        num_warmup_steps=int(num_steps * settings.warmup_proportion),
    )
    return Classifier(trainer.model, tokenizer, labels, settings.max_seq_length, num_texts), trainer


def _check_preset(settings: Settings, backbone: BertBackbone, tokenizer: BertTokenizer) -> None:
    if settings.max_seq_length > backbone.max_sequence_length:
        raise InputError(
            f"--max_seq_length={settings.max_seq_length}: {settings.preset} has positions for "
            f"{backbone.max_sequence_length} tokens. Give at most that many."
        )
    if tokenizer.vocabulary_size() > backbone.vocabulary_size:
        raise InputError(
            f"{settings.preset}: the vocabulary has {tokenizer.vocabulary_size()} tokens, but the encoder's table "
            f"has {backbone.vocabulary_size} rows. They are not of one checkpoint."
        )


def _identity(table: data.Table, classifier: Classifier, settings: Settings) -> dict:
    """What must stay when a stopped training continues; the preset by its content, not by its path."""
    backbone = next(layer for layer in classifier.model.layers if isinstance(layer, BertBackbone))
    changeable = CHANGEABLE | {"preset"}
    return {
        **identify(
            settings, backbone, classifier.tokenizer, weights_are_loaded=settings.load_weights, changeable=changeable
        ),
        "labels": classifier.labels,
        "train_rows_checksum": zlib.crc32(repr(table[2:]).encode()),
    }


def _encode(classifier: Classifier, table: data.Table, split: str) -> data.EncodedTable:
    preprocessor = BertPreprocessor(
        classifier.tokenizer, sequence_length=classifier.sequence_length, pad_to_longest=True
    )
    return data.encode_table(table, preprocessor, classifier.labels, f"tokenize {split}")


def load(output_dir: str, tables: list[data.Table]) -> Classifier:
    """Loads the trained classifier of a run.

    Raises:
        InputError: there is none, or it was trained on another number of texts a row than the tables have.
    """
    directory = os.path.join(output_dir, MODEL_DIRECTORY)
    classifier = load_classifier(directory)
    for table in tables:
        num_texts = 1 if table.text_pairs is None else 2
        if num_texts != classifier.num_texts:
            raise InputError(
                f"{table.path}: {num_texts} text column(s) named, but {directory} was trained on "
                f"{classifier.num_texts}. Give --text_pair_column for a model of pairs, and only then."
            )
    return classifier


def compute_logits(classifier: Classifier, encoded: data.EncodedTable, batch_size: int, description: str) -> np.ndarray:
    """Applies a classifier to every row: float32, shape (N, C), in the table's order."""
    dataset, order = data.make_eval_dataset(encoded, batch_size)

    @tf.function(input_signature=dataset.element_spec[:1])
    def forward(features):
        return classifier.model(features, training=False)

    logits = np.empty((len(order), len(classifier.labels)), np.float32)
    with tqdm(total=len(order), desc=description, unit="row", mininterval=0.5) as progress:
        for features, *_ in dataset:
            batch = forward(features).numpy()
            logits[order[progress.n : progress.n + len(batch)]] = batch
            progress.update(len(batch))
    return logits


def evaluate(
    classifier: Classifier, table: data.Table, metric: str, *, output_dir: str, eval_batch_size: int = 32
) -> dict:
    """Scores a classifier on a labelled table; adds to `metrics.json` and draws `confusion_matrix.png`.

    Args:
        classifier: the model to score.
        table: the rows, with labels.
        metric: a key of `metrics.METRICS`: the task's main figure.
        output_dir: where to write; its `metrics.json` of the training tells the majority class.
        eval_batch_size: rows of a batch.

    Returns:
        What `metrics.json` now holds.

    Raises:
        InputError: a label of the table is not one of the classifier's.
    """
    started = time.perf_counter()
    encoded = _encode(classifier, table, "dev")
    labels, logits = encoded.labels, compute_logits(classifier, encoded, eval_batch_size, "evaluate")
    predictions = logits.argmax(axis=-1)
    confusions = metrics.confusion_matrix(labels, predictions, len(classifier.labels))
    results = read_metrics(output_dir)
    results["accuracy"] = metrics.accuracy(labels, predictions)
    results[metric] = metrics.METRICS[metric](labels, predictions)
    train_counts = results.get("train_label_counts")
    if train_counts:
        counts = np.array([train_counts[label] for label in classifier.labels])
        results["majority_accuracy"] = metrics.majority_accuracy(counts, labels)
    results["loss"] = metrics.cross_entropy(labels, logits)
    results["rows"] = len(labels)
    results["per_class"] = {
        label: {"rows": int(row.sum()), "predicted": int(column.sum()), "correct": int(row[number])}
        for number, (label, row, column) in enumerate(zip(classifier.labels, confusions, confusions.T, strict=True))
    }
    results["eval_seconds"] = round(time.perf_counter() - started, 2)
    write_json(os.path.join(output_dir, METRICS_FILE), results)
    metrics.plot_confusion_matrix(os.path.join(output_dir, CONFUSION_FILE), confusions, classifier.labels)
    return results


def read_metrics(output_dir: str) -> dict:
    """Reads `metrics.json`; an empty dict if no stage has written it."""
    path = os.path.join(output_dir, METRICS_FILE)
    return read_json(path) if os.path.exists(path) else {}


def predict(classifier: Classifier, table: data.Table, *, output_dir: str, eval_batch_size: int = 32) -> None:
    """Writes `predictions.tsv`: index (of the row, from 0), prediction (a label), one column of probabilities a label.

    Args:
        classifier: the model to apply.
        table: the rows.
        output_dir: where to write.
        eval_batch_size: rows of a batch.
    """
    encoded = _encode(classifier, table, "test")
    logits = compute_logits(classifier, encoded, eval_batch_size, "predict")
    probabilities = np.exp(metrics.log_softmax(logits))
    with (
        atomic_path(os.path.join(output_dir, PREDICTIONS_FILE)) as temporary,
        open(temporary, "w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(["index", "prediction", *(f"probability_{label}" for label in classifier.labels)])
        for index, row in enumerate(probabilities):
            writer.writerow([index, classifier.labels[row.argmax()], *(f"{value:.6f}" for value in row)])
