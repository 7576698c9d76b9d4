"""Tables of questions: the same as SQuAD's JSON, and each wrong row by its line."""

import csv
import json
import pathlib

import pytest
import toy_squad

from keras_bert.errors import InputError
from tasks.squad.data import read_squad
from tasks.text.bad_rows import BadRows

CONTEXT = 'Rollo concatenated the cats,\nsaid "so" & left.'
SMILE = "\U0001f600 naïve cats"
# Question, context, answer, its place by default, and the one that is meant.
ROWS = [
    ("Who?", CONTEXT, "Rollo", 0, 0),
    ("What?", CONTEXT, "cat", 9, 23),
    ("Which?", CONTEXT, "cats", 23, 23),
    ("Said?", CONTEXT, '"so" & left', 34, 34),
    ("How?", SMILE, "naïve", 2, 2),
    ("None?", SMILE, "", None, None),
]


def as_json(place: int) -> dict:
    qas = []
    for number, (question, context, answer, *places) in enumerate(ROWS):
        answers = [{"text": answer, "answer_start": places[place]}] if answer else []
        qa = {"id": f"q{number}", "question": question, "answers": answers, "is_impossible": not answers}
        qas.append({"context": context, "qas": [qa]})
    return {"data": [{"title": "t", "paragraphs": qas}]}


def write_table(path: pathlib.Path, rows: list[dict]) -> str:
    with open(path, "w", encoding="utf-8-sig" if path.suffix == ".csv" else "utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            file.writelines(f"{json.dumps(row, ensure_ascii=False)}\r\n" for row in rows)
        else:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=";", lineterminator="\r\n")
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


def read(path, policy="refuse", with_answers=True, version_2_with_negative=True):
    bad_rows = BadRows(policy)
    settings = {"with_answers": with_answers, "version_2_with_negative": version_2_with_negative}
    questions = read_squad(str(path), **settings, bad_rows=bad_rows)
    return questions, {where.rpartition("/")[2]: reason for where, reason in bad_rows.rows}


def table_rows(place: int | None) -> list[dict]:
    rows = []
    for number, (question, context, answer, *places) in enumerate(ROWS):
        row = {"context": context, "id": f"q{number}", "question": question, "answer": answer, "more": "x"}
        start = "" if place is None or not answer else str(places[place])
        rows.append({**row, "answer_start": start})
    return rows


@pytest.mark.parametrize("with_answers", [True, False])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
@pytest.mark.parametrize("place", [None, 1])
def test_a_table_holds_what_json_does(tmp_path, suffix, place, with_answers):
    file = toy_squad.write(tmp_path / "a.json", as_json(place or 0))
    expected, _ = read(file, with_answers=with_answers)
    questions, _ = read(write_table(tmp_path / f"a{suffix}", table_rows(place)), with_answers=with_answers)
    assert [question[:-1] for question in questions] == [question[:-1] for question in expected]
    assert questions[2].where.endswith(
        f"a{suffix}:{6 if suffix == '.csv' else 3}"
    )  # Two rows before it have two lines.


def test_a_line_end_inside_a_text_counts_as_it_is(tmp_path):
    context = "one\r\ntwo\r\nthree four three"
    row = {"question": "how many?", "context": context, "answer": "three", "answer_start": context.rindex("three")}
    (question,) = read(write_table(tmp_path / "a.csv", [row]))[0]
    assert question.context == context and question.answers == [("three", 21)]


def test_json_lines_may_hold_answers_as_data_sets_of_hugging_face_do(tmp_path):
    rows = []
    for raw in (qa for paragraph in as_json(1)["data"][0]["paragraphs"] for qa in paragraph["qas"]):
        answers = {name: [answer[name] for answer in raw["answers"]] for name in ("text", "answer_start")}
        rows.append({"id": raw["id"], "question": raw["question"], "context": ROWS[int(raw["id"][1])][1]})
        rows[-1]["answers"] = answers if len(rows) % 2 else raw["answers"]
    questions, _ = read(write_table(tmp_path / "a.jsonl", rows))
    expected, _ = read(toy_squad.write(tmp_path / "a.json", as_json(1)))
    assert [question[:-1] for question in questions] == [question[:-1] for question in expected]


def test_a_tsv_of_questions_alone_is_answered(tmp_path):
    (tmp_path / "a.tsv").write_text('question\tcontext\nWho?\tsaid "so\n\n', encoding="utf-8")
    [question], _ = read(tmp_path / "a.tsv", with_answers=False)
    assert question[:-1] == ("2", "Who?", 'said "so', [], False)
    with pytest.raises(
        InputError, match="a.tsv:1: no column 'answer' in the header. .* and answer to train or to be sc"
    ):
        read(tmp_path / "a.tsv")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"answer": "Canute"}, "the answer 'Canute' is not in the context. Copy it from there, letter by letter."),
        ({"answer": "rollo"}, "the answer 'rollo' is not in the context. Copy it from there, letter by letter."),
        ({"answer_start": 6}, "the answer 'Rollo' is not in the context at character 6 .it stands at 0.. Correct it."),
        ({"answer_start": "one"}, "column 'answer_start': expected a whole number, found 'one'. Correct it or leave"),
        ({"answer_start": 0.5}, "column 'answer_start': expected a whole number, found 0.5"),
        ({"answer": 7}, "column 'answer': expected a text, found int 7"),
        ({"context": " "}, "column 'context' is empty"),
        ({"question": None}, "column 'question': expected a text, found nothing"),
        ({"answers": {"text": ["Rollo"], "answer_start": []}}, "expected two lists of one length"),
        ({"answers": "Rollo"}, 'expected a list of objects as "answers"'),
        ({"answer": None}, "the question has no answer. Expected one; --version_2_with_negative"),
        ({"id": "good"}, "the id is already that of line 1. Give each question an id of its own."),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path, changes, reason):
    row = {"question": "Who?", "context": "Rollo led.", "answer": "Rollo"}
    file = write_table(tmp_path / "a.jsonl", [{**row, "id": "good"}, {**row, **changes}])
    questions, rows = read(file, "skip", version_2_with_negative=False)
    assert [question.id for question in questions] == ["good"] and list(rows) == ["a.jsonl:2"]
    with pytest.raises(InputError, match=f"a.jsonl:2: {reason}"):
        read(file, version_2_with_negative=False)


def test_answers_that_are_not_in_their_context_are_skipped_by_default(tmp_path):
    rows = [{"question": "Who?", "context": "Rollo led.", "answer": text} for text in (" Rollo ", "Canute")]
    questions, bad = read(write_table(tmp_path / "a.csv", rows), None)
    assert len(questions) == 1 and list(bad) == ["a.csv:3"]


def test_numbers_from_zero_are_ids(tmp_path):
    row = {"question": "Who?", "context": CONTEXT, "answer": "Rollo"}
    file = write_table(tmp_path / "a.jsonl", [{**row, "id": number} for number in range(3)])
    questions, _ = read(file)
    assert [question.id for question in questions] == ["0", "1", "2"]
