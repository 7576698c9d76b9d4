"""The tagger, its loss, and its directory; parity with NumPy and with transformers' BertForTokenClassification."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_hugging_face import random_model

from keras_bert import BertBackbone, BertTokenizer
from keras_bert.errors import InputError
from tasks import fine_tuning
from tasks.ner.losses import TaggingObjective
from tasks.ner.model import HEAD, Tagger, build_tagger, load_tagger, save_tagger

LABELS = ["O", "B-x", "I-x", "B-y", "I-y"]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(95))]


def toy_tagger():
    keras.utils.set_random_seed(1)
    backbone = BertBackbone(100, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32,
                            max_sequence_length=24, initializer_range=0.4)  # fmt: skip
    return Tagger(build_tagger(backbone, 5), BertTokenizer(VOCABULARY), LABELS, 24, "iob2", "document", 7)


def batch(seed=0, rows=4, length=11):
    """Features of ragged lengths, and labels of which a part weighs 1, as numpy arrays."""
    generator = np.random.default_rng(seed)
    mask = (np.arange(length) < generator.integers(3, length + 1, (rows, 1))).astype(np.int32)
    ids = generator.integers(5, 100, (rows, length)).astype(np.int32) * mask
    features = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": mask}
    weights = (mask * (generator.random((rows, length)) < 0.6)).astype(np.float32)
    return features, {"labels": generator.integers(0, 5, (rows, length)).astype(np.int32), "weights": weights}


# === The loss ===


def test_the_loss_is_the_mean_over_first_sub_tokens():
    _, labels = batch()
    logits = np.random.default_rng(1).normal(size=(4, 11, 5)).astype(np.float32)
    objective = TaggingObjective()
    tensors = tf.nest.map_structure(tf.constant, labels)
    weight = objective.weights({}, tensors)["tagging"]
    total = objective.sums(tf.constant(logits), tensors)["tagging"]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected, correct = [], []
    for row, place in np.argwhere(labels["weights"]):
        expected.append(-np.log(probabilities[row, place, labels["labels"][row, place]]))
        correct.append(logits[row, place].argmax() == labels["labels"][row, place])
    assert weight == len(expected) > 5
    np.testing.assert_allclose(total / weight, np.mean(expected), rtol=1e-5)
    hits, count = objective.metric_sums(tf.constant(logits), tensors)["token_accuracy"]
    assert (hits, count) == (sum(correct), len(correct))


def test_padding_and_later_sub_tokens_have_no_part_in_the_loss():
    _, labels = batch()
    logits = np.random.default_rng(1).normal(size=(4, 11, 5)).astype(np.float32)
    tensors = tf.nest.map_structure(tf.constant, labels)
    with tf.GradientTape() as tape:
        outputs = tf.Variable(logits)
        loss = TaggingObjective().sums(outputs, tensors)["tagging"]
    gradients = np.abs(tape.gradient(loss, outputs).numpy()).sum(-1)
    np.testing.assert_array_equal(gradients > 0, labels["weights"] > 0)


@pytest.mark.oracle
def test_logits_and_loss_are_those_of_transformers(tmp_path):
    import torch

    names = {"id2label": dict(enumerate(LABELS)), "label2id": {label: i for i, label in enumerate(LABELS)}}
    theirs = random_model("BertForTokenClassification", **names)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    model, _, labels = fine_tuning.load_fine_tuned(str(tmp_path), HEAD, build_tagger)
    assert labels == LABELS
    features, targets = batch()
    ignored = np.where(targets["weights"] > 0, targets["labels"], -100)
    with torch.no_grad():
        answer = theirs(
            input_ids=torch.tensor(features["token_ids"], dtype=torch.long),
            attention_mask=torch.tensor(features["padding_mask"]),
            labels=torch.tensor(ignored, dtype=torch.long),
        )
    logits = model(features, training=False)
    real = features["padding_mask"].astype(bool)
    np.testing.assert_allclose(logits.numpy()[real], answer.logits.numpy()[real], atol=2e-5)
    tensors = tf.nest.map_structure(tf.constant, targets)
    objective = TaggingObjective()
    loss = objective.sums(logits, tensors)["tagging"] / objective.weights({}, tensors)["tagging"]
    np.testing.assert_allclose(loss, answer.loss.item(), rtol=1e-5)


# === The model ===


def test_the_head_is_dropout_and_one_layer_of_float32():
    tagger = toy_tagger()
    features, _ = batch()
    hidden = tagger.model.layers[-3](features, training=False)["sequence_output"].numpy()
    kernel, bias = tagger.model.get_layer("token_classification").get_weights()
    logits = tagger.model(features, training=False)
    np.testing.assert_allclose(logits, hidden @ kernel + bias, atol=1e-5)
    assert tagger.model.get_layer("tagger_dropout").rate == 0.1
    assert np.abs(tagger.model(features, training=True).numpy() - logits).max() > 1e-3
    half = BertBackbone(9, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4, dtype="mixed_bfloat16")
    assert build_tagger(half, 3).output.dtype == "float32"
    with pytest.raises(ValueError, match="`num_labels` must be at least 2"):
        build_tagger(half, 1)


def test_a_saved_tagger_comes_back(tmp_path):
    tagger = toy_tagger()
    save_tagger(str(tmp_path / "model"), tagger)
    again = load_tagger(str(tmp_path / "model"))
    assert again[2:] == tagger[2:] == (LABELS, 24, "iob2", "document", 7)
    assert again.tokenizer.get_vocabulary() == VOCABULARY
    features, _ = batch()
    np.testing.assert_array_equal(again.model(features, training=False), tagger.model(features, training=False))
    task = json.loads((tmp_path / "model" / "task.json").read_text())
    assert task["task"] == "token_classification" and task["labels"] == LABELS
    _refuse(tmp_path, {**task, "task": "classification"}, "expected the task 'token_classification'")
    _refuse(tmp_path, {**task, "labels": LABELS[1:]}, "4 labels, but the model has 5 outputs")
    _refuse(tmp_path, {name: value for name, value in task.items() if name != "scheme"}, "lacks scheme. Train it again")


def _refuse(tmp_path, task, message):
    (tmp_path / "model" / "task.json").write_text(json.dumps(task))
    with pytest.raises(InputError, match=message):
        load_tagger(str(tmp_path / "model"))
