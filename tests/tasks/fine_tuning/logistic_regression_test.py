"""Logistic regression on a few vectors equals scikit-learn's, and its probabilities are made to fit held-out rows."""

import numpy as np
from sklearn.linear_model import LogisticRegression

from tasks.fine_tuning.logistic_regression import cross_validate, fit, fold_numbers, predict, score


def _rows(count: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    labels = np.arange(count) % num_classes
    return generator.normal(size=(count, 5)) + generator.normal(size=(num_classes, 5))[labels], labels


def test_it_equals_scikit_learn():
    vectors, labels = _rows(40, 3)
    weights = np.linspace(0, 2, 40)
    theirs = LogisticRegression(C=0.7, tol=1e-8, max_iter=1000).fit(vectors, labels, sample_weight=weights)
    ours = predict(fit(vectors, labels, 3, 0.7, weights), vectors)
    np.testing.assert_allclose(ours, theirs.predict_log_proba(vectors), atol=1e-3)


def test_folds_share_each_label_out():
    labels = np.array([0] * 8 + [1] * 4 + [2])
    folds = fold_numbers(labels, 4)
    assert [np.bincount(folds[labels == label], minlength=4).tolist() for label in (0, 1)] == [[2] * 4, [1] * 4]
    assert set(fold_numbers(np.arange(5), 4)) == {0, 1}


def test_a_strong_penalty_does_not_count_against_the_loss():
    vectors, labels = _rows(60, 2)

    def of_strength(strength):
        logs = cross_validate(lambda rows: fit(vectors[rows], labels[rows], 2, strength), vectors, labels, 2)
        return score(logs, labels)

    weak, strong = of_strength(1.0), of_strength(1e-3)
    assert strong.sharpness > 4 * weak.sharpness and strong.loss < weak.loss + 0.1
    assert strong.loss < -np.mean(np.log(0.5)) and strong.accuracy > 0.8


def test_few_right_answers_make_none_certain():
    logs = np.log(np.where(np.eye(2)[[0, 1, 0, 1]] > 0, 0.6, 0.4))
    scores = score(logs, np.array([0, 1, 0, 1]))
    assert scores.accuracy == 1 and 1 < scores.sharpness < 16
