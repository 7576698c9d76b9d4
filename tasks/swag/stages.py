"""The stages of `bert-swag`: train, evaluate, predict; each writes its files to the run's output directory.

Shapes: N rows of a table, K choices.
"""

import csv
import dataclasses
import os
import time

import numpy as np

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import atomic_path, read_json, write_json
from tasks import fine_tuning
from tasks.bootstrap import interval
from tasks.examples import Examples, compute_outputs, count_steps, make_eval_dataset
from tasks.fine_tuning import FineTuningSettings
from tasks.report import NUM_MISTAKES, Mistake, Score, write_report
from tasks.report_lengths import lengths_before_cutting
from tasks.swag import data, metrics
from tasks.swag.losses import MultipleChoiceObjective
from tasks.swag.model import (
    TASK_NAME,
    MultipleChoice,
    build_multiple_choice,
    load_multiple_choice,
    save_multiple_choice,
)

MODEL_DIRECTORY = "model"
METRICS_FILE = "metrics.json"
PREDICTIONS_FILE = "predictions.csv"
REPORT_FILE = "report.html"
HISTORY_FILE = "history.json"
_SCORES = (
    "accuracy", "accuracy_interval", "chance_accuracy", "majority_accuracy", "loss", "rows", "eval_seconds",
    "dev_file", "dev_rows_checksum",
)  # fmt: skip


def run_stages(
    tables: dict[str, data.Table],
    settings: FineTuningSettings | None,
    *,
    output_dir: str,
    preset: str | None = None,
    max_seq_length: int = 128,
    eval_batch_size: int = 8,
    skipped_rows: int = 0,
) -> dict:
    """Trains on `tables["train"]`, scores on `tables["dev"]` and answers `tables["test"]`, as far as they are there.

    Args:
        tables: by split, with one number of choices.
        settings: how to train; None: no training.
        output_dir: where everything is written; without `settings`, its `model/` is taken.
        preset: without `settings` and where there is no `model/`: a checkpoint with a multiple-choice head.
        max_seq_length: tokens of a sequence at most, for such a checkpoint.
        eval_batch_size: rows of a batch in evaluation and prediction.
        skipped_rows: how many rows of the files were left out.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: the preset or the model does not fit, or `output_dir` holds a training with other settings.
    """
    if settings is None:
        chooser = load(output_dir, preset, max_seq_length, list(tables.values()))
        examples = _encode(chooser, tables)
        results = _earlier(output_dir, None if _has_model(output_dir) else preset)
    else:
        chooser, examples, results = train(tables, settings, output_dir=output_dir)
    results |= {"num_choices": chooser.num_choices, "skipped_rows": skipped_rows}
    notes, confusion, mistakes = [_note(chooser.num_choices)], None, []
    if "dev" in tables:
        logits = _score(chooser, examples["dev"], results, eval_batch_size)
        results |= _identify("dev", tables["dev"])
        confusion, mistakes = _confusion(examples["dev"], logits), find_mistakes(tables["dev"], logits)
    if "test" in tables:
        answers = compute_outputs(chooser.model, examples["test"], eval_batch_size, "predict")
        write_predictions(os.path.join(output_dir, PREDICTIONS_FILE), answers)
        results |= {"test_rows": len(answers), **_identify("test", tables["test"])}
    write_json(os.path.join(output_dir, METRICS_FILE), results)
    if settings is None and "dev" not in tables and os.path.exists(os.path.join(output_dir, REPORT_FILE)):
        return results  # Predictions alone leave the report of an evaluation as it is.
    history_path = os.path.join(output_dir, HISTORY_FILE)
    write_report(
        os.path.join(output_dir, REPORT_FILE),
        title="Multiple choice",
        scores=_scores(results) if "dev" in tables else [],
        history=read_json(history_path) if os.path.exists(history_path) else None,
        confusion=confusion,
        lengths={split: _whole_lengths(chooser, tables[split], encoded) for split, encoded in examples.items()},
        max_length=chooser.sequence_length,
        mistakes=mistakes,
        settings={"preset": preset} if settings is None else dataclasses.asdict(settings),
        notes=notes + ([f"{skipped_rows} rows were skipped: see skipped_rows.tsv."] if skipped_rows else []),
    )
    return results


