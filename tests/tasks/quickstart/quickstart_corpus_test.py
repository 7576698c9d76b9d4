"""The corpus: the user's own files, repeats, what is held out, labels and rows of the search."""

import collections
import os

import pytest

from keras_bert.errors import InputError
from tasks.quickstart import corpus
from tasks.quickstart.corpus import Document


def numbered(label, count, sentences=1, start=0):
    """Documents of one label, with as many sentences in each, numbered from `start`."""
    return [
        Document(
            label, f"{label}:{i}", f"{label}:{i}", [f"The sentence {j} of {i} in {label[0]}." for j in range(sentences)]
        )
        for i in range(start, start + count)
    ]


def document(label, name, *sentences):
    return Document(label, name, name, list(sentences))


# === Own text ===


def test_files_are_labels_and_blank_lines_end_documents(tmp_path):
    (tmp_path / "a.txt").write_text("one  two\nthree\n\n\nfour\n")
    (tmp_path / "b.txt").write_text("five")
    assert corpus.read_texts([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]) == [
        document("a", "a:0", "one two", "three"),
        document("a", "a:1", "four"),
        document("b", "b:0", "five"),
    ]


def test_files_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / "x" / "text.txt", tmp_path / "y" / "text.txt"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("one")
    assert [text.label for text in corpus.read_texts([str(path) for path in paths])] == ["x/text", "y/text"]
    assert [text.label for text in corpus.read_texts([str(paths[0])])] == ["text"]
    relative = os.path.relpath(paths[1])
    assert [text.label for text in corpus.read_texts([str(paths[0]), relative])] == [str(paths[0])[:-4], relative[:-4]]


def test_a_text_without_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("\n \n")
    with pytest.raises(InputError, match=r"a\.txt: no text"):
        corpus.read_texts([str(tmp_path / "a.txt")])


# === Repeats and what is held out ===


def test_a_sentence_stays_only_where_it_occurs_first():
    documents = [
        document("a", "a:0", "one", "two", "one"),
        document("b", "b:0", "two"),
        document("b", "b:1", "two", "three"),
    ]
    assert corpus.without_repeats(documents) == [document("a", "a:0", "one", "two"), document("b", "b:1", "three")]


def test_every_label_with_two_groups_holds_a_tenth_out():
    documents = numbered("a", 40) + numbered("b", 2) + numbered("c", 1) + numbered("d", 14)
    training, held_out = corpus.split(documents)
    assert collections.Counter(document.label for document in held_out) == {"a": 4, "b": 1, "d": 1}
    assert sorted(training + held_out) == sorted(documents)
    assert corpus.split(numbered("a", 40))[1] == [document for document in held_out if document.label == "a"]


def test_a_group_is_held_out_as_a_whole():
    # a:1, a:10 to a:19 are a group.
    functions = [document._replace(group=document.group[:3]) for document in numbered("a", 100)]
    training, held_out = corpus.split([*functions, *numbered("b", 20)])
    assert not {document.group for document in training} & {document.group for document in held_out}


@pytest.mark.parametrize("sizes", [{"a": 1}, {"a": 14}, {"a": 1, "b": 1, "c": 2}])
def test_too_few_documents_are_refused(sizes):
    with pytest.raises(InputError, match="too few to hold a tenth"):
        corpus.split([document for label, count in sizes.items() for document in numbered(label, count)])


def test_a_blank_line_ends_a_group_and_bytes_are_bytes():
    documents = [Document("a", "m", "f", ["\u4eca\u5929"]), Document("a", "m", "g", ["x"]), document("b", "b:0", "y")]
    assert list(corpus.lines_of(documents)) == ["\u4eca\u5929", "x", "", "y", ""]
    assert corpus.summary(documents) == "2 documents, 3 sentences, 13 bytes"


# === Rows ===


def label(training, held_out, labels=2, rows=15, dev_rows=10, hide_names=True):
    return corpus.label_sentences((training, held_out), labels, (rows, dev_rows), hide_names)


def test_labels_are_those_with_most_held_out_text_in_equal_shares():
    training = numbered("apple", 30) + numbered("berry", 20) + numbered("cherry", 5)
    held_out = numbered("apple", 4, start=30) + numbered("berry", 3, start=20) + numbered("new", 9)
    rows, dev_rows = label(training, held_out)
    assert collections.Counter(name for _, name in rows) == {"apple": 15, "berry": 15}
    assert collections.Counter(name for _, name in dev_rows) == {"apple": 3, "berry": 3}
    assert [name for _, name in rows] != sorted(name for _, name in rows), "rows are mixed"
    small = numbered("date", 1), numbered("date", 1, start=1)  # It would leave one row of each.
    assert label(training + small[0], held_out + small[1], labels=3) == [rows, dev_rows]


def test_a_sentence_that_names_a_label_is_no_row():
    documents = [
        document("apple", "apple:0", "An Apple a day.", "It is red."),
        document("berry", "berry:0", "It is blue."),
    ]
    assert sorted(label(documents, documents)[0]) == [("It is blue.", "berry"), ("It is red.", "apple")]
    names_stay = label(documents, documents, hide_names=False)[0]
    assert len(names_stay) == 2


def test_the_search_asks_for_what_follows_a_first_sentence():
    documents = [
        document("a", "a.f", "q", "b", "c", "d", "e"),
        document("a", "a.g", "alone"),
        document("b", "b.f", "r", "s"),
    ]
    assert sorted(corpus.search_rows(documents)) == [("a.f", "q", "b c d"), ("b.f", "r", "s")]


def test_no_question_or_passage_of_the_test_is_a_training_text():
    """REVIEW2.md, A10: 267 of 2,058 questions were, since packages copy docstrings."""
    copies = [["Reads.", "It reads."], ["Reads.", "Another text."], ["Another question.", "It reads."]]
    packages = [document(name, f"{name}:{n}", *text) for name in ("a", "b") for n, text in enumerate(copies * 4)]
    documents = corpus.without_repeats(packages + numbered("c", 20, sentences=3))
    training, held_out = (
        {text for row in corpus.search_rows(side) for text in row[1:]} for side in corpus.split(documents)
    )
    assert held_out and not training & held_out
