"""Classification and regression of texts, or pairs of texts: GLUE's tasks and any table (section 4.1 of the paper).

Shapes: N rows of a table, C classes.
"""

import dataclasses
import os
from collections import Counter
from typing import Any

import keras_bert
from keras_bert.answers.rules import LONG_TEXTS, NO_LABEL
from keras_bert.errors import InputError
from keras_bert.files import write_table
from tasks.classify import data
from tasks.classify.glue import Split, TableTask
from tasks.classify.kinds import Kind, kind_of
from tasks.classify.settings import FEW_ROWS, PLANS, ClassifySettings
from tasks.fine_tuning import columns, rare_labels, task
from tasks.fine_tuning import metrics as shared_metrics
from tasks.fine_tuning.data_check import Content
from tasks.fine_tuning.encoding import encode_texts, lengths_before_cutting
from tasks.fine_tuning.inputs import find_trained, read_spec
from tasks.report.page import Mistake
from tasks.text.rows import EXTENSIONS

_NUM_TITLE_LABELS = 5
_NUM_EXPLAINED = 10  # Mistakes to explain. Each costs a forward pass for each of its words.


class ClassifySpec(task.Spec):
    """Spec of a trained classifier, or regressor.

    Attributes:
        labels: class i is labels[i]; empty for a regressor.
        num_texts: number of texts per row, 1 or 2.
        is_regression: whether the model gives a score instead of a class.
        multi_label: whether a row has any number of labels.
        long_text: one of `LONG_TEXTS`.
        temperature: divides the logits, before the softmax.
        thresholds: least probability at which each label is given. With a class per row, `NO_LABEL` is given below it.
            None: the most probable class, or all labels with a probability of at least one half.
    """

    labels: list[str]
    num_texts: int
    is_regression: bool = False
    multi_label: bool = False
    long_text: str = LONG_TEXTS[0]
    temperature: float = 1.0
    thresholds: list[float] | None = None

    @property
    def kind(self) -> Kind:
        return kind_of(self.is_regression, self.multi_label)


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
        sources, file = getattr(self.table_task, split), getattr(self.settings, f"{split}_file")
        if not sources:
            raise InputError(
                f"--task_name={self.table_task.name}: GLUE has no {split} file of it. It can only be predicted: "
                "--do_predict, with a model of mnli."
            )
        if split == "train" and self.settings.few_labels == "names":
            return [task.Part(split, data.names_table(self.settings.labels))]
        parts = []
        for source in sources[:1] if file else sources:
            table = data.read_table(self._find(split, source), self.table_task, bad_rows, with_labels=split != "test")
            parts.append(task.Part(split, table, source.name))
        return parts

    def recognize_columns(self):
        settings, table_task = self.settings, self.table_task
        splits = [split for split in settings.splits if split != "train" or settings.few_labels != "names"]
        wanted = ["text_column", "label_column"][: 1 if splits == ["test"] else 2]
        is_open = [name for name in wanted if not getattr(settings, name)]
        is_said = settings.regression or settings.label_separator or settings.multi_label is False
        may_be_several = len(wanted) > 1 and not is_said
        if table_task.name != "table" or not splits:
            return {}, ()
        directory = None if settings.do_train else find_trained(settings)
        model = directory and read_spec(self, directory)
        if not (is_open or may_be_several or model):
            return {}, ()
        path = self._find(splits[0], getattr(table_task, splits[0])[0])
        of_file = columns.read_columns(path, settings.column_names)
        named = (settings.text_column, settings.text_pair_column, *(settings.label_column or "").split(","))
        rest = {name: column for name, column in of_file.items() if name not in named}
        if not any(column.values for column in of_file.values()):
            return {}, ()  # The reader reports what is wrong.
        label, is_regression = settings.label_column, model.is_regression if model else settings.regression
        has_names = bool(settings.column_names) or path.endswith((".jsonl", ".parquet"))  # Each row has its keys.
        if "label_column" in is_open:
            label = columns.choose_label(path, rest, is_regression, has_names)
        without = {name: column for name, column in rest.items() if name != label}
        text = settings.text_column or columns.choose_text(path, without, has_names)
        chosen = {name: value for name, value in zip(wanted, (text, label), strict=False) if name in is_open}
        is_free = not (model or settings.labels or is_said)
        if is_free and label in of_file and of_file[label].is_score:
            is_regression = True
        if is_regression and not settings.regression:
            chosen["regression"] = True
        elif may_be_several:
            chosen |= self._recognize_several(path, label, of_file, bool(model and model.multi_label))
        return chosen, list(of_file)

    def _recognize_several(
        self, path: str, label: str, of_file: columns.Columns, is_trained_so: bool
    ) -> dict[str, Any]:
        """Returns those settings for several labels per row that no flag gives."""
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
        learns_few = self.settings.few_labels not in (None, "off")
        flag = "few_labels" if learns_few else "find_wrong_labels" if self.settings.find_wrong_labels else None
        if flag and (train.num_texts > 1 or self.strata(train) is not train.labels):
            raise InputError(f"{train.path}: --{flag} is for single texts with one label each. Leave it out.")
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
        """Returns a spec for tables like this one. Without labels, it is that of a regressor."""
        spec = ClassifySpec(
            sequence_length=self.settings.max_seq_length,
            labels=labels,
            num_texts=table.num_texts,
            is_regression=not labels,
            multi_label=self.table_task.is_multi_label,
        )
        return self.adjust_spec(spec)

    def adjust_spec(self, spec):
        long_text = self.settings.long_text
        if spec.num_texts == 2 and long_text not in (None, LONG_TEXTS[0]):
            raise InputError(
                f"--long_text={long_text} is for single texts: the longer text of a pair is cut first. Leave it out."
            )
        has_none = NO_LABEL in spec.labels and not spec.multi_label
        if self.settings.precision and (spec.is_regression or has_none):
            what = "one of the labels has that name" if has_none else "scores have no least confidence"
            raise InputError(
                f"--precision={self.settings.precision} answers {NO_LABEL!r} in doubt, and {what}. Leave it out."
            )
        return spec if long_text is None else dataclasses.replace(spec, long_text=long_text)

    def _name_classes(self, source: str, num_outputs: int, labels: list[str] | None) -> list[str]:
        """Returns the class names of a checkpoint, in the spelling of the task if they differ only in letter case."""
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
            answers = list(map(frozenset, rows.labels))  # Their order does not matter.
        counts = Counter(data.each_label(rows.labels)) if has_classes else None
        return Content(self.groups(rows), answers, rows.place, counts)

    def strata(self, rows):
        return kind_of(self.table_task.is_regression, self.table_task.is_multi_label).strata(rows.labels)

    def describe(self, rows, encoded, spec):
        if self.settings.few_labels == "names":
            return {"train_rows": 0}
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
            return settings.few_labels
        # Flags that say what to fine-tune, or how, decide against another method.
        is_planned = settings.contrary_to_few_labels() or settings.changed(*PLANS) or settings.optimizer != "adamw"
        is_few = is_plain and len(rows.texts) < FEW_ROWS * len(spec.labels)
        return "auto" if is_few and not is_planned else "off"

    def balance(self, examples, spec):
        return rare_labels.balance(examples, self.settings, spec.labels) if spec.labels else examples

    def standardizes(self, spec):
        return spec.is_regression and self.settings.task_name == "table"  # STS-B is trained as in the paper.

    def objective(self, spec):
        return spec.kind.objective()

    def encode(self, part, trained):
        table, spec, tokenizer, limit = part.rows, trained.spec, trained.tokenizer, trained.spec.sequence_length
        texts, title = (table.texts, table.text_pairs), f"tokenize {part.title}"
        examples = encode_texts(*texts, tokenizer, limit, title, long_text=spec.long_text)
        if table.labels is not None:
            examples = examples._replace(labels={"labels": spec.kind.encode(table.labels, spec.labels)})
        return task.Encoded(examples, lengths_before_cutting(examples, *texts, tokenizer, limit))

    # === Answers ===

    def checkpoint_figures(self, answers):
        return answers.trained.spec.kind.score(self.table_task.metrics, answers.labels, answers.outputs)

    def choose(self, answers, temperature=None):
        kind = answers.trained.spec.kind
        return kind.choose(answers.labels, answers.outputs, self.settings.precision, temperature)

    def evaluate(self, answers, results):
        part, labels, outputs, kind = answers.part, answers.labels, answers.outputs, answers.trained.spec.kind
        chosen = {} if part.name else self._choose_here(answers)
        # The report shows what the model answers with the chosen values.
        spec = dataclasses.replace(answers.trained.spec, **chosen)
        answers = answers._replace(trained=answers.trained._replace(spec=spec))
        figures = self.checkpoint_figures(answers)
        intervals = kind.intervals(self.table_task.metrics, labels, outputs)
        is_wrong = (kind.predict(outputs, spec) != labels).reshape(len(labels), -1).any(axis=1)

        def show(row: int) -> list[tuple[str, str]]:
            texts = list(zip(self.table_task.columns(with_labels=False), part.rows.texts_of(row), strict=True))
            expected, predicted = kind.show(labels[row], outputs[row], spec)
            return [*texts, ("expected", expected), ("predicted", predicted), ("row", part.rows.place(row))]

        evaluation = task.Evaluation(
            figures,
            intervals,
            {"rows": len(labels)},
            scores=shared_metrics.headline_scores(figures, intervals, part.name),
            **shared_metrics.shown_rows(kind.row_losses(labels, outputs), is_wrong, show),
        )
        evaluation.mistakes = _explain(answers.trained, evaluation.mistakes)
        kind.describe(evaluation, answers, chosen, self.settings.precision, results.get("train_label_counts"))
        return evaluation

    def _choose_here(self, answers: task.Answers) -> dict[str, Any]:
        """Returns the values of the spec to choose on these rows.

        A training chooses on its validation rows, or else on its first dev file. A call that only evaluates keeps the
        temperature, and without --precision the thresholds.
        """
        if self.settings.do_train:
            return {} if self.settings.validation_share else self.choose(answers)
        temperature = answers.trained.spec.temperature
        return {"thresholds": self.choose(answers, temperature)["thresholds"]} if self.settings.precision else {}

    def write_predictions(self, answers, output_dir):
        """Writes `predictions.tsv`: index (of the row, from 0), prediction or labels, and probabilities of classes.

        A task of GLUE also gets the file that GLUE's server takes, with the columns `index` and `prediction`.
        """
        table, spec = answers.part.rows, answers.trained.spec
        name = f"predictions_{answers.part.name}.tsv" if answers.part.name else "predictions.tsv"
        paths = [os.path.join(output_dir, name)]
        spec.kind.write(paths[0], answers.outputs, spec, table.numbers)
        split = next(split for split in self.table_task.test if split.name == answers.part.name)
        if split.submission is not None:
            # GLUE refuses a file that lacks a row. Rows left out by `--bad_rows=skip` get the most frequent answer, or
            # the mean score. Thresholds are ignored: every row gets its most probable label.
            texts, other = spec.kind.to_submit(answers.outputs, spec.labels, self.table_task.score_range)
            by_number = dict(zip(table.numbers, texts, strict=True))
            rows = ([number, by_number.get(number, other)] for number in range(table.num_rows))
            paths.append(os.path.join(output_dir, split.submission))
            write_table(paths[-1], ["index", "prediction"], rows)
        return paths, {"test_rows": len(table.texts)}


def _explain(trained: task.Trained, mistakes: list[Mistake]) -> list[Mistake]:
    """Adds to the worst mistakes the share of each word in the prediction. Their first parts must be the texts."""
    worst, count = mistakes[:_NUM_EXPLAINED], trained.spec.num_texts
    # Of several machines only the first one's model gets a preprocessor when it is saved, and only that one reports.
    if not worst or getattr(trained.model, "preprocessor", None) is None:
        return mistakes
    columns = tuple(zip(*([text for _, text in mistake.parts[:count]] for mistake in worst), strict=True))
    rows = trained.model.explain(tuple(map(list, columns)))
    explained = []
    for mistake, row in zip(worst, rows, strict=True):
        texts = row["texts"] if count > 1 else [0] * len(row["shares"])
        words = list(zip(texts, row["starts"], row["ends"], row["shares"], strict=True))
        explained.append(mistake._replace(words=words))
    return explained + mistakes[_NUM_EXPLAINED:]
