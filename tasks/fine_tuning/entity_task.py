"""Tasks that tag words with entities: their scores, predictions and the loss, whatever model answers.

Shapes: N words.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tasks.fine_tuning import entity_metrics, task
from tasks.fine_tuning.word_task import WordSettings, WordTask
from tasks.settings import changeable
from tasks.text.tags import SCHEMES


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntitySettings(WordSettings):
    """Settings of a task that tags words."""

    tag_scheme: str = changeable(
        "auto", "Scheme of the tags; auto: detected in each file.", choices=("auto", *SCHEMES)
    )


class EntityTask(WordTask):
    """Base of the tasks that tag words; the spec has `labels`: class i is labels[i]."""

    metric = stopping_metric = "f1"
    printed = ("token_accuracy", "loss", "test_f1")

    def describe(self, rows, encoded, spec):
        entities = entity_metrics.count_all(rows.split(rows.tags))
        return {**super().describe(rows, encoded, spec), "train_entities": entities}

    def num_outputs(self, spec):
        return len(spec.labels)

    def objective(self):
        from tasks.fine_tuning.objectives import CrossEntropy

        return CrossEntropy("token_accuracy")

    def number(self, tags, spec):
        return label_ids(tags, spec.labels)

    def checkpoint_figures(self, answers):
        documents, ids = answers.part.rows, answers.encoded.source.labels
        predicted = entity_metrics.predict_tags(answers.outputs, answers.trained.spec.labels, documents)
        loss = entity_metrics.mean_loss(entity_metrics.word_losses(answers.outputs, ids), ids)
        return {**entity_metrics.score(documents.split(documents.tags), predicted), "loss": loss}

    def evaluate(self, answers, results):
        documents, ids = answers.part.rows, answers.encoded.source.labels
        labels = answers.trained.spec.labels
        found = entity_metrics.evaluate_tags(documents, answers.outputs, ids, labels)
        found.details |= self.window_details(answers)
        predicted = entity_metrics.predict_tags(answers.outputs, labels, documents)
        entity_metrics.write_tags(self.path_of("dev", self.settings.output_dir), documents, predicted)
        return found

    def write_predictions(self, answers, output_dir):
        documents, path = answers.part.rows, self.path_of("test", output_dir)
        predicted = entity_metrics.predict_tags(answers.outputs, answers.trained.spec.labels, documents)
        entity_metrics.write_tags(path, documents, predicted)
        details = {
            "test_sentences": documents.num_sentences,
            "test_predicted_entities": entity_metrics.count_all(predicted),
        }
        if documents.tags is not None:
            scores = entity_metrics.score(documents.split(documents.tags), predicted)
            details |= {f"test_{name}": value for name, value in scores.items()}
        return task.Predictions([path], details)


def label_ids(tags: Sequence[str], labels: Sequence[str]) -> np.ndarray:
    """Returns class numbers, int32, shape (N,); -1 for a tag that the labels lack.

    A checkpoint of other origin may have no B- of a type.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    return np.array([numbers.get(tag, -1) for tag in tags], np.int32)
