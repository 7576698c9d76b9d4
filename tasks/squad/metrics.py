"""Scores answers by the official scripts of tf-models-official, exact match and F1 of words, and reports them.

Shapes: N questions, W windows, T tokens of all windows.
"""

import importlib
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tasks.fine_tuning import metrics
from tasks.fine_tuning.examples import Examples
from tasks.report.page import Score
from tasks.squad.answers import Answers
from tasks.squad.data import Question
from tasks.squad.windows import POSITIONS, Windows

_EXCERPT = 150  # Characters of the context on each side of an answer.
_PARTS = {
    "HasAns_f1": "F1 of questions with an answer",
    "HasAns_exact": "exact match of questions with an answer",
    "NoAns_exact": "questions without an answer left unanswered",
}
_NO_ANSWER = "(no answer)"


class Scores(NamedTuple):
    """Scores of each question's answer, float64, shape (N,), 0 to 1.

    Attributes:
        exact: 1 if the answer equals a known one, apart from articles, punctuation and case.
        f1: F1 of the words that the answer shares with a known one; the best if there are several.
    """

    exact: np.ndarray
    f1: np.ndarray


def load_script(version_2_with_negative: bool):
    """Imports the official script of SQuAD 2.0 or 1.1, which is in the extra `squad`."""
    return importlib.import_module(f"official.nlp.tools.squad_evaluate_{'v2_0' if version_2_with_negative else 'v1_1'}")


def score_all(questions: Sequence[Question], predictions: Mapping[str, str], version_2_with_negative: bool) -> dict:
    """Scores all answers with the official script, in percent.

    Returns:
        `exact`, `f1` and `total`; for SQuAD 2.0 also `HasAns_exact`, ... for the questions with an answer, and
        `NoAns_exact`, ... for the others.
    """
    results = load_script(version_2_with_negative).evaluate(_dataset(questions), dict(predictions))
    if not version_2_with_negative:
        return {"exact": 100.0 * results["exact_match"], "f1": 100.0 * results["final_f1"], "total": len(questions)}
    return {name: value for name, value in results.items() if re.fullmatch("(HasAns_|NoAns_)?(exact|f1|total)", name)}


def score_each(questions: Sequence[Question], predictions: Mapping[str, str], version_2_with_negative: bool) -> Scores:
    """Scores each answer separately with the official script."""
    results = [
        score_all([question], {question.id: predictions[question.id]}, version_2_with_negative)
        for question in questions
    ]
    return Scores(*(np.array([result[name] / 100.0 for result in results], np.float64) for name in Scores._fields))


def _dataset(questions: Sequence[Question]) -> list[dict]:
    """Returns the parts of SQuAD's JSON that the script reads."""
    asked = [{"id": question.id, "answers": [{"text": text} for text, _ in question.answers]} for question in questions]
    return [{"paragraphs": [{"qas": asked}]}]


def find_threshold(questions: Sequence[Question], best: Answers) -> tuple[float, dict[str, float]]:
    """Finds the threshold of the null odds with the highest F1.

    The script's threshold equals the null odds of the last answered question. In a batch of another size these odds may
    differ in the last digit, which would leave the question unanswered. The middle between them and the next higher
    odds, but at most 1 above them, gives the same answers without that risk. If it is best to answer no question, where
    the script's threshold is 0.0, the threshold is 1 below all odds.

    Args:
        questions: questions with their known answers.
        best: an answer to every question, and its null odds.

    Returns:
        The threshold; and what the official script finds: the highest `best_exact` and `best_f1` in percent, and their
        thresholds `best_exact_thresh` and `best_f1_thresh`.
    """
    results = load_script(True).evaluate(_dataset(questions), dict(best.predictions), dict(best.null_odds))
    figures = {f"best_{name}": results[f"final_{name}"] for name in ("exact", "exact_thresh", "f1", "f1_thresh")}
    all_odds, threshold = best.null_odds.values(), figures["best_f1_thresh"]
    if figures["best_f1"] <= 100.0 * sum(not question.answers for question in questions) / len(questions):
        return min(all_odds) - 1.0, figures
    return threshold + min([2.0, *(odds - threshold for odds in all_odds if odds > threshold)]) / 2.0, figures


