"""The stages of `bert-classify`: train or load, evaluate, predict, report; each writes to the run's directory."""

import os
from collections import Counter

import numpy as np

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import read_json, write_json
from keras_bert.preprocessor import BertPreprocessor
from tasks import fine_tuning
from tasks.examples import Examples, compute_outputs, count_steps
from tasks.fine_tuning import FineTuningSettings
from tasks.glue import metrics
from tasks.glue.data import encode_table
from tasks.glue.evaluation import Evaluation
from tasks.glue.inputs import MODEL_DIRECTORY, Inputs
from tasks.glue.losses import ClassificationObjective, RegressionObjective
from tasks.glue.model import HEAD, Classifier, build_classifier, build_regressor, load_classifier, save_classifier
from tasks.glue.prediction import predictions_file, write_predictions, write_submission
from tasks.glue.tables import Table
from tasks.glue.tasks import Split
from tasks.model_files import TASK_FILE
from tasks.report import Score, write_report
from tasks.report_lengths import lengths_before_cutting

METRICS_FILE = "metrics.json"
CONFUSION_FILE = "confusion_matrix.png"
REPORT_FILE = "report.html"


class Stages:
    """One run: a model, what it is trained on or applied to, and what comes of it.

    Args:
        inputs: the tables.
        output_dir: where everything is written.
        eval_batch_size: rows of a batch in evaluation and prediction.

    Attributes:
        classifier: the `Classifier`, after `train` or `load`.
    """

    def __init__(self, inputs: Inputs, output_dir: str, eval_batch_size: int = 32):
        self.inputs = inputs
        self.output_dir = output_dir
        self.eval_batch_size = eval_batch_size
        self.classifier: Classifier | None = None
        self._examples: dict[str, Examples] = {}
        self._lengths: dict[str, np.ndarray] = {}
        self._evaluations: list[Evaluation] = []

    # === The model ===

    def train(self, settings: FineTuningSettings) -> dict:
        """Fine-tunes a preset and writes `model/`; continues from the last checkpoint in `output_dir`.

        Evaluates on the (first) dev table, if there is one, at every checkpoint.

        Args:
            settings: how to train.

        Returns:
            What `metrics.json` now holds.

        Raises:
            InputError: the preset does not fit, or `output_dir` holds a training with other settings.
        """
        table, task = self.inputs.train, self.inputs.task
        labels, is_regression = self.inputs.labels, task.is_regression
        num_steps = count_steps(len(table.texts), settings.train_batch_size, settings.num_train_epochs)
        tuner = fine_tuning.start(
            settings,
            build_regressor if is_regression else lambda backbone: build_classifier(backbone, len(labels)),
            RegressionObjective() if is_regression else ClassificationObjective(),
            output_dir=self.output_dir,
            num_steps=num_steps,
        )
        model = tuner.trainer.model
        self.classifier = Classifier(
            model, tuner.tokenizer, labels, settings.max_seq_length, table.num_texts, is_regression
        )
        seconds = fine_tuning.fit(
            tuner,
            self._encode("train", table),
            num_steps,
            settings,
            output_dir=self.output_dir,
            identity={"labels": labels, "train_rows_checksum": table.checksum()},
            metric=task.metric,
            evaluate=(lambda: self._answer(*self.inputs.dev[0]).figures()) if self.inputs.dev else None,
        )
        save_classifier(os.path.join(self.output_dir, MODEL_DIRECTORY), *self.classifier)
        results = {"train_rows": len(table.texts), "train_steps": num_steps, **self._skipped()}
        if not is_regression:
            counts = Counter(table.labels)
            results["train_label_counts"] = {label: counts[label] for label in labels}
        if settings.early_stopping_patience:
            results["best_step"] = int(tuner.trainer.step.numpy())
        if seconds is None:  # A finished training: what an earlier call measured is still true.
            results = {**read_metrics(self.output_dir), **results}
        else:
            results["train_seconds"] = round(seconds, 2)
        return self._write(results)

    def load(self, preset: str | None = None, max_seq_length: int = 128, labels: list[str] | None = None) -> None:
        """Loads `model/` of an earlier run; where there is none, a fine-tuned checkpoint of any format.

        Args:
            preset: the checkpoint; not looked at where there is a model.
            max_seq_length: tokens of a row at most, for the checkpoint.
            labels: names of the checkpoint's classes in their order; None: its own, or the task's.

        Raises:
            InputError: there is neither; the model is of scores and the task of classes, or the other way round; it was
                trained on another number of texts a row than the tables have; or a label is none of its classes.
        """
        directory = os.path.join(self.output_dir, MODEL_DIRECTORY)
        if preset and not os.path.exists(os.path.join(directory, TASK_FILE)):
            directory = preset
            self.classifier = self._load_fine_tuned(preset, max_seq_length, labels)
        else:
            self.classifier = load_classifier(directory)
        if self.classifier.is_regression != self.inputs.task.is_regression:
            kinds = ("classes", "scores")
            found, wanted = kinds[self.classifier.is_regression], kinds[self.inputs.task.is_regression]
            raise InputError(f"{directory}: a model of {found}, but the task has {wanted}. See --regression.")
        for table in self.inputs.tables:
            if table.num_texts != self.classifier.num_texts:
                raise InputError(
                    f"{table.path}: {table.num_texts} text column(s) named, but {directory} was trained on "
                    f"{self.classifier.num_texts}. Give --text_pair_column for a model of pairs, and only then."
                )
        self.inputs = self.inputs.with_labels(self.classifier.labels)

    def _load_fine_tuned(self, preset: str, max_seq_length: int, labels: list[str] | None) -> Classifier:
        model, tokenizer, own_labels = fine_tuning.load_fine_tuned(preset, HEAD, _build_head)
        positions = next(layer for layer in model.layers if isinstance(layer, BertBackbone)).max_sequence_length
        if max_seq_length > positions:
            raise InputError(f"--max_seq_length={max_seq_length}: {preset} has positions for {positions} tokens.")
        num_outputs, num_texts = model.output_shape[-1], self.inputs.tables[0].num_texts
        if num_outputs == 1:
            return Classifier(model, tokenizer, [], max_seq_length, num_texts, is_regression=True)
        names = _name_classes(preset, num_outputs, labels or own_labels, self.inputs.task.labels)
        return Classifier(model, tokenizer, names, max_seq_length, num_texts)

    # === Its answers ===

    def evaluate(self) -> dict:
        """Scores the model on the dev tables; adds to `metrics.json` and draws `confusion_matrix.png`.

        Returns:
            What `metrics.json` now holds: the figures of `Evaluation` (those of a second table with its name before
            them), their 95% intervals, and of classes `majority_accuracy`, if the training is known, and `per_class`.
        """
        results, intervals = read_metrics(self.output_dir), {}
        self._evaluations = [self._answer(split, table) for split, table in self.inputs.dev]
        for evaluation in self._evaluations:
            results.update(evaluation.figures())
            results[evaluation.split.figure("rows")] = len(evaluation.labels)
            intervals |= evaluation.intervals()
        if not self.classifier.is_regression:
            self._add_class_figures(results, self._evaluations[0])
        return self._write({**results, "intervals": intervals, **self._skipped()})

    def _add_class_figures(self, results: dict, evaluation: Evaluation) -> None:
        train_counts = results.get("train_label_counts")
        if train_counts and list(train_counts) == self.classifier.labels:
            counts = np.array(list(train_counts.values()))
            results["majority_accuracy"] = metrics.majority_accuracy(counts, evaluation.labels)
        results["per_class"] = evaluation.per_class()
        path = os.path.join(self.output_dir, CONFUSION_FILE)
        metrics.plot_confusion_matrix(path, evaluation.confusions(), self.classifier.labels)

    def predict(self) -> list[str]:
        """Writes `predictions.tsv` and, of a GLUE task, the file that GLUE takes, for each test table.

        Returns:
            The paths of the files.
        """
        paths = []
        for split, table in self.inputs.test:
            outputs = self._compute(f"test {split.name}", table)
            paths.append(os.path.join(self.output_dir, predictions_file(split)))
            write_predictions(paths[-1], table, self.classifier.labels, outputs)
            submission = write_submission(
                self.output_dir, self.inputs.task, split, table, self.classifier.labels, outputs
            )
            paths.extend([submission] if submission else [])
        self._write({**read_metrics(self.output_dir), **self._skipped()})
        return paths

    def _answer(self, split: Split, table: Table) -> Evaluation:
        outputs = self._compute(f"dev {split.name}", table)
        labels = self._encode(f"dev {split.name}", table).labels["labels"]
        return Evaluation(self.inputs.task, split, table, self.classifier.labels, labels, outputs)

    def _compute(self, name: str, table: Table) -> np.ndarray:
        examples = self._encode(name, table)
        return compute_outputs(self.classifier.model, examples, self.eval_batch_size, f"answer {name}".strip())

    def _encode(self, name: str, table: Table) -> Examples:
        """Token ids of a table, computed once."""
        name = name.strip()
        if name not in self._examples:
            preprocessor = BertPreprocessor(
                self.classifier.tokenizer, sequence_length=self.classifier.sequence_length, pad_to_longest=True
            )
            self._examples[name] = encode_table(table, preprocessor, self.classifier.labels, f"tokenize {name}")
            self._lengths[name] = lengths_before_cutting(
                self._examples[name].lengths, table.texts_of, self.classifier.tokenizer, self.classifier.sequence_length
            )
        return self._examples[name]

    # === Reports ===

    def report(self, settings: dict, tables: list[tuple[str, list[str], list[list]]] = ()) -> None:
        """Writes `report.html`, and `skipped_rows.tsv` if rows were left out.

        Args:
            settings: what the run was called with, by name.
            tables: further tables to show: caption, header, rows.
        """
        self.inputs.bad_rows.write(self.output_dir)
        results = read_metrics(self.output_dir)
        history = os.path.join(self.output_dir, "history.json")
        of_classes = self._evaluations and not self.classifier.is_regression
        write_report(
            os.path.join(self.output_dir, REPORT_FILE),
            title=f"{self.inputs.task.name}: {_last_part(settings.get('preset') or self.output_dir)}",
            scores=[score for evaluation in self._evaluations for score in _scores(evaluation, results)],
            history=read_json(history) if os.path.exists(history) else None,
            confusion=(self.classifier.labels, self._evaluations[0].confusions()) if of_classes else None,
            lengths=self._lengths,
            max_length=self.classifier.sequence_length,
            mistakes=[mistake for evaluation in self._evaluations for mistake in evaluation.mistakes()],
            settings=settings,
            notes=self._notes(results),
            tables=tables,
        )

    def _notes(self, results: dict) -> list[str]:
        notes = []
        if self.inputs.bad_rows.count:
            where, reason = self.inputs.bad_rows.rows[0]
            notes.append(
                f"{self.inputs.bad_rows.count} bad rows were left out (skipped_rows.tsv lists them). The first: "
                f"{where}: {reason}"
            )
        limit = self.classifier.sequence_length
        for name, lengths in self._lengths.items():
            if cut := int((lengths > limit).sum()):
                notes.append(
                    f"{cut} of {len(lengths)} rows of {name} have more than {limit} tokens and were cut. "
                    "--max_seq_length sets the limit."
                )
        if self._evaluations and "majority_accuracy" in results:
            notes.append(f"Always answering the most frequent training class: {results['majority_accuracy']:.1%}.")
        return notes

    def _skipped(self) -> dict[str, int]:
        return {"skipped_rows": self.inputs.bad_rows.count}

    def _write(self, results: dict) -> dict:
        write_json(os.path.join(self.output_dir, METRICS_FILE), results)
        return results


