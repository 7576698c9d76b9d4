"""`BertMultipleChoice`: the paper's one scoring vector, texts, and parity with transformers."""

import numpy as np
import pytest
import tensorflow as tf
import toy_choices
import toy_hugging_face
import toy_tasks
from bfloat16 import needs_bfloat16

from keras_bert import BertMultipleChoice, BertMultipleChoicePreprocessor, BertPreprocessor


def make_inputs(batch: int, num_choices: int, length: int, vocabulary: int = 17, seed: int = 0) -> dict:
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


@pytest.mark.parametrize("pad_to_longest", [False, True])
def test_every_choice_is_a_pair_with_its_context(pad_to_longest):
    preprocessor = BertMultipleChoicePreprocessor(toy_tasks.tokenizer(), 9, pad_to_longest)
    contexts, choices = ["the cat", "a dog sat"], [["ran", "sat here"], ["old hens", "cows"]]
    samples = tf.data.Dataset.from_tensor_slices(((contexts, choices), [1, 0])).batch(2).map(preprocessor)
    features, labels = next(iter(samples))
    assert labels.numpy().tolist() == [1, 0]
    pairs = BertPreprocessor(toy_tasks.tokenizer(), 9, pad_to_longest)(
        (["the cat", "the cat", "a dog sat", "a dog sat"], ["ran", "sat here", "old hens", "cows"])
    )
    for name, value in pairs.items():
        np.testing.assert_array_equal(features[name], np.reshape(value, (2, 2, -1)))


@pytest.mark.slow
def test_it_learns_which_choice_goes_with_a_context():
    preprocessor = BertMultipleChoicePreprocessor(toy_tasks.tokenizer(), 8)
    model = BertMultipleChoice(toy_tasks.backbone(), 2, preprocessor)
    numbers = [number % 2 for number in range(64)]
    choices = [["the cat", "old dog"] if number == 0 else ["dog", "a cat"] for number in numbers]
    history = toy_tasks.learns(model, ((["who?"] * 64, choices), numbers))
    assert history["accuracy"][-1] == 1.0
    logits = model.predict((["who?"], [["a dog sat", "the old cat"]]), verbose=0)
    assert logits.shape == (1, 2) and logits.argmax() == 1


@pytest.mark.slow(keep=["5"])
@pytest.mark.parametrize("num_choices", [2, 5])
def test_every_choice_is_scored_by_itself_with_one_vector(num_choices):
    backbone = toy_tasks.backbone()
    model = BertMultipleChoice(backbone, num_choices)
    inputs = make_inputs(3, num_choices, 9)
    logits = model(inputs).numpy()
    assert logits.shape == (3, num_choices) and model.output_shape == (None, num_choices)
    kernel, bias = (weight.numpy() for weight in model.get_layer("multiple_choice").weights)
    assert kernel.shape == (16, 1) and bias.shape == (1,)
    for row in range(3):
        for choice in range(num_choices):
            alone = {name: value[row, choice][None] for name, value in inputs.items()}
            pooled = backbone(alone)["pooled_output"].numpy()[0]
            np.testing.assert_allclose(logits[row, choice], pooled @ kernel[:, 0] + bias[0], atol=1e-5)


def test_contexts_without_choices_are_refused():
    with pytest.raises(ValueError, match="`x` must be a tuple of contexts and choices"):
        BertMultipleChoicePreprocessor(toy_tasks.tokenizer(), 16)(tf.constant(["a"]))


def test_more_choices_than_the_model_has_are_refused():
    preprocessor = BertMultipleChoicePreprocessor(toy_tasks.tokenizer(), 8)
    model = BertMultipleChoice(toy_tasks.backbone(), num_choices=2, preprocessor=preprocessor)
    rows = (["the cat", "a dog"], [["sat", "ran", "big"]] * 2)
    for call in (lambda: model.predict(rows, verbose=0), lambda: model.fit(rows, [0, 1], verbose=0)):
        with pytest.raises(ValueError, match="`x` must have 2 choices for each context. Received: 3"):
            call()


def test_fewer_than_two_choices_are_no_choice():
    with pytest.raises(ValueError, match="`num_choices` must be at least 2. Received: num_choices=1"):
        BertMultipleChoice(toy_tasks.backbone(), 1)


def test_dropout_falls_on_the_pooled_output_while_training_only():
    model = BertMultipleChoice(toy_tasks.backbone(), 3, dropout=0.5)
    inputs = make_inputs(4, 3, 6)
    once, again = model(inputs), model(inputs)
    np.testing.assert_array_equal(once, again)
    assert np.abs(once - model(inputs, training=True)).max() > 1e-3
    rate = BertMultipleChoice(toy_tasks.backbone(dropout=0.2), 3).get_layer("multiple_choice_dropout").rate
    assert rate == 0.2


@needs_bfloat16
def test_mixed_precision_scores_are_float32():
    model = BertMultipleChoice(toy_tasks.backbone(dtype="mixed_bfloat16"), 3)
    assert model(make_inputs(2, 3, 6)).dtype == tf.float32


def test_the_model_is_one_xla_program_with_static_shapes():
    model = BertMultipleChoice(toy_tasks.backbone(), 3)
    inputs = make_inputs(2, 3, 8)
    compiled = tf.function(lambda features: model(features, training=False), jit_compile=True)
    np.testing.assert_allclose(compiled(inputs), model(inputs), atol=1e-5)


@pytest.mark.slow(keep=["4"])
@pytest.mark.oracle
@pytest.mark.parametrize("num_choices", [2, 4])
def test_logits_and_loss_equal_transformers(tmp_path, num_choices):
    import torch

    size = len(toy_choices.VOCABULARY)
    sizes = {"vocab_size": size, "max_position_embeddings": 32, "initializer_range": 1.0}
    theirs = toy_hugging_face.random_model("BertForMultipleChoice", **sizes)
    theirs.save_pretrained(tmp_path)
    model = BertMultipleChoice.from_preset(str(tmp_path), num_choices=num_choices)
    assert model.preprocessor is None
    inputs = make_inputs(6, num_choices, 11, size)
    targets = np.random.default_rng(2).integers(0, num_choices, 6)
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
    with torch.no_grad():
        tensors = {names[name]: torch.tensor(value.astype(np.int64)) for name, value in inputs.items()}
        expected = theirs(**tensors, labels=torch.tensor(targets))
    logits = model(inputs)
    np.testing.assert_allclose(logits, expected.logits.numpy(), atol=5e-5)
    assert np.ptp(expected.logits.numpy()) > 0.5  # The choices differ: no empty comparison.
    np.testing.assert_allclose(model.default_loss()(targets, logits), float(expected.loss), rtol=1e-5)
