"""Tasks that tag words with entities: scores, predictions and loss, for any model.

Shapes: N words.
"""

import functools

import numpy as np

from tasks.fine_tuning import entity_metrics, task
from tasks.fine_tuning.encoding import label_ids
from tasks.fine_tuning.word_task import WordSettings, WordTask
from tasks.settings import changeable
from tasks.text.tags import SCHEMES


class EntitySettings(WordSettings):
    """Settings of a task that tags words."""

    tag_scheme: str = changeable("auto", "Scheme of the tags; auto: by each file.", choices=("auto", *SCHEMES))


class EntityTask(WordTask):
    """Base of the tasks that tag words. The spec has `labels`: class i is labels[i]."""

    metric = stopping_metric = "f1"
    printed = ("token_accuracy", "loss", "test_f1")

    def describe(self, rows, encoded, spec):
        entities = entity_metrics.count_all(rows.split(rows.tags))
        return {**super().describe(rows, encoded, spec), "train_entities": entities}

    def model_arguments(self, spec):
        return {"num_classes": len(spec.labels)}

    def objective(self):
        from tasks.fine_tuning.objectives import CrossEntropy

        return CrossEntropy("token_accuracy")

    def number(self, tags, spec):
        return label_ids(tags, spec.labels)

    def checkpoint_figures(self, answers):
        return self._score(answers)[0]

    def evaluate(self, answers, results):
        documents, (figures, predicted, losses) = answers.part.rows, self._score(answers)
        found = entity_metrics.evaluate_tags(documents, predicted, figures, losses)
        path = self.path_of("dev", self.settings.output_dir)
        found.write = functools.partial(entity_metrics.write_tags, path, documents, predicted)
        found.details |= self.window_details(answers)
        return found

    def _score(self, answers: task.Answers) -> tuple[dict[str, float], entity_metrics.Tags, np.ndarray]:
        """Returns the figures, the predicted tags, and the loss of each word, float64, shape (N,)."""
        documents, ids = answers.part.rows, answers.encoded.source.labels
        predicted = entity_metrics.predict_tags(answers.outputs, answers.trained.spec.labels, documents)
        losses = entity_metrics.word_losses(answers.outputs, ids)
        figures = entity_metrics.score(documents.split(documents.tags), predicted)
        return {**figures, "loss": entity_metrics.mean_loss(losses, ids)}, predicted, losses

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
        return [path], details
