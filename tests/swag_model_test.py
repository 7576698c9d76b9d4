"""The multiple-choice model: the paper's one scoring vector, equal to transformers' logits and loss."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy_choices
import toy_hugging_face
from keras import ops

from keras_bert import BertBackbone, BertTokenizer
from keras_bert.errors import InputError
from tasks import fine_tuning
from tasks.examples import Examples, compute_outputs
from tasks.swag import metrics
from tasks.swag.losses import MultipleChoiceObjective
from tasks.swag.model import build_multiple_choice, load_multiple_choice, save_multiple_choice


def make_backbone(**changes) -> BertBackbone:
    settings = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32, "max_sequence_length": 24}
    return BertBackbone(len(toy_choices.VOCABULARY), **{**settings, "initializer_range": 0.3, **changes})


def make_inputs(batch: int, num_choices: int, length: int, vocabulary: int = 60, seed: int = 0) -> dict:
    generator = np.random.default_rng(seed)
    shape = (batch, num_choices, length)
    lengths = generator.integers(3, length + 1, shape[:2])
    mask = (np.arange(length) < lengths[..., None]).astype(np.int32)
    segments = (np.arange(length) >= (lengths // 2)[..., None]).astype(np.int32) * mask
    return {
        "token_ids": generator.integers(5, vocabulary, shape, np.int32) * mask,
        "segment_ids": segments,
        "padding_mask": mask,
    }


@pytest.mark.parametrize("num_choices", [2, 4, 5])
def test_every_choice_is_scored_by_itself_with_one_vector(num_choices):
    backbone = make_backbone()
    model = build_multiple_choice(backbone, num_choices)
    inputs = make_inputs(3, num_choices, 9)
    logits = ops.convert_to_numpy(model(inputs, training=False))
    assert logits.shape == (3, num_choices) and model.output_shape == (None, num_choices)
    kernel, bias = (weight.numpy() for weight in model.get_layer("multiple_choice").weights)
    assert kernel.shape == (16, 1) and bias.shape == (1,)
    for row in range(3):
        for choice in range(num_choices):
            alone = {name: value[row, choice][None] for name, value in inputs.items()}
            pooled = ops.convert_to_numpy(backbone(alone, training=False)["pooled_output"])[0]
            np.testing.assert_allclose(logits[row, choice], pooled @ kernel[:, 0] + bias[0], atol=1e-5)


def test_fewer_than_two_choices_are_no_choice():
    with pytest.raises(ValueError, match="`num_choices` must be at least 2. Received: num_choices=1"):
        build_multiple_choice(make_backbone(), 1)


def test_dropout_falls_on_the_pooled_output_while_training_only():
    model = build_multiple_choice(make_backbone(dropout=0.0), 3, dropout=0.5)
    inputs = make_inputs(4, 3, 6)
    once, again = (ops.convert_to_numpy(model(inputs, training=False)) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    assert np.abs(once - ops.convert_to_numpy(model(inputs, training=True))).max() > 1e-3
    assert build_multiple_choice(make_backbone(), 3).get_layer("multiple_choice_dropout").rate == 0.1


def test_mixed_precision_scores_are_float32():
    model = build_multiple_choice(make_backbone(dtype="mixed_bfloat16"), 3)
    assert model(make_inputs(2, 3, 6), training=False).dtype == tf.float32


# === Loss ===


def test_loss_and_metric_sums_equal_numpys():
    generator = np.random.default_rng(1)
    logits = generator.normal(0, 3, (7, 4)).astype(np.float32)
    labels = generator.integers(0, 4, 7)
    exponentials = np.exp(logits.astype(np.float64))
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    expected = -np.log([row[label] for row, label in zip(probabilities, labels, strict=True)])
    objective, targets = MultipleChoiceObjective(), {"labels": tf.constant(labels, tf.int32)}
    assert float(objective.weights({}, targets)["multiple_choice"]) == 7.0
    np.testing.assert_allclose(objective.sums(tf.constant(logits), targets)["multiple_choice"], expected.sum(), 1e-6)
    correct, total = objective.metric_sums(tf.constant(logits), targets)["accuracy"]
    assert float(correct) == (logits.argmax(axis=1) == labels).sum() and float(total) == 7.0
    np.testing.assert_allclose(metrics.cross_entropies(labels, logits), expected, rtol=1e-6)
    np.testing.assert_allclose(np.exp(metrics.log_softmax(logits)), probabilities, rtol=1e-6)


def test_metrics_by_hand():
    labels, predictions = np.array([0, 1, 2, 1, 1]), np.array([0, 1, 1, 2, 1])
    assert metrics.accuracy(labels, predictions) == 0.6
    assert metrics.majority_accuracy(np.array([5, 9, 9]), labels) == 0.6  # the first of equals: place 1
    np.testing.assert_array_equal(metrics.confusion_matrix(labels, predictions, 3), [[1, 0, 0], [0, 2, 1], [0, 1, 0]])
    assert np.isfinite(metrics.log_softmax(np.array([[1e4, -1e4]], np.float32))).all()


# === Oracle ===


@pytest.fixture(scope="module", name="hugging_face")
def _hugging_face(tmp_path_factory):
    """(transformers' model, directory with its files)."""
    directory = tmp_path_factory.mktemp("choice")
    size = len(toy_choices.VOCABULARY)
    sizes = {"vocab_size": size, "max_position_embeddings": 32, "initializer_range": 1.0}
    model = toy_hugging_face.random_model("BertForMultipleChoice", **sizes)
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(toy_choices.VOCABULARY) + "\n")
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return model, str(directory)


