"""Answers chosen from logits: every rule on a case worked out by hand."""

import dataclasses
import math

import numpy as np
import pytest

from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.squad.answers import apply_threshold, best_answers
from tasks.squad.data import Question
from tasks.squad.windows import DEFAULTS, make_windows

VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *(f"w{number}" for number in range(50)),
    "rollo",
    "led",
    "'",
]
VOCABULARY += ["s", "##s", "the", "(", ")", "-"]
LOW = -50.0


def question(context, identifier="q", answers=()):
    return Question(identifier, "w48 w49", context, list(answers), False, f"dev.json: question {identifier!r}")


SPEC = dataclasses.replace(DEFAULTS, sequence_length=64, doc_stride=32, max_query_length=2)


def windows_of(questions, spec=SPEC, lowercase=True):
    return make_windows(questions, PythonBertTokenizer(VOCABULARY, lowercase), spec)


def answer(context, starts, ends, version_2_with_negative=False, threshold=0.0, lowercase=True, **values):
    """The answers to one question; `starts` and `ends`: {number of the token among all: logit}, others are low.

    A window of its own starts with [CLS] w48 w49 [SEP]: the context's first token is number 4.
    """
    spec = dataclasses.replace(SPEC, version_2_with_negative=version_2_with_negative, **values)
    questions = [question(context)]
    windows = windows_of(questions, spec, lowercase)
    logits = np.full((2, len(windows.token_word)), LOW, np.float32)
    for row, values in zip(logits, (starts, ends), strict=True):
        row[list(values)] = list(values.values())
    best = best_answers(questions, windows, logits.T, spec)
    answers = apply_threshold(best, threshold)
    assert list(answers.predictions) == list(answers.nbest) == ["q"]
    assert sum(entry["probability"] for entry in answers.nbest["q"]) == pytest.approx(1.0)
    return answers


def texts(answers, count=None):
    return [entry["text"] for entry in answers.nbest["q"][:count]]


# === Candidates ===


def test_the_best_span_is_the_answer():
    answers = answer("w0 w1 w2 w3", {5: 4.0, 4: 1.0}, {6: 3.0, 5: 1.0})
    assert answers.predictions == {"q": "w1 w2"} and answers.null_odds == {}
    assert texts(answers, 4) == ["w1 w2", "w1", "w0 w1 w2", "w0 w1"]  # 7, 5, 4, 2
    first, second = answers.nbest["q"][:2]
    assert (first["start_logit"], first["end_logit"]) == (4.0, 3.0) and list(first) == [
        *("text", "probability", "start_logit", "end_logit")
    ]
    total = 1 + math.exp(-2) + math.exp(-3) + math.exp(-5)  # the others are e^-50 and less
    assert first["probability"] == pytest.approx(1 / total) and second["probability"] == pytest.approx(
        math.exp(-2) / total
    )


def test_an_end_before_its_start_is_no_answer():
    answers = answer("w0 w1 w2", {6: 5.0, 4: 1.0}, {4: 5.0, 5: 4.0})
    assert answers.predictions == {"q": "w0"}  # 1 + 5; "w0 w1" 1 + 4; 6 -> 4 would be 10


def test_only_the_best_starts_and_ends_are_combined():
    starts, ends = {4: 5.0, 6: 4.0, 5: 3.9}, {4: 5.0, 6: 4.0, 5: 3.9}
    assert texts(answer("w0 w1 w2", starts, ends, n_best_size=2)) == ["w0", "w0 w1 w2"]
    # 3 of each would have these: w0 10, w0 w1 w2 9, w0 w1 8.9, w2 8, ...
    assert texts(answer("w0 w1 w2", starts, ends, n_best_size=3)) == ["w0", "w0 w1 w2", "w0 w1"]


def test_twenty_starts_and_ends_by_default():
    context = " ".join(f"w{number}" for number in range(25))
    starts = {4 + number: 30.0 - number for number in range(25)}
    ends = {4 + number: float(number) for number in range(25)}
    answers = answer(context, starts, ends, max_answer_length=1)
    # Starts w0-w19 and ends w5-w24 are combined; of single words w5-w19 are left, each 30.
    assert texts(answers) == [f"w{number}" for number in range(5, 20)]
    assert len(texts(answer(context, starts, ends))) == 20


def test_question_and_special_tokens_take_places_but_give_no_answer():
    starts = {0: 9.0, 1: 8.0, 5: 1.0}
    assert texts(answer("w0 w1", starts, {5: 1.0, 4: 0.0}, n_best_size=2)) == ["empty"]  # [CLS] and w48 fill the starts
    assert texts(answer("w0 w1", starts, {5: 1.0, 4: 0.0}, n_best_size=3)) == ["w1"]
    ends = {3: 9.0, 6: 8.0, 5: 1.0}  # both [SEP]
    assert texts(answer("w0 w1", {4: 1.0}, ends, n_best_size=3), 1) == ["w0 w1"]


