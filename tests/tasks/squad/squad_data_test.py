"""Files of SQuAD 1.1 and 2.0: what is read, and each wrong row by file and question."""

import copy
import json

import pytest
from repository import SHARED, needs_data

from keras_bert.errors import InputError
from tasks import flags
from tasks.squad.data import Question, Questions, first_answer, read_squad
from tasks.squad.task import Squad
from tasks.text.bad_rows import BadRows

REFUSING = ["--output_dir=x", "--bad_rows=refuse"]
CONTEXT = "Rollo led the Norse."


def question(identifier="q1", **changes):
    answers = [{"text": "Rollo", "answer_start": 0}]
    raw = {"id": identifier, "question": "Who led?", "answers": answers, "is_impossible": False, **changes}
    return {key: value for key, value in raw.items() if value is not None}


def document(*questions, context=CONTEXT):
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}


def read(tmp_path, content, policy="refuse", with_answers=True, version_2_with_negative=True):
    """Writes and reads a file: the questions, and the bad rows as {place: reason}."""
    path = tmp_path / "dev.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    bad_rows = BadRows(policy)
    questions = read_squad(
        str(path), with_answers=with_answers, version_2_with_negative=version_2_with_negative, bad_rows=bad_rows
    )
    return questions, {where.removeprefix(f"{tmp_path}/"): reason for where, reason in bad_rows.rows}


def reason_of(tmp_path, raw, **kwargs):
    """Why one question is left out; a good one stands beside it."""
    questions, rows = read(tmp_path, document(question("good"), raw), "skip", **kwargs)
    assert [qa.id for qa in questions] == ["good"] and len(rows) == 1
    return rows.popitem()


# === Good files ===


def test_version_2_is_read(tmp_path):
    content = document(question(), question("q2", answers=[], is_impossible=True, plausible_answers=[{"text": "no"}]))
    questions, rows = read(tmp_path, content)
    where = f"{tmp_path}/dev.json: question "
    assert questions == [
        Question("q1", "Who led?", CONTEXT, [("Rollo", 0)], False, f"{where}'q1'"),
        Question("q2", "Who led?", CONTEXT, [], True, f"{where}'q2'"),
    ]
    assert rows == {} and questions[0].context is questions[1].context


@pytest.mark.parametrize("version_2_with_negative", [False, True])
def test_version_1_is_read(tmp_path, version_2_with_negative):
    raw = question(is_impossible=None, answers=[{"text": "Rollo", "answer_start": 0}] * 3)
    questions, _ = read(tmp_path, document(raw), version_2_with_negative=version_2_with_negative)
    assert questions[0].answers == [("Rollo", 0)] * 3 and not questions[0].is_impossible


def test_version_2_read_as_version_1_has_no_impossible_questions(tmp_path):
    raw = question("q2", answers=[], is_impossible=True)
    questions, _ = read(tmp_path, document(raw), with_answers=False, version_2_with_negative=False)
    assert not questions[0].is_impossible
    where, reason = reason_of(tmp_path, raw, version_2_with_negative=False)
    assert where == "dev.json: question 'q2'"
    assert reason == (
        "the question has no answer. Expected one; --version_2_with_negative trains questions without an answer."
    )


def test_answers_may_lack_and_stand_anywhere_where_none_are_needed(tmp_path):
    raws = [
        question("q1", answers=None, is_impossible=None),
        question("q2", answers=[{"text": "Canute", "answer_start": 3}, {"text": "Norse"}]),
    ]
    questions, rows = read(tmp_path, document(*raws), with_answers=False)
    assert [qa.answers for qa in questions] == [[], [("Canute", 3), ("Norse", -1)]] and rows == {}


def test_a_byte_order_mark_and_other_scripts_are_read(tmp_path):
    content = document(question(answers=[{"text": "\u7f57\u6d1b", "answer_start": 0}]), context="\u7f57\u6d1b\u3002")
    questions, _ = read(tmp_path, "\ufeff" + json.dumps(content, ensure_ascii=False))
    assert questions[0].context == "\u7f57\u6d1b\u3002"


