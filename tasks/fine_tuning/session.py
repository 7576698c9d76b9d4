"""Runs a fine-tuning task: trains or loads, evaluates, predicts and reports, and writes to the output directory."""

import contextlib
import dataclasses
import functools
import json
import math
import os
import time
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from keras_bert.answers.rules import MOST_TOKENS, POOLED, SPECIAL_TOKENS
from keras_bert.answers.text_bounds import find_backbone
from keras_bert.errors import InputError
from keras_bert.files import exists, is_directory, read_json, read_optional_json, remove_path, write_json, write_table
from keras_bert.presets.weights import read_bert_config
from tasks.engine.build_trainer import build_trainer, prepare_devices
from tasks.engine.checkpoints import keep_settings
from tasks.engine.progress import EarlyStopping
from tasks.engine.settings import identify, tokenizer_identity
from tasks.engine.strategy import needs_static_shapes
from tasks.engine.workers import Workers
from tasks.fine_tuning import data_check, few_labels, model_files, start
from tasks.fine_tuning.examples import Examples, Predictor, count_steps, make_train_dataset, standardize
from tasks.fine_tuning.inputs import METRICS_FILE, MODEL_DIRECTORY, Inputs, read_spec, require_preset
from tasks.fine_tuning.settings import MAX_CHECKPOINT_STEPS, FineTuningSettings, check_positions
from tasks.fine_tuning.task import Answers, Encoded, Evaluation, Part, Task, Trained
from tasks.report.card import Card, Data, command_line, write_card
from tasks.report.page import Report, write_report

HISTORY_FILE = "history.json"
REPORT_FILE = "report.html"
# Maximum evaluations of a training with many short epochs, and the maximum share of its time that they take.
EVALUATIONS, SHARE_OF_EVALUATIONS = 20, 1 / 5
DOUBTFUL_FILE = "doubtful_labels.tsv"
_DOUBTFUL = 20  # Of its rows, for the report.
_DOUBTFUL_COLUMNS = ["place", "label", "suggested", "probability_of_label", "probability_of_suggested", "text"]
# Treatment of examples that are too long, for the report, by `long_text` of the spec.
_LONG_EXAMPLES = {
    "head_tail": "cut in the middle",
    "mean": "read in windows, which are averaged",
    "max": "read in windows, of which the largest counts",
}
# Prefixes of the keys of metrics.json that describe the model and its training, and the substring of those that
# describe predictions, such as mismatched_test_rows. All others describe an evaluation; the next one removes them.
_OF_TRAINING, _OF_PREDICTIONS = ("train_", "data_", "validation_", "best_step", "sweep", "preset"), "test_"
_IDENTITY, _PREDICTED = "train_identity_checksum", "test_predictions"  # Keys of metrics.json.