def test_an_answer_has_at_most_so_many_tokens():
    context = " ".join(f"w{number}" for number in range(40))
    starts, ends = {4: 5.0}, {34: 5.0, 33: 1.0}  # 31 and 30 tokens
    assert answer(context, starts, ends).predictions["q"] == " ".join(f"w{number}" for number in range(30))
    assert answer(context, starts, ends, max_answer_length=31).predictions["q"].endswith(" w30")
    # Pieces count, not words.
    assert answer("w0s w1", {4: 5.0}, {6: 5.0, 5: 1.0}, max_answer_length=2).predictions["q"] == "w0s"


def test_of_equal_scores_the_earlier_token_comes_first():
    assert texts(answer("w0 w1 w2", {4: 1.0, 5: 1.0, 6: 1.0}, {4: 1.0, 5: 1.0, 6: 1.0}, max_answer_length=1)) == [
        "w0",
        "w1",
        "w2",
    ]
    assert texts(answer("w0 w1 w2", {}, {}, n_best_size=8), 1) == ["w0"]


def test_scores_that_only_rounding_tells_apart_are_equal():
    logits = {4: 1.0, 5: 1.00002, 6: 1.00004, 7: 1.001}  # of the sums, neighbours among the first three differ by 4e-5
    assert texts(answer("w0 w1 w2 w3", logits, logits, max_answer_length=1)) == ["w3", "w0", "w1", "w2"]
    answers = answer("w0 w1 w0", {4: 1.0, 6: 1.00002}, {4: 1.0, 6: 1.00002}, max_answer_length=1)
    assert answers.nbest["q"][0]["start_logit"] == 1.0  # of a text, the first place


def test_sums_are_exact_where_float32_would_round_them_off():
    # 3000.00013 against 3000.000244: the first, with the better start, is rounded to the second in float32.
    starts, ends = {4: 1.3e-4, 5: 0.0}, {4: 3000.0, 5: float(np.nextafter(np.float32(3000.0), np.float32(4000.0)))}
    assert texts(answer("w0 w1", starts, ends, max_answer_length=1)) == ["w1", "w0"]


# === Windows ===

# Room for 5 of 7 tokens: windows w0-w4 (tokens 4-8 among all) and w2-w6 (14-18). w3 and before count in the first,
# w4 and after in the second.
LONG = {"context": "w0 w1 w2 w3 w4 w5 w6", "sequence_length": 10, "doc_stride": 2}


def test_maximum_context_is_asked_of_the_start():
    assert answer(**LONG, starts={15: 9.0, 7: 1.0}, ends={15: 9.0, 7: 1.0}).predictions["q"] == "w3"  # the first's w3
    assert answer(**LONG, starts={8: 9.0, 16: 1.0}, ends={8: 9.0, 16: 1.0}).predictions["q"] == "w4"  # the second's w4
    scores = answer(**LONG, starts={8: 9.0, 16: 1.0}, ends={8: 9.0, 16: 1.0}).nbest["q"][0]
    assert scores["start_logit"] == scores["end_logit"] == 1.0


def test_maximum_context_is_not_asked_of_the_end():
    assert answer(**LONG, starts={6: 9.0}, ends={8: 9.0}).predictions["q"] == "w2 w3 w4"  # w4 of the first window


def test_an_answer_lies_in_one_window():
    answers = answer(**LONG, starts={7: 9.0}, ends={17: 9.0, 8: 1.0})  # w3 of the first, w5 of the second
    assert answers.predictions["q"] == "w3 w4"


def test_each_window_has_its_own_best_starts_and_ends():
    starts, ends = {4: 9.0, 5: 8.0, 17: 1.0, 18: 0.0}, {4: 9.0, 5: 8.0, 17: 1.0, 18: 0.0}
    answers = answer(**LONG, starts=starts, ends=ends, n_best_size=5, max_answer_length=1)
    assert texts(answers, 4) == ["w0", "w1", "w5", "w6"]


# === Texts ===


def test_of_equal_texts_the_best_counts():
    answers = answer("w0 w1 w0", {4: 1.0, 6: 3.0}, {4: 1.0, 6: 3.0}, max_answer_length=1)
    assert texts(answers) == ["w0", "w1"]
    assert answers.nbest["q"][0]["start_logit"] == 3.0


def test_equal_texts_take_one_place_of_the_list():
    starts = {4: 9.0, 5: 8.0, 6: 7.0}
    answers = answer("w0 w0 w1", starts, starts, max_answer_length=1, n_best_size=2)
    assert texts(answers) == ["w0"]  # w1 is not among two starts
    answers = answer("w0 w0 w1", starts, starts, max_answer_length=1, n_best_size=3)
    assert texts(answers) == ["w0", "w1"]


def test_texts_are_the_context_s_own():
    answers = answer("the (Rollo's)  LED", {6: 5.0}, {6: 5.0, 8: 4.0, 10: 3.0})
    assert texts(answers, 3) == ["Rollo", "Rollo's", "Rollo's) LED"]  # two blanks become one
    assert texts(answer("the W0s-w1", {5: 5.0}, {5: 5.0, 6: 4.0}), 2) == ["W0", "W0s"]  # a piece of a word