def test_the_first_answer_in_its_place_counts(tmp_path):
    answers = [{"text": "Norse", "answer_start": 3}, {"text": "Norse", "answer_start": 14}]
    (qa,), _ = read(tmp_path, document(question(answers=answers)))
    assert len(qa.answers) == 2 and first_answer(qa) == ("Norse", 3, 3)


@needs_data
@pytest.mark.parametrize("name", ["train", "dev"])
def test_real_files_have_no_bad_rows(name):
    path = SHARED / "squad2" / f"{name}.json"
    articles = json.loads(path.read_text())["data"]
    qas = [qa for article in articles for paragraph in article["paragraphs"] for qa in paragraph["qas"]]
    questions = read_squad(str(path), with_answers=True, version_2_with_negative=True, bad_rows=BadRows())
    assert [(qa.id, qa.is_impossible) for qa in questions] == [(qa["id"], qa["is_impossible"]) for qa in qas]
    assert all((first_answer(qa) is None) == qa.is_impossible for qa in questions)
    assert len(questions) > 1500 and 0.4 < sum(qa.is_impossible for qa in questions) / len(questions) < 0.6


# === Bad rows ===


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"question": None}, "column 'question': expected a text, found nothing (null)."),
        ({"question": " \n"}, "column 'question' is empty."),
        ({"question": 7}, "column 'question': expected a text, found int 7."),
        ({"answers": "Rollo"}, "expected a list of objects as \"answers\", found str 'Rollo'."),
        ({"answers": ["Rollo"]}, 'expected a list of objects as "answers", found list "[\'Rollo\']".'),
        ({"answers": [{"answer_start": 0}]}, "column 'text': expected a text, found nothing (null)."),
        (
            {"answers": [{"text": "Rollo", "answer_start": "no"}]},
            "'answer_start': expected a whole number, found 'no'",
        ),
        (
            {"answers": [{"text": "Rollo", "answer_start": True}]},
            "'answer_start': expected a whole number, found True",
        ),
        ({"is_impossible": "no"}, "expected true or false as \"is_impossible\", found str 'no'."),
        ({"question": "\ud83d?"}, "column 'question' has half of a surrogate pair"),
        ({"is_impossible": True}, "\"is_impossible\" is true, but there is the answer 'Rollo'."),
        ({"answers": []}, 'the question has no answer. Expected one, or "is_impossible": true.'),
        (
            {"answers": [{"text": "Norse", "answer_start": 3}]},
            "the answer 'Norse' is not in the context at character 3 (it stands at 14). Correct it.",
        ),
        (
            {"answers": [{"text": "Canute", "answer_start": 0}]},
            "the answer 'Canute' is not in the context at character 0 (it stands nowhere in it). Correct it.",
        ),
        ({"answers": [{"text": "Norse. They", "answer_start": 14}]}, "at character 14 (it stands nowhere in it)"),
        ({"answers": [{"text": "Norse"}]}, "at character -1 (it stands at 14)"),
    ],
)
def test_a_bad_question_is_left_out_and_named(tmp_path, changes, reason):
    where, message = reason_of(tmp_path, question("bad", **changes))
    assert where == "dev.json: question 'bad'" and reason in message
    pattern = r"dev.json: question 'bad': .*\.$"
    with pytest.raises(InputError, match=pattern):
        read(tmp_path, document(question(), question("bad", **changes)))


@pytest.mark.parametrize("identifier", [None, "", 7])
def test_a_question_without_an_id_is_named_by_its_place(tmp_path, identifier):
    where, reason = reason_of(tmp_path, question(identifier))
    assert where == "dev.json: data[0].paragraphs[0].qas[1]" and reason.startswith("column 'id'")


def test_an_id_that_comes_twice_is_a_bad_row(tmp_path):
    where, reason = reason_of(tmp_path, question("good", question="Another?"))
    assert where == "dev.json: question 'good'"
    assert reason == "the id is already that of data[0].paragraphs[0].qas[0]. Give each question an id of its own."


