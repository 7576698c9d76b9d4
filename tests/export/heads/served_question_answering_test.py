"""Answers in the served graph: equal to those of `tasks.squad`, on real questions and on hostile contexts."""

import dataclasses
import pathlib

import fuzzing
import keras
import numpy as np
import pytest
from repository import SHARED, needs_data
from toy_answering import SETTINGS, WORDS, TableAnswerer, assert_equal
from toy_saved import ask, save_as_described

from export import saved_model
from export.heads.loading import load_head
from export.heads.question_answering import QuestionAnswering
from export.verification import verify
from keras_bert import BertBackbone, BertPreprocessor, BertTokenizer
from keras_bert.models import BertSpanLabeler
from tasks.fine_tuning.model_files import save_model
from tasks.squad.data import read_squad
from tasks.squad.task import DEFAULTS
from tasks.text.bad_rows import BadRows


def real_questions(count=500, most=5000):
    """Pairs of real questions and contexts; every fifth context goes on with its article up to 5,000 characters."""
    questions = []
    for name in ("dev", "train"):
        path = str(SHARED / "squad2" / f"{name}.json")
        questions += read_squad(path, with_answers=False, version_2_with_negative=True, bad_rows=BadRows())
    step = len(questions) // count
    contexts = list(dict.fromkeys(question.context for question in questions))
    pairs = []
    for number, question in enumerate(questions[: step * count : step]):
        context = question.context
        if number % 5 == 0:
            place = contexts.index(context)
            context = "\n".join(contexts[place : place + 12])[:most]
        pairs.append((question.question, context))
    return pairs


# === Real questions, logits without rounding ===


@pytest.mark.slow(keep=["True-True"])
@needs_data
@pytest.mark.parametrize(("lowercase", "with_negative"), [(True, True), (True, False), (False, True)])
def test_answers_equal_the_task_s(lowercase, with_negative):
    vocabulary = str(SHARED / "vocab" / ("uncased_en.txt" if lowercase else "cased_en.txt"))
    answerer = TableAnswerer(
        vocabulary,
        lowercase,
        seed=3,
        null=14.0,
        is_traced=fuzzing.FULL,
        sequence_length=96,
        doc_stride=40,
        max_query_length=16,
        version_2_with_negative=with_negative,
        null_score_diff_threshold=-8.0,
        max_tokens=4000,
    )
    pairs = real_questions(5 * fuzzing.some(100))
    expected = assert_equal(answerer, pairs, batch_size=50)
    share = sum(bool(answer["prediction"]) for answer in expected) / len(pairs)
    assert 0.04 < share < 0.96 if with_negative else share == 1
    assert max(len(context) for _, context in pairs) == 5000
    assert not any(answer["truncated"] for answer in expected)


@pytest.mark.slow
@needs_data
def test_answers_of_standard_windows_equal_the_task_s():
    answerer = TableAnswerer(
        str(SHARED / "vocab" / "uncased_en.txt"), seed=4, sequence_length=384, version_2_with_negative=True
    )
    assert_equal(answerer, real_questions(150), batch_size=32)


# === By hand ===


def test_an_answer_and_its_place():
    answerer = TableAnswerer(WORDS, is_traced=False, version_2_with_negative=True, **SETTINGS)
    answerer.of_places[:] = 0.0
    answerer.of_tokens[:] = 0.0
    answerer.of_tokens[WORDS.index("w7")] = (9.0, 1.0)
    answerer.of_tokens[WORDS.index("w8")] = (1.0, 8.0)
    (row,) = answerer.served([("w1", "\u4e2d w1 (W7 \n -W8). w2")])
    assert (row["answer"], row["start"], row["end"]) == (b"W7 -W8", 6, 14)
    assert row["null_score"] == -17.0 and row["nbest_answers"][0] == b"W7 -W8" and not row["truncated"]
    assert row["score"] == row["nbest_probabilities"][0] > 0.9
    (row,) = answerer.served([("w1", "\u200b")])
    assert (row["answer"], row["start"], row["end"], row["score"], row["null_score"]) == (b"", -1, -1, 1.0, 1e6)


def test_where_an_answer_must_be_there_is_one():
    answerer = TableAnswerer(WORDS, is_traced=False, **SETTINGS)
    (row,) = answerer.served([("w1", "")])
    assert (row["answer"], row["start"], row["score"]) == (b"empty", -1, 1.0)


def test_of_two_windows_with_nearly_as_much_context_the_longer_counts():
    """Token 254 of 385 has 125 tokens on its shorter side in the first window (380), 126 in the second (257)."""
    answerer = TableAnswerer(WORDS, is_traced=False, decimals=6, version_2_with_negative=True, sequence_length=384)
    answerer.of_tokens[WORDS.index("w7")] += 30.0
    (expected,) = assert_equal(answerer, [("w1", "w1 " * 254 + "w7" + " w1" * 130)])
    in_first = answerer.of_tokens[WORDS.index("w7"), 0] + answerer.of_places[3 + 254, 0]
    answer = next(entry for entry in expected["nbest"] if entry["text"] == "w7")
    assert answer["start_logit"] == pytest.approx(in_first)


# === Exported ===


