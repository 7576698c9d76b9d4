"""Scores of answers, by the official scripts of tf-models-official: exact match and F1 of words.

Shapes: N questions.
"""

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.errors import InputError
from tasks.bootstrap import interval
from tasks.squad.answers import search_threshold
from tasks.squad.data import Question


class Scores(NamedTuple):
    """What each question's answer scores, float64, shape (N,), 0 to 1.

    Attributes:
        exact: 1 where the answer is one of the known ones, articles, punctuation and case aside.
        f1: of the words that answer and known answer have in common; the best of the known ones.
    """

    exact: np.ndarray
    f1: np.ndarray


def load_script(version_2_with_negative: bool):
    """Imports the official script of SQuAD 2.0 or 1.1.

    Raises:
        InputError: it is not installed.
    """
    name = f"official.nlp.tools.squad_evaluate_{'v2_0' if version_2_with_negative else 'v1_1'}"
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"--do_eval scores by {name}, which cannot be imported ({error}). Install it: "
            "pip install --no-deps tf-models-official; --do_predict needs no score."
        ) from error


def score_all(questions: Sequence[Question], predictions: Mapping[str, str], version_2_with_negative: bool) -> dict:
    """What the official script says of all answers, in percent.

    Returns:
        `exact`, `f1`, `total`; of SQuAD 2.0 the same of the questions with and without an answer: `HasAns_exact`, ...,
        `NoAns_exact`, ... .
    """
    results = load_script(version_2_with_negative).evaluate(_dataset(questions), dict(predictions))
    if not version_2_with_negative:
        return {"exact": 100.0 * results["exact_match"], "f1": 100.0 * results["final_f1"], "total": len(questions)}
    return {name: value for name, value in results.items() if re.fullmatch("(HasAns_|NoAns_)?(exact|f1|total)", name)}


def score_each(questions: Sequence[Question], predictions: Mapping[str, str], version_2_with_negative: bool) -> Scores:
    """What the official script says of each answer by itself."""
    evaluate = load_script(version_2_with_negative).evaluate
    exact, f1 = ("exact", "f1") if version_2_with_negative else ("exact_match", "final_f1")
    unit = 100.0 if version_2_with_negative else 1.0
    results = [evaluate(_dataset([question]), {question.id: predictions[question.id]}) for question in questions]
    return Scores(*(np.array([result[name] / unit for result in results], np.float64) for name in (exact, f1)))


def _dataset(questions: Sequence[Question]) -> list[dict]:
    """The questions as the script reads them: what it looks at of SQuAD's JSON."""
    known = [{"id": question.id, "answers": [{"text": text} for text, _ in question.answers]} for question in questions]
    return [{"paragraphs": [{"qas": known}]}]


def best_thresholds(
    questions: Sequence[Question], predictions: Mapping[str, str], null_odds: Mapping[str, float]
) -> dict[str, float]:
    """Searches the thresholds of the highest exact match and F1, as the official script does.

    Args:
        questions: with their answers.
        predictions: the answers where one must be given, by question.
        null_odds: of each question.

    Returns:
        `best_exact`, `best_f1`, in percent, and the thresholds that give them: `best_exact_thresh`, `best_f1_thresh`.
        As in the script 0.0 where the best is to answer no question; at 0.0 some may be answered.
    """
    results = {}
    for name, values in score_each(questions, predictions, True)._asdict().items():
        scores = {question.id: value for question, value in zip(questions, values.tolist(), strict=True)}
        threshold, best = search_threshold(null_odds, questions, predictions, scores)
        results[f"best_{name}"] = 100.0 * best
        results[f"best_{name}_thresh"] = threshold
    return results


def choose_threshold(questions: Sequence[Question], null_odds: Mapping[str, float], best: Mapping[str, float]) -> float:
    """A threshold that gives the highest F1, and stands apart from all null odds.

    The script names the null odds of a question that is just still answered: the same question would be left unanswered
    where its odds come out differently in the last digit, as in a batch of another size. The middle between these and
    the next higher odds, at most 1 above, gives the same answers without that. Where answering nothing is best, it is
    1 below all.

    Args:
        questions: with their answers.
        null_odds: of each question.
        best: of `best_thresholds`.
    """
    nothing = sum(not question.answers for question in questions) / len(questions)
    if best["best_f1"] <= 100.0 * nothing:
        return min(null_odds.values()) - 1.0
    threshold = best["best_f1_thresh"]
    return threshold + min([2.0, *(odds - threshold for odds in null_odds.values() if odds > threshold)]) / 2.0


def intervals(scores: Scores) -> dict[str, list[float]]:
    """95% bootstrap intervals over the questions, in percent: `exact_interval`, `f1_interval`."""

    def of(values: np.ndarray) -> list[float]:
        return list(interval(lambda rows: float(100.0 * values[rows].mean()), len(values)))

    return {f"{name}_interval": of(values) for name, values in scores._asdict().items()}
