"""Scores of answers by the official scripts of tf-models-official on hand-made cases; thresholds; report parts."""

import math

import numpy as np
import pytest

from tasks.fine_tuning.examples import Examples
from tasks.squad import metrics
from tasks.squad.answers import Answers
from tasks.squad.data import Question
from tasks.squad.metrics import Scores
from tasks.squad.windows import Windows

CONTEXT = "Rollo the Viking led the Normans to France in 911, under oath to King Charles III."


def ask(identifier, *known, question="Who led the Normans?", context=CONTEXT):
    answers = [(text, context.find(text)) for text in known]
    return Question(identifier, question, context, answers, not known, f"dev.json: question {identifier!r}")


# Known answers, prediction, exact match and F1 by hand.
CASES = [
    ("a", ["the Normans"], "Normans!", 1.0, 1.0),  # Articles, case and punctuation do not count.
    ("b", ["King Charles III", "Charles III"], "oath to King Charles", 0.0, 4 / 7),  # Best of two: 2 of 4, 2 of 3.
    ("c", ["911"], "in 911", 0.0, 2 / 3),
    ("d", ["France"], "Rollo", 0.0, 0.0),
    ("e", ["Rollo"], "", 0.0, 0.0),
    ("f", [], "", 1.0, 1.0),
    ("g", [], "France", 0.0, 0.0),
]
ASKED = [ask(identifier, *known) for identifier, known, *_ in CASES]
PREDICTIONS = {identifier: predicted for identifier, _, predicted, *_ in CASES}
ANSWERABLE = ASKED[:5]


def test_hand_made_answers_score_as_computed_by_hand():
    # "b": "oath to king charles" has "king charles" in common with "King Charles III": 2/4, 2/3; F1 4/7.
    for with_negative, asked in ((True, ASKED), (False, ANSWERABLE)):
        scores = metrics.score_each(asked, PREDICTIONS, with_negative)
        np.testing.assert_array_equal(scores.exact, [case[3] for case in CASES[: len(asked)]])
        np.testing.assert_allclose(scores.f1, [case[4] for case in CASES[: len(asked)]])


def test_all_at_once_is_the_mean_of_each():
    for with_negative, asked in ((True, ASKED), (False, ANSWERABLE)):
        scores = metrics.score_each(asked, PREDICTIONS, with_negative)
        results = metrics.score_all(asked, {name: PREDICTIONS[name] for name in PREDICTIONS}, with_negative)
        assert results["total"] == len(asked)
        assert results["exact"] == pytest.approx(100.0 * scores.exact.mean())
        assert results["f1"] == pytest.approx(100.0 * scores.f1.mean())
    assert not any("Ans" in name for name in results)  # The last is SQuAD 1.1.


def test_questions_with_and_without_an_answer_are_scored_apart():
    results = metrics.score_all(ASKED, PREDICTIONS, True)
    assert (results["HasAns_total"], results["NoAns_total"]) == (5, 2)
    assert results["HasAns_exact"] == pytest.approx(20.0) and results["NoAns_exact"] == pytest.approx(50.0)
    assert results["HasAns_f1"] == pytest.approx(20.0 * (1 + 4 / 7 + 2 / 3))
    assert not any("final" in name or "pr_" in name for name in results)


# === Thresholds ===

# Answers where one must be given; null odds by hand: a and f are right at 0.5, c is wrong, g never answered.
MUST = {"a": "Normans", "b": "King Charles III", "c": "in 911", "d": "Rollo", "e": "Rollo", "f": "oath", "g": "Viking"}
ODDS = {"a": -3.0, "b": 0.25, "c": 1.5, "d": 2.0, "e": -1.0, "f": 1.75, "g": 4.0}


def at(threshold):
    return {name: "" if ODDS[name] > threshold else text for name, text in MUST.items()}


def test_the_best_thresholds_by_hand():
    _, best = metrics.find_threshold(ASKED, Answers(MUST, {}, ODDS))
    assert best["best_exact_thresh"] == 0.25 and best["best_f1_thresh"] == 1.5


def test_the_best_f1_is_that_of_the_answers_at_the_chosen_threshold_and_no_other_is_higher():
    chosen, best = metrics.find_threshold(ASKED, Answers(MUST, {}, ODDS))
    assert chosen == 1.625  # Between c, which is answered, and f, which is not.
    assert metrics.score_all(ASKED, at(chosen), True)["f1"] == pytest.approx(best["best_f1"])
    others = [metrics.score_all(ASKED, at(value), True)["f1"] for value in np.arange(-4.0, 5.0, 0.25)]
    assert max(others) == pytest.approx(best["best_f1"])


def test_the_chosen_threshold_is_at_most_one_above_the_last_answer():
    asked, odds = [ask("a", "Rollo")], {"a": 2.0}
    chosen, best = metrics.find_threshold(asked, Answers({"a": "Rollo"}, {}, odds))
    assert best["best_f1_thresh"] == 2.0 and chosen == 3.0
    asked, odds = [*asked, ask("b")], {"a": 2.0, "b": 1e6}
    assert metrics.find_threshold(asked, Answers({"a": "Rollo", "b": "oath"}, {}, odds))[0] == 3.0