@pytest.mark.oracle
@pytest.mark.parametrize("num_choices", [2, 4])
def test_logits_and_loss_equal_transformers(hugging_face, num_choices):
    import torch

    theirs, directory = hugging_face
    model, tokenizer, labels = fine_tuning.load_fine_tuned(
        directory, "multiple_choice", lambda backbone, _: build_multiple_choice(backbone, num_choices)
    )
    assert tokenizer.get_vocabulary() == toy_choices.VOCABULARY and labels is None
    inputs = make_inputs(6, num_choices, 11)
    targets = np.random.default_rng(2).integers(0, num_choices, 6)
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
    with torch.no_grad():
        tensors = {names[name]: torch.tensor(value.astype(np.int64)) for name, value in inputs.items()}
        expected = theirs(**tensors, labels=torch.tensor(targets))
    logits = model(inputs, training=False)
    np.testing.assert_allclose(logits, expected.logits.numpy(), atol=5e-5)
    assert np.ptp(expected.logits.numpy()) > 0.5  # The choices differ: no empty comparison.
    sums = MultipleChoiceObjective().sums(logits, {"labels": tf.constant(targets, tf.int32)})
    np.testing.assert_allclose(float(sums["multiple_choice"]) / 6, float(expected.loss), rtol=1e-5)


# === Files ===


def test_save_and_load_keep_the_answers(tmp_path):
    model = build_multiple_choice(make_backbone(), 3)
    directory = str(tmp_path / "model")
    save_multiple_choice(directory, model, BertTokenizer(toy_choices.VOCABULARY), 20, 3)
    loaded = load_multiple_choice(directory)
    assert (loaded.sequence_length, loaded.num_choices) == (20, 3)
    assert loaded.tokenizer.get_vocabulary() == toy_choices.VOCABULARY
    inputs = make_inputs(2, 3, 8)
    np.testing.assert_allclose(loaded.model(inputs, training=False), model(inputs, training=False), atol=1e-6)


def test_a_directory_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"task.json: no such file. Expected the model directory that bert-swag wrote"):
        load_multiple_choice(str(tmp_path / "none"))
    directory = str(tmp_path / "model")
    model, tokenizer = build_multiple_choice(make_backbone(), 3), BertTokenizer(toy_choices.VOCABULARY)
    save_multiple_choice(directory, model, tokenizer, 20, 4)
    with pytest.raises(InputError, match=r"task.json tells of 4 choices, but the model has 3 outputs"):
        load_multiple_choice(directory)
    path = tmp_path / "model" / "task.json"
    path.write_text(path.read_text().replace("multiple_choice", "classification"))
    with pytest.raises(InputError, match="expected the task 'multiple_choice', as bert-swag writes it"):
        load_multiple_choice(directory)


def test_batches_of_choices_give_each_row_its_own_logits():
    """`compute_outputs` sorts, pads and groups: the answer of a row is that of the row alone."""
    generator = np.random.default_rng(3)
    rows = [generator.integers(5, 60, generator.integers(3, 12)).astype(np.int32) for _ in range(7 * 3)]
    splits = np.cumsum([0, *map(len, rows)])
    ids = np.concatenate(rows)
    model = build_multiple_choice(make_backbone(), 3)
    logits = compute_outputs(model, Examples(ids, ids * 0, splits, {}, {}, 3), 2, "test")
    for number in range(7):
        for choice in range(3):
            row = np.tile(rows[number * 3 + choice], (1, 3, 1))
            alone = model({"token_ids": row, "segment_ids": row * 0, "padding_mask": row * 0 + 1}, training=False)
            np.testing.assert_allclose(logits[number, choice], alone[0, 0], atol=1e-5)


def test_the_model_is_one_xla_program_with_static_shapes():
    model = build_multiple_choice(make_backbone(), 3)
    inputs = make_inputs(2, 3, 8)
    compiled = tf.function(lambda features: model(features, training=False), jit_compile=True)
    np.testing.assert_allclose(compiled(inputs), model(inputs, training=False), atol=1e-5)
    assert isinstance(model, keras.Model)
