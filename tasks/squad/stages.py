"""The stages of `bert-squad`: train, evaluate, predict; each writes its files to the run's output directory.

Shapes: W windows, T tokens of all windows.
"""

import dataclasses
import os
import time
import zlib
from typing import NamedTuple

import numpy as np

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import read_json, remove_path, write_json
from keras_bert.tokenizer import BertTokenizer
from keras_bert.weights import read_bert_config
from tasks import fine_tuning, model_files
from tasks.examples import compute_token_outputs, count_steps, make_eval_dataset
from tasks.report import write_report
from tasks.squad import findings, metrics
from tasks.squad.answers import Answers, best_answers
from tasks.squad.data import Question
from tasks.squad.losses import QuestionAnsweringObjective, window_losses, with_lengths
from tasks.squad.model import (
    COMMAND,
    HEAD,
    SETTINGS,
    QuestionAnswerer,
    build_question_answerer,
    load_question_answerer,
    save_question_answerer,
)
from tasks.squad.windows import Windows, make_windows

MODEL_DIRECTORY = "model"
METRICS_FILE = "metrics.json"
HISTORY_FILE = "history.json"
REPORT_FILE = "report.html"
PREDICTIONS_FILE = "predictions.json"
NBEST_FILE = "nbest_predictions.json"
NULL_ODDS_FILE = "null_odds.json"
THRESHOLD = "null_score_diff_threshold"
_DEFAULTS = QuestionAnswerer._field_defaults


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(fine_tuning.FineTuningSettings):
    """How a question answerer is trained; the defaults are google-research/bert's. The flags have the same names.

    Attributes:
        max_seq_length, doc_stride, max_query_length, version_2_with_negative: as in `QuestionAnswerer`, where the first
            is `sequence_length`.
    """

    max_seq_length: int = _DEFAULTS["sequence_length"]
    doc_stride: int = _DEFAULTS["doc_stride"]
    max_query_length: int = _DEFAULTS["max_query_length"]
    version_2_with_negative: bool = _DEFAULTS["version_2_with_negative"]


class Run(NamedTuple):
    """A model, and the windows of the questions that it learns from or answers.

    Attributes:
        answerer: the model.
        windows: `Windows` by split: "train"; "dev", to be scored; "test", to be answered only.
        results: what `metrics.json` holds so far.
    """

    answerer: QuestionAnswerer
    windows: dict[str, Windows]
    results: dict


class Evaluation(NamedTuple):
    """The answers to questions, and what they are worth.

    Attributes:
        answers: at the threshold.
        threshold: of the null odds, above which no answer is given.
        results: figures for `metrics.json`.
        tables: as in `tasks.report.write_report`.
        mistakes: the worst, as there.
    """

    answers: Answers
    threshold: float
    results: dict
    tables: list
    mistakes: list


