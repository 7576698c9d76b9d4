"""Classification and regression of texts, or pairs of texts: GLUE's tasks and any table (paper, section 4.1).

Shapes: N rows of a table, C classes.
"""

import dataclasses
import functools
import itertools
import os
from collections import Counter
from typing import Any

import numpy as np

import keras_bert
from keras_bert.answers.rules import LONG_TEXTS, NO_LABEL
from keras_bert.errors import InputError
from keras_bert.files import write_table
from tasks.classify import data, metrics
from tasks.classify.glue import Split, TableTask
from tasks.classify.settings import FEW_ROWS, PLANS, ClassifySettings
from tasks.fine_tuning import columns, doubt, rare_labels, task
from tasks.fine_tuning import metrics as shared_metrics
from tasks.fine_tuning.data_check import Content
from tasks.fine_tuning.encoding import encode_texts, label_ids, lengths_before_cutting
from tasks.fine_tuning.inputs import find_trained, read_spec
from tasks.fine_tuning.model_files import taking_texts
from tasks.fine_tuning.rows import EXTENSIONS
from tasks.report.page import Mistake, Score

_NUM_TITLE_LABELS = 5
_NUM_EXPLAINED = 10  # Mistakes; each takes as long as a row for each of its words.


class ClassifySpec(task.Spec):
    """Spec of a trained classifier, or regressor.

    Attributes:
        labels: class i is labels[i]; empty for a regressor.
        num_texts: number of texts per row, 1 or 2.
        is_regression: whether the model gives a score instead of a class.
        multi_label: whether a row has any number of labels.
        long_text: one of `LONG_TEXTS`.
        temperature: divides the logits, before the softmax.
        thresholds: the least probability with which each label is given, else the label `NO_LABEL`; None: every label
            is given.
    """

    labels: list[str]
    num_texts: int
    is_regression: bool = False
    multi_label: bool = False
    long_text: str = LONG_TEXTS[0]
    temperature: float = 1.0
    thresholds: list[float] | None = None


