"""The user's own text: files are labels, blank lines end documents, every label keeps something held out."""

import pytest

from keras_bert.errors import InputError
from tasks.quickstart import own_text
from tasks.quickstart.corpus import Corpus, Document, label_sentences


def corpus_of(**documents_of_label):
    return Corpus(
        [
            Document(label, f"{label}:{index}", [f"sentence {index} of {label}"])
            for label, number in documents_of_label.items()
            for index in range(number)
        ]
    )


def test_files_are_labels_and_blank_lines_end_documents(tmp_path):
    (tmp_path / "a.txt").write_text("one  two\nthree\n\n\nfour\n")
    (tmp_path / "b.txt").write_text("five")
    corpus = own_text.read_corpus([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")])
    assert corpus.documents == [
        Document("a", "a:0", ["one two", "three"]),
        Document("a", "a:1", ["four"]),
        Document("b", "b:0", ["five"]),
    ]


def test_files_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / "x" / "text.txt", tmp_path / "y" / "text.txt", tmp_path / "y" / "text.md"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("one")
    names = [document.package for document in own_text.read_corpus([str(path) for path in paths[:2]]).documents]
    assert names == ["x/text", "y/text"]
    assert len(own_text.read_corpus([str(path) for path in paths]).sentences_by_package()) == 3


def test_a_text_without_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("\n \n")
    with pytest.raises(InputError, match=r"a\.txt: no text"):
        own_text.read_corpus([str(tmp_path / "a.txt")])


def test_every_label_with_two_documents_keeps_a_tenth_held_out():
    training, held_out = own_text.split(corpus_of(a=40, b=2, c=1, d=14))
    assert {label: n for label, n in held_out.sentences_by_package().items()} == {"a": 4, "b": 1, "d": 1}
    assert training.num_documents + held_out.num_documents == 57
    assert not {d.module for d in training.documents} & {d.module for d in held_out.documents}
    alone, alone_held_out = own_text.split(corpus_of(a=40))
    assert [d for d in alone_held_out.documents] == [d for d in held_out.documents if d.package == "a"]


@pytest.mark.parametrize("sizes", [{"a": 1}, {"a": 14}, {"a": 1, "b": 1, "c": 2}])
def test_too_few_documents_are_refused(sizes):
    with pytest.raises(InputError, match="too few to hold a tenth"):
        own_text.split(corpus_of(**sizes))


def test_the_checksum_follows_the_text():
    first = own_text.checksum(corpus_of(a=3, b=2))
    assert first == own_text.checksum(corpus_of(a=3, b=2))
    assert len({first, own_text.checksum(corpus_of(a=3)), own_text.checksum(corpus_of(a=2, b=3))}) == 3


def test_dev_rows_are_no_training_rows_and_label_names_may_stay():
    training = Corpus([Document("a", "a:0", ["a is a word", "same"]), Document("b", "b:0", ["b too", "other"])])
    held_out = Corpus([Document("a", "a:1", ["same", "a new one"]), Document("b", "b:1", ["b new", "b newer"])])
    rows, dev_rows = label_sentences(training, held_out, min_words=1, hide_names=False)
    assert sorted(rows) == [("a is a word", "a"), ("b too", "b"), ("other", "b"), ("same", "a")]
    assert [text for text, label in dev_rows if label == "a"] == ["a new one"]
    assert len(dev_rows) == 2


def test_bytes_are_bytes():
    corpus = Corpus([Document("a", "a:0", ["\u4eca\u5929", "\u5f88\u597d"])])
    assert corpus.num_bytes == 2 * 7 + 1
