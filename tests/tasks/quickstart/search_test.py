"""The quickstart's search: what is searched, and BM25 by hand."""

import math
import types

import pytest

from tasks.quickstart import docstrings, search
from tasks.quickstart.corpus import Corpus, Document

SOURCE = '''
class Leaf:
    """A leaf is green in the spring. It falls to the ground in autumn."""

    def fall(self):
        """Falls to the ground when it is old. The wind may take it away. It is not seen again."""

    def _grow(self):
        """Grows when it has light and water. It is the larger for it."""

def leaf():
    """Returns."""
'''


def test_functions_have_names_and_sentences(tmp_path):
    (tmp_path / "plants").mkdir()
    (tmp_path / "plants" / "trees.py").write_text(SOURCE)
    corpus = docstrings.collect(["plants"], directories={"plants": str(tmp_path / "plants")}, num_workers=1)
    names = [(module, name) for module, name, _ in corpus.functions]
    assert names == [("plants.trees", "plants.trees.Leaf"), ("plants.trees", "plants.trees.Leaf.fall")]
    assert search.pairs(corpus, set()) == [
        ("plants.trees.Leaf", "A leaf is green in the spring.", "It falls to the ground in autumn."),
        (
            "plants.trees.Leaf.fall",
            "Falls to the ground when it is old.",
            "The wind may take it away. It is not seen again.",
        ),
    ]
    training, held_out = corpus.split({"plants.trees"})
    assert (training.functions, held_out.functions) == ([], corpus.functions)


def test_documents_stand_for_functions_and_repeats_are_left_out():
    texts = [["a", "b", "c", "d", "e"], ["a", "x"], ["y", "b c d"], ["alone"]]
    corpus = Corpus([Document("book", f"book:{number}", text) for number, text in enumerate(texts)])
    assert search.pairs(corpus, set()) == [("book:0", "a", "b c d")]


def test_no_question_or_passage_of_the_test_is_a_training_text(tmp_path):
    """REVIEW2.md, A10: 267 of 2,058 questions were."""
    functions = {
        "train": [("m", "m.f", ["Reads.", "It reads."]), ("m", "m.g", ["Writes.", "It writes.", "Fast."])],
        "dev": [
            ("n", "n.f", ["Reads.", "It reads."]),
            ("n", "n.g", ["Reads.", "Another text."]),
            ("n", "n.h", ["Another question.", "It writes. Fast."]),
            ("n", "n.i", ["It reads.", "This one, too."]),
            ("n", "n.j", ["Sorts.", "It sorts."]),
        ],
    }
    run = types.SimpleNamespace(path=lambda *names: str(tmp_path / names[-1]))
    assert search.write_texts(run, Corpus([], functions["train"]), Corpus([], functions["dev"])) == [2, 1]
    assert (tmp_path / "pairs_dev.tsv").read_text() == "summary\ttext\nSorts.\tIt sorts.\n"
    assert len((tmp_path / "passages.txt").read_text().splitlines()) == 3


def test_bm25_is_worked_out_by_hand():
    """Both passages have "cat": log(1 + 0.5 / 2.5). They have 3 and 2 words, 2.5 on average."""
    rows = [("Cat?", "the cat, cat"), ("a cat", "one cat")]
    scores = search.bm25_scores(rows)
    of_cat = math.log(1.2)
    expected = [of_cat * 2 * 2.5 / (2 + 1.5 * 1.15), of_cat * 2.5 / (1 + 1.5 * 0.85)]
    assert [list(row) for row in scores] == [pytest.approx(expected)] * 2
    assert [search.bm25_recall(rows, cutoff) for cutoff in (1, 2)] == [0.5, 1.0]