def intervals(scores: Scores) -> dict[str, list[float]]:
    """Returns the 95% bootstrap intervals of `exact` and `f1` over the questions, in percent."""
    means = {"exact": lambda exact, _: 100.0 * exact.mean(), "f1": lambda _, f1: 100.0 * f1.mean()}
    return metrics.intervals(means, scores.exact, scores.f1)


def score_windows(logits: np.ndarray, examples: Examples) -> tuple[np.ndarray, np.ndarray]:
    """Computes the loss of each window, as `tasks.squad.objective` does, and compares its best span with the labels.

    Args:
        logits: float32, shape (T, 2), of starts and ends.
        examples: windows with the labels `start_positions` and `end_positions`.

    Returns:
        The losses, float64, shape (W,); and whether both ends are right, bool, shape (W,).
    """
    positions = np.stack([examples.labels[name] for name in POSITIONS], axis=1)
    losses, is_right = np.empty(len(positions)), np.empty(len(positions), bool)
    for window, (first, limit) in enumerate(itertools.pairwise(examples.row_splits)):
        log_probabilities = metrics.log_softmax(logits[first:limit].T)  # [2, S]
        losses[window] = -log_probabilities[[0, 1], positions[window]].mean()
        is_right[window] = (log_probabilities.argmax(axis=1) == positions[window]).all()
    return losses, is_right


# === The report ===


def make_scores(figures: dict[str, float], intervals: dict[str, list[float]]) -> list[Score]:
    """Returns the headline figures, with percentages converted to shares."""
    scores = [
        Score(caption, figures[name] / 100.0, *(end / 100.0 for end in intervals[name]))
        for name, caption in (("f1", "F1"), ("exact", "exact match"))
    ]
    scores += [Score(caption, figures[name] / 100.0) for name, caption in _PARTS.items() if name in figures]
    return [*scores, Score("loss", figures["loss"], percent=False)]


def make_notes(figures: dict[str, float], searches_threshold: bool) -> list[str]:
    """Returns notes on the scores."""
    notes = []
    if figures.get("NoAns_total"):
        share = 100.0 * figures["NoAns_total"] / figures["total"]
        notes.append(f"Answering no question at all would give {share:.1f}% here: exact match and F1.")
    threshold = figures.get("null_score_diff_threshold")
    if searches_threshold and threshold is not None:
        notes.append(
            f"A question stays unanswered if the score of 'no answer' exceeds the best answer's by more than "
            f"{threshold:.3f}. This threshold gives the highest F1 on these questions; on others the score is a little "
            "lower."
        )
    return notes


# === Mistakes ===


def show_answers(
    questions: Sequence[Question], windows: Windows, losses: np.ndarray, answers: Answers, scores: Scores
) -> dict:
    """Returns the `shown_rows`. The worst are the wrong answers whose windows have the highest mean loss.

    Args:
        questions: N questions.
        windows: windows of the questions.
        losses: losses of the windows, float, shape (W,).
        answers: answers to the questions.
        scores: scores of the answers.
    """
    counts = np.bincount(windows.question_index, minlength=len(questions))
    sums = np.bincount(windows.question_index, losses, minlength=len(questions))
    means = sums / np.maximum(counts, 1)
    return metrics.shown_rows(
        means, scores.exact == 0.0, lambda row: _describe(questions[row], answers, scores.f1[row])
    )


def _describe(question: Question, answers: Answers, f1: float) -> list[tuple[str, str]]:
    predicted = answers.predictions[question.id]
    probability = sum(entry["probability"] for entry in answers.nbest[question.id] if entry["text"] == predicted)
    known = dict.fromkeys(text for text, _ in question.answers)
    return [
        ("question", question.question),
        ("context", _excerpt(question, predicted)),
        ("expected", " | ".join(known) or _NO_ANSWER),
        ("predicted", f"{predicted or _NO_ANSWER} ({probability:.0%} sure, F1 {f1:.0%})"),
        ("id", question.id),
    ]


def _excerpt(question: Question, predicted: str) -> str:
    """Returns the context around the first known answer, or around the prediction if none is known."""
    context = question.context
    text, start = question.answers[0] if question.answers else (predicted, -1)
    start = max(context.find(text), 0) if start < 0 else start
    first, limit = max(start - _EXCERPT, 0), min(start + len(text) + _EXCERPT, len(context))
    return f"{'…' if first else ''}{context[first:limit]}{'…' if limit < len(context) else ''}"
