"""`BertMaskedLM`: masks drawn anew, its loss, and the files of the class that had its name before."""

import numpy as np
import pytest
import tensorflow as tf
import toy_tasks
from toy_hugging_face import random_model

from keras_bert import BertMaskedLM, BertMaskedLMPreprocessor, BertPretrainerPreprocessor

TEXTS = ["the old cat sat here", "a big dog ran there", "who ran there?", "the red hen sat"]
MASKED = {
    "token_ids": np.array([[2, 4, 9, 3], [2, 4, 3, 0]], "int32"),
    "segment_ids": np.zeros((2, 4), "int32"),
    "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], "int32"),
    "mask_positions": np.array([[1, 2], [1, 0]], "int32"),
}


def test_masks_fall_on_real_tokens_and_anew_each_time():
    preprocessor = BertMaskedLMPreprocessor(toy_tasks.tokenizer(), 16, mask_selection_rate=0.3)
    samples = tf.data.Dataset.from_tensor_slices(TEXTS * 50).batch(200).repeat(2).map(preprocessor)
    (features, labels, weights), (others, _, _) = samples
    assert features["mask_positions"].shape == labels.shape == weights.shape == (200, 5)  # 0.3 * 16, rounded up
    assert np.any(features["mask_positions"] != others["mask_positions"])
    original = preprocessor.encode(TEXTS * 50)["token_ids"].numpy()
    shown, positions, is_used = features["token_ids"].numpy(), features["mask_positions"].numpy(), weights.numpy() > 0
    rows = np.broadcast_to(np.arange(200)[:, None], positions.shape)
    np.testing.assert_array_equal(labels.numpy()[is_used], original[rows[is_used], positions[is_used]])
    assert not np.isin(labels.numpy()[is_used], [0, 2, 3]).any()
    chosen = np.zeros(original.shape, bool)
    chosen[rows[is_used], positions[is_used]] = True
    np.testing.assert_array_equal(shown[~chosen], original[~chosen])
    share = (shown[chosen] == 4).mean(), (shown[chosen] == original[chosen]).mean()
    assert 0.7 < share[0] < 0.9 and 0.04 < share[1] < 0.2
    assert BertMaskedLMPreprocessor(toy_tasks.tokenizer(), 16, mask_selection_length=2)(TEXTS)[1].shape == (4, 2)


@pytest.mark.parametrize(("mask_rate", "random_rate"), [(1.0, 0.0), (0.0, 0.0), (0.0, 1.0)])
def test_rates_of_what_replaces_a_token(mask_rate, random_rate):
    rates = {"mask_selection_rate": 1.0, "mask_token_rate": mask_rate, "random_token_rate": random_rate}
    preprocessor = BertMaskedLMPreprocessor(toy_tasks.tokenizer(), 16, **rates)
    assert rates.items() <= preprocessor.get_config().items()
    features, labels, weights = preprocessor(TEXTS * 10)
    shown = tf.gather(features["token_ids"], features["mask_positions"], batch_dims=1)[weights > 0].numpy()
    labels = labels[weights > 0].numpy()
    if random_rate:
        assert (shown != labels).mean() > 0.8 and len(set(shown.tolist())) > 5
    else:
        assert shown.tolist() == (np.full_like(labels, 4) if mask_rate else labels).tolist()


def test_labels_of_the_caller_are_refused():
    preprocessor = BertMaskedLMPreprocessor(toy_tasks.tokenizer(), 16)
    with pytest.raises(ValueError, match="The labels of a masked LM are its texts' own tokens"):
        preprocessor(TEXTS, y=[1, 2, 3, 4])
    with pytest.raises(ValueError, match="The weights of masked tokens are drawn with them"):
        BertPretrainerPreprocessor(toy_tasks.tokenizer(), 16)(TEXTS, sample_weight=[1.0] * 4)


@pytest.mark.slow
def test_it_learns_texts():
    preprocessor = BertMaskedLMPreprocessor(toy_tasks.tokenizer(), 10)
    model = BertMaskedLM(toy_tasks.backbone(), preprocessor)
    toy_tasks.learns(model, TEXTS * 16)
    features, _, _ = model.preprocess_samples(TEXTS)
    assert model(features).shape == (4, 2, len(toy_tasks.VOCABULARY))


def test_the_loss_is_the_mean_over_the_masks_of_a_batch():
    model = toy_tasks.shaken(BertMaskedLM(toy_tasks.backbone()))
    labels, weights = np.array([[5, 6], [7, 0]]), np.array([[1.0, 1.0], [1.0, 0.0]], "float32")
    toy_tasks.compile_for_test(model)
    loss, accuracy = model.evaluate(MASKED, labels, sample_weight=weights, verbose=0)
    logits = model(MASKED).numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    right = [probabilities[0, 0, 5], probabilities[0, 1, 6], probabilities[1, 0, 7]]
    np.testing.assert_allclose(loss, -np.log(right).mean(), rtol=1e-5)
    best = logits.argmax(-1)
    np.testing.assert_allclose(accuracy, np.mean([best[0, 0] == 5, best[0, 1] == 6, best[1, 0] == 7]))


@pytest.mark.oracle
def test_logits_are_those_of_transformers(tmp_path):
    import torch

    theirs = random_model("BertForMaskedLM")
    theirs.save_pretrained(tmp_path)
    model = BertMaskedLM.from_preset(str(tmp_path))
    with torch.no_grad():
        logits = theirs(
            torch.tensor(MASKED["token_ids"]).long(), attention_mask=torch.tensor(MASKED["padding_mask"])
        ).logits.numpy()
    expected = np.take_along_axis(logits, MASKED["mask_positions"][..., None], axis=1)
    np.testing.assert_allclose(model(MASKED), expected, atol=5e-5)
