"""`BertTokenClassifier` on words: first sub-tokens, losses, and parity with NumPy and transformers."""

import json

import numpy as np
import pytest
import tensorflow as tf
import toy_tasks
from toy_hugging_face import random_model

from keras_bert import BertBackbone, BertTokenClassifier, BertTokenClassifierPreprocessor

LABELS = ["O", "B-x", "I-x", "B-y", "I-y"]
SENTENCES = [["the", "cats", "sat"], ["\u0000", "dogs", "hens", "cow", "ran"], ["who"]]
# [CLS] the cat ##s sat [SEP]; [CLS] dog ##s hen ##s [SEP], cut off; [CLS] who [SEP]
POSITIONS = [[1, 2, 4], [-1, 1, 3, -1, -1], [1]]


@pytest.fixture(scope="module", name="preprocessor")
def _preprocessor():
    return BertTokenClassifierPreprocessor(toy_tasks.tokenizer(), 6)


@pytest.mark.slow(keep=["True"])
@pytest.mark.parametrize("is_dense", [False, True])
def test_labels_stand_at_first_sub_tokens(preprocessor, is_dense):
    words = tf.ragged.constant(SENTENCES)
    classes = tf.ragged.constant([[1, 2, -1], [3, 4, 1, 2, 3], [2]])
    assert preprocessor.word_positions(words).to_list() == POSITIONS
    if is_dense:
        words, classes = words.to_tensor(), classes.to_tensor()
    batches = tf.data.Dataset.from_tensors((words, classes)).map(preprocessor)
    features, labels, weights = next(iter(batches))
    pieces = [toy_tasks.VOCABULARY[number] for number in features["token_ids"][1]]
    assert pieces == ["[CLS]", "dog", "##s", "hen", "##s", "[SEP]"]
    np.testing.assert_array_equal(labels, [[0, 1, 2, 0, 0, 0], [0, 4, 0, 1, 0, 0], [0, 2, 0, 0, 0, 0]])
    np.testing.assert_array_equal(weights, [[0, 1, 1, 0, 0, 0], [0, 1, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0]])
    _, _, weighted = preprocessor(words, classes, tf.constant([2.0, 0.0, 0.5]))
    np.testing.assert_array_equal(weighted, weights * np.array([[2.0], [0.0], [0.5]]))


@pytest.mark.parametrize(
    "labels",
    [
        tf.ragged.constant([[1, 2], [3, 4, 1, 2, 3, 4], [2]]),  # As many in all.
        tf.constant([[1, 2, 0], [3, 4, 1], [2, 0, 0]]),
    ],
)
def test_rows_with_fewer_labels_than_words_are_refused(preprocessor, labels):
    words = tf.ragged.constant(SENTENCES)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`y` must have a label for each word.*words and of lab"):
        preprocessor(words, labels)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`y` must have a label for each word.*words and of lab"):
        list(tf.data.Dataset.from_tensors((words, labels)).map(preprocessor))


@pytest.mark.parametrize("sentences", [["the cat sat"], [[], []], [[1, 2]]], ids=str)
def test_what_is_not_a_list_of_words_is_refused(preprocessor, sentences):
    model = BertTokenClassifier(toy_tasks.backbone(), 5, preprocessor)
    with pytest.raises(ValueError, match="`x` must be sentences as lists of words; `answer` takes raw texts"):
        model.predict(sentences, verbose=0)


@pytest.mark.parametrize("width", [2, 4])
def test_dense_labels_are_as_wide_as_dense_words(preprocessor, width):
    words, labels = tf.constant([["the", "cats", "sat"], ["who", "", ""]]), tf.ones((2, width), "int32")
    model = BertTokenClassifier(toy_tasks.backbone(), 5, preprocessor)
    for function in (preprocessor, model.preprocess_samples):
        with pytest.raises(tf.errors.InvalidArgumentError, match="`y` must have a label for each word"):
            function(words, labels)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`y` must have a label for each word"):
        list(tf.data.Dataset.from_tensors((words, labels)).map(preprocessor))


def test_class_numbers_beyond_the_head_are_refused(preprocessor):
    model = BertTokenClassifier(toy_tasks.backbone(), 5, preprocessor)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Labels must be below 5"):
        model.preprocess_samples(tf.constant([["the", "cats"]]), tf.constant([[-1, 5]]))


@pytest.mark.slow
def test_it_learns_the_tags_of_words():
    preprocessor = BertTokenClassifierPreprocessor(toy_tasks.tokenizer(), toy_tasks.LENGTH)
    model = BertTokenClassifier(toy_tasks.backbone(), labels=["O", "B-animal"], preprocessor=preprocessor)
    words = tf.ragged.constant([text.split() for text in toy_tasks.texts()[0]])
    tags = [["B-animal" if word.decode() in toy_tasks.ANIMALS else "O" for word in row] for row in words.to_list()]
    history = toy_tasks.learns(model, (words, tf.ragged.constant(tags)))
    assert history["accuracy"][-1] == 1.0
    sentences = tf.ragged.constant([["the", "old", "hens", "ran"], ["cow"]])
    best = model.predict(sentences, verbose=0).argmax(-1)
    at_words = tf.gather(best, preprocessor.word_positions(sentences), batch_dims=1)
    assert at_words.to_list() == [[0, 0, 1, 0], [1]]


