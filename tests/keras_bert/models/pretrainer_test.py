"""`BertPretrainer` on texts, against transformers, and through files."""

import keras
import numpy as np
import pytest
import toy_tasks
from bfloat16 import needs_bfloat16

from keras_bert import BertBackbone, BertPretrainer, BertPretrainerPreprocessor

TINY = {"vocabulary_size": 100, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 64}


def batch():
    rng = np.random.default_rng(0)
    return {
        "token_ids": rng.integers(0, 100, (3, 7)).astype("int32"),
        "segment_ids": rng.integers(0, 2, (3, 7)).astype("int32"),
        "padding_mask": np.array([[1] * 7, [1] * 5 + [0] * 2, [1] * 3 + [0] * 4], "int32"),
        "mask_positions": np.array([[1, 6], [4, 0], [2, 1]], "int32"),
    }


@pytest.mark.oracle
@pytest.mark.parametrize("activation", ["gelu", "gelu_new"])
def test_pretraining_logits_equal_transformers(tmp_path, activation):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        hidden_act=activation,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    reference = transformers.BertForPreTraining(config).eval()
    for parameter in reference.cls.parameters():  # biases start at zero: give them something to tell
        torch.nn.init.normal_(parameter, std=0.5)
    reference.save_pretrained(tmp_path)
    model = BertPretrainer.from_preset(str(tmp_path))
    inputs = batch()
    with torch.no_grad():
        expected = reference(
            input_ids=torch.tensor(inputs["token_ids"]).long(),
            token_type_ids=torch.tensor(inputs["segment_ids"]).long(),
            attention_mask=torch.tensor(inputs["padding_mask"]),
        )
    outputs = model(inputs)
    at_masks = np.take_along_axis(expected.prediction_logits.numpy(), inputs["mask_positions"][..., None], axis=1)
    np.testing.assert_allclose(outputs["masked_lm"], at_masks, atol=5e-5)
    np.testing.assert_allclose(outputs["next_sentence"], expected.seq_relationship_logits.numpy(), atol=5e-5)


def test_the_tied_table_survives_a_keras_file(tmp_path):
    model = BertPretrainer(BertBackbone(**TINY))
    model.save(tmp_path / "p.keras")
    again = keras.saving.load_model(tmp_path / "p.keras")
    assert len(again.trainable_variables) == len(model.trainable_variables)
    for name, logits in model(batch()).items():
        np.testing.assert_array_equal(logits, again(batch())[name])
    before = again(batch())["masked_lm"].numpy()
    table = again.backbone.token_embedding.embeddings
    table.assign(table * 2.0)
    assert np.abs(again(batch())["masked_lm"].numpy() - before).max() > 0


def test_a_masked_lm_head_of_its_own_kind_is_kept(tmp_path):
    settings = {"masked_lm_activation": "relu", "masked_lm_layer_norm_epsilon": 0.1}
    model = BertPretrainer(BertBackbone(**TINY), **settings)
    like_the_backbone = BertPretrainer(model.backbone)
    like_the_backbone.set_weights(model.get_weights())
    assert np.abs(model(batch())["masked_lm"] - like_the_backbone(batch())["masked_lm"]).max() > 1e-3
    model.save(tmp_path / "p.keras")
    model.save_to_preset(str(tmp_path / "p"))
    for again in (keras.saving.load_model(tmp_path / "p.keras"), BertPretrainer.from_preset(str(tmp_path / "p"))):
        assert {name: getattr(again, name) for name in settings} == settings
        np.testing.assert_array_equal(again(batch())["masked_lm"], model(batch())["masked_lm"])


@needs_bfloat16
def test_logits_are_float32_under_mixed_precision():
    backbone = BertBackbone(**TINY, dtype="mixed_bfloat16")
    logits = BertPretrainer(backbone)(batch())
    assert {value.dtype.name for value in logits.values()} == {"float32"}
    # The product with the token table is computed in 16 bits; the bias is zero.
    rounded = keras.ops.cast(keras.ops.cast(logits["masked_lm"], "bfloat16"), "float32")
    np.testing.assert_array_equal(logits["masked_lm"], rounded)


def packed_batch():
    examples = np.array([[1, 1, 1, 2, 2, 3, 0], [1] * 7, [1, 1, 1, 1, 2, 2, 2]], "int32")
    first = np.array([[0, 3, 5], [0, 0, 0], [0, 4, 0]], "int32")
    return {**batch(), "padding_mask": examples, "first_positions": first}


