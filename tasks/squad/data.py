"""Reads questions, contexts and answers from the JSON of SQuAD 1.1 and 2.0, or from a table.

This module does not import TensorFlow.
"""

import os
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from keras_bert.errors import InputError
from keras_bert.files import read_object
from tasks.squad.text import find_answer, split_context
from tasks.text.bad_rows import BadRows
from tasks.text.rows import EXTENSIONS, Broken, check_text, open_rows, parse_number, read_usable, take

_CURE = "A table needs the columns question and context, and answer to train or to be scored by."


class _NotFound(Broken):
    """An answer does not occur at its place in the context."""


class Question(NamedTuple):
    """A question about a context.

    Attributes:
        id: str, unique in the file.
        question: str.
        context: str, shared by the questions of a paragraph.
        answers: `(text, offset in the context in characters)` of each known answer, with -1 for an unknown offset;
            empty if the question has no answer, or no answer is known.
        is_impossible: whether the file marks the question as not answered by the context (SQuAD 2.0).
        where: location for messages: "dev-v2.0.json: question '56be'".
    """

    id: str
    question: str
    context: str
    answers: list[tuple[str, int]]
    is_impossible: bool
    where: str


class Questions(NamedTuple):
    """The usable questions of one file, in the file's order."""

    path: str
    questions: list[Question]

    def checksum(self) -> int:
        total = 0
        for question in self.questions:
            total = zlib.crc32(repr(question[:-1]).encode(), total)  # All but `where`, which names the file.
        return total


def read_squad(path: str, *, with_answers: bool, version_2_with_negative: bool, bad_rows: BadRows) -> list[Question]:
    """Reads a file of SQuAD 1.1 or 2.0, or a table.

    A table has the columns (in JSON Lines: keys) `question`, `context` and, unless it is only to be answered, `answer`,
    which is empty if the context does not contain an answer. `answer_start` is the offset of the answer in the context,
    in characters; by default, it is the first occurrence as whole words, else the first one. `id` is by default the
    line. JSON Lines and Parquet may have `answers` instead, as SQuAD's JSON and Hugging Face's data sets do.

    Args:
        path: the file, JSON or one that `open_rows` reads.
        with_answers: True for training: a question is a bad row unless it has an answer that occurs at its place in the
            context, or is marked as impossible (google-research/bert skips such questions: run_squad.py:280). False for
            prediction: answers may be missing or wrong, since only the score needs them.
        version_2_with_negative: whether a question may have no answer. False ignores `is_impossible`.
        bad_rows: collects the questions that cannot be used.

    Returns:
        The questions, in the file's order.

    Raises:
        InputError: the file is missing, is not SQuAD's JSON, lacks a column, or has no usable question; or `bad_rows`
            refuses a missing or empty text, a repeated id, or an answer that is not in the context.
    """
    is_table = os.path.splitext(path)[1].lower() in EXTENSIONS
    read = _table_questions(path, with_answers, bad_rows) if is_table else _raw_questions(path, bad_rows)
    questions, place_of = [], {}
    for place, raw, context in read:
        where = f"{path}:{place}" if is_table else f"{path}: {place}"
        try:
            identifier = check_text("id", raw.get("id"))
            where = where if is_table else f"{path}: question {identifier!r}"
            if place_of.setdefault(identifier, place) != place:
                other = f"line {place_of[identifier]}" if is_table else place_of[identifier]
                raise Broken(f"the id is already that of {other}. Give each question an id of its own.")
            question = _question(raw, identifier, context, where, version_2_with_negative)
            if with_answers:
                _check_answers(question, version_2_with_negative)
            questions.append(question)
        except Broken as error:
            bad_rows.add(where, str(error), tolerated=isinstance(error, _NotFound))
    bad_rows.finish()
    if not questions:
        raise InputError(f"{path}: the file holds no question that can be used. Expected some.")
    return questions


def keep_scorable(questions: list[Question], version_2_with_negative: bool, bad_rows: BadRows) -> list[Question]:
    """Returns the questions whose answers can be scored, and adds the others to `bad_rows`.

    Raises:
        InputError: no question can be scored, or `bad_rows` refuses the file.
    """
    mark = '"is_impossible": true' if version_2_with_negative else "--version_2_with_negative"
    known = [question for question in questions if question.answers or question.is_impossible]
    for question in questions:
        if not (question.answers or question.is_impossible):
            bad_rows.add(question.where, f"the question has no known answer to be scored by. Expected one, or {mark}.")
    bad_rows.finish()
    if not known:
        raise InputError(f"{questions[0].where}: no question in the file has a known answer. Leave out --do_eval.")
    return known


def first_answer(question: Question) -> tuple[str, int, int] | None:
    """Returns (text, first word, last word) of the first answer that occurs at its place in the context, or None."""
    words = split_context(question.context)
    for text, start in question.answers:
        if (span := find_answer(words, len(question.context), text, start)) is not None:
            return text, *span
    return None


