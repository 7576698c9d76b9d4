"""What `bert-ner` reports: predictions, losses, confusions, mistakes by hand; scores also against seqeval."""

import warnings

import numpy as np
import pytest

from tasks.ner import scores as metrics
from tasks.text.bad_rows import BadRows
from tasks.text.conll import read_conll
from tasks.text.tags import find_entities

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


def test_scores_by_hand():
    gold = [["B-a", "I-a", "O", "B-b"], ["B-a", "O"], ["O"]]
    predicted = [["B-a", "I-a", "O", "B-a"], ["B-a", "I-a"], ["B-b"]]
    assert metrics.score(gold, predicted) == {"f1": 2 / 7, "precision": 1 / 4, "recall": 1 / 3, "token_accuracy": 4 / 7}
    names = ("precision", "recall", "f1", "correct", "predicted", "gold")
    types = {name: tuple(map(score.get, names)) for name, score in metrics.score_types(gold, predicted).items()}
    assert types == {"a": (1 / 3, 1 / 2, 2 / 5, 1, 3, 2), "b": (0.0, 0.0, 0.0, 0, 1, 1)}
    # YAML's writer of the model card takes no type of NumPy.
    assert {type(value) for value in (*metrics.score(gold, predicted).values(), *types["a"])} == {float, int}


def test_without_entities_the_scores_are_zero():
    assert metrics.score([["O"]], [["O"]]) == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "token_accuracy": 1.0}
    assert metrics.score_intervals([["O"]], [["O"]])["f1"] == [0.0, 0.0]


@pytest.mark.oracle
def test_scores_are_seqeval_s():
    from seqeval import metrics as oracle

    generator = np.random.default_rng(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About 0 / 0.
        for _ in range(60):
            lengths = generator.integers(1, 9, generator.integers(1, 6))
            # Tags in any order: most sequences break every scheme.
            pool = ["O", "B-a", "B-b", "I-a", "I-b"]
            gold, predicted = ([list(generator.choice(pool, length)) for length in lengths] for _ in range(2))
            if not any(map(find_entities, [*gold, *predicted])):
                continue  # seqeval fails.
            figures, types = metrics.score(gold, predicted), metrics.score_types(gold, predicted)
            for name in ("precision", "recall", "f1"):
                theirs = getattr(oracle, f"{name}_score")(gold, predicted)
                assert figures[name] == pytest.approx(theirs, rel=1e-12)
            assert figures["token_accuracy"] == pytest.approx(oracle.accuracy_score(gold, predicted))
            report = oracle.classification_report(gold, predicted, output_dict=True)
            assert report.keys() - {"micro avg", "macro avg", "weighted avg"} == types.keys()
            for name, score in types.items():
                values = [report[name][key] for key in ("precision", "recall", "f1-score", "support")]
                ours = [score[key] for key in ("precision", "recall", "f1", "gold")]
                np.testing.assert_allclose(ours, values, rtol=1e-12)


def test_mistakes_are_shown_as_text(tmp_path):
    documents = documents_of(tmp_path, ["New B-x", "York I-x", "is O", "", "big O", "", "a B-x", "b B-x"])
    predicted = [["O", "B-x", "O"], ["O"], ["B-x", "B-x"]]
    (mistake,) = metrics.show_sentences(documents, predicted, np.array([1.0, 2.0, 0.5, 9.0, 0.1, 0.1]))["mistakes"]
    assert mistake.loss == 3.5
    assert mistake.parts[:2] == [("expected", "[New York](x) is"), ("predicted", "New [York](x) is")]
    assert mistake.parts[2][0] == "where" and mistake.parts[2][1].endswith("a.conll:1")
    assert metrics.mark_entities(["a", "b"], ["B", "B-x"]) == "[a](entity) [b](x)"