def run_stages(
    questions: dict[str, list[Question]],
    settings: Settings | None,
    given: dict,
    *,
    output_dir: str,
    preset: str | None = None,
    do_predict: bool = False,
    eval_batch_size: int = 8,
    skipped_rows: int = 0,
) -> dict:
    """Trains on the split "train", scores the answers to "dev", or answers "test", as far as they are there.

    Args:
        questions: by split; those of "dev" have known answers.
        settings: how to train; None: no training.
        given: attributes of `QuestionAnswerer` (`SETTINGS`) that take the place of the trained model's, or of the
            defaults. Without a threshold among them, that of the highest F1 on "dev" is searched and kept.
        output_dir: where everything is written; without `settings`, its `model/` is taken.
        preset: without `settings` and where there is no `model/`: a checkpoint with a question-answering head.
        do_predict: whether to write the answers.
        eval_batch_size: windows of a batch in evaluation and prediction.
        skipped_rows: how many questions of the files were left out.

    Returns:
        What `metrics.json` holds.

    Raises:
        InputError: the preset or the model does not fit, or `output_dir` holds a training with other settings.
    """
    if settings is None:
        answerer, windows, results = load(questions, given, output_dir=output_dir, preset=preset)
    else:
        answerer, windows, results = train(questions, settings, given, output_dir=output_dir)
    results["skipped_rows"] = skipped_rows
    evaluation, searches = None, THRESHOLD not in given
    if "dev" in questions:
        evaluation = evaluate(
            answerer, questions["dev"], windows["dev"], searches_threshold=searches, eval_batch_size=eval_batch_size
        )
        _keep_threshold(output_dir, evaluation.threshold)
        results |= evaluation.results
        answers = evaluation.answers
    elif "test" in questions:
        answers, _ = answer(answerer, questions["test"], windows["test"], eval_batch_size, "predict")
        answers = at_threshold(answers, answerer.null_score_diff_threshold)
    if do_predict:
        write_predictions(output_dir, answers)
    write_json(os.path.join(output_dir, METRICS_FILE), results)
    notes = findings.make_notes(results, searches_threshold=evaluation is not None and searches)
    if settings or evaluation or not os.path.exists(os.path.join(output_dir, REPORT_FILE)):
        training = {"preset": preset} if settings is None else dataclasses.asdict(settings)
        _write_report(output_dir, Run(answerer, windows, results), evaluation, training, notes)
    return results


def _write_report(output_dir: str, run: Run, evaluation: Evaluation | None, training: dict, notes: list[str]) -> None:
    history_path = os.path.join(output_dir, HISTORY_FILE)
    answering = {name: getattr(run.answerer, name) for name in SETTINGS if name not in ("sequence_length", THRESHOLD)}
    write_report(
        os.path.join(output_dir, REPORT_FILE),
        title=f"SQuAD {'2.0' if run.answerer.version_2_with_negative else '1.1'}",
        scores=findings.make_scores(run.results) if evaluation else [],
        history=read_json(history_path) if os.path.exists(history_path) else None,
        confusion=None,
        lengths={split: windows.question_lengths for split, windows in run.windows.items()},
        max_length=run.answerer.sequence_length,
        mistakes=evaluation.mistakes if evaluation else [],
        settings={**training, **answering, "max_seq_length": run.answerer.sequence_length},
        notes=notes,
        tables=evaluation.tables if evaluation else [],
        long_examples="split into windows",
    )


def read_metrics(output_dir: str) -> dict:
    """Reads `metrics.json`; an empty dict if no stage has written it."""
    path = os.path.join(output_dir, METRICS_FILE)
    return read_json(path) if os.path.exists(path) else {}


# === Training and loading ===


def train(questions: dict[str, list[Question]], settings: Settings, given: dict, *, output_dir: str) -> Run:
    """Fine-tunes a preset and writes `output_dir/model`; continues from the last checkpoint there.

    Args:
        questions: by split; "train" is trained on, the loss of "dev", if it is there, taken at every checkpoint.
        settings: how to train.
        given: attributes of `QuestionAnswerer` that differ from the defaults.
        output_dir: where the model, its checkpoints, events and curve are written.

    Raises:
        InputError: the preset does not fit, or `output_dir` holds a training with other settings.
    """
    _check_length(settings.max_seq_length, read_bert_config(settings.preset).max_sequence_length, settings.preset)
    sizes = (settings.max_seq_length, settings.doc_stride, settings.max_query_length)
    windows = _cut(questions, BertTokenizer.from_preset(settings.preset), *sizes)
    examples = {split: with_lengths(cut.examples) for split, cut in windows.items()}
    num_steps = _count_steps(examples["train"].num_examples, settings)
    tuner = fine_tuning.start(
        settings, build_question_answerer, QuestionAnsweringObjective(), output_dir=output_dir, num_steps=num_steps
    )
    held_out = make_eval_dataset(examples["dev"], settings.eval_batch_size)[0] if "dev" in examples else None
    seconds = fine_tuning.fit(
        tuner,
        examples["train"],
        num_steps,
        settings,
        output_dir=output_dir,
        identity={"train_windows_checksum": _checksum(windows["train"])},
        metric="loss",
        higher_is_better=False,
        evaluate=None if held_out is None else lambda: tuner.trainer.evaluate(held_out),
    )
    answerer = QuestionAnswerer(tuner.trainer.model, tuner.tokenizer, **given)
    if seconds is None and THRESHOLD not in given:  # A finished training: what was searched since is still true.
        answerer = answerer._replace(**_kept_threshold(output_dir))
    save_question_answerer(os.path.join(output_dir, MODEL_DIRECTORY), answerer)
    earlier = read_metrics(output_dir) if seconds is None else {"train_seconds": round(seconds, 2)}
    results = {
        "train_questions": len(questions["train"]),
        "train_windows": examples["train"].num_examples,
        "train_steps": num_steps,
    }
    return Run(answerer, windows, {**earlier, **results})


