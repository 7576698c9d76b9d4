"""Regression on each word's first sub-token: predicts a number per word, such as readability, stress or reading time.

Shapes: N words of a file.
"""

import math
import os

import numpy as np

from keras_bert.errors import InputError
from tasks.fine_tuning import metrics, task
from tasks.fine_tuning.word_task import PREDICTIONS, WordSettings, WordSpec, WordTask, leave_out_faulty
from tasks.settings import changeable
from tasks.text.conll import Documents, write_conll
from tasks.text.rows import NUMBER_CURE, parse_number

NO_SCORE = "_"  # CoNLL-U's empty field. Such a word, for example punctuation, is neither learned nor scored.


class ScoreWordsSettings(WordSettings):
    """Settings of `bert-score-words`."""

    tag_column: int = changeable(-1, "Column of the number, from 0 (the token's); negative: from the end.")

    def read_file(self, path, bad_rows, needs_tags):
        documents = check_numbers(super().read_file(path, bad_rows, needs_tags), bad_rows)
        if needs_tags and np.isnan(numbers_of(documents.tags)).all():
            raise InputError(f"{path}: no word has a number. Expected some to learn from or to be scored by.")
        return documents


class ScoreWords(WordTask):
    """Token-level regression on CoNLL files."""

    Settings = ScoreWordsSettings
    Spec = WordSpec
    name = "token_regression"
    command = "bert-score-words"
    metric = "pearson"
    title = "Word scores"

    def make_spec(self, train):
        return WordSpec(**self.settings.spec_values)

    def model_arguments(self, spec):
        return {"num_classes": 1}

    def foreign_spec(self, source, labels, num_outputs, parts):
        if num_outputs != 1:
            raise InputError(f"{source}: has {num_outputs} outputs a word. Expected one number.")
        return WordSpec(**self.settings.spec_values)

    def standardizes(self, spec):
        return True

    def objective(self, spec):
        from tasks.fine_tuning.objectives import SquaredError

        return SquaredError()

    def number(self, tags, spec):
        return numbers_of(tags)

    def evaluate(self, answers, results):
        documents, scores = answers.part.rows, numbers_of(answers.part.rows.tags)
        known = np.isfinite(scores)
        true, predicted = scores[known].astype(np.float64), answers.outputs[known, 0].astype(np.float64)
        if not len(true):
            raise InputError(f"{documents.path}: no word has a number to be scored by. Leave out --do_eval.")
        statistics = {name: getattr(metrics, name) for name in ("pearson", "spearman", "mean_squared_error")}
        figures = {name: statistic(true, predicted) for name, statistic in statistics.items()}
        ends = metrics.intervals(statistics, true, predicted)
        losses = np.square(scores.astype(np.float64) - answers.outputs[:, 0])
        sentence_of = np.repeat(np.arange(documents.num_sentences), np.diff(documents.sentence_splits))
        sentences = documents.split(documents.tokens)

        def show(word: int) -> list[tuple[str, str]]:
            return [
                ("word", documents.tokens[word]),
                ("sentence", " ".join(sentences[sentence_of[word]])),
                ("expected", f"{scores[word]:g}"),
                ("predicted", f"{answers.outputs[word, 0]:.3f}"),
                ("where", f"{documents.path}:{documents.lines[word]}"),
            ]

        return task.Evaluation(
            {**figures, "loss": figures["mean_squared_error"]},
            ends,
            {"words": len(true), "sentences": documents.num_sentences, **self.window_details(answers)},
            scores=metrics.headline_scores(figures, ends),
            predictions=(true, predicted),
            **metrics.shown_rows(losses, losses > 0, show),  # The words with the largest errors, in their sentences.
        )

    def checkpoint_figures(self, answers):
        scores = numbers_of(answers.part.rows.tags)
        known = np.isfinite(scores)
        true, predicted = scores[known], answers.outputs[known, 0]
        return {"pearson": metrics.pearson(true, predicted), "loss": metrics.mean_squared_error(true, predicted)}

    def write_predictions(self, answers, output_dir):
        """Writes the columns token, the file's own number (if it has numbers), and predicted number."""
        documents, path = answers.part.rows, os.path.join(output_dir, PREDICTIONS)
        write_conll(path, documents, [f"{score:.4f}" for score in answers.outputs[:, 0]])
        return [path], {"test_words": len(documents.tokens)}


def numbers_of(tags: list[str]) -> np.ndarray:
    """Returns the numbers of the words: float32, shape (N,), NaN for `NO_SCORE`."""
    return np.array([math.nan if tag == NO_SCORE else parse_number(tag) for tag in tags], np.float32)


def check_numbers(documents: Documents, bad_rows) -> Documents:
    """Reports and leaves out the sentences with a word whose tag is neither a number nor `NO_SCORE`.

    Raises:
        InputError: `bad_rows` refuses them, or no sentence is left.
    """

    def find_fault(text: str) -> str | None:
        if text == NO_SCORE or parse_number(text) is not None:
            return None
        return f"expected a number, or {NO_SCORE} for a word without one, found {text!r}. {NUMBER_CURE}"

    return documents if documents.tags is None else leave_out_faulty(documents, find_fault, bad_rows)
