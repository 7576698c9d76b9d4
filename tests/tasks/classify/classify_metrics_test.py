"""Checks scores against scikit-learn, scipy and values by hand, and that the confusion matrix is a valid PNG."""

import numpy as np
import pytest
from scipy import special, stats
from sklearn import metrics as oracle

from tasks.classify import kinds, metrics
from tasks.classify.glue import TASKS
from tasks.fine_tuning import metrics as shared_metrics
from tasks.report.bootstrap import interval


def f1(labels, predictions) -> float:
    return oracle.f1_score(labels, predictions, labels=[1], average="micro", zero_division=0.0)


ORACLES = {
    "accuracy": oracle.accuracy_score,
    "f1": f1,
    "accuracy_f1_mean": lambda *answers: (oracle.accuracy_score(*answers) + f1(*answers)) / 2,
    "matthews_correlation": oracle.matthews_corrcoef,
}


def figure(name: str, labels, predictions) -> float:
    """Computes one figure of classes through `kinds.Classes`."""
    return kinds.Classes().score((name,), labels, np.eye(2)[predictions])[name]


@pytest.fixture(name="answers")
def _answers():
    generator = np.random.default_rng(7)
    return generator.integers(0, 4, 500), generator.normal(size=(500, 4)).astype(np.float32) * 5


@pytest.fixture(name="yes_no")
def _yes_no():
    """1,000 rows of two classes, three quarters of them right."""
    generator = np.random.default_rng(3)
    labels = (generator.random(1000) < 0.68).astype(int)
    outputs = np.eye(2)[np.where(generator.random(1000) < 0.75, labels, 1 - labels)]
    return labels, outputs.astype(np.float32) + generator.random((1000, 2)).astype(np.float32) / 2


@pytest.fixture(name="scores")
def _scores():
    generator = np.random.default_rng(5)
    labels = np.round(generator.random(300) * 20).astype(np.float32) / 4  # With ties, as STS-B's.
    return labels, (labels + generator.normal(size=300)).astype(np.float32)[:, np.newaxis]


@pytest.mark.oracle
def test_accuracy_and_loss_equal_sklearn(answers):
    labels, logits = answers
    predictions = logits.argmax(-1)
    probabilities = special.softmax(logits.astype(float), axis=1)
    figures = kinds.Classes().score(("accuracy",), labels, logits)
    assert figures == {
        "accuracy": oracle.accuracy_score(labels, predictions),
        "loss": pytest.approx(oracle.log_loss(labels, probabilities), rel=1e-9),
    }


@pytest.mark.oracle
def test_glue_s_two_class_figures_equal_sklearn(yes_no):
    labels, outputs = yes_no
    predictions = outputs.argmax(-1)
    figures = kinds.Classes().score(TASKS["mrpc"].metrics, labels, outputs)
    accuracy, f1 = oracle.accuracy_score(labels, predictions), oracle.f1_score(labels, predictions)
    assert (figures["accuracy"], figures["f1"]) == pytest.approx((accuracy, f1), abs=1e-12)
    assert figures["accuracy_f1_mean"] == pytest.approx((accuracy + f1) / 2)
    expected = oracle.matthews_corrcoef(labels, predictions)
    assert figure("matthews_correlation", labels, predictions) == pytest.approx(expected, abs=1e-12)


@pytest.mark.oracle
def test_figures_of_scores_equal_scipy(scores):
    labels, outputs = scores
    figures = kinds.Scores().score(TASKS["stsb"].metrics, labels, outputs)
    pearson = stats.pearsonr(labels, outputs[:, 0])[0]
    spearman = stats.spearmanr(labels, outputs[:, 0])[0]
    assert figures["pearson"] == pytest.approx(pearson, abs=1e-6) and 0.7 < pearson < 0.95
    assert figures["spearman"] == pytest.approx(spearman, abs=1e-6) and abs(spearman - pearson) > 1e-4
    assert figures["pearson_spearman_mean"] == pytest.approx((pearson + spearman) / 2, abs=1e-6)
    expected = np.mean((labels.astype(float) - outputs[:, 0]) ** 2)
    assert figures["mean_squared_error"] == pytest.approx(expected) == pytest.approx(figures["loss"])


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:No positive class")
def test_figures_of_several_labels_equal_sklearn():
    """With equal scores, a label that no row has, one that is never given, and one that neither has."""
    generator = np.random.default_rng(2)
    labels = (generator.random((300, 6)) < [0.5, 0.1, 0.02, 0.0, 0.3, 0.0]).astype(np.float32)
    logits = np.round(generator.normal(size=(300, 6)) + 2 * labels - 1, 1).astype(np.float32)
    logits[:, 4:] = -np.abs(logits[:, 4:]) - 0.1
    names, given = list("abcdef"), logits >= 0
    figures = kinds.LabelSets().score(tuple(metrics.LABEL_SET_METRICS), labels, logits)
    probabilities = special.expit(logits.astype(float))
    assert figures == pytest.approx(
        {
            "micro_f1": oracle.f1_score(labels, given, average="micro", zero_division=0),
            "macro_f1": oracle.f1_score(labels, given, average="macro", zero_division=0),
            "exact_match": oracle.accuracy_score(labels, given),
            "mean_average_precision": oracle.average_precision_score(labels, logits, average="macro"),
            "loss": np.mean([oracle.log_loss(labels[:, i], probabilities[:, i], labels=[0, 1]) for i in range(6)]),
        },
        rel=1e-6,
    )
    expected = oracle.precision_recall_fscore_support(labels, given, average=None, zero_division=0)
    table = metrics.label_scores(labels, logits, names)
    for column, values in zip(("precision", "recall", "f1", "rows"), expected, strict=True):
        np.testing.assert_allclose([table[name][column] for name in names], values, atol=1e-12)
    right = oracle.average_precision_score(labels, logits, average=None)
    np.testing.assert_allclose([table[name]["average_precision"] for name in names], right, atol=1e-12)
    ends = kinds.LabelSets().intervals(("micro_f1",), labels, logits)
    rows = interval(
        lambda rows: oracle.f1_score(labels[rows], given[rows], average="micro", zero_division=0), 300, samples=20
    )
    assert ends["micro_f1"][0] < figures["micro_f1"] < ends["micro_f1"][1]
    assert ends["micro_f1"] == pytest.approx(list(rows), abs=0.05)


