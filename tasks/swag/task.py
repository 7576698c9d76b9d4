"""Multiple choice: which of K texts goes with a text (paper, section 4.4).

Shapes: N rows of a table, K choices.
"""

import dataclasses
import os

import numpy as np

import keras_bert
from keras_bert.errors import InputError
from tasks.fine_tuning import metrics, task
from tasks.fine_tuning.encoding import encode_texts
from tasks.fine_tuning.settings import SplitSettings
from tasks.fine_tuning.splits import find_split
from tasks.fine_tuning.tables import write_table
from tasks.report.lengths import lengths_before_cutting
from tasks.report.page import NUM_MISTAKES, Mistake, Score
from tasks.settings import changeable, replaced
from tasks.swag import data


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwagSettings(SplitSettings):
    """Settings of `bert-swag`; rate, batch size and epochs are the paper's (section 4.4)."""

    data_dir: str | None = changeable(
        None, "Directory with train.csv, val.csv (or dev.csv) and test.csv; or with .jsonl files."
    )
    context_column: str | None = changeable(None, "Column with the first text; default: SWAG's ('sent1').")
    start_column: str | None = changeable(
        None, "Column with the start that all choices share; default: SWAG's ('sent2'), but none with --context_column."
    )
    choice_columns: list[str] | None = changeable(
        None,
        "Columns with the choices, comma-separated, or in JSON Lines the key of a list; default: ending0, ending1, ... "
        "as in SWAG, or endings.",
    )
    label_column: str | None = changeable(
        None, "Column with the number of the right choice, from 0; default: 'label'."
    )
    learning_rate: float | list[float] = replaced(SplitSettings, "learning_rate", 2e-5)
    train_batch_size: int | list[int] = replaced(SplitSettings, "train_batch_size", 16)

    @property
    def columns(self) -> data.Columns:
        swag = data.Columns()
        return data.Columns(
            self.context_column or swag.context,
            # Another table's context goes with no start of SWAG's.
            self.start_column or (None if self.context_column else swag.start),
            tuple(self.choice_columns) if self.choice_columns else None,
            self.label_column or swag.label,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwagSpec(task.Spec):
    """A trained multiple-choice model; `num_choices` is K."""

    num_choices: int


class Swag(task.Task):
    """SWAG, and any other table of questions with choices."""

    Settings = SwagSettings
    Spec = SwagSpec
    name = "multiple_choice"
    command = "bert-swag"
    metric = stopping_metric = "accuracy"
    printed = ("chance_accuracy", "majority_accuracy", "loss")

    def read(self, split, bad_rows):
        path = find_split(self.settings, split, data.SPLIT_NAMES[split], data.EXTENSIONS)
        return [task.Part(split, data.read_table(path, self.settings.columns, bad_rows, split != "test"))]

    def make_spec(self, train):
        return SwagSpec(sequence_length=self.settings.max_seq_length, num_choices=train.num_choices)

    def foreign_spec(self, source, labels, num_outputs, parts):
        # One vector scores every choice: a checkpoint does not say how many there are.
        return self.make_spec(parts[0].rows)

    def match(self, part, spec, bad_rows):
        table = part.rows
        if table.num_choices != spec.num_choices:
            raise InputError(
                f"{table.path}:{table.lines[0]}: {table.num_choices} choices a row, but the model chooses among "
                f"{spec.num_choices}. Expected the same number everywhere."
            )
        return part

    def num_examples(self, rows):
        return len(rows.lines)

    def describe(self, rows, encoded, spec):
        counts = np.bincount(rows.labels, minlength=spec.num_choices).tolist()
        return {"train_rows": len(rows.lines), "train_label_counts": counts}

    def describe_model(self, trained):
        return {"num_choices": trained.spec.num_choices}

    def model_class(self):
        return keras_bert.BertMultipleChoice

    def model_arguments(self, spec):
        return {"num_choices": spec.num_choices}

    def num_outputs(self, spec):
        return spec.num_choices

    def objective(self):
        from tasks.fine_tuning.objectives import CrossEntropy

        return CrossEntropy()

    def encode(self, part, trained):
        """Makes K sequences `[CLS] context [SEP] start choice_k [SEP]` of each row."""
        table, limit = part.rows, trained.spec.sequence_length
        contexts = [context for context in table.contexts for _ in range(table.num_choices)]
        choices = [choice for of_row in table.choices for choice in of_row]
        examples = encode_texts(
            contexts, choices, trained.tokenizer, limit, f"tokenize {part.title}", table.num_choices
        )
        if table.labels is not None:
            examples = examples._replace(labels={"labels": np.array(table.labels, np.int32)})
        lengths = lengths_before_cutting(np.diff(examples.row_splits), table.texts_of, trained.tokenizer, limit)
        return task.Encoded(examples, lengths.reshape(-1, table.num_choices).max(axis=1))

    def evaluate(self, answers, results):
        logits, labels = answers.outputs, answers.encoded.examples.labels["labels"]
        num_choices, predictions = logits.shape[1], logits.argmax(axis=-1)
        is_correct = predictions == labels
        details = {"chance_accuracy": 1.0 / num_choices, "rows": len(labels)}
        if "train_label_counts" in results:
            counts = np.array(results["train_label_counts"])
            details["majority_accuracy"] = metrics.majority_accuracy(counts, labels)
        figures = {
            "accuracy": metrics.accuracy(labels, predictions),
            "loss": float(metrics.cross_entropies(labels, logits).mean()),
        }
        intervals = metrics.intervals({"accuracy": lambda rows: float(is_correct[rows].mean())}, len(labels))
        scores = [
            Score("accuracy", figures["accuracy"], *intervals["accuracy"]),
            Score("accuracy of chance", details["chance_accuracy"]),
        ]
        if "majority_accuracy" in details:
            scores.append(Score("accuracy of the place most often right", details["majority_accuracy"]))
        return task.Evaluation(
            figures,
            intervals,
            details,
            scores=[*scores, Score("loss", figures["loss"], percent=False)],
            confusion=(
                [f"choice {number}" for number in range(num_choices)],
                metrics.confusion_matrix(labels, predictions, num_choices),
            ),
            mistakes=find_mistakes(answers.part.rows, logits),
        )

    def write_predictions(self, answers, output_dir):
        """Writes a CSV: index (of the row, from 0), prediction, and `probability_<number>` of each choice."""
        path = os.path.join(output_dir, "predictions.csv")
        probabilities = np.exp(metrics.log_softmax(answers.outputs))
        header = ["index", "prediction", *(f"probability_{number}" for number in range(probabilities.shape[1]))]
        rows = ([index, row.argmax(), *(f"{value:.6f}" for value in row)] for index, row in enumerate(probabilities))
        write_table(path, header, rows, delimiter=",")
        return task.Predictions([path], {"test_rows": len(probabilities)})

    def notes(self, spec):
        return [
            f"Each of the {spec.num_choices} choices is scored by itself; the highest score is the answer. The number "
            "of a choice is its place, counted from 0."
        ]


def find_mistakes(table: data.Table, logits: np.ndarray) -> list[Mistake]:
    """Returns the rows answered wrongly, those with the least probable right choice first, as many as are shown.

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