def test_packed_next_sentence_logits_are_those_of_each_first_token():
    model = BertPretrainer(BertBackbone(**TINY, layout="packed", initializer_range=0.5))
    inputs = packed_batch()
    logits = model(inputs)
    assert {name: tuple(value.shape) for name, value in logits.items()} == {
        "masked_lm": (3, 2, 100),
        "next_sentence": (3, 3, 2),
    }
    backbone = {name: inputs[name] for name in ("token_ids", "segment_ids", "padding_mask")}
    encoded = model.backbone(backbone)
    weights = {weight.path: weight.numpy() for weight in model.weights}
    first = np.take_along_axis(encoded["sequence_output"].numpy(), inputs["first_positions"][..., None], axis=1)
    pooled = np.tanh(first @ weights["pooled_dense/kernel"] + weights["pooled_dense/bias"])
    expected = pooled @ weights["next_sentence/kernel"] + weights["next_sentence/bias"]
    np.testing.assert_allclose(logits["next_sentence"], expected, atol=1e-5)
    np.testing.assert_allclose(encoded["pooled_output"], pooled[:, 0], atol=1e-5)


def test_a_packed_pretrainer_survives_files(tmp_path):
    model = BertPretrainer(BertBackbone(**TINY, layout="packed"))
    model.save(tmp_path / "p.keras")
    model.save_to_preset(str(tmp_path / "p"))
    again = (
        keras.saving.load_model(tmp_path / "p.keras"),
        BertPretrainer.from_preset(str(tmp_path / "p")),
    )
    for other in again:
        assert [weight.path for weight in other.weights] == [weight.path for weight in model.weights]
        for name, logits in model(packed_batch()).items():
            np.testing.assert_array_equal(other(packed_batch())[name], logits)


def test_without_next_sentence_there_is_no_such_head(tmp_path):
    model = BertPretrainer(BertBackbone(**TINY), use_next_sentence=False)
    both = BertPretrainer(model.backbone)
    assert set(model(batch())) == {"masked_lm"}
    missing = {weight.path for weight in both.weights} - {weight.path for weight in model.weights}
    assert missing == {"next_sentence/kernel", "next_sentence/bias"}
    model.save(tmp_path / "p.keras")
    model.save_to_preset(str(tmp_path / "p"))
    both.save_to_preset(str(tmp_path / "both"))
    again = (
        keras.saving.load_model(tmp_path / "p.keras"),
        BertPretrainer.from_preset(str(tmp_path / "p")),
        BertPretrainer.from_preset(str(tmp_path / "both"), use_next_sentence=False),
        BertPretrainer.from_preset(str(tmp_path / "p"), load_weights=False, use_next_sentence=False),
    )
    for other in again:
        assert not other.use_next_sentence
        assert set(other(batch())) == {"masked_lm"}
    np.testing.assert_array_equal(again[0](batch())["masked_lm"], model(batch())["masked_lm"])
    np.testing.assert_array_equal(again[1](batch())["masked_lm"], model(batch())["masked_lm"])


def test_it_learns_texts_and_what_follows_what():
    preprocessor = BertPretrainerPreprocessor(toy_tasks.tokenizer(), 16)
    model = BertPretrainer(toy_tasks.backbone(), preprocessor=preprocessor)
    pairs = (["the cat sat", "a dog ran"] * 32, ["old cat", "big dog"] * 16 + ["big dog", "old cat"] * 16)
    history = toy_tasks.learns(model, (pairs, [0] * 32 + [1] * 32))
    assert {"masked_lm_loss", "next_sentence_loss", "masked_lm_accuracy", "next_sentence_accuracy"} < set(history)
    assert history["next_sentence_loss"][-1] < history["next_sentence_loss"][0]
    outputs = model(model.preprocess_samples((["the cat"], ["old cat"]))[0])
    assert {name: tuple(value.shape) for name, value in outputs.items()} == {
        "masked_lm": (1, 3, len(toy_tasks.VOCABULARY)),
        "next_sentence": (1, 2),
    }


def test_texts_alone_will_do_without_next_sentences():
    preprocessor = BertPretrainerPreprocessor(toy_tasks.tokenizer(), 16)
    model = BertPretrainer(toy_tasks.backbone(), preprocessor=preprocessor, use_next_sentence=False)
    features, labels, weights = model.preprocess_samples(["the cat sat"] * 8)
    outputs = model(features)
    assert outputs.keys() == labels.keys() == weights.keys() == {"masked_lm"}
    assert np.isfinite(model.compute_loss(features, labels, outputs, weights))
