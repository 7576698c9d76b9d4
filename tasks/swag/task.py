"""Multiple choice: which of K texts goes with a given text? (Section 4.4 of the paper.)

Shapes: N rows of a table, K choices.
"""

import os
from collections import Counter

import numpy as np

import keras_bert
from keras_bert.errors import InputError
from tasks.fine_tuning import metrics, task
from tasks.fine_tuning.data_check import Content
from tasks.fine_tuning.encoding import encode_texts, lengths_before_cutting
from tasks.fine_tuning.settings import SplitSettings
from tasks.report.page import Score
from tasks.settings import changeable, replaced
from tasks.swag import data


class SwagSettings(SplitSettings):
    """Settings of `bert-swag`; rate and batch size are the paper's (section 4.4)."""

    data_dir: str | None = changeable(None, "Directory with train, val (or dev) and test tables.")
    context_column: str | None = changeable(
        None, "Column with the first text; default: SWAG's ('sent1').", subject="data"
    )
    start_column: str | None = changeable(
        None, "Column with the start that all choices share; default: SWAG's ('sent2'), but none with --context_column."
    )
    choice_columns: list[str] | None = changeable(
        None,
        "Columns with the choices, separated by commas, or in JSON Lines the key of a list; default: ending0, "
        "ending1, ... as in SWAG, or endings.",
    )
    label_column: str | None = changeable(None, "Column with the number of the right choice, from 0; default: 'label'.")
    learning_rate: float | list[float] = replaced(SplitSettings, "learning_rate", 2e-5, help="Peak learning rate.")
    train_batch_size: int | list[int] = replaced(SplitSettings, "train_batch_size", 16)

    @property
    def columns(self) -> data.Columns:
        swag = data.Columns()
        return data.Columns(
            context=self.context_column or swag.context,
            # SWAG's start belongs to SWAG's context only.
            start=self.start_column or (None if self.context_column else swag.start),
            choices=tuple(self.choice_columns) if self.choice_columns else None,
            label=self.label_column or swag.label,
        )


class SwagSpec(task.Spec):
    """Spec of a trained multiple-choice model; `num_choices` is K."""

    num_choices: int


class Swag(task.Task):
    """SWAG, and any other table of questions with choices."""

    Settings = SwagSettings
    Spec = SwagSpec
    name = "multiple_choice"
    command = "bert-swag"
    metric = "accuracy"
    printed = ("chance_accuracy", "majority_accuracy", "loss")

    def read(self, split, bad_rows):
        path = self.settings.find_file(split, data.SPLIT_NAMES[split], data.EXTENSIONS)
        return [task.Part(split, data.read_table(path, self.settings.columns, bad_rows, split != "test"))]

    def make_spec(self, train):
        # Also for a checkpoint from elsewhere: one vector scores every choice, so it does not tell their number.
        return SwagSpec(sequence_length=self.settings.max_seq_length, num_choices=train.num_choices)

    def match(self, part, spec, bad_rows):
        table = part.rows
        if table.num_choices != spec.num_choices:
            raise InputError(
                f"{table.path}:{table.lines[0]}: {table.num_choices} choices a row, but the model chooses among "
                f"{spec.num_choices}. Expected the same number everywhere."
            )
        return part

    def groups(self, rows):
        return rows.contexts

    def content(self, rows):
        texts = [(context, *choices) for context, choices in zip(rows.contexts, rows.choices, strict=True)]
        counts = rows.labels and Counter(f"choice {label}" for label in rows.labels)
        return Content(texts, rows.labels, lambda row: f"{rows.path}:{rows.lines[row]}", counts)

    def describe(self, rows, encoded, spec):
        counts = np.bincount(rows.labels, minlength=spec.num_choices).tolist()
        return {**super().describe(rows, encoded, spec), "train_label_counts": counts}

    def describe_model(self, trained):
        return self.model_arguments(trained.spec)

    def model_class(self):
        return keras_bert.BertMultipleChoice

    def model_arguments(self, spec):
        return {"num_choices": spec.num_choices}

    def encode(self, part, trained):
        """Makes K sequences `[CLS] context [SEP] start choice_k [SEP]` of each row."""
        table, tokenizer, limit = part.rows, trained.tokenizer, trained.spec.sequence_length
        contexts = [context for context in table.contexts for _ in range(table.num_choices)]
        choices = [choice for of_row in table.choices for choice in of_row]
        examples = encode_texts(contexts, choices, tokenizer, limit, f"tokenize {part.title}", table.num_choices)
        if table.labels is not None:
            examples = examples._replace(labels={"labels": np.array(table.labels, np.int32)})
        return task.Encoded(examples, lengths_before_cutting(examples, contexts, choices, tokenizer, limit))

    def checkpoint_figures(self, answers):
        losses = metrics.cross_entropies(answers.labels, answers.outputs)
        return {"accuracy": metrics.accuracy(answers.labels, answers.outputs.argmax(-1)), "loss": float(losses.mean())}

    def evaluate(self, answers, results):
        logits, labels, figures = answers.outputs, answers.labels, self.checkpoint_figures(answers)
        num_choices, predictions = logits.shape[1], logits.argmax(axis=-1)
        intervals, chance = metrics.intervals({"accuracy": metrics.accuracy}, labels, predictions), 1.0 / num_choices
        details = {"chance_accuracy": chance, "rows": len(labels)}
        scores = [*metrics.headline_scores(figures, intervals), Score("accuracy of chance", chance)]
        if "train_label_counts" in results:
            majority = metrics.majority_accuracy(results["train_label_counts"], labels)
            details["majority_accuracy"] = majority
            scores.append(Score("accuracy of always choosing the most frequent position", majority))
        choices = [f"choice {number}" for number in range(num_choices)]
        return task.Evaluation(
            figures,
            intervals,
            details,
            scores=[*scores, Score("loss", figures["loss"], percent=False)],
            confusion=(choices, metrics.confusion_matrix(labels, predictions, num_choices)),
            **show_answers(answers.part.rows, logits),
        )

    def write_predictions(self, answers, output_dir):
        """Writes a CSV: index (of the row, from 0), prediction, and `probability_<number>` of each choice."""
        path, numbers = os.path.join(output_dir, "predictions.csv"), answers.part.rows.numbers
        shares, choices = np.exp(metrics.log_softmax(answers.outputs)), range(answers.outputs.shape[1])
        metrics.write_answers(path, "prediction", numbers, shares.argmax(axis=1), choices, shares)
        return [path], {"test_rows": len(numbers)}

    def notes(self, spec):
        return [
            f"Each of the {spec.num_choices} choices is scored separately, and the highest score is the answer. "
            "Choices are numbered from 0, in the order of the row."
        ]


def show_answers(table: data.Table, logits: np.ndarray) -> dict:
    """Returns the `shown_rows`. The worst are the mistakes whose right choice is least probable.

    Args:
        table: N rows, with labels.
        logits: float, shape (N, K).
    """
    labels, predictions = np.array(table.labels), logits.argmax(axis=-1)
    losses, probabilities = metrics.cross_entropies(labels, logits), np.exp(metrics.log_softmax(logits))

    def show(row: int) -> list[tuple[str, str]]:
        choices, answers = table.choices[row], (("expected", labels[row]), ("predicted", predictions[row]))
        return [
            ("line", str(table.lines[row])),
            ("context", table.contexts[row]),
            *((f"choice {number}", text) for number, text in enumerate(choices)),
            *((name, f"{number}: {choices[number]} ({probabilities[row, number]:.0%})") for name, number in answers),
        ]

    return metrics.shown_rows(losses, predictions != labels, show)
