"""Losses that several tasks share, against NumPy; batches of choices."""

import numpy as np
import tensorflow as tf

from tasks.fine_tuning.objectives import CrossEntropy, SquaredError


def batch(seed=0, rows=4, length=11):
    """Labels of which a part weighs 1, as numpy arrays."""
    generator = np.random.default_rng(seed)
    mask = (np.arange(length) < generator.integers(3, length + 1, (rows, 1))).astype(np.int32)
    weights = (mask * (generator.random((rows, length)) < 0.6)).astype(np.float32)
    return {"labels": generator.integers(0, 5, (rows, length)).astype(np.int32), "weights": weights}


def test_rows_weigh_one_each():
    generator = np.random.default_rng(1)
    logits = generator.normal(0, 3, (7, 4)).astype(np.float32)
    labels = generator.integers(0, 4, 7)
    exponentials = np.exp(logits.astype(np.float64))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    expected = -np.log([row[label] for row, label in zip(probabilities, labels, strict=True)])
    objective, targets = CrossEntropy(), {"labels": tf.constant(labels, tf.int32)}
    assert float(objective.weights({}, targets)["loss"]) == 7.0
    np.testing.assert_allclose(objective.sums(tf.constant(logits), targets)["loss"], expected.sum(), 1e-6)


def test_the_loss_is_the_mean_over_first_sub_tokens():
    labels = batch()
    logits = np.random.default_rng(1).normal(size=(4, 11, 5)).astype(np.float32)
    objective = CrossEntropy()
    tensors = tf.nest.map_structure(tf.constant, labels)
    weight = objective.weights({}, tensors)["loss"]
    total = objective.sums(tf.constant(logits), tensors)["loss"]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = []
    for row, place in np.argwhere(labels["weights"]):
        expected.append(-np.log(probabilities[row, place, labels["labels"][row, place]]))
    assert weight == len(expected) > 5
    np.testing.assert_allclose(total / weight, np.mean(expected), rtol=1e-5)


def test_padding_and_later_sub_tokens_have_no_part_in_the_loss():
    labels = batch()
    logits = np.random.default_rng(1).normal(size=(4, 11, 5)).astype(np.float32)
    tensors = tf.nest.map_structure(tf.constant, labels)
    with tf.GradientTape() as tape:
        outputs = tf.Variable(logits)
        loss = CrossEntropy().sums(outputs, tensors)["loss"]
    gradients = np.abs(tape.gradient(loss, outputs).numpy()).sum(-1)
    np.testing.assert_array_equal(gradients > 0, labels["weights"] > 0)


def test_squared_errors_of_rows_and_of_weighted_tokens():
    outputs = tf.constant([[1.0], [4.0]])
    rows = {"labels": tf.constant([0.0, 1.0])}
    assert (
        float(SquaredError().sums(outputs, rows)["loss"]) == 10.0
        and float(SquaredError().weights({}, rows)["loss"]) == 2
    )
    tokens = {"labels": tf.constant([[0.0, 9.0], [1.0, 9.0]]), "weights": tf.constant([[1.0, 0.0], [1.0, 0.0]])}
    wide = tf.stack([outputs, outputs], axis=1)  # [2, 2, 1]
    assert float(SquaredError().sums(wide, tokens)["loss"]) == 10.0
    assert float(SquaredError().weights({}, tokens)["loss"]) == 2.0