class Session:
    """A model, its data and its results.

    Args:
        task: the task, with the settings of this run: a single learning rate and batch size, if it trains.
        inputs: data of the task.

    Attributes:
        trained: the model, after `train` or `load`.
        results: content of `metrics.json`.
        evaluations: evaluations of the dev files, in their order.
    """

    def __init__(self, task: Task, inputs: Inputs):
        self.task, self.inputs = task, inputs
        self.settings, self.output_dir = task.settings, task.settings.output_dir
        self.trained: Trained | None = None
        self.results: dict[str, Any] = {}
        self.evaluations: list[Evaluation] = []
        self._workers: Workers | None = None
        self._encoded: dict[Part, Encoded] = {}
        self._answers: dict[Part, Answers] = {}
        self._resumed_at = 0
        self._scale = (0.0, 1.0)  # While `train` standardizes numbers: their mean and standard deviation.
        self._few_labels: dict[str, Any] = {}  # Figures of few and of doubtful labels, for `metrics.json`.
        self._doubtful: list[tuple[str, list[str], list[list]]] = []  # Tables for the report.

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files, as only one of several machines does."""
        return self._workers.is_chief

    # === The model ===

    def train(self, method: str = "off") -> None:
        """Fine-tunes a preset and writes `model/`, resuming from the last checkpoint in `output_dir` if there is one.

        The validation rows, or else the first dev file, if any, are scored at some checkpoints; see `plan_steps`.

        Args:
            method: how to train on few rows per label, from `TaskModel.few_labels`; "off" fine-tunes all weights.

        Raises:
            InputError: the preset does not fit, there is too little data, or `output_dir` holds a training with other
                settings.
        """
        strategy = self._prepare_devices()
        with self._workers.naming_lost_ones(), start.find_start(self.settings) as origin:
            self._train(origin, strategy, method)

    def _prepare_devices(self) -> tf.distribute.Strategy:
        strategy = prepare_devices(self.settings)
        self._workers = Workers(strategy)
        if self._workers.count > 1:
            parts = self.inputs.parts
            self._workers.check_equal({f"{part.rows.path} ({part.title})": part.rows.checksum() for part in parts})
        return strategy

    def _train(self, origin: start.Start, strategy: tf.distribute.Strategy, method: str) -> None:
        task, spec, settings = self.task, self.inputs.spec, self.settings
        train = self.inputs.of("train")[0]
        tokenizer = origin.tokenizer()
        config = read_bert_config(origin.preset)
        self._workers.check_equal({origin.preset: [tokenizer_identity(tokenizer), config.to_dict()]})
        if settings.learning_rate is None:
            settings = dataclasses.replace(settings, learning_rate=start.default_rate(config.hidden_dim))
        start.check_encoder(origin, settings, spec.sequence_length, tokenizer.vocabulary_size())
        keep_settings(self.output_dir, self._identity(settings.identity(), train), writes=False)  # Before any work.
        self.trained = task.prepare(origin, Trained(None, tokenizer, spec))
        encoded = self._encode(train)
        if method != "off" and self._train_on_few(method, origin, encoded, strategy):
            return
        if "data_doubtful_labels" not in self._few_labels and getattr(settings, "find_wrong_labels", False):
            candidates = few_labels.Candidates(task, origin, self.trained, encoded, strategy)
            self._doubt(few_labels.cross_validate_rows(candidates, encoded.examples), encoded)
        encoded = dataclasses.replace(encoded, examples=task.balance(encoded.examples, spec))
        unlabelled = [self._encode(part).examples for part in self.inputs.of("unlabelled")]
        examples = task.teach(encoded.examples, unlabelled, spec)
        if task.standardizes(spec):
            examples, self._scale = standardize(examples)
        watched = self.inputs.watched and self._encode(self.inputs.watched).examples
        num_steps, num_warmup_steps, interval = plan_steps(settings, examples, watched, train.rows.path)
        build = functools.partial(task.build_training_model, origin, self.trained)
        steps, pooling = (num_steps, num_warmup_steps), examples.pooling
        trainer = build_trainer(settings, build, task.objective(spec), strategy, steps, pooling)
        self.trained = self.trained._replace(model=trainer.model)
        backbone = find_backbone(trainer.model) or self.trained.encoder.backbone
        identity = identify(settings, backbone, tokenizer, weights_are_loaded=origin.load_weights)
        trainer.keep_settings(identity := self._identity(identity, train))
        in_deviations = contextlib.nullcontext()
        if task.standardizes(spec):
            in_deviations = start.standardized_head(trainer.model, task.model_class().heads[0], *self._scale)
        with in_deviations:
            seconds = self._fit(trainer, examples, num_steps, interval)
        self._scale = (0.0, 1.0)
        self._finish(train, encoded, seconds, num_steps, identity)
        if settings.early_stopping_patience:
            self.results["best_step"] = int(trainer.step.numpy())
        self._write_metrics()

    def _train_on_few(
        self, method: str, origin: start.Start, encoded: Encoded, strategy: tf.distribute.Strategy
    ) -> bool:
        """Trains on few rows per label. Returns False if all weights are to be fine-tuned instead."""
        started, train = time.monotonic(), self.inputs.of("train")[0]
        few = few_labels.choose(method, few_labels.Candidates(self.task, origin, self.trained, encoded, strategy))
        self._few_labels = few.results
        print(few_labels.describe({**few.results, **self.task.describe(train.rows, encoded, self.inputs.spec)}))
        if few.logs is not None and self.settings.find_wrong_labels is not False:
            self._doubt(few.logs, encoded)
        if few.model is None:
            return False
        self.trained = self.trained._replace(model=few.model)
        identity = identify(self.settings, few.model.backbone, self.trained.tokenizer, weights_are_loaded=False)
        keep_settings(self.output_dir, identity := self._identity(identity, train))
        remove_path(os.path.join(self.output_dir, HISTORY_FILE))  # An earlier search may have left one.
        self._finish(train, encoded, time.monotonic() - started, few.num_steps, identity)
        self._write_metrics()
        return True

    def _doubt(self, logs: np.ndarray, encoded: Encoded) -> None:
        """Lists the rows whose label is likely wrong, by cross-validated log-probabilities, float (N, C)."""
        content, labels = self.task.content(self.inputs.of("train")[0].rows), encoded.examples.labels["labels"]
        names, chances, rows = self.trained.spec.labels, np.exp(logs).round(4), []
        for row, other in data_check.find_doubtful(logs, labels):
            of_both = chances[row, [labels[row], other]].tolist()
            rows.append([content.place(row), names[labels[row]], names[other], *of_both, content.texts[row][0]])
        if 2 * len(rows) > len(labels):  # The encoder does not know such texts.
            shown = f"the embeddings contradict the labels of {len(rows)} of {len(labels)} rows"
            print(f"Likely wrong labels: not listed, since {shown}.")
            return
        self._few_labels["data_doubtful_labels"] = len(rows)
        if not rows:
            return
        if self._workers.is_chief:
            write_table(os.path.join(self.output_dir, DOUBTFUL_FILE), _DOUBTFUL_COLUMNS, rows)
        place, label, other, *_ = rows[0]
        caption = f"Likely wrong labels: {len(rows)} of {len(labels)}"
        print(f"{caption}, the first at {place} ({label}, more likely {other}). {DOUBTFUL_FILE} lists them.")
        self._doubtful = [(f"{caption}, the first of {DOUBTFUL_FILE}", _DOUBTFUL_COLUMNS, rows[:_DOUBTFUL])]

    def _identity(self, identity: dict[str, Any], train: Part) -> dict[str, Any]:
        """Adds the values of the task and its rows to those of `identify`."""
        spec, changed = dataclasses.asdict(self.inputs.spec), self.task.changes_answers
        of_spec = {name: value for name, value in spec.items() if name not in changed}
        checksums = {f"{part.split}_rows_checksum": part.rows.checksum() for part in self.inputs.of("unlabelled")}
        of_spec |= {"standardizes": True} if self.task.standardizes(self.inputs.spec) else {}
        return {**identity, **of_spec, "train_rows_checksum": train.rows.checksum(), **checksums}

    def _finish(self, train: Part, encoded: Encoded, seconds: float | None, num_steps: int, identity: dict) -> None:
        """Saves the model and describes its training. `seconds` is None if an earlier call had done the last step."""
        task, settings, tokenizer = self.task, self.settings, self.trained.tokenizer
        directory, earlier = os.path.join(self.output_dir, MODEL_DIRECTORY), self._earlier_results()
        checksum = zlib.crc32(json.dumps(identity).encode())
        # If an earlier call has finished this training, keep what was chosen and measured since. Otherwise model and
        # results belong to another training.
        is_kept = seconds is None and earlier.get(_IDENTITY) == checksum
        if is_kept and is_directory(directory):
            self.trained = self.trained._replace(spec=task.adjust_spec(read_spec(task, directory)))
        if self._workers.is_chief:
            if not is_kept:
                remove_stale(self.output_dir, *([] if self._doubtful else [DOUBTFUL_FILE]))
            saved = {"task": task.name, **dataclasses.asdict(self.trained.spec)}
            model_files.save_model(directory, task.model_to_save(self.trained), tokenizer, saved)
        self._workers.wait()
        begin = (settings.preset or settings.init_checkpoint) if settings.load_weights else "random weights"
        trained = {"train_seconds": round(seconds or 0.0, 2), "train_start": begin, _IDENTITY: checksum}
        trained["train_command"] = command_line(task.command.split()[0], settings)
        trained |= {"train_resumed_at": self._resumed_at} if seconds and self._resumed_at else {}
        self.results = earlier if is_kept else trained
        of_training = {**task.describe(train.rows, encoded, self.inputs.spec), "train_steps": num_steps}
        if of_training.get("train_rows") != 0:  # Names of labels are no file.
            of_training["train_data"] = self._data(train)._asdict()
        self.results |= {**of_training, **self._few_labels, **(self.inputs.look.figures if self.inputs.look else {})}
        for part in self.inputs.of("validation"):
            answers = self._answer(part)
            figures = {**task.checkpoint_figures(answers), "rows_checksum": part.rows.checksum()}
            self.results |= {f"validation_{name}": value for name, value in figures.items()}
            if chosen := task.choose(answers):
                self._keep(chosen)

    def _fit(self, trainer, examples: Examples, num_steps: int, interval: int) -> float | None:
        """Trains up to the last step. Returns the seconds it took, or None if nothing was left to do."""
        started, task, settings, spread = time.monotonic(), self.task, self.settings, self._scale[1]
        watched, patience = self.inputs.watched, settings.early_stopping_patience
        metric = task.stopping_metric or task.metric_of(watched) if patience else ""
        self._resumed_at = first_step = trainer.restore()
        # XLA compiles again for each shape, so that all batches should have the same.
        is_static = settings.jit_compile or needs_static_shapes(trainer.strategy)
        length = int(examples.lengths.max()) if is_static else None
        size, seed = settings.train_batch_size, settings.random_seed

        def make_dataset(step: int) -> tf.data.Dataset:
            return make_train_dataset(examples, size, seed, step, num_steps, length)

        def evaluate() -> dict[str, float]:
            self._answers.clear()  # They come from earlier weights.
            figures = task.checkpoint_figures(self._answer(watched))
            return {name: value / (spread**2 if name == "loss" else 1) for name, value in figures.items()}

        history = trainer.fit(
            make_dataset,
            num_steps,
            save_checkpoints_steps=settings.save_checkpoints_steps or min(interval, MAX_CHECKPOINT_STEPS),
            evaluate=watched and evaluate,
            evaluation_steps=interval,
            early_stopping=EarlyStopping(metric, patience) if patience else None,
            description="fine-tuning",
        )
        if patience:
            self._answers.clear()  # The best weights may be earlier ones.
        was_over = first_step >= num_steps or not any(row["step"] > first_step for row in history.training)
        return None if was_over else time.monotonic() - started

    def load(self) -> None:
        """Loads the trained model named by `inputs`, or else a preset that was fine-tuned elsewhere.

        Raises:
            InputError: there is neither, or it does not fit the data.
        """
        strategy = self._prepare_devices()
        with self._workers.naming_lost_ones(), strategy.scope():
            earlier, directory = self._earlier_results(), self.inputs.model_directory
            if directory is not None:
                self._load_own(directory)
            else:
                self._load_preset()
            is_own = directory == os.path.join(self.output_dir, MODEL_DIRECTORY)
            source = {} if is_own else {"preset": self.settings.preset or self.settings.init_checkpoint}
            is_same = earlier.get("preset") == source.get("preset")
            self.results = earlier if is_same else source
            if not is_same and self._workers.is_chief:
                remove_stale(self.output_dir, REPORT_FILE)

    def _load_own(self, directory: str) -> None:
        spec = self.inputs.spec
        self.trained = self.task.load(directory, spec)
        # An embedder's size may be that of its checkpoint's dense layer, and a span labeler always has two outputs.
        sizes = self.task.model_arguments(spec)
        expected = sizes.get("num_classes", sizes.get("num_choices"))
        actual = self.trained.model.output_shape[-1]
        if expected not in (None, actual):
            raise InputError(
                f"{directory}: {model_files.TASK_FILE} declares {expected} outputs, but the model has {actual}. The "
                "two files come from different trainings."
            )
        if encoder := find_backbone(self.trained.model):
            check_positions(spec.sequence_length, encoder.max_sequence_length, directory)

    def _load_preset(self) -> None:
        task, parts = self.task, self.inputs.parts
        require_preset(self.settings, "Without a trained model, --do_eval and --do_predict")
        with start.find_start(self.settings) as origin:
            model, spec = start.load_fine_tuned(origin.preset, task, parts)
            tokenizer = origin.tokenizer()
            model_files.give_preprocessor(model, tokenizer, dataclasses.asdict(spec))
            self.trained = Trained(task.to_answer(model, spec), tokenizer, spec)
        parts = [task.match(part, spec, self.inputs.bad_rows) for part in parts]
        self.inputs = self.inputs._replace(parts=parts, spec=spec)

    # === Its answers ===

    def evaluate(self) -> None:
        """Scores the model on the dev files and adds the figures to `metrics.json`."""
        kept = (name for name in self.results if name.startswith(_OF_TRAINING) or _OF_PREDICTIONS in name)
        self.results, intervals = {name: self.results[name] for name in kept}, {}
        for part in self.inputs.of("dev"):
            started = time.perf_counter()
            evaluation = self.task.evaluate(self._answer(part), self.results)
            if evaluation.write is not None and self._workers.is_chief:
                written = {os.path.basename(evaluation.write()), *self.results.get(_PREDICTED, ())}
                self.results[_PREDICTED] = sorted(written)
            seconds = {"eval_seconds": round(time.perf_counter() - started, 2)}
            source = {"dev_file": part.rows.path, "dev_rows_checksum": part.rows.checksum()}
            for name, value in {**evaluation.figures, **evaluation.details, **seconds, **source}.items():
                self.results[part.figure(name)] = value
            intervals |= {part.figure(name): list(ends) for name, ends in evaluation.intervals.items()}
            self.evaluations.append(evaluation)
            if evaluation.chosen:
                self._keep(evaluation.chosen)
        self.results["intervals"] = intervals
        self._write_metrics()

    def predict(self) -> list[str]:
        """Writes the answers to the test files and returns the paths."""
        paths, names = [], set(self.results.get(_PREDICTED, ()))
        self.results = {name: value for name, value in self.results.items() if _OF_PREDICTIONS not in name}
        for part in self.inputs.of("test"):
            answers = self._answer(part)
            if not self._workers.is_chief:
                continue
            written, details = self.task.write_predictions(answers, self.output_dir)
            paths += written
            details |= {"test_file": part.rows.path, "test_rows_checksum": part.rows.checksum()}
            self.results |= {part.figure(name): value for name, value in details.items()}
        self.results[_PREDICTED] = sorted(names.union(map(os.path.basename, paths)))
        self._write_metrics()
        return paths

    @functools.cached_property
    def _predictor(self) -> Predictor:
        return Predictor(self.trained.model)

    def _encode(self, part: Part) -> Encoded:
        """Returns the token ids of a file, which are computed once."""
        if part not in self._encoded:
            self._encoded[part] = self.task.encode(part, self.trained)
            if self._workers.is_chief and (note := self._cut(part)):
                print(note)
        return self._encoded[part]

    def _answer(self, part: Part) -> Answers:
        """Returns the model's answers to a file, which are computed once."""
        if part not in self._answers:
            encoded, batch_size = self._encode(part), self.settings.eval_batch_size
            outputs = encoded.compute_outputs(self._predictor, batch_size, f"answer {part.title}")
            if self.task.standardizes(self.trained.spec):
                outputs = self._scale[0] + self._scale[1] * outputs
            self._answers[part] = Answers(trained=self.trained, part=part, encoded=encoded, outputs=outputs)
        return self._answers[part]._replace(trained=self.trained)

    def _keep(self, chosen: dict[str, Any]) -> None:
        """Adds values to the spec, and to `model/` in the output directory if it exists. A preset is never changed."""
        self.trained = self.trained._replace(spec=dataclasses.replace(self.trained.spec, **chosen))
        path = os.path.join(self.output_dir, MODEL_DIRECTORY, model_files.TASK_FILE)
        if self._workers.is_chief and exists(path):
            write_json(path, {**read_json(path), **chosen})

    # === Report and metrics ===

    def report(self, tables: list = ()) -> None:
        """Writes `report.html`, and `skipped_rows.tsv` if rows were skipped.

        A call that only predicts keeps the report of an earlier evaluation.

        Args:
            tables: further tables: caption, header, rows.
        """
        settings, look = self.settings, self.inputs.look
        if not self._workers.is_chief:
            return
        self.inputs.bad_rows.write(self.output_dir)
        path = os.path.join(self.output_dir, REPORT_FILE)
        if not settings.do_train and not self.evaluations and exists(path):
            return
        first = self.evaluations[0] if self.evaluations else Evaluation({})
        of_model = {"max_seq_length": self.trained.spec.sequence_length, **dataclasses.asdict(self.trained.spec)}
        # The trained model's own values replace settings that may have been left open.
        shown = {name: of_model.get(name, value) for name, value in dataclasses.asdict(settings).items()}
        report = Report(
            title=f"{self.task.title_of(self.trained.spec)}: {os.path.basename(self.inputs.parts[0].rows.path)}",
            scores=[score for evaluation in self.evaluations for score in evaluation.scores],
            history=read_optional_json(os.path.join(self.output_dir, HISTORY_FILE)),
            confusion=first.confusion,
            predictions=first.predictions,
            lengths={part.title: self._encode(part).lengths for part in self.inputs.parts},
            max_length=self.trained.spec.sequence_length,
            mistakes=[mistake for evaluation in self.evaluations for mistake in evaluation.mistakes],
            settings=shown,
            data_lines=look.lines if look else (),
            data_counts=look.counts if look else {},
            data_tables=self._doubtful,
            notes=self._notes(),
            panels=first.panels,
            tables=[*(table for evaluation in self.evaluations for table in evaluation.tables), *tables],
            long_examples=_LONG_EXAMPLES.get(self._long_text, self.task.long_examples),
        )
        write_report(path, report)
        if is_directory(os.path.join(self.output_dir, MODEL_DIRECTORY)):
            self._write_card(report)

    def _write_card(self, report: Report) -> None:
        encoder, rest = find_backbone(self.trained.model), [part for part in self.inputs.parts if part.split != "train"]
        data = [Data(**self.results["train_data"])] if "train_data" in self.results else []
        data += map(self._data, rest)
        card = Card(
            report=report,
            task=self.task.name,
            config=encoder and encoder.bert_config,
            num_parameters=self.trained.model.count_params(),
            tokenizer=tokenizer_identity(self.trained.tokenizer),
            data=data,
            metrics=self.results,
            scores=list(self.results.get("intervals", ())),
        )
        write_card(self.output_dir, card)

    def _data(self, part: Part) -> Data:
        lengths = self._encode(part).lengths
        num_cut = int(np.count_nonzero(lengths > self.trained.spec.sequence_length))
        return Data(part.split, part.rows.path, len(lengths), int(lengths.max(initial=0)), num_cut)

    def _notes(self) -> list[str]:
        notes, bad_rows = list(self.task.notes(self.trained.spec)), self.inputs.bad_rows
        notes += [few_labels.describe(self.results)] if "train_few_labels" in self.results else []
        if bad_rows.count:
            where, reason = bad_rows.rows[0]
            notes.append(
                f"{bad_rows.count} bad {self.task.unit} were left out (skipped_rows.tsv lists them). The first: "
                f"{where}: {reason}"
            )
        notes += [note for part in self.inputs.parts if (note := self._cut(part))]
        return [*notes, *(note for evaluation in self.evaluations for note in evaluation.notes)]

    @property
    def _long_text(self) -> str:
        """How long texts are read, one of `LONG_TEXTS`; "" if the task has no such choice."""
        spec = self.trained.spec
        return getattr(spec, "long_text", "") if getattr(spec, "num_texts", 1) == 1 else ""

    def _cut(self, part: Part) -> str:
        """Returns a sentence on how many rows of a file were cut, and which flag changes that; "" if none was."""
        lengths, limit = self._encode(part).lengths, self.trained.spec.sequence_length
        hint = "--long_text=mean or max reads them in windows; " if self._long_text else ""
        hint += "--max_seq_length sets the limit."
        if self._long_text in POOLED:
            limit, hint = MOST_TOKENS + SPECIAL_TOKENS, "More of a text is not read."
        count, left_out = np.count_nonzero(lengths > limit), np.maximum(lengths - limit, 0).sum()
        if not count or self.task.long_examples != "cut":
            return ""
        return (
            f"{count} of {len(lengths)} {self.task.unit} of {part.title} have more than {limit} tokens and were cut, "
            f"which leaves out {left_out / lengths.sum():.1%} of all tokens. {hint}"
        )

    def _earlier_results(self) -> dict[str, Any]:
        return read_optional_json(os.path.join(self.output_dir, METRICS_FILE))

    def _write_metrics(self) -> None:
        self.results |= {**self.task.describe_model(self.trained), "skipped_rows": self.inputs.bad_rows.count}
        if self._workers.is_chief:
            write_json(os.path.join(self.output_dir, METRICS_FILE), self.results)


