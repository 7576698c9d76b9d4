"""What `bert-ner` reports, by hand: predictions, losses, confusions, mistakes."""

import numpy as np
import pytest

from tasks.ner import scores as metrics
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll

LABELS = ["O", "B-x", "I-x", "B-y", "I-y"]


def documents_of(tmp_path, rows):
    path = tmp_path / "a.conll"
    path.write_text("\n".join(rows))
    return read_conll(str(path), bad_rows=BadRows())


def logits_of(tags):
    return np.eye(len(LABELS), dtype=np.float32)[[LABELS.index(tag) for tag in tags]]


def test_predictions_are_sound_tags_with_the_entities_that_conlleval_reads(tmp_path):
    documents = documents_of(tmp_path, ["a O", "b O", "c O", "", "d O", "e O"])
    predicted = metrics.predict_tags(logits_of(["I-x", "I-x", "I-y", "I-y", "B-y"]), LABELS, documents)
    assert predicted == [["B-x", "I-x", "B-y"], ["B-y", "B-y"]]


def test_losses_are_negative_log_probabilities():
    logits = np.array([[0.0, 0.0], [np.log(3.0), 0.0], [1000.0, -1000.0], [0.0, 5.0]])
    ids = np.array([1, 0, 0, -1])
    losses = metrics.word_losses(logits, ids)
    np.testing.assert_allclose(losses, [np.log(2.0), -np.log(0.75), 0.0, 0.0], atol=1e-12)
    assert metrics.mean_loss(losses, ids) == pytest.approx((np.log(2.0) - np.log(0.75)) / 3)
    assert metrics.mean_loss(np.zeros(1), np.array([-1])) == 0.0


GOLD = [["B-x", "I-x", "O", "B-y"], ["B-x", "O"], ["O", "B"]]
FOUND = [["B-y", "I-y", "O", "B-y"], ["B-x", "I-x"], ["O", "O"]]


def test_confusions_count_entities_of_the_same_span():
    names, counts = metrics.confusion(GOLD, FOUND)
    assert names == ["entity", "x", "y", "(none)"]
    np.testing.assert_array_equal(counts, [[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 1, 0], [0, 1, 0, 0]])


def test_figures_and_their_intervals():
    figures = metrics.score(GOLD, FOUND)
    assert figures == {"precision": 1 / 3, "recall": 1 / 4, "f1": 2 / 7, "token_accuracy": 4 / 8}
    intervals = metrics.score_intervals(GOLD, FOUND)
    assert intervals.keys() == {"precision", "recall", "f1"}
    low, high = intervals["f1"]
    assert low == 0.0 and figures["f1"] < high <= 2 / 4  # A draw of the first sentence alone has 2 * 3 / (6 + 6).
    types = metrics.score_types(GOLD, FOUND)
    assert types["y"] == {"precision": 1 / 2, "recall": 1.0, "f1": 2 / 3, "correct": 1, "predicted": 2, "gold": 1}
    assert list(types) == ["entity", "x", "y"]


def test_mistakes_are_shown_as_text(tmp_path):
    documents = documents_of(tmp_path, ["New B-x", "York I-x", "is O", "", "big O", "", "a B-x", "b B-x"])
    predicted = [["O", "B-x", "O"], ["O"], ["B-x", "B-x"]]
    (mistake,) = metrics.show_sentences(documents, predicted, np.array([1.0, 2.0, 0.5, 9.0, 0.1, 0.1]))["mistakes"]
    assert mistake.loss == 3.5
    assert mistake.parts[:2] == [("expected", "[New York](x) is"), ("predicted", "New [York](x) is")]
    assert mistake.parts[2][0] == "where" and mistake.parts[2][1].endswith("a.conll:1")
    assert metrics.mark_entities(["a", "b"], ["B", "B-x"]) == "[a](entity) [b](x)"