def test_figures_by_hand():
    # tp 3, tn 1, fp 1, fn 1
    labels, predictions = np.array([1, 1, 1, 1, 0, 0]), np.array([1, 1, 1, 0, 0, 1])
    assert figure("matthews_correlation", labels, predictions) == pytest.approx((3 * 1 - 1 * 1) / 8)  # / sqrt(4*4*2*2)
    assert figure("f1", labels, predictions) == pytest.approx(2 * 3 / (2 * 3 + 1 + 1))
    assert figure("f1", 1 - labels, 1 - predictions) == pytest.approx(
        2 / 4
    )  # The F1 of class 1, not of the more frequent class.
    # Deviations -1 0 1 and -1 1 0: 1 / 2; squares 0, 1, 1.
    numbers, answers = np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])
    assert shared_metrics.pearson(numbers, answers) == pytest.approx(0.5) == shared_metrics.spearman(numbers, answers)
    assert shared_metrics.mean_squared_error(numbers, answers) == pytest.approx(2 / 3)


def test_a_constant_answer_scores_nothing():
    labels = np.array([1, 1, 0, 1])
    assert figure("matthews_correlation", labels, np.ones(4, int)) == 0.0
    assert figure("f1", *np.zeros((2, 4), int)) == 0.0 == figure("f1", labels, np.zeros(4, int))
    for score in (shared_metrics.pearson, shared_metrics.spearman, shared_metrics.pearson_spearman_mean):
        assert score(np.array([1.0, 2.0]), np.array([3.0, 3.0])) == 0.0 == score(np.array([1.0]), np.array([2.0]))


def test_intervals_are_those_of_resampled_rows(yes_no, scores):
    labels, outputs = yes_no
    predictions = outputs.argmax(-1)
    by_hand = {
        "f1": lambda ours, theirs: 2 * (ours * theirs).sum() / (ours.sum() + theirs.sum()),
        "matthews_correlation": lambda ours, theirs: np.corrcoef(ours, theirs)[0, 1],
    }
    ends = kinds.Classes().intervals(tuple(by_hand), labels, outputs)
    for name, (low, high) in ends.items():
        of_rows = by_hand[name]
        assert of_rows(labels, predictions) == pytest.approx(ORACLES[name](labels, predictions))
        rows = interval(lambda rows, of_rows=of_rows: of_rows(labels[rows], predictions[rows]), len(labels))
        assert (low, high) == pytest.approx(rows, abs=1e-9)
        assert low < of_rows(labels, predictions) < high < low + 0.15
    low, high = kinds.Scores().intervals(("pearson",), *scores)["pearson"]
    assert low < shared_metrics.pearson(scores[0], scores[1][:, 0]) < high < low + 0.1


@pytest.mark.parametrize("kind", ["four classes", "never right", "one answer", "one class", "one row"])
def test_samples_of_awkward_answers(answers, kind):
    labels, outputs = answers
    if kind == "never right":
        outputs = -np.eye(4)[labels]
    if kind == "one answer":
        outputs = np.tile(np.eye(4)[2], (500, 1))
    if kind == "one class":
        labels = np.full(500, 3)
    if kind == "one row":
        labels, outputs = labels[:1], outputs[:1]
    predictions = outputs.argmax(-1)
    for rows in np.random.default_rng(1).integers(0, len(labels), (10, len(labels))):
        pair = labels[rows], predictions[rows]
        of_two = tuple(numbers % 2 for numbers in pair)  # Matthews's correlation is for two classes.
        for name, metric in metrics.CLASS_METRICS.items():
            columns = of_two if name == "matthews_correlation" else pair
            assert metric(*columns) == pytest.approx(ORACLES[name](*columns), rel=1e-12, abs=1e-12), name
