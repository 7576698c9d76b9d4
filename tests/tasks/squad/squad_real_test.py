"""Answers to real questions: against a second derivation and Model Garden's squad_lib, and there and back again."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from repository import SHARED, needs_data
from squad_reference import answers_of, windows_of
from tokenizer_reference import read_ids

from keras_bert.tokenization.python_tokenizer import PythonBertTokenizer
from tasks.squad.answers import apply_threshold, best_answers
from tasks.squad.data import first_answer, read_squad
from tasks.squad.windows import DEFAULTS, make_windows
from tasks.text.bad_rows import BadRows

VOCABULARIES = {True: str(SHARED / "vocab" / "uncased_en.txt"), False: str(SHARED / "vocab" / "cased_en.txt")}
SIZES = {"sequence_length": 96, "doc_stride": 40, "max_query_length": 16}  # Several windows for most questions.
SPEC = dataclasses.replace(DEFAULTS, **SIZES)

pytestmark = needs_data


def real_questions(name, step=1):
    path = str(SHARED / "squad2" / f"{name}.json")
    return read_squad(path, with_answers=True, version_2_with_negative=True, bad_rows=BadRows())[::step]


def random_logits(windows, seed):
    """Logits of which a few stand out, as a model's do; rounded, so that some are equal."""
    values = np.random.default_rng(seed).normal(size=(2, len(windows.token_word))) ** 3
    values[:, windows.examples.row_splits[:-1]] += 14.0
    return values.round(2).astype(np.float32)


def assert_same_lists(rows, expected):
    """Compares n-best lists, as (text, probability, start logit, end logit)."""
    assert [row[:1] + row[2:] for row in rows] == [row[:1] + row[2:] for row in expected]
    assert [row[1] for row in rows] == pytest.approx([row[1] for row in expected], rel=1e-9)


# === A second derivation ===


@pytest.mark.parametrize(("lowercase", "is_version_2"), [(True, True), (True, False), (False, True)])
def test_answers_equal_a_second_derivation(lowercase, is_version_2):
    questions = real_questions("dev", 29)
    tokenizer = PythonBertTokenizer(VOCABULARIES[lowercase], lowercase)
    windows = make_windows(questions, tokenizer, SPEC)
    logits, splits = random_logits(windows, 1), windows.examples.row_splits
    spec = dataclasses.replace(SPEC, version_2_with_negative=is_version_2)
    best = best_answers(questions, windows, logits.T, spec)
    answers = apply_threshold(best, -8.0)
    ids, row = read_ids(VOCABULARIES[lowercase]), 0
    for question in questions:
        expected = windows_of(question, ids, lowercase, **SIZES)
        spans = zip(splits[row:], splits[row + 1 : row + 1 + len(expected)], strict=False)
        rows = [logits[:, start:end].astype(float).tolist() for start, end in spans]
        row += len(expected)
        text, nbest, odds = answers_of(
            question.context, expected, rows, tokenizer.vocabulary, lowercase, 20, 30, is_version_2, -8.0
        )
        assert answers.predictions[question.id] == text
        assert_same_lists([tuple(entry.values()) for entry in answers.nbest[question.id]], nbest)
        assert answers.null_odds.get(question.id) == odds
    given = [bool(text) for text in answers.predictions.values()]
    assert all(given) or (is_version_2 and 10 < sum(given) < len(given) - 10)


# === tf-models-official, which descends from run_squad.py ===


def official_inputs(tmp_path, questions, with_answers):
    """The questions with one answer each, as squad_lib reads them."""
    data = []
    for question in questions:
        answers = [{"text": text, "answer_start": start} for text, start in question.answers[:1]]
        raw = {"id": question.id, "question": question.question, "answers": answers}
        raw["is_impossible"] = question.is_impossible
        data.append({"paragraphs": [{"context": question.context, "qas": [raw]}]})
    path = tmp_path / "questions.json"
    path.write_text(json.dumps({"data": data}))
    from official.nlp.data import squad_lib

    return squad_lib.read_squad_examples(str(path), with_answers, version_2_with_negative=True)


