"""Annotated texts in JSON Lines: tokens and tags, and each wrong line by its number."""

import json

import pytest

from keras_bert.errors import InputError
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll

TEXT = "Ada Lovelace (London) wrote to A.\u00a0De Morgan\u2026 \U0001f600 na\u00efve"
SPANS = [[14, 20, "place"], [0, 12, "person"], [31, 43, "person"], [45, 46, "face"]]
TOKENS = ["Ada", "Lovelace", "(", "London", ")", "wrote", "to", "A", ".", "De", "Morgan", "\u2026", "\U0001f600"]
TAGS = ["B-person", "I-person", "O", "B-place", "O", "O", "O", *["B-person", *["I-person"] * 3], "O", "B-face"]
OBJECTS = [{"start": start, "end": end, "label": label, "id": 7} for start, end, label in SPANS]
OFFSETS = [{"start_offset": start, "end_offset": end, "label": label} for start, end, label in SPANS]


def read(tmp_path, *rows, needs_tags=True, policy="refuse", **options):
    path, bad_rows = tmp_path / "a.jsonl", BadRows(policy)
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8", newline="")
    documents = read_conll(str(path), needs_tags=needs_tags, bad_rows=bad_rows, **options)
    return documents, {where.rpartition("/")[2]: reason for where, reason in bad_rows.rows}


@pytest.mark.parametrize(
    "row",
    [
        {"text": TEXT, "label": SPANS},
        {"text": TEXT, "labels": SPANS},
        {"text": TEXT, "spans": OBJECTS, "tokens": [{"text": "Ada", "start": 0, "end": 3, "id": 0}]},
        {"text": TEXT, "entities": OFFSETS, "relations": []},
        {"tokens": [*TOKENS, "na\u00efve"], "tags": [*TAGS, "O"]},
        {"tokens": [*TOKENS, "na\u00efve"], "ner_tags": [*TAGS, "O"], "id": "1"},
    ],
)
def test_each_tool_s_annotation_gives_the_same_tokens_and_tags(tmp_path, row):
    documents, _ = read(tmp_path, row, {"text": "Nobody.", "spans": []} if "text" in row else row, "")
    sentences = documents.split(documents.tokens), documents.split(documents.tags)
    assert (sentences[0][0], sentences[1][0]) == ([*TOKENS, "na\u00efve"], [*TAGS, "O"])
    assert documents.split(documents.lines)[1][0] == 2 and documents.num_sentences == 2
    if "text" in row:
        assert (sentences[0][1], sentences[1][1]) == (["Nobody", "."], ["O", "O"])


def test_an_entity_may_start_and_end_inside_a_word(tmp_path):
    spans = [[3, 6, "x"], [6, 7, "x"], [0, 2, "y"]]
    documents, _ = read(tmp_path, {"text": "preWORDs", "spans": spans}, tag_scheme="iob2")
    assert documents.tokens == ["pr", "e", "WOR", "D", "s"]
    assert documents.tags == ["B-y", "O", "B-x", "B-x", "O"]


def test_texts_and_tokens_alone_can_be_predicted(tmp_path):
    documents, _ = read(tmp_path, {"text": "Who, me?"}, {"tokens": ["a b", "c"]}, needs_tags=False)
    assert documents.tags is None and documents.split(documents.tokens) == [["Who", ",", "me", "?"], ["a b", "c"]]


def test_tags_that_are_numbers_are_scores(tmp_path):
    documents, _ = read(tmp_path, {"tokens": ["a", "b"], "tags": [1.5, "_"]}, tag_scheme=None)
    assert documents.tags == ["1.5", "_"]
    with pytest.raises(InputError, match="a.jsonl:1: "):
        read(tmp_path, {"tokens": ["a", "b"], "ner_tags": [0, 1]})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "expected a JSON object, found list"),
        ({"words": ["a"]}, 'expected a text as "text", or a list of words as "tokens"'),
        ({"tokens": ["a", 1], "tags": ["O", "O"]}, "a list of words"),
        ({"tokens": ["a"]}, "no tag for each of the 1 tokens. Expected a list of tags in one of"),
        ({"tokens": ["a"], "tags": ["O", "O"]}, "no tag for each of the 1 tokens"),
        ({"tokens": ["a"], "tags": ["person"]}, "person"),
        ({"tokens": ["a", ""], "tags": ["O", "O"]}, "the token is empty"),
        ({"tokens": [], "tags": []}, "expected a text of at least one word, found none. Fill it or remove the row"),
        ({"text": " \n", "spans": []}, "expected a text of at least one word, found none"),
        (
            {"tokens": ["a", "b\tc"], "tags": ["O", "O"]},
            r"expected tokens and tags without tabs, .* found 'b\\tc'. Cor",
        ),
        ({"tokens": ["a\r"], "tags": ["O"]}, r"without tabs, on one line, found 'a\\r'"),
        ({"text": "a", "spans": [[0, 1, "x\ny"]]}, r"without tabs, on one line, found 'B-x\\ny'"),
        ({"text": "a"}, "no entities. Expected .*; an empty one if there are none"),
        ({"text": "a", "spans": {"start": 0}}, "expected a list of entities, found dict"),
        ({"text": "a", "spans": [[0, 1]]}, r"expected an entity as \[start, end, label\], found \[0, 1\]"),
        ({"text": "a", "spans": [[0, 1, ""]]}, "expected an entity as"),
        ({"text": "a", "spans": [{"start": 0, "end": 1}]}, "expected an entity as"),
        ({"text": "ab", "spans": [[0, 3, "x"]]}, "expected an entity's start and end within 0 to 2, found 0 to 3"),
        ({"text": "ab", "spans": [[1, 1, "x"]]}, "start and end within 0 to 2, found 1 to 1"),
        ({"text": "ab", "spans": [["0", 1, "x"]]}, "found '0' to 1"),
        ({"text": "a b", "spans": [[1, 2, "x"]]}, "the entity at 1 to 2 is white space"),
        ({"text": "abcd", "spans": [[2, 4, "x"], [0, 3, "y"]]}, r"two entities overlap: 'abc' \(y\) and 'cd' \(x\)"),
    ],
)
def test_a_bad_line_is_named(tmp_path, row, reason):
    good = {"text": "Ada wrote", "spans": [[0, 3, "x"]]}
    documents, rows = read(tmp_path, good, row, policy="skip")
    assert documents.tokens == ["Ada", "wrote"] and list(rows) == ["a.jsonl:2"]
    with pytest.raises(InputError, match=f"a.jsonl:2: .*{reason}"):
        read(tmp_path, good, row)


def test_a_file_without_annotations_is_refused(tmp_path):
    with pytest.raises(InputError, match="a.jsonl: the file holds no rows. Expected a list of tags"):
        read(tmp_path, "")
    with pytest.raises(InputError, match="a.jsonl:1: a blank line between rows"):
        read(tmp_path, "", {"text": "a", "spans": []})
    with pytest.raises(InputError, match="a.jsonl:1: expected a JSON object"):
        read(tmp_path, "1")
