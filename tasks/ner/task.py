"""Tagging of named entities or other spans: a linear layer on each word's first sub-token (the paper, section 5.3)."""

import functools
import os
from collections.abc import Sequence

import numpy as np

from keras_bert.errors import InputError
from tasks.fine_tuning import rare_labels
from tasks.fine_tuning.encoding import format_labels, label_ids
from tasks.fine_tuning.task import Answers, Evaluation
from tasks.fine_tuning.word_task import PREDICTIONS, WordSpec, WordTask, leave_out_faulty
from tasks.ner import scores
from tasks.ner.settings import NerSettings
from tasks.report.page import Score
from tasks.text import tags as tag_schemes
from tasks.text.bad_rows import BadRows
from tasks.text.conll import Documents


class NerSpec(WordSpec):
    """Spec of a trained tagger.

    Attributes:
        labels: class i is labels[i], a tag of IOB2: "O", or B- or I- and a type.
    """

    labels: list[str]


class Ner(WordTask):
    """Tagging of words in CoNLL files."""

    Settings = NerSettings
    Spec = NerSpec
    name = "token_classification"
    command = "bert-ner"
    title = "Named entities"
    metric = "f1"
    printed = ("token_accuracy", "loss", "test_f1")

    # === Data ===

    def make_spec(self, train):
        labels = make_labels(train)
        self.settings.read_weights(class_names(labels))
        return NerSpec(labels=labels, **self.settings.spec_values)

    def foreign_spec(self, source, labels, num_outputs, parts):
        return NerSpec(labels=check_labels(labels, source), **self.settings.spec_values)

    def match(self, part, spec, bad_rows):
        if part.split != "dev":
            return part
        return part.with_rows(leave_out_unknown(part.rows, spec.labels, bad_rows))

    def number(self, tags, spec):
        return label_ids(tags, spec.labels)

    # === Model ===

    def model_arguments(self, spec):
        return {"num_classes": len(spec.labels), "labels": spec.labels}

    def balance(self, examples, spec):
        return rare_labels.balance(examples, self.settings, class_names(spec.labels))

    # === Answers ===

    def describe(self, rows, encoded, spec):
        described = {**super().describe(rows, encoded, spec), "train_entities": scores.count_all(rows.split(rows.tags))}
        return described | rare_labels.describe(encoded.examples, self.settings, class_names(spec.labels))

    def describe_model(self, trained):
        return {"labels": trained.spec.labels}

    def checkpoint_figures(self, answers):
        return self._score(answers)[0]

    def evaluate(self, answers, results):
        documents, (figures, predicted, losses) = answers.part.rows, self._score(answers)
        gold, columns = documents.split(documents.tags), (*scores.MAIN, "gold", "predicted", "correct")
        ends, types = scores.score_intervals(gold, predicted), scores.score_types(gold, predicted)
        rows = [[name, *(row[column] for column in columns)] for name, row in types.items()]
        captions = {"f1": "entity F1", "precision": "precision", "recall": "recall", "token_accuracy": "token accuracy"}
        path = os.path.join(self.settings.output_dir, f"dev_{PREDICTIONS}")
        return Evaluation(
            figures,
            ends,
            {
                "per_type": types,
                "sentences": documents.num_sentences,
                "words": len(documents.tokens),
                "entities": scores.count_all(gold),
                **self.window_details(answers),
            },
            scores=[Score(caption, figures[name], *ends.get(name, ())) for name, caption in captions.items()],
            confusion=scores.confusion(gold, predicted),
            **scores.show_sentences(documents, predicted, losses),
            tables=[("Entity types", ["type", *columns], rows)],
            write=functools.partial(scores.write_tags, path, documents, predicted),
        )

    def _score(self, answers: Answers) -> tuple[dict[str, float], scores.Tags, np.ndarray]:
        """Returns the figures, the predicted tags, and the loss of each word, float64, shape (N,)."""
        documents, spec = answers.part.rows, answers.trained.spec
        ids, predicted = self.number(documents.tags, spec), scores.predict_tags(answers.outputs, spec.labels, documents)
        losses = scores.word_losses(answers.outputs, ids)
        figures = scores.score(documents.split(documents.tags), predicted)
        return {**figures, "loss": scores.mean_loss(losses, ids)}, predicted, losses

    def write_predictions(self, answers, output_dir):
        documents, path = answers.part.rows, os.path.join(output_dir, PREDICTIONS)
        predicted = scores.predict_tags(answers.outputs, answers.trained.spec.labels, documents)
        scores.write_tags(path, documents, predicted)
        details = {"test_sentences": documents.num_sentences, "test_predicted_entities": scores.count_all(predicted)}
        if documents.tags is not None:
            figures = scores.score(documents.split(documents.tags), predicted)
            details |= {f"test_{name}": value for name, value in figures.items()}
        return [path], details


# === Labels ===


def make_labels(documents: Documents) -> list[str]:
    """Returns the labels for the entity types of a file: "O", then B- and I- of each type, sorted.

    Raises:
        InputError: the file has no entities.
    """
    types = entity_types(documents.tags)
    if not types:
        raise InputError(
            f"{documents.path}: no token is tagged as an entity. Expected some to learn from. Check --tag_column."
        )
    return [tag_schemes.OUTSIDE, *(tag_schemes.join_tag(prefix, name) for name in types for prefix in "BI")]


def entity_types(tags: Sequence[str]) -> list[str]:
    """Returns the sorted entity types of tags or labels, without "O"."""
    return sorted({tag_schemes.split_tag(tag)[1] for tag in set(tags) if tag != tag_schemes.OUTSIDE})


def class_names(labels: Sequence[str]) -> list[str]:
    """Returns the name of each label in a file of class weights: the type of the entity, or "O"."""
    return [label if label == tag_schemes.OUTSIDE else tag_schemes.split_tag(label)[1] for label in labels]


def check_labels(labels: list[str] | None, source: str) -> list[str]:
    """Checks the labels of a model that was trained elsewhere.

    Raises:
        InputError: there are no labels, or one is neither "O" nor B- or I- and a type.
    """
    expected = 'Expected "O", and B- and I- of each entity type'
    if not labels:
        raise InputError(f"{source}: the checkpoint does not name its labels (id2label). {expected}.")
    for label in labels:
        # A tag alone is a valid sentence in one of the two schemes.
        if all(tag_schemes.find_fault([label], scheme) for scheme in ("iob1", "iob2")):
            raise InputError(f"{source}: the label {label!r} is no tag. {expected}.")
    return labels


def leave_out_unknown(documents: Documents, labels: Sequence[str], bad_rows: BadRows) -> Documents:
    """Reports and leaves out the sentences with entities of unknown types.

    Raises:
        InputError: `bad_rows` refuses them, or no sentence is left.
    """
    known = entity_types(labels)

    def find_fault(tag: str) -> str | None:
        name = None if tag == tag_schemes.OUTSIDE else tag_schemes.split_tag(tag)[1]
        return None if name in (None, *known) else f"unknown entity type {name!r}. Expected {format_labels(known)}."

    return leave_out_faulty(documents, find_fault, bad_rows)