@pytest.mark.parametrize(
    ("path", "value", "place", "reason"),
    [
        ((0,), [], "data[0]", "expected an object, found list '[]'."),
        ((0, "paragraphs"), None, "data[0].paragraphs", "expected a list, found nothing."),
        ((0, "paragraphs", 0), "text", "data[0].paragraphs[0]", "expected an object, found str 'text'."),
        ((0, "paragraphs", 0, "context"), "", "data[0].paragraphs[0]", "column 'context' is empty."),
        ((0, "paragraphs", 0, "qas"), {}, "data[0].paragraphs[0].qas", "expected a list, found dict '{}'."),
        ((0, "paragraphs", 0, "qas", 0), 1, "data[0].paragraphs[0].qas[0]", "expected an object, found int '1'."),
    ],
)
def test_a_broken_part_of_the_file_is_left_out_and_named(tmp_path, path, value, place, reason):
    content = document(question("bad"))
    content["data"].append(copy.deepcopy(document(question("good"))["data"][0]))
    target = content["data"]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    questions, rows = read(tmp_path, content, "skip")
    assert [qa.id for qa in questions] == ["good"] and list(rows) == [f"dev.json: {place}"]
    assert rows[f"dev.json: {place}"].startswith(reason)
    with pytest.raises(InputError, match="dev.json: data"):
        read(tmp_path, content)


def test_several_bad_rows_are_counted(tmp_path):
    content = document(question(), *(question(f"bad{number}", question="") for number in range(3)))
    with pytest.raises(InputError, match=r"question 'bad0': .* \(3 bad rows in all; --bad_rows=skip leaves them out"):
        read(tmp_path, content)


def test_training_answers_that_cannot_be_found_are_dropped_with_a_count_by_default(tmp_path, capsys):
    # As google-research/bert does (run_squad.py, "Could not find answer"); other faults refuse the file.
    policy = Squad.Settings(output_dir="").bad_rows
    unfound = [question(f"bad{number}", answers=[{"text": "Canute", "answer_start": 0}]) for number in range(30)]
    questions, rows = read(tmp_path, document(*unfound, question()), policy)
    assert [qa.id for qa in questions] == ["q1"] and len(rows) == 30
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].endswith("question 'bad0': " + rows["dev.json: question 'bad0'"])
    assert len(shown) == 21 and shown[-1] == "skipped: 10 more, 30 in all."
    empty = question("empty", answers=[])
    with pytest.raises(InputError, match=r"question 'empty': the question has no answer\. Expected one, or .*true\.$"):
        read(tmp_path, document(*unfound, empty, question()), policy)
    with pytest.raises(InputError, match=r"question 'bad0': the answer 'Canute' .* \(30 bad rows in all"):
        read(tmp_path, document(*unfound, question()), flags.parse(Squad.Settings, REFUSING).bad_rows)


# === Bad files ===


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"data": [}', r"dev.json:1: not valid JSON \(Expecting value\)"),
        ("[]", r"dev.json: expected a JSON object, found list"),
        ("{}", r'dev.json: expected SQuAD\'s JSON, \{"data": \[articles\]\}, found nothing as "data"'),
        ('{"data": {}}', r"found dict '\{\}' as \"data\""),
        ('{"data": []}', "dev.json: the file holds no question that can be used"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, content)


def test_a_file_without_a_good_question_is_refused_even_when_skipping(tmp_path):
    with pytest.raises(InputError, match="holds no question that can be used"):
        read(tmp_path, document(question(question="")), "skip")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"none.json: cannot be read"):
        read_squad(str(tmp_path / "none.json"), with_answers=True, version_2_with_negative=True, bad_rows=BadRows())


# === The questions of a file ===


def test_the_checksum_depends_on_the_questions_and_not_on_where_they_lie(tmp_path):
    questions, _ = read(tmp_path, document(question(), question("q2")))
    (tmp_path / "other").mkdir()
    same, _ = read(tmp_path / "other", document(question(), question("q2")))
    other, _ = read(tmp_path, document(question(), question("q2", answers=[{"text": "Norse", "answer_start": 14}])))
    checksums = [Questions("a.json", part).checksum() for part in (questions, same, other, questions[:1])]
    assert checksums[0] == checksums[1] and len(set(checksums)) == 3