def load(questions: dict[str, list[Question]], given: dict, *, output_dir: str, preset: str | None) -> Run:
    """Loads the trained model of a run; where there is none, a preset that has been fine-tuned elsewhere.

    Raises:
        InputError: there is neither, or it is too short for `given`.
    """
    directory = os.path.join(output_dir, MODEL_DIRECTORY)
    if os.path.isdir(directory) or not preset:
        source, answerer = directory, load_question_answerer(directory)
    else:
        source = preset
        model, tokenizer, _ = fine_tuning.load_fine_tuned(
            preset, HEAD, lambda backbone, _: build_question_answerer(backbone)
        )
        answerer = QuestionAnswerer(model, tokenizer)
    answerer = answerer._replace(**given)
    backbone = next(layer for layer in answerer.model.layers if isinstance(layer, BertBackbone))
    _check_length(answerer.sequence_length, backbone.max_sequence_length, source)
    sizes = (answerer.sequence_length, answerer.doc_stride, answerer.max_query_length)
    return Run(answerer, _cut(questions, answerer.tokenizer, *sizes), read_metrics(output_dir))


def _check_length(max_seq_length: int, positions: int, source: str) -> None:
    if max_seq_length > positions:
        raise InputError(
            f"--max_seq_length={max_seq_length}: {source} has positions for {positions} tokens. Give at most that many."
        )


def _cut(
    questions: dict[str, list[Question]],
    tokenizer: BertTokenizer,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
) -> dict[str, Windows]:
    windows = {
        split: make_windows(
            of_split,
            tokenizer,
            max_seq_length=max_seq_length,
            doc_stride=doc_stride,
            max_query_length=max_query_length,
            with_answers=True,  # Where there are none, the labels are (0, 0).
            description=f"windows of {split}",
        )
        for split, of_split in questions.items()
    }
    for split, cut in windows.items():
        if not cut.examples.num_examples:
            raise InputError(f"{questions[split][0].where}: no context here holds any text. Expected some.")
    return windows


def _count_steps(num_windows: int, settings: Settings) -> int:
    """Steps of the training. An epoch are all windows; google-research/bert counts the questions, which are fewer."""
    num_steps = count_steps(num_windows, settings.train_batch_size, settings.num_train_epochs)
    if num_steps < 1:
        raise InputError(
            f"--train_file: {num_windows} windows in {settings.num_train_epochs:g} epochs do not fill one batch of "
            f"{settings.train_batch_size}. Lower --train_batch_size or raise --num_train_epochs."
        )
    return num_steps


def _checksum(windows: Windows) -> int:
    total = 0
    for array in (windows.examples.token_ids, windows.examples.row_splits, *windows.examples.labels.values()):
        total = zlib.crc32(np.ascontiguousarray(array), total)
    return total


# === Answering ===


