"""From the logits of a question's windows to answers: n-best lists, null scores and final texts.

As google-research/bert has it (run_squad.py:741-924). No TensorFlow here.

Shapes: W windows, T tokens of all windows, K candidates of a question.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tasks.squad.data import Question
from tasks.squad.text import join_pieces, project, split_context
from tasks.squad.windows import Windows

# google-research/bert's answer where a question must have one and no span is possible (run_squad.py:877).
NO_SPAN_TEXT = "empty"
# The null odds where no span is possible: google-research/bert fails there, with this as its highest null score
# (run_squad.py:769).
NO_SPAN_ODDS = 1e6


class Answers(NamedTuple):
    """The content of SQuAD's three prediction files, by the questions' ids.

    Attributes:
        predictions: the answer's text; "" for no answer.
        nbest: list of {text, probability, start_logit, end_logit}, the most probable first.
        null_odds: by how much the score of "no answer" leads that of the best answer; empty where every question has
            an answer.
    """

    predictions: dict[str, str]
    nbest: dict[str, list[dict]]
    null_odds: dict[str, float]


class _Candidates(NamedTuple):
    """Arrays of shape (K,), the best candidate first.

    Attributes:
        starts: int64, the answer's first token among all T; -1 stands for "no answer".
        ends: int64, its last token.
        start_logits, end_logits: float64.
    """

    starts: np.ndarray
    ends: np.ndarray
    start_logits: np.ndarray
    end_logits: np.ndarray


def best_answers(
    questions: Sequence[Question],
    windows: Windows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    *,
    n_best_size: int = 20,
    max_answer_length: int = 30,
    version_2_with_negative: bool,
    null_score_diff_threshold: float = 0.0,
) -> Answers:
    """Chooses the answers to all questions.

    In each window the `n_best_size` highest starts and ends are combined (google-research/bert counts those of padding,
    too). A start must have its maximum context in its window, an end need not. The candidates of all windows are sorted
    by the sum of their logits; of several with the same final text the first counts.

    With `version_2_with_negative` [CLS] stands for "no answer", scored by the lowest sum of its logits in any window.
    Where this leads the best answer's score by more than `null_score_diff_threshold`, the prediction is "".

    Args:
        questions: N questions.
        windows: their windows.
        start_logits, end_logits: float, shape (T,).
        n_best_size: starts and ends to combine in a window, and answers to list for a question.
        max_answer_length: tokens of an answer at most.
        version_2_with_negative: bool, whether a question may have no answer.
        null_score_diff_threshold: float; infinity gives the best answer whatever the null score.
    """
    logits = np.stack([start_logits, end_logits]).astype(np.float64)  # [2, T]
    limits = np.searchsorted(windows.question_index, np.arange(len(questions) + 1))
    answers = Answers({}, {}, {})
    for question, first, limit in zip(questions, limits[:-1], limits[1:], strict=True):
        row_splits = windows.examples.row_splits[first : limit + 1]
        null = _null_logits(logits, row_splits[:-1]) if version_2_with_negative else None
        candidates = _find_candidates(windows, logits, row_splits, null, n_best_size, max_answer_length)
        nbest = _choose(candidates, null, n_best_size, _final_texts(question, windows))
        answers.nbest[question.id] = nbest
        if null is None:
            answers.predictions[question.id] = nbest[0]["text"]
            continue
        best = next((entry for entry in nbest if entry["text"]), None)
        odds = NO_SPAN_ODDS if best is None else sum(null) - best["start_logit"] - best["end_logit"]
        answers.null_odds[question.id] = odds
        answers.predictions[question.id] = "" if best is None or odds > null_score_diff_threshold else best["text"]
    return answers


def apply_threshold(answers: Answers, threshold: float) -> Answers:
    """Takes back the predictions whose null odds exceed the threshold."""
    predictions = {
        name: "" if answers.null_odds.get(name, threshold) > threshold else text
        for name, text in answers.predictions.items()
    }
    return answers._replace(predictions=predictions)


def search_threshold(
    null_odds: Mapping[str, float],
    questions: Sequence[Question],
    predictions: Mapping[str, str],
    scores: Mapping[str, float],
) -> tuple[float, float]:
    """Finds the threshold that gives the highest score (SQuAD 2.0's evaluation script: find_best_thresh).

    Args:
        null_odds: of `best_answers`.
        questions: N questions with their known answers.
        predictions: of `best_answers` with the threshold infinity: an answer to every question.
        scores: exact match or F1 of these predictions, 0 to 1.

    Returns:
        (threshold, mean score with it, 0 to 1). As in the script the threshold is 0.0 where answering no question at
        all is best.
    """
    answerable = {question.id: bool(question.answers) for question in questions}
    score = best_score = sum(not value for value in answerable.values())
    threshold = 0.0
    for identifier in sorted(null_odds, key=null_odds.__getitem__):
        if answerable[identifier]:
            score += scores[identifier]
        elif predictions[identifier]:
            score -= 1
        if score > best_score:
            best_score, threshold = score, null_odds[identifier]
    return threshold, best_score / len(scores)


# === Candidates ===


def _null_logits(logits: np.ndarray, places: np.ndarray) -> tuple[float, float]:
    """Returns the start and end logit of [CLS] in the window where their sum is lowest.

    Args:
        logits: float64, shape (2, T).
        places: the windows' first tokens, int64.
    """
    if not len(places):
        return 0.0, 0.0
    lowest = places[logits[:, places].sum(axis=0).argmin()]
    return float(logits[0, lowest]), float(logits[1, lowest])


def _find_candidates(
    windows: Windows,
    logits: np.ndarray,
    row_splits: np.ndarray,
    null: tuple[float, float] | None,
    n_best_size: int,
    max_answer_length: int,
) -> _Candidates:
    """Finds the possible spans in all windows of one question; `null`, if given, joins them."""
    found = [np.empty((2, 0), np.int64)]
    for first, limit in zip(row_splits[:-1].tolist(), row_splits[1:].tolist(), strict=True):
        # Stable: of equal logits the earlier token goes first, as in Python's own sort.
        starts, ends = first + np.argsort(-logits[:, first:limit], axis=1, kind="stable")[:, :n_best_size]
        starts = starts[windows.is_max_context[starts]]
        ends = ends[windows.token_word[ends] >= 0]
        lengths = ends - starts[:, np.newaxis] + 1  # [starts, ends]
        of_starts, of_ends = np.nonzero((lengths >= 1) & (lengths <= max_answer_length))
        found.append(np.stack([starts[of_starts], ends[of_ends]]))
    starts, ends = np.concatenate(found, axis=1)
    columns = [starts, ends, logits[0, starts], logits[1, ends]]
    if null is not None:
        columns = [np.append(column, value) for column, value in zip(columns, (-1, -1, *null), strict=True)]
    order = np.argsort(-(columns[2] + columns[3]), kind="stable")
    return _Candidates(*(column[order] for column in columns))


def _choose(
    candidates: _Candidates,
    null: tuple[float, float] | None,
    n_best_size: int,
    text_of: Callable[[int, int], str],
) -> list[dict]:
    """Lists distinct texts in the candidates' order; "no answer" comes last if it is not among the best."""
    chosen: dict[str, tuple[float, float]] = {}
    for start, end, *pair in zip(*(column.tolist() for column in candidates), strict=True):
        if len(chosen) >= n_best_size:
            break
        chosen.setdefault(text_of(start, end) if start >= 0 else "", tuple(pair))
    if null is not None:
        chosen.setdefault("", null)
    if not chosen:
        chosen[NO_SPAN_TEXT] = (0.0, 0.0)
    scores = np.array(list(map(sum, chosen.values())))
    powers = np.exp(scores - scores.max())
    return [
        {"text": text, "probability": probability, "start_logit": pair[0], "end_logit": pair[1]}
        for (text, pair), probability in zip(chosen.items(), (powers / powers.sum()).tolist(), strict=True)
    ]


def _final_texts(question: Question, windows: Windows) -> Callable[[int, int], str]:
    """Returns a function from the first and last token (inclusive, among all T) of a span to its text."""
    words, ids = split_context(question.context), windows.examples.token_ids

    def text(start: int, end: int) -> str:
        pieces = [windows.vocabulary[number] for number in ids[start : end + 1].tolist()]
        original = words.join(windows.token_word[start], windows.token_word[end])
        return project(join_pieces(pieces), original, windows.lowercase)

    return text