def test_a_text_that_cannot_be_aligned_is_given_in_whole_words():
    assert answer("the (Rollo\u200b-led)", {6: 5.0}, {6: 5.0}).predictions["q"] == "(Rollo\u200b-led)"
    assert answer("the unknown-led", {5: 5.0}, {5: 5.0}).predictions["q"] == "unknown-led"  # [UNK]


def test_the_case_is_the_tokenizer_s():
    logits = {5: 5.0}
    assert answer("the rollo's", logits, logits, lowercase=False).predictions["q"] == "rollo"
    assert answer("the R\u00f3llo's", logits, logits).predictions["q"] == "R\u00f3llo"
    assert answer("the R\u00f3llo's", logits, logits, lowercase=False).predictions["q"] == "R\u00f3llo's"


# === No answer ===


def test_no_answer_wins_if_its_lead_is_above_the_threshold():
    starts, ends = {0: 2.0, 4: 3.0}, {0: 2.5, 4: 1.0}  # null 4.5, w0 4.0
    answers = answer("w0", starts, ends, True)
    assert answers.predictions == {"q": ""} and answers.null_odds == {"q": 0.5} and texts(answers) == ["", "w0"]
    assert answer("w0", starts, ends, True, threshold=0.4).predictions["q"] == ""
    assert answer("w0", starts, ends, True, threshold=0.5).predictions["q"] == "w0"  # not above it
    assert answer("w0", starts, ends, True, threshold=math.inf).predictions["q"] == "w0"


def test_an_answer_wins_at_equal_scores():
    answers = answer("w0", {0: 2.0, 4: 3.0}, {0: 2.0, 4: 1.0}, True)
    assert answers.predictions["q"] == "w0" and answers.null_odds["q"] == 0.0
    assert texts(answers) == ["w0", ""]  # it stands behind its equals


def test_the_null_score_is_the_lowest_of_the_windows():
    starts, ends = {0: 5.0, 10: 1.0, 4: 3.0}, {0: -1.0, 10: 2.0, 4: 3.0}  # 4 and 3
    answers = answer(**LONG, starts=starts, ends=ends, version_2_with_negative=True)
    assert answers.null_odds["q"] == 3.0 - 6.0
    null = next(entry for entry in answers.nbest["q"] if not entry["text"])
    assert (null["start_logit"], null["end_logit"]) == (1.0, 2.0)


def test_no_answer_is_listed_even_if_it_is_not_among_the_best():
    starts, ends = {0: -20.0, 4: 3.0, 5: 2.0}, {0: -20.0, 4: 3.0, 5: 2.0}
    answers = answer("w0 w1", starts, ends, True, n_best_size=2)
    assert texts(answers) == ["w0", "w0 w1", ""]
    assert answers.nbest["q"][2]["start_logit"] == -20.0
    # Among the best it takes one of their places.
    starts[0] = ends[0] = 2.5
    answers = answer("w0 w1", starts, ends, True, n_best_size=3)
    assert texts(answers) == ["w0", "w0 w1", ""]


def test_no_possible_span_gives_no_answer():
    starts = {0: 9.0, 1: 8.0, 4: 7.0}
    answers = answer("w0", starts, starts, True, n_best_size=2, threshold=1000.0)
    assert answers.predictions == {"q": ""} and answers.null_odds == {"q": 1e6}
    assert answers.nbest["q"] == [{"text": "", "probability": 1.0, "start_logit": 9.0, "end_logit": 9.0}]
    answers = answer("w0", starts, starts, False, n_best_size=2)
    assert answers.predictions == {"q": "empty"}
    assert answers.nbest["q"] == [{"text": "empty", "probability": 1.0, "start_logit": 0.0, "end_logit": 0.0}]


def test_a_list_of_one_still_has_the_best_answer():
    # The best start and end of a window sum to [CLS]'s at least, and an answer goes before its equals.
    answers = answer("w0", {0: 7.0, 4: 7.5}, {0: 7.0, 4: 7.5}, True, n_best_size=1)
    assert answers.predictions == {"q": "w0"} and answers.null_odds == {"q": -1.0}
    assert texts(answers) == ["w0", ""]


def test_a_context_without_tokens_gives_no_answer():
    questions = [question("w0", "q1"), question("\u200b", "q2"), question("w1", "q3")]
    windows = windows_of(questions)
    logits = np.zeros((len(windows.token_word), 2))
    spec = dataclasses.replace(SPEC, version_2_with_negative=True)
    answers = best_answers(questions, windows, logits, spec)
    assert answers.predictions == {"q1": "w0", "q2": "", "q3": "w1"}
    assert answers.null_odds == {"q1": 0.0, "q2": 1e6, "q3": 0.0}
    answers = best_answers(questions, windows, logits, SPEC)
    assert answers.predictions == {"q1": "w0", "q2": "empty", "q3": "w1"}