def read_metrics(output_dir: str) -> dict:
    """Reads `metrics.json`; an empty dict if no stage has written it."""
    path = os.path.join(output_dir, METRICS_FILE)
    return read_json(path) if os.path.exists(path) else {}


def _earlier(output_dir: str, preset: str | None) -> dict:
    """What earlier calls measured of the same model: the run's own, or with `preset` that one."""
    of_model = {} if preset is None else {"preset": preset}
    results = read_metrics(output_dir)
    return results if results.get("preset") == preset else of_model


def _has_model(output_dir: str) -> bool:
    return os.path.isdir(os.path.join(output_dir, MODEL_DIRECTORY))


def _identify(split: str, table: data.Table) -> dict:
    """Says of which file, as it was then, the scores or the predictions are."""
    return {f"{split}_file": table.path, f"{split}_rows_checksum": table.checksum()}


def _whole_lengths(chooser: MultipleChoice, table: data.Table, examples: Examples) -> np.ndarray:
    """Tokens of each row's longest choice before it was cut, int64, shape (N,)."""
    lengths = np.diff(examples.row_splits)  # [N * K]
    whole = lengths_before_cutting(lengths, table.texts_of, chooser.tokenizer, chooser.sequence_length)
    return whole.reshape(-1, chooser.num_choices).max(axis=1)


def _encode(chooser: MultipleChoice, tables: dict[str, data.Table]) -> dict[str, Examples]:
    return {
        split: data.encode_table(table, chooser.tokenizer, chooser.sequence_length, f"tokenize {split}")
        for split, table in tables.items()
    }


# === Training and loading ===


def train(
    tables: dict[str, data.Table], settings: FineTuningSettings, *, output_dir: str
) -> tuple[MultipleChoice, dict[str, Examples], dict]:
    """Fine-tunes a preset and writes `output_dir/model`; continues from the last checkpoint there.

    Args:
        tables: by split; `train` is trained on, `dev`, if it is there, evaluated at every checkpoint.
        settings: how to train.
        output_dir: where the model, its checkpoints, events and curve are written.

    Returns:
        (the trained model, the tables' token ids by split, results for `metrics.json`).

    Raises:
        InputError: the preset does not fit, or `output_dir` holds a training with other settings.
    """
    table = tables["train"]
    num_choices = table.num_choices
    num_steps = count_steps(len(table.lines), settings.train_batch_size, settings.num_train_epochs)
    tuner = fine_tuning.start(
        settings,
        lambda backbone: build_multiple_choice(backbone, num_choices),
        MultipleChoiceObjective(),
        output_dir=output_dir,
        num_steps=num_steps,
    )
    chooser = MultipleChoice(tuner.trainer.model, tuner.tokenizer, settings.max_seq_length, num_choices)
    examples = _encode(chooser, tables)
    held_out = make_eval_dataset(examples["dev"], settings.eval_batch_size)[0] if "dev" in tables else None
    seconds = fine_tuning.fit(
        tuner,
        examples["train"],
        num_steps,
        settings,
        output_dir=output_dir,
        identity={"num_choices": num_choices, "train_rows_checksum": table.checksum()},
        metric="accuracy",
        evaluate=None if held_out is None else lambda: tuner.trainer.evaluate(held_out),
    )
    save_multiple_choice(os.path.join(output_dir, MODEL_DIRECTORY), *chooser)
    results = {
        "train_rows": len(table.lines),
        "train_label_counts": np.bincount(table.labels, minlength=num_choices).tolist(),
        "train_steps": num_steps,
    }
    # Of a finished training, what an earlier call measured is still true.
    earlier = _earlier(output_dir, None) if seconds is None else {"train_seconds": round(seconds, 2)}
    return chooser, examples, {**earlier, **results}


def load(output_dir: str, preset: str | None, max_seq_length: int, tables: list[data.Table]) -> MultipleChoice:
    """Loads the trained model of a run; where there is none, a preset that has been fine-tuned elsewhere.

    Raises:
        InputError: there is neither; the tables have another number of choices; the preset is too short.
    """
    directory = os.path.join(output_dir, MODEL_DIRECTORY)
    if _has_model(output_dir) or not preset:
        chooser = load_multiple_choice(directory)
        data.check_num_choices(tables, chooser.num_choices, directory)
        return chooser
    num_choices = tables[0].num_choices  # One vector scores every choice: a checkpoint does not say how many.
    model, tokenizer, _ = fine_tuning.load_fine_tuned(
        preset, TASK_NAME, lambda backbone, _: build_multiple_choice(backbone, num_choices)
    )
    positions = next(layer for layer in model.layers if isinstance(layer, BertBackbone)).max_sequence_length
    if max_seq_length > positions:
        raise InputError(
            f"--max_seq_length={max_seq_length}: {preset} has positions for {positions} tokens. Give at most that many."
        )
    return MultipleChoice(model, tokenizer, max_seq_length, num_choices)