def _table_questions(path: str, with_answers: bool, bad_rows: BadRows) -> list[tuple[str, dict, str]]:
    """Returns the line, the question as in SQuAD's JSON, and the context."""
    file = open_rows(path)
    file.require(["question", "context", *["answer"] * with_answers], _CURE)

    def read_row(line: int, row: dict) -> tuple[str, dict, str]:
        context = check_text("context", take(row, "context"))
        answers = _table_answers(row, context)
        identifier = line if row.get("id") in (None, "") else row["id"]
        raw = {"id": str(identifier), "question": take(row, "question"), "answers": answers or []}
        return str(line), {**raw, "is_impossible": answers == []}, context

    return read_usable(file, read_row, bad_rows, "one question a row")[2]


def _table_answers(row: dict, context: str) -> Any:
    """Returns the answers as SQuAD's JSON has them; None if the row has no column for them."""
    answers = row.get("answers")
    if isinstance(answers, dict):  # Hugging Face's data sets: a list for each key.
        columns = [answers.get(name) for name in ("text", "answer_start")]
        if not all(isinstance(column, list) for column in columns) or len(columns[0]) != len(columns[1]):
            raise Broken('expected two lists of one length, "text" and "answer_start", in "answers".')
        return [{"text": text, "answer_start": start} for text, start in zip(*columns, strict=True)]
    if answers is not None or "answer" not in row:
        return answers
    text = row["answer"]
    if text is None or (isinstance(text, str) and not text.strip()):
        return []
    start = row.get("answer_start")
    if start in (None, ""):
        text = check_text("answer", text).strip()
        as_words = re.search(rf"(?<!\w){re.escape(text)}(?!\w)", context)
        return [{"text": text, "answer_start": as_words.start() if as_words else context.find(text)}]
    return [{"text": text, "answer_start": start}]


def _raw_questions(path: str, bad_rows: BadRows) -> Iterator[tuple[str, dict, str]]:
    """Yields (place, JSON object of a question, context)."""
    data = read_object(path, most_bytes=None).get("data")
    if not isinstance(data, list):
        raise InputError(
            f'{path}: expected SQuAD\'s JSON, {{"data": [articles]}}, found {_name(data)} as "data". '
            f"The name of a table ends in {' or '.join(EXTENSIONS)}."
        )
    for article_place, article in _items(path, "data", data, bad_rows):
        for place, paragraph in _items(path, f"{article_place}.paragraphs", article.get("paragraphs"), bad_rows):
            try:
                context = check_text("context", paragraph.get("context"))
            except Broken as error:
                bad_rows.add(f"{path}: {place}", str(error))
                continue
            yield from ((*item, context) for item in _items(path, f"{place}.qas", paragraph.get("qas"), bad_rows))


def _items(path: str, place: str, values, bad_rows: BadRows) -> Iterator[tuple[str, dict]]:
    """Yields (place, value) of each object in a list."""
    if not isinstance(values, list):
        bad_rows.add(f"{path}: {place}", f"expected a list, found {_name(values)}.")
        return
    for number, value in enumerate(values):
        if isinstance(value, dict):
            yield f"{place}[{number}]", value
        else:
            bad_rows.add(f"{path}: {place}[{number}]", f"expected an object, found {_name(value)}.")


def _question(raw: dict, identifier: str, context: str, where: str, version_2_with_negative: bool) -> Question:
    text = check_text("question", raw.get("question"))
    answers = raw.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(answer, dict) for answer in answers):
        raise Broken(f'expected a list of objects as "answers", found {_name(answers)}.')
    is_impossible = raw.get("is_impossible", False) if version_2_with_negative else False
    if not isinstance(is_impossible, bool):
        raise Broken(f'expected true or false as "is_impossible", found {_name(is_impossible)}.')
    return Question(identifier, text, context, list(map(_answer, answers)), is_impossible, where)


def _answer(raw: dict) -> tuple[str, int]:
    start = raw.get("answer_start", -1)
    number = parse_number(start)
    if number is None or number % 1:
        raise Broken(f"column 'answer_start': expected a whole number, found {start!r}. Correct it or leave it empty.")
    return check_text("text", raw.get("text")), int(number)


def _check_answers(question: Question, version_2_with_negative: bool) -> None:
    if question.is_impossible:
        if question.answers:
            raise Broken(f'"is_impossible" is true, but there is the answer {question.answers[0][0]!r}. Remove one.')
        return
    if not question.answers:
        cure = "; --version_2_with_negative trains questions without an answer"
        cure = ', or "is_impossible": true' if version_2_with_negative else cure
        raise Broken(f"the question has no answer. Expected one{cure}.")
    if first_answer(question) is None:
        text, start = question.answers[0]
        place = question.context.find(text)
        if start < 0 and place < 0:
            raise _NotFound(f"the answer {text!r} is not in the context. Copy it from there, letter by letter.")
        there = f"it stands at {place}" if place >= 0 else "it stands nowhere in it"
        raise _NotFound(f"the answer {text!r} is not in the context at character {start} ({there}). Correct it.")


def _name(value) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