def official_features(examples, vocabulary, lowercase, is_training):
    from official.nlp.data import squad_lib
    from official.nlp.tools.tokenization import FullTokenizer

    features = []

    def keep(feature, is_padding=False):
        if not is_padding:
            features.append(feature)

    squad_lib.convert_examples_to_features(
        examples,
        FullTokenizer(vocabulary, do_lower_case=lowercase),
        is_training=is_training,
        output_fn=keep,
        batch_size=None if is_training else 1,
        max_seq_length=SPEC.sequence_length,
        doc_stride=SPEC.doc_stride,
        max_query_length=SPEC.max_query_length,
    )
    return features


@pytest.mark.slow(keep=["True"])
@pytest.mark.oracle
@pytest.mark.parametrize("lowercase", [True, False])
def test_windows_and_answers_equal_model_garden_s(tmp_path, lowercase):
    squad_lib = pytest.importorskip("official.nlp.data.squad_lib")
    questions = real_questions("train", 27)
    windows = make_windows(questions, PythonBertTokenizer(VOCABULARIES[lowercase], lowercase), SPEC)
    examples = official_inputs(tmp_path, questions, with_answers=True)
    features = official_features(examples, VOCABULARIES[lowercase], lowercase, is_training=True)
    logits, splits = random_logits(windows, 2), windows.examples.row_splits
    results, labels = [], windows.examples.labels
    assert len(features) == windows.examples.num_examples
    for row, feature in enumerate(features):
        start, end = splits[row : row + 2]
        padding = [0] * (SPEC.sequence_length - (end - start))
        assert feature.input_ids == windows.examples.token_ids[start:end].tolist() + padding
        assert feature.segment_ids == windows.examples.segment_ids[start:end].tolist() + padding
        assert feature.start_position == labels["start_positions"][row]
        assert feature.end_position == labels["end_positions"][row]
        assert feature.example_index == windows.question_index[row]
        rows = ([*values.tolist(), *[-1e4] * len(padding)] for values in logits[:, start:end].astype(float))
        results.append(SimpleNamespace(unique_id=feature.unique_id, **dict(zip(LOGITS, rows, strict=True))))
    for is_version_2 in (True, False):
        expected = squad_lib.postprocess_output(
            examples, features, results, 20, 30, lowercase, is_version_2, null_score_diff_threshold=-8.0
        )
        spec = dataclasses.replace(SPEC, version_2_with_negative=is_version_2)
        best = best_answers(questions, windows, logits.T, spec)
        answers = apply_threshold(best, -8.0)
        assert answers.predictions == expected[0] and answers.null_odds == expected[2]
        for key, entries in expected[1].items():
            assert by_score(answers.nbest[key]) == by_score(entries)


def by_score(entries):
    """Probabilities and texts of a list without its lowest score, of which the list may not hold all texts.

    Model Garden lets rounding order texts with equal scores.
    """
    rows = [(-round(entry["probability"], 9), entry["text"]) for entry in entries]
    return sorted(row for row in rows if row[0] < rows[-1][0])


LOGITS = ("start_logits", "end_logits")


# === There and back again ===


@pytest.mark.slow(keep=["False-384", "True-256"])
@pytest.mark.parametrize(("lowercase", "max_seq_length"), [(True, 384), (False, 384), (True, 256)])
def test_gold_answers_survive_windows_and_projection(lowercase, max_seq_length, capsys):
    questions = real_questions("train") + real_questions("dev")
    tokenizer = PythonBertTokenizer(VOCABULARIES[lowercase], lowercase)
    values = {"sequence_length": max_seq_length, "version_2_with_negative": True, "n_best_size": 1}
    spec = dataclasses.replace(DEFAULTS, **values)
    windows = make_windows(questions, tokenizer, spec)
    starts, labels = windows.examples.row_splits[:-1], windows.examples.labels
    logits = np.zeros((2, len(windows.token_word)), np.float32)
    logits[0, starts + labels["start_positions"]] = logits[1, starts + labels["end_positions"]] = 10.0
    answers = best_answers(questions, windows, logits.T, spec)
    golden = {question.id: first_answer(question)[0] for question in questions if question.answers}
    kept = np.mean([answers.predictions[key] == text for key, text in golden.items()])
    with capsys.disabled():
        print(f"\n{kept:.2%} of {len(golden)} answers kept ({max_seq_length} tokens, lowercase={lowercase})")
    assert len(questions) > 4000 and kept >= 0.98