# === Evaluation ===


def _score(chooser: MultipleChoice, examples: Examples, results: dict, eval_batch_size: int) -> np.ndarray:
    """Adds the scores of a labelled table to `results`; returns its logits, float32, shape (N, K)."""
    started = time.perf_counter()
    for name in _SCORES:  # Of another file, which an earlier call was given.
        results.pop(name, None)
    labels = examples.labels["labels"]
    logits = compute_outputs(chooser.model, examples, eval_batch_size, "evaluate")
    is_correct = logits.argmax(axis=-1) == labels
    results["accuracy"] = metrics.accuracy(labels, logits.argmax(axis=-1))
    results["accuracy_interval"] = list(interval(lambda rows: float(is_correct[rows].mean()), len(labels)))
    results["chance_accuracy"] = 1.0 / chooser.num_choices
    train_counts = results.get("train_label_counts")
    if train_counts:
        results["majority_accuracy"] = metrics.majority_accuracy(np.array(train_counts), labels)
    results["loss"] = float(metrics.cross_entropies(labels, logits).mean())
    results["rows"] = len(labels)
    results["eval_seconds"] = round(time.perf_counter() - started, 2)
    return logits


def _scores(results: dict) -> list[Score]:
    scores = [Score("accuracy", results["accuracy"], *results["accuracy_interval"])]
    scores.append(Score("accuracy of chance", results["chance_accuracy"]))
    if "majority_accuracy" in results:
        scores.append(Score("accuracy of the place most often right", results["majority_accuracy"]))
    return [*scores, Score("loss", results["loss"], percent=False)]


def _note(num_choices: int) -> str:
    return (
        f"Each of the {num_choices} choices is scored by itself; the highest score is the answer. The number of a "
        "choice is its place, counted from 0."
    )


def _confusion(examples: Examples, logits: np.ndarray) -> tuple[list[str], np.ndarray]:
    num_choices = logits.shape[1]
    counts = metrics.confusion_matrix(examples.labels["labels"], logits.argmax(axis=-1), num_choices)
    return [f"choice {number}" for number in range(num_choices)], counts


def find_mistakes(table: data.Table, logits: np.ndarray) -> list[Mistake]:
    """Lists the rows answered wrongly, those with the smallest probability of the right choice first, as many as shown.

    Args:
        table: the rows, with labels.
        logits: float, shape (N, K).
    """
    labels = np.array(table.labels)
    losses = metrics.cross_entropies(labels, logits)
    probabilities, predictions = np.exp(metrics.log_softmax(logits)), logits.argmax(axis=-1)
    wrong = np.flatnonzero(predictions != labels)
    worst = wrong[np.argsort(-losses[wrong], kind="stable")][:NUM_MISTAKES]
    mistakes = []
    for row in worst:
        right, answer, choices = labels[row], predictions[row], table.choices[row]
        parts = [("line", str(table.lines[row])), ("context", table.contexts[row])]
        parts += [(f"choice {number}", text) for number, text in enumerate(choices)]
        parts.append(("expected", f"{right}: {choices[right]} ({probabilities[row, right]:.0%})"))
        parts.append(("predicted", f"{answer}: {choices[answer]} ({probabilities[row, answer]:.0%})"))
        mistakes.append(Mistake(float(losses[row]), parts))
    return mistakes


# === Prediction ===


def write_predictions(path: str, logits: np.ndarray) -> None:
    """Writes a CSV: index (of the row, from 0), prediction (number of the choice), `probability_<number>` of each."""
    probabilities = np.exp(metrics.log_softmax(logits))
    with atomic_path(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["index", "prediction", *(f"probability_{number}" for number in range(logits.shape[1]))])
        for index, row in enumerate(probabilities):
            writer.writerow([index, row.argmax(), *(f"{value:.6f}" for value in row)])