class Classify(task.Task):
    """GLUE's tasks and any other table of texts with labels or scores."""

    Settings = ClassifySettings
    Spec = ClassifySpec
    name = "classification"
    command = "bert-classify"
    printed = ("macro_f1", "majority_accuracy", "mean_average_precision", "loss", "mismatched_loss", "temperature")
    printed += ("coverage", "answered_precision", "chosen_micro_f1", "chosen_macro_f1")
    changes_answers = ("temperature", "thresholds")

    @property
    def table_task(self) -> TableTask:
        """The task, with the columns named by the settings."""
        return self.settings.table_task()

    def title_of(self, spec):
        if self.table_task.name != "table":
            return self.table_task.name
        if spec.is_regression:
            return self.table_task.label_column
        num_more = len(spec.labels) - _NUM_TITLE_LABELS
        *first, last = spec.labels[:_NUM_TITLE_LABELS] + ([f"{num_more} more"] if num_more > 0 else [])
        return f"{', '.join(first)} {'and' if spec.multi_label else 'or'} {last}"

    def metric_of(self, part):
        return self.table_task.metrics[0]

    # === Data ===

    def read(self, split, bad_rows):
        sources, file = self.table_task.splits(split), getattr(self.settings, f"{split}_file")
        if not sources:
            raise InputError(
                f"--task_name={self.table_task.name}: GLUE has no {split} file of it. It can only be predicted: "
                "--do_predict, with a model of mnli."
            )
        if split == "train" and self.settings.few_labels == "names":
            return [task.Part(split, data.names_table(self.settings.labels))]
        name, parts = self.settings.tfds_name, []
        read_table = data.TfdsTables(name, self.settings.data_dir).read_table if name else data.read_table
        for source in sources[:1] if file else sources:
            path = (file or source.tfds_name) if name else self._find(split, source)
            table = read_table(path, self.table_task, bad_rows, with_labels=split != "test")
            parts.append(task.Part(split, table, source.name))
        return parts

    def recognize_columns(self):
        settings, table_task = self.settings, self.table_task
        splits = [split for split in settings.splits if split != "train" or settings.few_labels != "names"]
        wanted = ["text_column", "label_column"][: 1 if splits == ["test"] else 2]
        is_open = [name for name in wanted if not getattr(settings, name)]
        is_said = settings.regression or settings.label_separator or settings.multi_label is False
        may_be_several = len(wanted) > 1 and not is_said
        if settings.tfds_name or table_task.name != "table" or not splits:
            return {}, ()
        directory = None if settings.do_train else find_trained(settings)
        model = directory and read_spec(self, directory)
        if not (is_open or may_be_several or model):
            return {}, ()
        path = self._find(splits[0], table_task.splits(splits[0])[0])
        of_file = columns.read_columns(path, settings.column_names)
        named = (settings.text_column, settings.text_pair_column, *(settings.label_column or "").split(","))
        rest = {name: column for name, column in of_file.items() if name not in named}
        if not any(column.values for column in of_file.values()):
            return {}, ()  # The reader says what is wrong.
        label, is_regression = settings.label_column, model.is_regression if model else settings.regression
        if "label_column" in is_open:
            label = columns.choose_label(path, rest, is_regression, bool(settings.column_names))
        without = {name: column for name, column in rest.items() if name != label}
        text = settings.text_column or columns.choose_text(path, without)
        chosen = {name: value for name, value in zip(wanted, (text, label), strict=False) if name in is_open}
        if not model and label in chosen.values() and of_file[label].is_score and not settings.labels:
            is_regression = True
        if is_regression and not settings.regression:
            chosen["regression"] = True
        elif may_be_several:
            chosen |= self._recognize_several(path, label, of_file, bool(model and model.multi_label))
        return chosen, list(of_file)

    def _recognize_several(
        self, path: str, label: str, of_file: columns.Columns, is_trained_so: bool
    ) -> dict[str, Any]:
        """Returns the settings for several labels per row that no flag gives."""
        column, is_said = of_file.get(label), self.settings.has_several_labels or is_trained_so
        is_list = column is not None and column.is_list
        mark = columns.find_separator(path, label, column) if is_said and column and not is_list else None
        chosen = {"multi_label": (is_said or is_list) and self.settings.multi_label is None, "label_separator": mark}
        return {name: value for name, value in chosen.items() if value}

    def _find(self, split: str, source: Split) -> str:
        named = getattr(self.settings, f"{split}_file")
        has_names = self.table_task.headerless_columns is not None
        extensions = EXTENSIONS if named else self.table_task.extensions
        return self.settings.find_file(split, source.files, extensions, any_extension=has_names)

    def make_spec(self, train):
        labels = []
        if self.settings.find_wrong_labels and (train.num_texts > 1 or self.strata(train) is not train.labels):
            raise InputError(f"{train.path}: --find_wrong_labels is for single texts with one label. Leave it out.")
        if not self.table_task.is_regression:
            labels = data.choose_labels(train, self.settings.labels or self.table_task.labels)
            self.settings.read_weights(labels)
        for flag in [] if labels else self.settings.changed(*rare_labels.NAMES):
            raise InputError(f"{train.path}: {flag} is for labels, but the task has scores. Leave it out.")
        return self._spec(labels, train)

    def foreign_spec(self, source, labels, num_outputs, parts):
        labels = [] if num_outputs == 1 else self._name_classes(source, num_outputs, self.settings.labels or labels)
        return self._spec(labels, parts[0].rows)

    def _spec(self, labels: list[str], table: data.Table) -> ClassifySpec:
        """Returns a spec for tables like this one; without labels that of a regressor."""
        spec = ClassifySpec(
            sequence_length=self.settings.max_seq_length,
            labels=labels,
            num_texts=table.num_texts,
            is_regression=not labels,
            multi_label=self.table_task.is_multi_label,
        )
        return self.adjust_spec(spec)

    def adjust_spec(self, spec):
        if spec.num_texts == 2 and self.settings.long_text not in (None, LONG_TEXTS[0]):
            raise InputError(
                f"--long_text={self.settings.long_text} is for single texts: the longer text of a pair is cut first. "
                "Leave it out."
            )
        has_none = NO_LABEL in spec.labels and not spec.multi_label
        if self.settings.precision and (spec.is_regression or has_none):
            what = "one of the labels has that name" if has_none else "scores have no least confidence"
            raise InputError(
                f"--precision={self.settings.precision} answers {NO_LABEL!r} in doubt, and {what}. Leave it out."
            )
        return self.settings.with_long_text(spec)

    def _name_classes(self, source: str, num_outputs: int, labels: list[str] | None) -> list[str]:
        """Returns a checkpoint's class names, spelled as in the task if they differ from its labels by case only."""
        own = self.table_task.labels
        names = list(labels or own or [str(number) for number in range(num_outputs)])
        if len(names) != num_outputs:
            raise InputError(
                f"{source}: has {num_outputs} classes, but there are {len(names)} labels ({', '.join(names)}). "
                "Name its classes, in their order, with --labels."
            )
        by_case = {label.casefold(): label for label in own or names}
        unknown = [name for name in names if name.casefold() not in by_case]
        if unknown:
            raise InputError(
                f"{source}: its class {unknown[0]!r} is none of the task's ({', '.join(own)}). Name its classes in the "
                f"task's words, in the order {', '.join(names)}, with --labels."
            )
        return [by_case[name.casefold()] for name in names] if own else names

    def match(self, part, spec, bad_rows):
        table = part.rows
        if spec.is_regression != self.table_task.is_regression:
            kinds = ("classes", "scores")
            of_model, of_task = kinds[spec.is_regression], kinds[self.table_task.is_regression]
            raise InputError(
                f"{table.path}: a model of {of_model}, but the task has {of_task}. Give --regression for scores only."
            )
        if table.labels is not None and spec.multi_label != self.table_task.is_multi_label:
            raise InputError(
                f"{table.path}: a model of {'several labels' if spec.multi_label else 'one label'} a row. Give "
                f"--{'' if spec.multi_label else 'no'}multi_label, and a file to match."
            )
        if table.num_texts != spec.num_texts:
            raise InputError(
                f"{table.path}: {table.num_texts} text column(s) named, but the model was trained on {spec.num_texts}. "
                "Give --text_pair_column for a model of pairs, and only then."
            )
        if table.labels is not None and not spec.is_regression:
            table = self.take_rows(table, data.find_known(table, spec.labels, bad_rows))
        return part.with_rows(table)

    def groups(self, rows):
        return [rows.texts_of(index) for index in range(len(rows.texts))]

    def content(self, rows):
        if self.settings.few_labels == "names":
            return None
        answers, has_classes = rows.labels, rows.labels and not self.table_task.is_regression
        if rows.labels and self.table_task.is_multi_label:
            answers = list(map(frozenset, rows.labels))  # In any order.
        counts = Counter(data.each_label(rows.labels)) if has_classes else None
        return Content(self.groups(rows), answers, rows.place, counts)

    def strata(self, rows):
        if self.table_task.is_multi_label:  # By the rarest label of each, since a set of labels may be that of one row.
            counts = Counter(data.each_label(rows.labels))
            return [min(of_row, key=lambda name: (counts[name], name), default=None) for of_row in rows.labels]
        return None if self.table_task.is_regression else rows.labels

    def describe(self, rows, encoded, spec):
        described, counts = super().describe(rows, encoded, spec), Counter(data.each_label(rows.labels))
        if not spec.is_regression:
            described["train_label_counts"] = {label: counts[label] for label in spec.labels}
            described |= rare_labels.describe(encoded.examples, self.settings, spec.labels)
        return described

    # === Model ===

    def model_class(self):
        return keras_bert.BertTextClassifier

    def model_arguments(self, spec):
        return {"num_classes": len(spec.labels) or 1, "labels": spec.labels or None, "multi_label": spec.multi_label}

    def few_labels(self, rows, spec):
        settings, is_plain = self.settings, spec.num_texts == 1 and not (spec.is_regression or spec.multi_label)
        if settings.few_labels is not None:
            if settings.few_labels != "off" and not is_plain:
                raise InputError(
                    f"{rows.path}: --few_labels={settings.few_labels} is for single texts with a class each. Leave it "
                    "out."
                )
            return settings.few_labels
        # Flags that say what to fine-tune, or how, decide against another method.
        is_planned = settings.contrary_to_few_labels() or settings.changed(*PLANS)
        is_few = is_plain and len(rows.texts) < FEW_ROWS * len(spec.labels)
        return "auto" if is_few and not is_planned else "off"

    def balance(self, examples, spec):
        return rare_labels.balance(examples, self.settings, spec.labels) if spec.labels else examples

    def objective(self, spec):
        from tasks.fine_tuning.objectives import CrossEntropy, SigmoidCrossEntropy, SquaredError

        smoothing = self.settings.label_smoothing
        if spec.multi_label:
            return SigmoidCrossEntropy(smoothing)
        return SquaredError() if spec.is_regression else CrossEntropy(label_smoothing=smoothing)

    def encode(self, part, trained):
        table, spec, tokenizer, limit = part.rows, trained.spec, trained.tokenizer, trained.spec.sequence_length
        title, long_text = f"tokenize {part.title}", spec.long_text
        examples = encode_texts(table.texts, table.text_pairs, tokenizer, limit, title, long_text=long_text)
        if table.labels is not None:
            labels = label_ids(table.labels, spec.labels) if spec.labels else np.array(table.labels, np.float32)
            if spec.multi_label:
                labels = np.array([[name in of_row for name in spec.labels] for of_row in table.labels], np.float32)
            examples = examples._replace(labels={"labels": labels})
        lengths = lengths_before_cutting(examples, table.texts, table.text_pairs, tokenizer, limit)
        return task.Encoded(examples, lengths)

    # === Answers ===

    def checkpoint_figures(self, answers):
        is_regression = self.table_task.is_regression
        return metrics.score(self.table_task.metrics, answers.labels, answers.outputs, is_regression)

    def choose(self, answers, temperature=None):
        spec = answers.trained.spec
        if spec.is_regression:
            return {}
        if spec.multi_label:
            return {"thresholds": self._choose_thresholds(answers)}
        choice = doubt.choose(answers.outputs, answers.labels, self.settings.precision, temperature)
        thresholds = None if choice.threshold is None else [choice.threshold] * len(spec.labels)
        return {"temperature": choice.temperature, "thresholds": thresholds}

    def _choose_thresholds(self, answers: task.Answers) -> list[float] | None:
        """Returns the threshold of each label: for the wanted precision, or the best F1 if that helps unseen rows."""
        rows, precision = (answers.outputs, answers.labels), self.settings.precision
        if precision is None:
            true = answers.labels > 0
            of_unseen = metrics.choose(answers.outputs, metrics.unseen_thresholds(*rows))
            if metrics.macro_f1(true, of_unseen) <= metrics.macro_f1(true, metrics.choose(answers.outputs)):
                return None
        return metrics.best_thresholds(*rows, precision)

    def evaluate(self, answers, results):
        names, is_regression = self.table_task.metrics, self.table_task.is_regression
        part, classes, labels = answers.part, answers.trained.spec.labels, answers.labels
        chosen = {} if part.name else self._choose_here(answers)
        spec = dataclasses.replace(answers.trained.spec, **chosen)
        # The report shows what the model answers with the chosen values.
        answers = answers._replace(trained=answers.trained._replace(spec=spec))
        figures = self.checkpoint_figures(answers)
        intervals = metrics.intervals(names, labels, answers.outputs, is_regression)
        is_several, outputs = spec.multi_label, answers.outputs
        predictions = (
            metrics.choose(outputs, spec.thresholds) if is_several else metrics.predict(outputs, is_regression)
        )
        losses = metrics.row_losses(labels, answers.outputs, is_regression)
        is_wrong = losses > 0 if is_regression else (predictions != labels).reshape(len(labels), -1).any(axis=1)
        evaluation = task.Evaluation(
            figures,
            intervals,
            {"rows": len(labels)},
            scores=shared_metrics.headline_scores(figures, intervals, part.name),
            **shared_metrics.shown_rows(losses, is_wrong, functools.partial(self._show, answers)),
        )
        evaluation.mistakes = _explain(answers.trained, evaluation.mistakes)
        if is_regression:
            evaluation.predictions = (labels, predictions)
        elif is_several:
            of_each = metrics.label_scores(labels, answers.outputs, classes)
            evaluation.details["per_label"] = of_each
            header = ["label", *(name.replace("_", " ") for name in of_each[classes[0]])]
            evaluation.tables = [("Labels", header, [[name, *row.values()] for name, row in of_each.items()])]
            self._add_thresholds(evaluation, answers, chosen)
        elif not part.name:
            counts = shared_metrics.confusion_matrix(labels, predictions, len(classes))
            evaluation.confusion = (classes, counts)
            per_class = shared_metrics.class_scores(counts.sum(1), counts.sum(0), np.diagonal(counts), classes)
            evaluation.details |= {"per_class": per_class, "macro_f1": shared_metrics.macro_f1(per_class)}
            evaluation.scores.append(Score("macro F1", evaluation.details["macro_f1"]))
            train_counts = results.get("train_label_counts")
            self._add_doubt(evaluation, answers, chosen)
            if train_counts and list(train_counts) == classes:
                majority = shared_metrics.majority_accuracy(list(train_counts.values()), labels)
                evaluation.details["majority_accuracy"] = majority
                evaluation.notes += [f"Always answering the most frequent training class: {majority:.1%}."]
        return evaluation

    def _choose_here(self, answers: task.Answers) -> dict[str, Any]:
        """Returns the values of the spec that are to be chosen on these rows.

        A training chooses on its validation rows, or else on its first dev file. A call that only evaluates keeps the
        temperature, and without --precision the thresholds.
        """
        if self.settings.do_train:
            return {} if self.settings.validation_share else self.choose(answers)
        temperature = answers.trained.spec.temperature
        return {"thresholds": self.choose(answers, temperature)["thresholds"]} if self.settings.precision else {}

    def _add_thresholds(self, evaluation: task.Evaluation, answers: task.Answers, chosen: dict[str, Any]) -> None:
        """Adds what the thresholds of several labels do; those chosen here are scored on unseen rows."""
        evaluation.chosen = chosen
        labels, logits, spec = answers.labels, answers.outputs, answers.trained.spec
        thresholds = spec.thresholds
        if thresholds is None:
            return
        scored = metrics.unseen_thresholds(logits, labels, self.settings.precision) if chosen else thresholds
        given, of_each = metrics.choose(logits, scored), metrics.label_scores(labels, logits, spec.labels, scored)
        rows = [[name, least, *row.values()] for (name, row), least in zip(of_each.items(), thresholds, strict=True)]
        header = ["label", "threshold", *(name.replace("_", " ") for name in next(iter(of_each.values())))]
        evaluation.tables.append(("Labels by the chosen thresholds", header, rows))
        micro, macro = metrics.micro_f1(labels > 0, given), metrics.macro_f1(labels > 0, given)
        figures = {"chosen_micro_f1": micro, "chosen_macro_f1": macro, "chosen_per_label": of_each}
        evaluation.details |= {"thresholds": thresholds, **figures}

    def _add_doubt(self, evaluation: task.Evaluation, answers: task.Answers, chosen: dict[str, Any]) -> None:
        """Adds how sure the answers are, and what was chosen on these rows."""
        settings, spec = self.settings, answers.trained.spec
        choice = doubt.Choice(spec.temperature, spec.thresholds and spec.thresholds[0])
        assessed = doubt.assess(answers.outputs, answers.labels, choice, settings.precision, chosen)
        evaluation.chosen, evaluation.panels = chosen, assessed.panels
        evaluation.details |= assessed.details
        evaluation.notes += assessed.notes

    def _show(self, answers: task.Answers, row: int) -> list[tuple[str, str]]:
        """Returns the captioned texts that the report shows of a mistake."""
        table, spec, outputs = answers.part.rows, answers.trained.spec, answers.outputs[row]
        classes, label = spec.labels, answers.labels[row]
        texts = list(zip(self.table_task.columns(with_labels=False), table.texts_of(row), strict=True))
        if self.table_task.is_regression:
            expected, predicted = f"{label:g}", f"{outputs[0]:.2f}"
        elif spec.multi_label:
            expected = ", ".join(itertools.compress(classes, label > 0)) or "no label"
            is_given = metrics.choose(outputs, spec.thresholds)
            shares = itertools.compress(zip(classes, metrics.probabilities(outputs), strict=True), is_given)
            predicted = ", ".join(f"{name} {share:.0%}" for name, share in shares) or "no label"
        else:
            share = np.exp(shared_metrics.log_softmax(outputs / spec.temperature)).max()
            expected, predicted = classes[label], f"{classes[outputs.argmax()]} {share:.0%}"
            if spec.thresholds and share < spec.thresholds[outputs.argmax()]:
                predicted = f"{NO_LABEL} ({predicted})"
        return [*texts, ("expected", expected), ("predicted", predicted), ("row", table.place(row))]

    def write_predictions(self, answers, output_dir):
        """Writes `predictions.tsv`: index (of the row, from 0), prediction or labels, and probabilities of classes."""
        table, spec = answers.part.rows, answers.trained.spec
        name = f"predictions_{answers.part.name}.tsv" if answers.part.name else "predictions.tsv"
        paths, classes, thresholds = [os.path.join(output_dir, name)], spec.labels, spec.thresholds
        if spec.multi_label:
            metrics.write_label_sets(paths[0], answers.outputs, classes, table.numbers, thresholds)
        elif classes:
            logits = answers.outputs / spec.temperature
            shared_metrics.write_probabilities(paths[0], logits, classes, table.numbers, thresholds=thresholds)
        else:
            scores = (f"{value:.6f}" for value in answers.outputs[:, 0])
            write_table(paths[0], ["index", "prediction"], zip(table.numbers, scores, strict=True))
        split = next(split for split in self.table_task.test if split.name == answers.part.name)
        if split.submission is not None:
            paths.append(os.path.join(output_dir, split.submission))
            self._write_submission(paths[-1], answers)
        return paths, {"test_rows": len(table.texts)}

    def _write_submission(self, path: str, answers: task.Answers) -> None:
        """Writes the file that GLUE takes, with the columns `index` and `prediction`.

        GLUE refuses a file that lacks a row. Rows left out by `--bad_rows=skip` get the most frequent answer, or the
        mean score. It knows no doubt: every row gets its most probable label.
        """
        table, classes = answers.part.rows, answers.trained.spec.labels
        predictions = metrics.predict(answers.outputs, self.table_task.is_regression)
        if self.table_task.is_regression:
            predictions = np.clip(predictions, *self.table_task.score_range)
            texts, other = [f"{value:.4f}" for value in predictions], f"{predictions.mean():.4f}"
        else:
            texts = [classes[number] for number in predictions]
            other = classes[np.bincount(predictions, minlength=len(classes)).argmax()]
        by_number = dict(zip(table.numbers, texts, strict=True))
        rows = ([number, by_number.get(number, other)] for number in range(table.num_rows))
        write_table(path, ["index", "prediction"], rows)


def _explain(trained: task.Trained, mistakes: list[Mistake]) -> list[Mistake]:
    """Adds to the worst mistakes, whose first parts are the texts, how much each word counts."""
    worst, count = mistakes[:_NUM_EXPLAINED], trained.spec.num_texts
    if not worst or not isinstance(trained.model, keras_bert.BertTextClassifier):
        return mistakes
    columns = tuple(zip(*([text for _, text in mistake.parts[:count]] for mistake in worst), strict=True))
    with taking_texts(trained.model, trained.tokenizer, {"sequence_length": trained.spec.sequence_length}):
        rows = trained.model.explain(tuple(map(list, columns)), method="leave_out")
    explained = [
        mistake._replace(
            words=[
                (row["texts"][number] if count > 1 else 0, start, end, share)
                for number, (start, end, share) in enumerate(
                    zip(row["starts"], row["ends"], row["shares"], strict=True)
                )
            ]
        )
        for mistake, row in zip(worst, rows, strict=True)
    ]
    return explained + mistakes[_NUM_EXPLAINED:]