def answer(
    answerer: QuestionAnswerer, questions: list[Question], windows: Windows, eval_batch_size: int, description: str
) -> tuple[Answers, np.ndarray]:
    """Applies a model to questions.

    Returns:
        (the best answer to each question, whatever its null odds; logits of all tokens, float32, shape (T, 2)).
    """
    logits = compute_token_outputs(answerer.model, windows.examples, eval_batch_size, description)
    answers = best_answers(
        questions,
        windows,
        logits[:, 0],
        logits[:, 1],
        n_best_size=answerer.n_best_size,
        max_answer_length=answerer.max_answer_length,
        version_2_with_negative=answerer.version_2_with_negative,
        null_score_diff_threshold=float("inf"),
    )
    return answers, logits


def at_threshold(answers: Answers, threshold: float) -> Answers:
    """Takes back each answer whose null odds exceed the threshold."""
    predictions = {
        name: "" if answers.null_odds.get(name, threshold) > threshold else text
        for name, text in answers.predictions.items()
    }
    return answers._replace(predictions=predictions)


def evaluate(
    answerer: QuestionAnswerer,
    questions: list[Question],
    windows: Windows,
    *,
    searches_threshold: bool = True,
    eval_batch_size: int = 8,
) -> Evaluation:
    """Scores a model's answers to questions.

    Args:
        answerer: the model.
        questions: with known answers, or, in SQuAD 2.0, marked as impossible.
        windows: theirs, with labels.
        searches_threshold: whether to take the threshold of the highest F1 for the model's.
        eval_batch_size: windows of a batch.
    """
    started = time.perf_counter()
    with_negative = answerer.version_2_with_negative
    answers, logits = answer(answerer, questions, windows, eval_batch_size, "evaluate")
    threshold, results = answerer.null_score_diff_threshold, {}
    if with_negative:
        results = metrics.best_thresholds(questions, answers.predictions, answers.null_odds)
        if searches_threshold:
            threshold = metrics.choose_threshold(questions, answers.null_odds, results)
        results[THRESHOLD] = threshold
    answers = at_threshold(answers, threshold)
    scores = metrics.score_each(questions, answers.predictions, with_negative)
    losses = window_losses(logits, windows.examples)
    results = {
        **metrics.score_all(questions, answers.predictions, with_negative),
        **metrics.intervals(scores),
        **results,
        "loss": float(losses.mean()),
        "eval_windows": len(losses),
        "eval_seconds": round(time.perf_counter() - started, 2),
    }
    tables = findings.make_tables(questions, windows, scores, with_negative)
    mistakes = findings.find_mistakes(questions, windows, losses, answers, scores)
    return Evaluation(answers, threshold, results, tables, mistakes)


def _kept_threshold(output_dir: str) -> dict[str, float]:
    """The threshold that the model of a run has, by its name; empty if there is no model."""
    directory = os.path.join(output_dir, MODEL_DIRECTORY)
    task = model_files.read_task(directory, COMMAND) if os.path.isdir(directory) else {}
    return {name: value for name, value in task.items() if name == THRESHOLD}


def _keep_threshold(output_dir: str, threshold: float) -> None:
    """Makes it the threshold of a run's model, if there is one: that of a preset is not ours to change."""
    directory = os.path.join(output_dir, MODEL_DIRECTORY)
    if os.path.isdir(directory):
        task = {**model_files.read_task(directory, COMMAND), THRESHOLD: threshold}
        write_json(os.path.join(directory, model_files.TASK_FILE), task)


def write_predictions(output_dir: str, answers: Answers) -> None:
    """Writes google-research/bert's files: `predictions.json`, `nbest_predictions.json`, of 2.0 `null_odds.json`."""
    write_json(os.path.join(output_dir, PREDICTIONS_FILE), answers.predictions)
    write_json(os.path.join(output_dir, NBEST_FILE), answers.nbest)
    path = os.path.join(output_dir, NULL_ODDS_FILE)
    if answers.null_odds:
        write_json(path, answers.null_odds)
    else:
        remove_path(path)  # Of an earlier call, with other answers.