def read_metrics(output_dir: str) -> dict:
    """Reads `metrics.json`; an empty dict if no stage has written it."""
    path = os.path.join(output_dir, METRICS_FILE)
    return read_json(path) if os.path.exists(path) else {}


def _last_part(preset: str) -> str:
    """A directory's own name; the name or handle of another preset whole."""
    return preset if "://" in preset else os.path.basename(os.path.abspath(preset))


def _scores(evaluation: Evaluation, results: dict) -> list[Score]:
    names = [evaluation.split.figure(name) for name in evaluation.task.metrics]
    is_share = {name: not name.endswith("mean_squared_error") for name in names}
    return [
        Score(name.replace("_", " "), results[name], *results["intervals"][name], percent=is_share[name])
        for name in names
    ]


def _build_head(backbone: BertBackbone, num_outputs: int):
    return build_regressor(backbone) if num_outputs == 1 else build_classifier(backbone, num_outputs)


def _name_classes(
    preset: str, num_outputs: int, labels: list[str] | None, task_labels: tuple[str, ...] | None
) -> list[str]:
    """Names a checkpoint's classes: as given, or as the task has them where the two differ by their case alone."""
    names = list(labels or task_labels or [str(number) for number in range(num_outputs)])
    if len(names) != num_outputs:
        raise InputError(
            f"{preset}: has {num_outputs} classes, but there are {len(names)} labels ({', '.join(names)}). "
            "Name its classes, in their order, with --labels."
        )
    if task_labels is None:
        return names
    by_case = {label.casefold(): label for label in task_labels}
    unknown = [name for name in names if name.casefold() not in by_case]
    if unknown:
        raise InputError(
            f"{preset}: its class {unknown[0]!r} is none of the task's ({', '.join(task_labels)}). Name its classes in "
            f"the task's words, in the order {', '.join(names)}, with --labels."
        )
    return [by_case[name.casefold()] for name in names]