def test_the_loss_is_the_mean_over_the_words_of_a_batch(preprocessor):
    model = toy_tasks.shaken(BertTokenClassifier(toy_tasks.backbone(), 5, preprocessor))
    toy_tasks.compile_for_test(model)
    classes = [[1, 2, -1], [3, 4, 1, 2, 3], [2]]
    samples = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(SENTENCES), tf.ragged.constant(classes))).batch(3)
    figures = model.evaluate(samples, verbose=0, return_dict=True)
    assert model.evaluate(SENTENCES, classes, verbose=0, return_dict=True) == pytest.approx(figures)
    logits = model(preprocessor(tf.ragged.constant(SENTENCES))).numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    labelled = [
        (row, position, kind)
        for row, (places, kinds) in enumerate(zip(POSITIONS, classes, strict=True))
        for position, kind in zip(places, kinds, strict=True)
        if position >= 0 <= kind
    ]
    assert len(labelled) == 5
    losses = [-np.log(probabilities[row, position, kind]) for row, position, kind in labelled]
    correct = [probabilities[row, position].argmax() == kind for row, position, kind in labelled]
    np.testing.assert_allclose([figures["loss"], figures["accuracy"]], [np.mean(losses), np.mean(correct)], rtol=1e-5)


def test_the_head_is_dropout_and_one_layer_of_float32():
    model = BertTokenClassifier(toy_tasks.backbone(dropout=0.1), 5)
    features = {name: np.ones((2, 7), "int32") for name in model.input}
    hidden = model.backbone(features)["sequence_output"].numpy()
    kernel, bias = model.get_layer("token_classification").get_weights()
    logits = model(features)
    np.testing.assert_allclose(logits, hidden @ kernel + bias, atol=1e-5)
    assert model.get_layer("tagger_dropout").rate == 0.1
    assert np.abs(model(features, training=True).numpy() - logits).max() > 1e-3
    half = BertBackbone(9, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4, dtype="mixed_bfloat16")
    assert BertTokenClassifier(half, 3).output.dtype == "float32"
    with pytest.raises(ValueError, match="`num_classes` must be at least 1"):
        BertTokenClassifier(half)


def test_one_output_learns_a_score_for_each_word(preprocessor):
    model = toy_tasks.shaken(BertTokenClassifier(toy_tasks.backbone(), 1, preprocessor))
    scores = [[0.5, 2.0, float("nan")], [3.0, -1.0, 0.0, 2.0, 3.0], [1.5]]
    features, *labels = model.preprocess_samples(tf.ragged.constant(SENTENCES), tf.ragged.constant(scores))
    outputs = model(features)
    answers, (metric,) = outputs.numpy()[..., 0], model.default_metrics()
    # The words with a score whose first sub-token is there: the cats; dogs hens; who.
    errors = [answers[0, 1] - 0.5, answers[0, 2] - 2.0, answers[1, 1] + 1.0, answers[1, 3], answers[2, 1] - 1.5]
    loss = model.compute_loss(features, labels[0], outputs, labels[1])
    np.testing.assert_allclose(loss, np.mean(np.square(errors)), rtol=1e-5)
    np.testing.assert_allclose(metric(labels[0], outputs, labels[1]), np.sqrt(np.mean(np.square(errors))), rtol=1e-5)


@pytest.mark.parametrize("to_batch", [tf.ragged.constant, np.array])
def test_whole_numbers_are_scores_where_there_is_one_output(preprocessor, to_batch):
    model = BertTokenClassifier(toy_tasks.backbone(), 1, preprocessor)
    words, scores = to_batch([["the", "cats"], ["who", "sat"]]), [[1, -2], [0, 3]]
    _, expected, weights = model.preprocess_samples(
        words, to_batch([[float(score) for score in row] for row in scores])
    )
    _, labels, counted = model.preprocess_samples(words, to_batch(scores))
    assert labels.shape == (2, 6, 1) and labels.dtype == "float32" and tf.reduce_sum(weights) == 4.0
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_array_equal(counted, weights)


@pytest.mark.oracle
def test_logits_and_loss_are_those_of_transformers(tmp_path):
    import torch

    words = [f"w{number}" for number in range(95)]
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {label: i for i, label in enumerate(LABELS)}}
    theirs = random_model("BertForTokenClassification", **names)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True}))
    model = BertTokenClassifier.from_preset(str(tmp_path), sequence_length=10)
    assert model.labels == LABELS
    generator = np.random.default_rng(1)
    sentences = [list(generator.choice(words, count)) for count in (8, 3, 5, 1)]
    tags = [[LABELS[number] for number in generator.integers(0, 5, len(row))] for row in sentences]
    features, labels, weights = model.preprocess_samples(tf.ragged.constant(sentences), tf.ragged.constant(tags))
    with torch.no_grad():
        answer = theirs(
            input_ids=torch.tensor(features["token_ids"].numpy(), dtype=torch.long),
            attention_mask=torch.tensor(features["padding_mask"].numpy()),
            labels=torch.tensor(np.where(weights > 0, labels, -100), dtype=torch.long),
        )
    real, logits = features["padding_mask"].numpy().astype(bool), model(features)
    np.testing.assert_allclose(logits.numpy()[real], answer.logits.numpy()[real], atol=2e-5)
    loss = model.compute_loss(features, labels, logits, weights)
    np.testing.assert_allclose(loss, answer.loss.item(), rtol=1e-5)
