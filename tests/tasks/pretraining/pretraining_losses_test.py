"""Losses, accuracies, the unigram baseline and perplexity against NumPy and transformers."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tasks.pretraining.train.losses import PretrainingObjective, most_frequent_accuracy, perplexity

B, P, V = 6, 5, 30


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    outputs = {
        "masked_lm": rng.normal(size=(B, P, V)).astype(np.float32) * 3,
        "next_sentence": rng.normal(size=(B, 2)).astype(np.float32),
    }
    labels = {
        "mask_ids": rng.integers(V, size=(B, P)).astype(np.int32),
        "mask_weights": (np.arange(P) < rng.integers(0, P + 1, (B, 1))).astype(np.float32),
        "next_sentence_labels": rng.integers(2, size=B).astype(np.int32),
    }
    labels["mask_ids"][:, 0] = outputs["masked_lm"][:, 0].argmax(axis=-1)  # some right answers
    return outputs, labels


def tensors(values):
    return {name: tf.constant(value) for name, value in values.items()}


def cross_entropy(logits, ids):
    log_sum = np.log(np.exp(logits.astype(np.float64)).sum(axis=-1))
    return log_sum - np.take_along_axis(logits, ids[..., None], axis=-1)[..., 0]


def total_loss(objective, outputs, labels):
    sums, weights = objective.sums(outputs, labels), objective.weights({}, labels)
    assert set(sums) == set(weights) == {"masked_lm", "next_sentence"}
    return float(objective.total({name: sums[name] / (weights[name] + objective.epsilon) for name in sums}))


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_total_equals_the_formula_in_numpy(batch, factor):
    outputs, labels = batch
    weights = labels["mask_weights"]
    masked_lm = (cross_entropy(outputs["masked_lm"], labels["mask_ids"]) * weights).sum() / (weights.sum() + 1e-5)
    next_sentence = cross_entropy(outputs["next_sentence"], labels["next_sentence_labels"]).mean()
    ours = total_loss(PretrainingObjective(next_sentence_weight=factor), tensors(outputs), tensors(labels))
    assert ours == pytest.approx(masked_lm + factor * next_sentence, rel=3e-6)


@pytest.mark.oracle
def test_total_equals_transformers(batch):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    outputs, labels = batch
    config = transformers.BertConfig(
        vocab_size=V, hidden_size=8, num_hidden_layers=0, num_attention_heads=1, intermediate_size=8
    )
    model = transformers.BertForPreTraining(config)
    model.cls.forward = lambda *_: (torch.tensor(outputs["masked_lm"]), torch.tensor(outputs["next_sentence"]))
    answers = np.where(labels["mask_weights"] > 0, labels["mask_ids"], -100)
    theirs = model(
        input_ids=torch.ones((B, P), dtype=torch.long),
        labels=torch.tensor(answers, dtype=torch.long),
        next_sentence_label=torch.tensor(labels["next_sentence_labels"], dtype=torch.long),
    ).loss
    ours = total_loss(PretrainingObjective(), tensors(outputs), tensors(labels))
    assert ours == pytest.approx(float(theirs), rel=3e-6)


def test_accuracies_count_weighted_positions_only(batch):
    outputs, labels = batch
    weights = labels["mask_weights"]
    right = (outputs["masked_lm"].argmax(-1) == labels["mask_ids"]) * weights
    metrics = PretrainingObjective().metric_sums(tensors(outputs), tensors(labels))
    assert [float(value) for value in metrics["masked_lm_accuracy"]] == [right.sum(), weights.sum()]
    next_right = (outputs["next_sentence"].argmax(-1) == labels["next_sentence_labels"]).sum()
    assert [float(value) for value in metrics["next_sentence_accuracy"]] == [next_right, B]
    assert 0 < right.sum() < weights.sum()


def test_parts_of_a_batch_add_up(batch):
    objective = PretrainingObjective()
    outputs, labels = batch
    whole = objective.sums(tensors(outputs), tensors(labels))
    partial_sums = [
        objective.sums(*(tensors({name: value[rows] for name, value in part.items()}) for part in batch))
        for rows in (slice(0, 1), slice(1, B), slice(B, B))
    ]
    for name, value in whole.items():
        assert float(value) == pytest.approx(sum(float(sums[name]) for sums in partial_sums), rel=1e-6)


def test_a_batch_without_masked_positions_has_a_finite_loss_and_gradient(batch):
    outputs, labels = tensors(batch[0]), tensors(batch[1])
    labels["mask_weights"] = tf.zeros((B, P))
    objective = PretrainingObjective()
    with tf.GradientTape() as tape:
        tape.watch(outputs["masked_lm"])
        loss = objective.sums(outputs, labels)["masked_lm"] / (
            objective.weights({}, labels)["masked_lm"] + objective.epsilon
        )
    assert float(loss) == 0.0
    assert np.all(tape.gradient(loss, outputs["masked_lm"]).numpy() == 0.0)


def test_gradient_equals_that_of_tensorflows_own_cross_entropy(batch):
    outputs, labels = tensors(batch[0]), tensors(batch[1])
    objective = PretrainingObjective()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(outputs)
        ours = tf.add_n(list(objective.sums(outputs, labels).values()))
        masked = tf.nn.sparse_softmax_cross_entropy_with_logits(labels["mask_ids"], outputs["masked_lm"])
        following = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels["next_sentence_labels"], outputs["next_sentence"]
        )
        theirs = tf.reduce_sum(masked * labels["mask_weights"]) + tf.reduce_sum(following)
    for logits in outputs.values():
        np.testing.assert_allclose(tape.gradient(ours, logits), tape.gradient(theirs, logits), atol=1e-6)


def test_extreme_logits_give_finite_losses(batch):
    outputs, labels = tensors(batch[0]), tensors(batch[1])
    far = tf.one_hot(tf.zeros((B, P), tf.int32), V) * 1e4
    labels["mask_ids"] = tf.ones((B, P), tf.int32)
    with tf.GradientTape() as tape:
        tape.watch(far)
        loss = PretrainingObjective().sums({**outputs, "masked_lm": far}, labels)["masked_lm"]
    assert float(loss) == pytest.approx(1e4 * batch[1]["mask_weights"].sum())
    assert np.isfinite(tape.gradient(loss, far).numpy()).all()


def test_sums_compile_with_xla(batch):
    outputs, labels = tensors(batch[0]), tensors(batch[1])
    objective = PretrainingObjective()
    compiled = tf.function(objective.sums, jit_compile=True)(outputs, labels)
    for name, value in objective.sums(outputs, labels).items():
        assert float(compiled[name]) == pytest.approx(float(value), rel=1e-5)


def test_half_precision_logits_are_summed_in_float32(batch):
    outputs = {name: tf.cast(value, tf.bfloat16) for name, value in batch[0].items()}
    for value in PretrainingObjective().sums(outputs, tensors(batch[1])).values():
        assert value.dtype == tf.float32


def packed_next_sentence(batch):
    """The six examples in three rows of at most three, the gaps with random logits and a wrong label."""
    outputs, labels = batch
    places = np.array([0, 1, 3, 6, 7, 8])
    logits = np.random.default_rng(1).normal(size=(9, 2)).astype(np.float32)
    ids, weights = np.ones(9, np.int32), np.zeros(9, np.float32)
    logits[places], ids[places], weights[places] = outputs["next_sentence"], labels["next_sentence_labels"], 1.0
    return (
        {**outputs, "next_sentence": logits.reshape(3, 3, 2)},
        {**labels, "next_sentence_labels": ids.reshape(3, 3), "next_sentence_weights": weights.reshape(3, 3)},
    )


def test_packed_examples_count_as_unpacked_ones_and_gaps_do_not(batch):
    objective = PretrainingObjective()
    outputs, labels = (tensors(part) for part in packed_next_sentence(batch))
    expected = total_loss(objective, tensors(batch[0]), tensors(batch[1]))
    assert total_loss(objective, outputs, labels) == pytest.approx(expected, rel=1e-6)
    metrics, unpacked = objective.metric_sums(outputs, labels), objective.metric_sums(*map(tensors, batch))
    for name, pair in unpacked.items():
        assert [float(value) for value in metrics[name]] == [float(value) for value in pair]


def test_without_next_sentence_the_masked_lm_loss_is_left(batch):
    outputs, labels = tensors(batch[0]), tensors(batch[1])
    objective, both = PretrainingObjective(use_next_sentence=False), PretrainingObjective()
    del outputs["next_sentence"]
    sums, weights = objective.sums(outputs, labels), objective.weights({}, labels)
    assert set(sums) == set(weights) == {"masked_lm"}
    assert float(sums["masked_lm"]) == float(both.sums(tensors(batch[0]), labels)["masked_lm"])
    assert set(objective.metric_sums(outputs, labels)) == {"masked_lm_accuracy"}


def test_real_tokens_are_counted_whatever_the_mask_holds():
    objective = PretrainingObjective()
    for mask, count in (([[1, 1, 0], [1, 0, 0]], 3), ([[1, 2, 2], [1, 3, 0]], 5)):
        assert float(objective.real_tokens({"padding_mask": tf.constant(mask)})) == count


def test_the_most_frequent_answer_is_that_of_training():
    assert most_frequent_accuracy(np.array([1, 5, 2]), np.array([6, 3, 1])) == 0.3
    assert most_frequent_accuracy(np.array([9, 5, 2]), np.array([0, 3, 1])) == 0.0
    assert most_frequent_accuracy(np.array([9, 5, 2]), np.zeros(3, int)) == 0.0


def test_perplexity_is_exp_of_the_loss():
    assert perplexity(math.log(3.99)) == pytest.approx(3.99)
    assert perplexity(0.0) == 1.0
    assert perplexity(1e6) == math.inf