def test_where_answering_nothing_is_best_the_threshold_is_below_all():
    asked, odds, must = [ask("a", "Rollo"), ask("b")], {"a": -1.0, "b": -7.0}, {"a": "France", "b": "France"}
    chosen, best = metrics.find_threshold(asked, Answers(must, {}, odds))
    assert best == {"best_exact": 50.0, "best_exact_thresh": 0.0, "best_f1": 50.0, "best_f1_thresh": 0.0}
    assert chosen == -8.0


def test_the_chosen_threshold_has_the_best_f1_in_random_cases():
    generator = np.random.default_rng(5)
    texts = ["Rollo", "France", "the Normans", "King Charles III", "Charles"]
    for _ in range(30):
        asked = [
            ask(f"{number}", *generator.choice(texts, generator.integers(0, 3), replace=False).tolist())
            for number in range(12)
        ]
        must = {question.id: str(generator.choice(texts)) for question in asked}
        odds = {question.id: float(generator.normal()) for question in asked}
        chosen, best = metrics.find_threshold(asked, Answers(must, {}, odds))
        given = {name: "" if odds[name] > chosen else text for name, text in must.items()}
        assert metrics.score_all(asked, given, True)["f1"] == pytest.approx(best["best_f1"])


# === Intervals ===


def test_intervals_enclose_the_mean_in_percent():
    scores = Scores(np.array([1.0] * 60 + [0.0] * 40), np.array([1.0] * 60 + [0.5] * 40))
    intervals = metrics.intervals(scores)
    low, high = intervals["exact"]
    assert low == pytest.approx(60.0 - 1.96 * 4.9, abs=1.5) and high == pytest.approx(60.0 + 1.96 * 4.9, abs=1.5)
    assert intervals["f1"][0] < 80.0 < intervals["f1"][1]
    assert metrics.intervals(scores) == intervals


# === The report ===


def windows_of(question_index):
    count = len(question_index)
    examples = Examples(np.zeros(count, np.int32), np.zeros(count, np.int32), np.arange(count + 1))
    none = np.empty(0)
    return Windows(examples, np.array(question_index), none, none, [], True, none)


def test_mistakes_are_the_wrong_answers_of_the_highest_loss():
    asked = [ask("1", "Rollo"), ask("2", "911", "in 911"), ask("3"), ask("4", "France")]
    predictions = {"1": "Rollo", "2": "France", "3": "King", "4": ""}
    nbest = {
        name: [{"text": "x", "probability": 0.25}, {"text": text, "probability": 0.7}]
        for name, text in predictions.items()
    }
    scores = Scores(np.array([1.0, 0.0, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0]))
    losses = np.array([9.0, 1.0, 3.0, 4.0, 1.0])
    shown = metrics.show_answers(asked, windows_of([0, 1, 1, 2, 3]), losses, Answers(predictions, nbest, {}), scores)
    mistakes = shown["mistakes"]
    assert [mistake.loss for mistake in mistakes] == [4.0, 2.0, 1.0]
    rows = [dict(mistake.parts) for mistake in mistakes]
    assert [row["id"] for row in rows] == ["3", "2", "4"]
    assert rows[0]["expected"] == "(no answer)" and rows[0]["predicted"] == "King (70% sure, F1 0%)"
    assert rows[1]["expected"] == "911 | in 911" and rows[2]["predicted"].startswith("(no answer) (70%")
    assert rows[0]["context"] == CONTEXT


def test_a_long_context_is_shown_around_the_answer():
    context = "before " * 100 + "Rollo led" + " after" * 100
    excerpt = metrics._excerpt(ask("1", "Rollo", context=context), "after")
    assert len(excerpt) == 2 * 150 + len("Rollo") + 2 and "before Rollo led after" in excerpt
    assert excerpt[0] == excerpt[-1] == "…"
    assert "Rollo" in metrics._excerpt(ask("1", context=context), "Rollo led")
    assert metrics._excerpt(ask("1", context=context), "not there").startswith("before before")


def test_notes_name_the_share_without_an_answer_and_where_the_threshold_comes_from():
    assert metrics.make_notes({"f1": 1.0}, True) == []
    (note,) = metrics.make_notes({"null_score_diff_threshold": -1.25}, True)
    assert "by more than -1.250. This threshold gives" in note
    assert metrics.make_notes({"null_score_diff_threshold": -1.25}, False) == []
    (note,) = metrics.make_notes({"NoAns_total": 3, "total": 8}, False)
    assert "at all would give 37.5%" in note


def test_headline_scores_are_shares():
    figures = {"exact": 40.0, "f1": 60.0, "loss": 2.5, "NoAns_exact": 10.0}
    scores = metrics.make_scores(figures, {"exact": [30.0, 50.0], "f1": [50.0, 70.0]})
    assert scores[0] == ("F1", 0.6, 0.5, 0.7, True) and scores[1].value == 0.4
    assert [score.value for score in scores[2:]] == [0.1, 2.5] and not scores[-1].percent
    assert all(math.isfinite(score.value) for score in scores)
