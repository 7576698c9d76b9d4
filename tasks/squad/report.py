"""The report of `bert-squad`: scores, overall and by kind of question, and the worst mistakes.

Shapes: N questions, W windows.
"""

import re
from collections.abc import Sequence

import numpy as np

from tasks.fine_tuning.metrics import worst_rows
from tasks.report.page import Mistake, Score
from tasks.squad.answers import Answers
from tasks.squad.data import Question
from tasks.squad.metrics import Scores
from tasks.squad.windows import Windows

_find_kind = re.compile(r"\b(?:how (?:many|much)|what|who|whom|whose|when|where|which|why|how)\b").search
_SAME_KIND = {"whom": "who", "whose": "who", "how many": "how many, how much", "how much": "how many, how much"}
_LENGTHS = (7, 9, 11, 14)  # About the quintiles of the lengths of SQuAD 2.0's questions, in words.
_EXCERPT = 150  # Characters of the context on each side of an answer.
_PARTS = {
    "HasAns_f1": "F1 of questions with an answer",
    "HasAns_exact": "exact match of questions with an answer",
    "NoAns_exact": "questions without an answer left unanswered",
}
_NO_ANSWER = "(no answer)"


# === Scores ===


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
            f"No answer is given where its score leads the best answer's by more than {threshold:.3f}. This threshold "
            "gives the highest F1 on these questions; on others the score is a little lower."
        )
    return notes


# === Tables ===


def make_tables(
    questions: Sequence[Question], windows: Windows, scores: Scores, version_2_with_negative: bool
) -> list[tuple[str, list[str], list[list]]]:
    """Returns tables of scores by properties of the questions: (caption, header, rows) of each."""
    counts = np.bincount(windows.question_index, minlength=len(questions))
    names = {
        "By question word": list(map(_kind_of, questions)),
        "By length of the question": list(map(_length_of, questions)),
        "By windows of the context": list(map(_windows_of, counts.tolist())),
    }
    if version_2_with_negative:
        names["By answer"] = ["an answer" if question.answers else _NO_ANSWER for question in questions]
    return [_table(caption, np.array(of_questions), scores) for caption, of_questions in names.items()]


def _table(caption: str, names: np.ndarray, scores: Scores) -> tuple[str, list[str], list[list]]:
    rows = []
    for name in np.unique(names):
        means = [f"{100.0 * values[names == name].mean():.1f}" for values in scores]
        rows.append([str(name), int((names == name).sum()), *means])
    return caption, ["", "questions", "exact match %", "F1 %"], sorted(rows, key=lambda row: -row[1])


def _kind_of(question: Question) -> str:
    """Returns the first question word, such as "how many", or "other"."""
    match = _find_kind(question.question.lower())
    return _SAME_KIND.get(match[0], match[0]) if match else "other"


def _windows_of(count: int) -> str:
    return {1: "1 window", 2: "2 windows", 3: "3 windows"}.get(count, "4 windows and more" if count else "no window")


def _length_of(question: Question) -> str:
    count = len(question.question.split())
    high = next((high for high in _LENGTHS if count <= high), None)
    return f"up to {high} words" if high else f"above {_LENGTHS[-1]} words"


# === Mistakes ===


def find_mistakes(
    questions: Sequence[Question], windows: Windows, losses: np.ndarray, answers: Answers, scores: Scores
) -> list[Mistake]:
    """Returns the wrong answers whose windows have the highest mean loss, worst first.

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
    worst = worst_rows(means, scores.exact == 0.0)
    return [Mistake(float(means[row]), _parts(questions[row], answers, scores.f1[row])) for row in worst]


def _parts(question: Question, answers: Answers, f1: float) -> list[tuple[str, str]]:
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
    text, start = question.answers[0] if question.answers else (predicted, context.find(predicted))
    if start < 0:
        start = max(context.find(text), 0)
    first, limit = max(start - _EXCERPT, 0), min(start + len(text) + _EXCERPT, len(context))
    return f"{'…' if first else ''}{context[first:limit]}{'…' if limit < len(context) else ''}"