def toy_model(vocabulary_size, seed=1, hidden_dim=32, length=384) -> keras.Model:
    keras.utils.set_random_seed(seed)
    backbone = BertBackbone(
        vocabulary_size,
        num_layers=1,
        num_heads=2,
        hidden_dim=hidden_dim,
        intermediate_dim=2 * hidden_dim,
        max_sequence_length=length,
    )
    model = BertSpanLabeler(backbone, compile=False)
    generator = np.random.default_rng(seed)
    for weight in model.weights:  # Fresh weights give nearly equal logits.
        weight.assign(generator.normal(1.0 if "gamma" in weight.path else 0.0, 0.3, size=weight.shape))
    return model


@pytest.fixture(scope="module", name="model")
def _model():
    return toy_model(len(WORDS), length=48)


def test_a_trained_model_is_loaded_and_its_graph_verified(model, tmp_path, monkeypatch):
    tokenizer = BertTokenizer(WORDS)
    sizes = {"sequence_length": 48, "doc_stride": 16, "max_query_length": 8, "version_2_with_negative": True}
    spec = {**dataclasses.asdict(DEFAULTS), **sizes}
    save_model(str(tmp_path / "model"), model, tokenizer, {"task": "question_answering", **spec})
    head = load_head(str(tmp_path / "model"), n_best_size=5, max_tokens=100)
    assert (head.choice.n_best_size, head.doc_stride, head.max_tokens) == (5, 16, 100)
    assert head.choice.version_2_with_negative
    loaded = save_as_described(head, str(tmp_path / "served"), monkeypatch)
    ids = {"token_ids": [[2, 5, 3, 6, 3, 0]], "segment_ids": [[0, 0, 0, 1, 1, 0]], "lengths": [5]}
    outputs = ask(loaded, "token_ids", ids)
    assert outputs["start_logits"][0, 5] == outputs["end_logits"][0, 5] == -10000.0
    assert abs(outputs["start_logits"][0, 4]) < 100
    # What the training settled, Python takes from the directory, too.
    labeler = BertSpanLabeler.from_preset(str(tmp_path / "model"))
    assert {name: labeler.answer_settings[name] for name in list(sizes)[1:]} == dict(list(sizes.items())[1:])
    shorter = BertSpanLabeler.from_preset(str(tmp_path / "model"), sequence_length=32).answer_settings
    assert shorter["version_2_with_negative"] and not shorter.keys() & {"doc_stride", "max_query_length"}
    ours = labeler.answer(("w1", "w2 w3 " * 40), n_best_size=5, max_tokens=100)
    served = ask(loaded, "serving_default", {"question": ["w1"], "context": ["w2 w3 " * 40]})
    assert ours["nbest_answers"] == [text.decode() for text in served["nbest_answers"][0].numpy()]
    assert len(ours["nbest_answers"]) == 6 and not ours["truncated"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"doc_stride": 0}, "`doc_stride` must be at least 1. Received: doc_stride=0"),
        ({"max_tokens": 0}, "`max_tokens` must be at least 1. Received: max_tokens=0"),
        ({"n_best_size": 0}, "`n_best_size` must be at least 1. Received: n_best_size=0"),
        ({"max_answer_length": -1}, "`max_answer_length` must be at least 1"),
        ({"max_query_length": 45}, "`preprocessor.sequence_length` must be at least 49"),
    ],
)
def test_settings_that_do_not_fit_are_refused(model, settings, message):
    preprocessor = BertPreprocessor(BertTokenizer(WORDS), 48)
    with pytest.raises(ValueError, match=message):
        QuestionAnswering(model, preprocessor, **{"max_query_length": 8, **settings})
    classifier = keras.Sequential([keras.Input([4]), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="`model` must give 2 logits a token, start and end. Received: 3"):
        QuestionAnswering(classifier, preprocessor, max_query_length=8)


@needs_data
@pytest.mark.slow  # 500 questions through an encoder, here and in a process of its own: about a minute.
def test_answers_of_a_moved_export_equal_the_keras_model_s(tmp_path):
    """Rounding decides some: such a question's answers must be those to logits that differ by 1e-4 at most."""
    tokenizer = BertTokenizer(str(SHARED / "vocab" / "uncased_en.txt"))
    model = toy_model(tokenizer.vocabulary_size())
    head = QuestionAnswering(model, BertPreprocessor(tokenizer, 384), version_2_with_negative=True)
    directory = pathlib.Path(saved_model.export_head(head, str(tmp_path / "served")))
    moved = directory.rename(tmp_path / "elsewhere")
    pairs = real_questions()
    columns = [np.array([text.encode() for text in column], object) for column in zip(*pairs, strict=True)]
    requests = [
        verify.Probe("serving_default", {"question": columns[0][at : at + 50], "context": columns[1][at : at + 50]}, {})
        for at in range(0, 500, 50)
    ]
    answers = verify.fresh_answers(str(moved), requests)
    decided = 0
    for request, served in zip(requests, answers, strict=True):
        right, undecided = head.expected(model, request.inputs, head.encode(request.inputs))["serving_default"]
        decided += np.count_nonzero(~undecided)
        for name, expected in right.items():
            if expected.dtype.kind == "f":
                np.testing.assert_allclose(served[name], expected, rtol=1e-5, atol=1e-5)
            else:
                assert np.array_equal(served[name][~undecided], expected[~undecided]), name
    assert decided > 450