def remove_stale(output_dir: str, *names: str) -> None:
    """Removes the predictions of a model that is being replaced, and the files of these names."""
    for name in (*names, *read_optional_json(os.path.join(output_dir, METRICS_FILE)).get(_PREDICTED, ())):
        remove_path(os.path.join(output_dir, name))


def plan_steps(
    settings: FineTuningSettings, train: Examples, watched: Examples | None, path: str
) -> tuple[int, int, int]:
    """Returns the numbers of training steps, of warm-up steps, and of steps between two evaluations.

    Evaluations take at most `SHARE_OF_EVALUATIONS` of the time, unless there is only the last one. A training step
    takes three times as long as an evaluation of as many tokens: forward, and backward for activations and for weights.
    The limit does not apply if the settings give an interval or early stopping.

    Raises:
        InputError: the training file `path` has too few examples to fill a batch.
    """
    batch_size, num_examples = settings.train_batch_size, train.num_examples
    num_steps = count_steps(num_examples, batch_size, settings.num_train_epochs)
    if not num_steps:
        raise InputError(
            f"{path}: {num_examples} examples and --num_train_epochs={settings.num_train_epochs:g} do not fill one "
            f"batch of {batch_size}. Lower --train_batch_size or raise --num_train_epochs."
        )
    interval = max(1, num_examples // batch_size, num_steps // EVALUATIONS)
    if watched is not None and not settings.early_stopping_patience:
        evaluation = len(watched.token_ids) / (3 * batch_size * len(train.token_ids) / num_examples)  # In steps.
        affordable = num_steps * SHARE_OF_EVALUATIONS / (1 - SHARE_OF_EVALUATIONS) / evaluation
        interval = max(interval, math.ceil(num_steps / max(1, int(affordable))))
    return num_steps, int(num_steps * settings.warmup_proportion), settings.save_checkpoints_steps or interval
