"""The stages of `bert-ner`: train, evaluate, predict; each writes its files to the run's output directory.

Shapes: N words, C labels.
"""

import dataclasses
import os
import time
import zlib
from typing import NamedTuple

import numpy as np

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.python_tokenizer import PythonBertTokenizer
from keras_bert.tokenizer import BertTokenizer
from tasks import entity_metrics as metrics
from tasks import fine_tuning
from tasks.bad_rows import BadRows
from tasks.conll import Documents, write_conll
from tasks.examples import Examples, compute_token_outputs, count_steps
from tasks.fine_tuning import FineTuningSettings
from tasks.ner import data
from tasks.ner.losses import TaggingObjective
from tasks.ner.model import HEAD, SCHEME, Tagger, build_tagger, load_tagger, save_tagger
from tasks.ner.windows import Windows, make_windows
from tasks.report import Score, write_report
from tasks.tags import find_entities

MODEL_DIRECTORY = "model"
METRICS_FILE = "metrics.json"
HISTORY_FILE = "history.json"
REPORT_FILE = "report.html"
PREDICTIONS_FILES = {"dev": "dev_predictions.conll", "test": "predictions.conll"}
_CONTEXT_NOTES = {
    "none": "Each sentence was read alone, without its document.",
    "document": "Each sentence was read with as much of its document around it as a sequence holds.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """How sentences become sequences; the flags have the same names.

    Attributes:
        max_seq_length: tokens of a sequence at most.
        doc_stride: as in `tasks.ner.windows.make_windows`.
        document_context: one of `tasks.ner.windows.DOCUMENT_CONTEXT`.
    """

    max_seq_length: int
    doc_stride: int
    document_context: str


class Encoded(NamedTuple):
    """A file as the model reads it: its words, their windows, and these as examples; `ids` are the words' labels."""

    documents: Documents
    windows: Windows
    examples: Examples
    ids: np.ndarray | None


def run_stages(
    splits: dict[str, Documents],
    labels: list[str] | None,
    settings: FineTuningSettings | None,
    reading: Reading,
    *,
    output_dir: str,
    preset: str | None,
    eval_batch_size: int,
    bad_rows: BadRows,
) -> dict:
    """Trains on the split "train", evaluates on "dev", predicts "test", as far as they are there; writes the report.

    Args:
        splits: the files, by split.
        labels: of the training; None without one.
        settings: how to train; None: no training.
        reading: how sentences become sequences; a trained model in `output_dir` brings its own.
        output_dir: where everything is written; without `settings`, its `model/` is taken.
        preset: without `settings` and where there is no `model/`: a checkpoint with a token classification head.
        eval_batch_size: windows of a batch in evaluation and prediction.
        bad_rows: takes the sentences of "dev" with an entity type that the model does not know.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: the preset or the model does not fit, or `output_dir` holds a training with other settings.
    """
    if settings is None:
        tagger, results = load(output_dir, preset, reading), read_metrics(output_dir)
        if "dev" in splits:
            splits = {**splits, "dev": data.leave_out_unknown(splits["dev"], tagger.labels, bad_rows)}
        encoded = {split: encode(documents, tagger) for split, documents in splits.items()}
    else:
        tagger, encoded, results = train(splits, labels, settings, reading, output_dir=output_dir)
    results["skipped_rows"] = bad_rows.count
    shown = {"scores": [], "confusion": None, "mistakes": [], "tables": []}
    if "dev" in encoded:
        shown = evaluate(tagger, encoded["dev"], results, output_dir=output_dir, eval_batch_size=eval_batch_size)
    if "test" in encoded:
        predict(tagger, encoded["test"], results, output_dir=output_dir, eval_batch_size=eval_batch_size)
    write_json(os.path.join(output_dir, METRICS_FILE), results)
    history_path = os.path.join(output_dir, HISTORY_FILE)
    skipped = [f"{bad_rows.count} sentences were left out: see skipped_rows.tsv."] if bad_rows.count else []
    write_report(
        os.path.join(output_dir, REPORT_FILE),
        title="Named entities",
        history=read_json(history_path) if os.path.exists(history_path) else None,
        lengths={split: one.windows.sentence_lengths for split, one in encoded.items()},
        max_length=tagger.sequence_length,
        long_examples="read in several windows",
        settings={"preset": preset, **dataclasses.asdict(settings or reading), **dataclasses.asdict(reading)},
        notes=[_CONTEXT_NOTES[tagger.document_context], *skipped],
        **shown,
    )
    return results


def read_metrics(output_dir: str) -> dict:
    """Reads `metrics.json`; an empty dict if no stage has written it."""
    path = os.path.join(output_dir, METRICS_FILE)
    return read_json(path) if os.path.exists(path) else {}


def encode(documents: Documents, tagger: Tagger) -> Encoded:
    """Turns a file into examples, as the tagger's settings say."""
    tokenizer = PythonBertTokenizer(tagger.tokenizer.get_vocabulary(), tagger.tokenizer.lowercase)
    windows = make_windows(documents, tokenizer, tagger.sequence_length, tagger.doc_stride, tagger.document_context)
    ids = None if documents.tags is None else data.label_ids(documents.tags, tagger.labels)
    return Encoded(documents, windows, data.make_examples(windows, ids), ids)


# === Training and loading ===


def train(
    splits: dict[str, Documents],
    labels: list[str],
    settings: FineTuningSettings,
    reading: Reading,
    *,
    output_dir: str,
) -> tuple[Tagger, dict[str, Encoded], dict]:
    """Fine-tunes a preset and writes `output_dir/model`; continues from the last checkpoint there.

    Args:
        splits: "train" is trained on, "dev", if it is there, evaluated at every checkpoint.
        labels: the labels in the order of their class numbers.
        settings: how to train.
        reading: how sentences become sequences.
        output_dir: where the model, its checkpoints, events and curve are written.

    Returns:
        (the trained model, the splits as it reads them, results for `metrics.json`).

    Raises:
        InputError: the preset does not fit, too little data, or `output_dir` holds a training with other settings.
    """
    tagger = _tagger(None, BertTokenizer.from_preset(settings.preset), labels, reading)
    encoded = {split: encode(documents, tagger) for split, documents in splits.items()}
    documents, windows, examples, ids = encoded["train"]
    num_steps = count_steps(examples.num_examples, settings.train_batch_size, settings.num_train_epochs)
    if num_steps < 1:
        raise InputError(
            f"{documents.path}: {windows.num_windows} sequences in {settings.num_train_epochs:g} epochs do not fill "
            f"one batch of {settings.train_batch_size}. Lower --train_batch_size or raise --num_train_epochs."
        )
    tuner = fine_tuning.start(
        settings,
        lambda backbone: build_tagger(backbone, len(labels)),
        TaggingObjective(),
        output_dir=output_dir,
        num_steps=num_steps,
    )
    tagger = tagger._replace(model=tuner.trainer.model)
    seconds = fine_tuning.fit(
        tuner,
        examples,
        num_steps,
        settings,
        output_dir=output_dir,
        identity={"labels": labels, **dataclasses.asdict(reading), "train_rows_checksum": _checksum(examples, ids)},
        metric="f1",
        evaluate=_evaluator(tagger, encoded.get("dev"), settings.eval_batch_size),
    )
    save_tagger(os.path.join(output_dir, MODEL_DIRECTORY), tagger)
    results = {
        "labels": labels,
        "train_sentences": documents.num_sentences,
        "train_words": len(documents.tokens),
        "train_entities": sum(len(find_entities(tags)) for tags in documents.split(documents.tags)),
        "train_windows": windows.num_windows,
        "train_steps": num_steps,
    }
    # Of a finished training, what an earlier call measured is still true.
    earlier = read_metrics(output_dir) if seconds is None else {"train_seconds": round(seconds, 2)}
    return tagger, encoded, {**earlier, **results}


def _tagger(model, tokenizer: BertTokenizer, labels: list[str], reading: Reading) -> Tagger:
    settings = (reading.max_seq_length, SCHEME, reading.document_context, reading.doc_stride)
    return Tagger(model, tokenizer, labels, *settings)


def _checksum(examples: Examples, ids: np.ndarray) -> int:
    return zlib.crc32(ids, zlib.crc32(examples.row_splits, zlib.crc32(examples.token_ids)))


def _evaluator(tagger: Tagger, dev: Encoded | None, eval_batch_size: int):
    """Makes what scores the held-out file while the model is trained: figures by name; None without such a file."""
    if dev is None:
        return None
    gold = dev.documents.split(dev.documents.tags)

    def evaluator() -> dict[str, float]:
        logits = _logits(tagger, dev, eval_batch_size, "evaluation")
        loss = metrics.mean_loss(metrics.word_losses(logits, dev.ids), dev.ids)
        predicted = metrics.predict_tags(logits, tagger.labels, dev.documents)
        return {"loss": loss, **metrics.score(gold, predicted)}

    return evaluator


def load(output_dir: str, preset: str | None, reading: Reading) -> Tagger:
    """Loads the trained model of a run; where there is none, a preset that has been fine-tuned elsewhere.

    Raises:
        InputError: there is neither; its labels are no tags; the preset is too short for `reading`.
    """
    directory = os.path.join(output_dir, MODEL_DIRECTORY)
    if os.path.isdir(directory) or not preset:
        return load_tagger(directory)
    model, tokenizer, labels = fine_tuning.load_fine_tuned(preset, HEAD, build_tagger)
    labels = data.check_labels(labels, preset)
    positions = next(layer for layer in model.layers if isinstance(layer, BertBackbone)).max_sequence_length
    if reading.max_seq_length > positions:
        raise InputError(
            f"--max_seq_length={reading.max_seq_length}: {preset} has positions for {positions} tokens. Give at most "
            "that many."
        )
    return _tagger(model, tokenizer, labels, reading)


# === Evaluation and prediction ===


def _logits(tagger: Tagger, encoded: Encoded, batch_size: int, description: str) -> np.ndarray:
    """Logits of every word, float32, shape (N, C)."""
    return compute_token_outputs(tagger.model, encoded.examples, batch_size, description)[encoded.windows.places]


def evaluate(tagger: Tagger, encoded: Encoded, results: dict, *, output_dir: str, eval_batch_size: int) -> dict:
    """Scores a tagger on a file with tags; adds to `results` and writes `dev_predictions.conll`.

    Returns:
        What the report shows of it, by the names of `write_report`'s arguments.
    """
    started = time.perf_counter()
    documents, windows, _, ids = encoded
    logits = _logits(tagger, encoded, eval_batch_size, "evaluate")
    losses = metrics.word_losses(logits, ids)
    gold, predicted = documents.split(documents.tags), metrics.predict_tags(logits, tagger.labels, documents)
    _write_predictions(os.path.join(output_dir, PREDICTIONS_FILES["dev"]), documents, predicted)
    results |= {
        **metrics.score(gold, predicted),
        **metrics.score_intervals(gold, predicted),
        "loss": metrics.mean_loss(losses, ids),
        "per_type": metrics.score_types(gold, predicted),
        "sentences": documents.num_sentences,
        "words": len(documents.tokens),
        "entities": sum(len(find_entities(tags)) for tags in gold),
        "windows": windows.num_windows,
        "long_sentences": int((windows.sentence_lengths > tagger.sequence_length).sum()),
        "eval_seconds": round(time.perf_counter() - started, 2),
    }
    columns = ("precision", "recall", "f1", "gold", "predicted", "correct")
    rows = [[name, *(values[column] for column in columns)] for name, values in results["per_type"].items()]
    return {
        "scores": [
            Score("entity F1", results["f1"], *results["f1_interval"]),
            Score("precision", results["precision"], *results["precision_interval"]),
            Score("recall", results["recall"], *results["recall_interval"]),
            Score("token accuracy", results["token_accuracy"]),
        ],
        "confusion": metrics.confusion(gold, predicted),
        "mistakes": metrics.find_mistakes(documents, predicted, losses),
        "tables": [("Entity types", ["type", *columns], rows)],
    }


def predict(tagger: Tagger, encoded: Encoded, results: dict, *, output_dir: str, eval_batch_size: int) -> None:
    """Writes `predictions.conll`; of a file with tags it adds `test_precision test_recall test_f1` to `results`."""
    documents = encoded.documents
    logits = _logits(tagger, encoded, eval_batch_size, "predict")
    predicted = metrics.predict_tags(logits, tagger.labels, documents)
    _write_predictions(os.path.join(output_dir, PREDICTIONS_FILES["test"]), documents, predicted)
    for name in [name for name in results if name.startswith("test_")]:
        del results[name]  # Of another file, which an earlier call predicted.
    results["test_sentences"] = documents.num_sentences
    results["test_predicted_entities"] = sum(len(find_entities(tags)) for tags in predicted)
    if documents.tags is not None:
        scores = metrics.score(documents.split(documents.tags), predicted)
        results |= {f"test_{name}": value for name, value in scores.items()}


def _write_predictions(path: str, documents: Documents, predicted: metrics.Tags) -> None:
    """Columns: token, the file's own tag in IOB2 if there is one, predicted tag."""
    gold = [] if documents.tags is None else [documents.tags]
    write_conll(path, documents, *gold, [tag for tags in predicted for tag in tags])
