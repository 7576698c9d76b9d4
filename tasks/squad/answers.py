"""Makes answers from the logits of a question's windows: n-best lists, null scores and final texts.

Source: google-research/bert, run_squad.py:741-924. This module does not import TensorFlow.

Shapes: T tokens of all windows.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from keras_bert.answers.rules import NO_SPAN_ODDS, NO_SPAN_TEXT, TIE
from tasks.squad.data import Question
from tasks.squad.text import join_pieces, project, split_context
from tasks.squad.windows import SquadSpec, Windows

_Null = tuple[float, float] | None  # Start and end logits of "no answer"; None if each question has an answer.
_Candidate = tuple[int, int, float, float]


class Answers(NamedTuple):
    """The content of SQuAD's three prediction files, by question id.

    Attributes:
        predictions: the answer's text; "" for no answer.
        nbest: list of {text, probability, start_logit, end_logit}, most probable first.
        null_odds: score of "no answer" minus that of the best answer; empty if every question has an answer.
    """

    predictions: dict[str, str]
    nbest: dict[str, list[dict]]
    null_odds: dict[str, float]


def best_answers(questions: Sequence[Question], windows: Windows, outputs: np.ndarray, spec: SquadSpec) -> Answers:
    """Chooses the best answer to each question, whatever its null odds; see `apply_threshold`.

    Each window contributes the pairs of its `n_best_size` highest starts and ends (google-research/bert counts padding
    among them). A start must have its maximum context in its window, but an end need not. The candidates of all windows
    are sorted by the sum of their logits; of those with the same final text, the first is kept. If sums are equal (up
    to `TIE`), the earlier place in the context comes first, and "no answer" last.

    With `version_2_with_negative`, [CLS] stands for "no answer". Its score is the lowest sum of its logits in any
    window.

    Args:
        questions: N questions.
        windows: windows of the questions.
        outputs: start and end logits of each token, float, shape (T, 2).
        spec: how to choose: `n_best_size`, `max_answer_length` and `version_2_with_negative`.
    """
    logits = np.ascontiguousarray(outputs.T, np.float64)  # [2, T]
    limits = np.searchsorted(windows.question_index, np.arange(len(questions) + 1))
    answers = Answers({}, {}, {})
    for question, first, limit in zip(questions, limits[:-1], limits[1:], strict=True):
        row_splits = windows.examples.row_splits[first : limit + 1]
        null = _null_logits(logits, row_splits[:-1]) if spec.version_2_with_negative else None
        candidates = _find_candidates(windows, logits, row_splits, null, spec)
        nbest = _choose(candidates, null, spec.n_best_size, _final_texts(question, windows))
        answers.nbest[question.id] = nbest
        best = next((entry for entry in nbest if entry["text"]), None)
        answers.predictions[question.id] = "" if best is None else best["text"]
        if null is not None:
            odds = NO_SPAN_ODDS if best is None else sum(null) - best["start_logit"] - best["end_logit"]
            answers.null_odds[question.id] = odds
    return answers


def apply_threshold(answers: Answers, threshold: float) -> Answers:
    """Replaces by "" the predictions where "no answer" scores higher than the best answer by more than a threshold."""
    predictions = {
        name: "" if answers.null_odds.get(name, threshold) > threshold else text
        for name, text in answers.predictions.items()
    }
    return answers._replace(predictions=predictions)


# === Candidates ===


def _null_logits(logits: np.ndarray, firsts: np.ndarray) -> tuple[float, float]:
    """Returns the start and end logits of [CLS] in the window with their lowest sum; zeros without any window.

    Args:
        logits: float64, shape (2, T).
        firsts: first token of each window, int64.
    """
    if not len(firsts):
        return 0.0, 0.0
    return tuple(logits[:, firsts[logits[:, firsts].sum(axis=0).argmin()]].tolist())


def _find_candidates(
    windows: Windows, logits: np.ndarray, row_splits: np.ndarray, null: _Null, spec: SquadSpec
) -> list[_Candidate]:
    """Finds the possible spans in all windows of a question, and adds `null` if given.

    Returns:
        `(first token, last token, start logit, end logit)` of each span, the best first. Tokens are indices into all T
        tokens; both are -1 for "no answer".
    """
    spans = [np.empty((2, 0), np.int64)]
    for first, limit in zip(row_splits[:-1].tolist(), row_splits[1:].tolist(), strict=True):
        # A stable sort takes the earlier of two equal logits, as google-research/bert's does.
        best = np.argsort(-logits[:, first:limit], axis=1, kind="stable")[:, : spec.n_best_size]
        starts, ends = first + np.sort(best, axis=1)
        starts = starts[windows.is_max_context[starts]]
        ends = ends[windows.token_word[ends] >= 0]
        lengths = ends - starts[:, np.newaxis] + 1  # [starts, ends]
        of_starts, of_ends = np.nonzero((lengths >= 1) & (lengths <= spec.max_answer_length))
        spans.append(np.stack([starts[of_starts], ends[of_ends]]))
    starts, ends = np.concatenate(spans, axis=1)
    columns = [starts, ends, logits[0, starts], logits[1, ends]]
    if null is not None:
        columns = [np.append(column, value) for column, value in zip(columns, (-1, -1, *null), strict=True)]
    scores = columns[2] + columns[3]
    order = np.argsort(-scores, kind="stable")
    groups = np.append(0, np.cumsum(-np.diff(scores[order]) > TIE))[: len(order)]  # Equal scores share a number.
    order = order[np.lexsort((order, groups))]
    return list(zip(*(column[order].tolist() for column in columns), strict=True))


def _choose(
    candidates: list[_Candidate], null: _Null, n_best_size: int, text_of: Callable[[int, int], str]
) -> list[dict]:
    """Lists the distinct texts in the order of the candidates. "No answer" comes last if it is not among the best."""
    chosen: dict[str, tuple[float, float]] = {}
    for start, end, *pair in candidates:
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
    """Returns a function that maps the first and last token (inclusive, among all T) of a span to its text."""
    words, ids = split_context(question.context), windows.examples.token_ids

    def text(start: int, end: int) -> str:
        pieces = [windows.vocabulary[number] for number in ids[start : end + 1].tolist()]
        original = words.join(windows.token_word[start], windows.token_word[end])
        return project(join_pieces(pieces), original, windows.lowercase)

    return text
