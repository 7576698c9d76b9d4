"""ONNX and LiteRT: each head's numbers are the SavedModel's, whatever batch and length."""

import os
import sys

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from toy_classifier import LABELS, VOCABULARY, assets, classifier
from toy_heads import HEADS, backbone, shaken
from toy_saved import ALL_HEADS

from export import saved_model, targets
from export.heads.classification import Classification
from export.heads.embeddings import SentenceEmbedding
from export.targets import litert, real_text
from export.targets import onnx as onnx_target
from keras_bert import BertTextEmbedder, BertTokenizer
from keras_bert.answers import text_bounds
from keras_bert.errors import InputError
from keras_bert.models import BertTextClassifier


@pytest.mark.slow(keep=["classification of pairs"])  # It has a temperature.
@pytest.mark.parametrize("name", ALL_HEADS)
def test_every_head_is_written_and_equals_the_saved_model(name, saved):
    head, base = saved(name)
    version_directory = saved(name).directory
    lines = targets.write(["onnx", "litert"], head, base, version_directory)
    differences = [float(line.split("SavedModel ")[1]) for line in lines if "largest difference" in line]
    assert len(differences) == 2
    assert max(differences) <= 1e-5
    assert lines[0] == f"onnx: {base}/onnx/1"
    assert {"model.json", "model.onnx"} <= set(os.listdir(os.path.join(base, "onnx", "1")))
    assert os.path.exists(os.path.join(base, "litert", "1", "model.tflite"))
    # Beside ids in stands what makes ids of texts.
    tokenizer = BertTokenizer.from_preset(os.path.join(base, "litert", "1"))
    assert tokenizer.get_vocabulary() == VOCABULARY
    model = onnx.load(os.path.join(base, "onnx", "1", "model.onnx"))
    onnx.checker.check_model(model, full_check=True)
    assert {node.domain for node in model.graph.node} == {""}
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert [value.name for value in model.graph.input] == list(head.token_inputs)


def test_litert_is_written_without_onnx(saved, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "export.targets.onnx")
    monkeypatch.delattr(targets, "onnx")
    targets.write(["litert"], saved("classification").head, str(tmp_path), saved("classification").directory)
    assert (tmp_path / "litert" / "1" / "model.tflite").exists()


def test_another_models_answers_are_told_apart_and_leave_nothing(saved, tmp_path, monkeypatch):
    head = saved("classification").head
    other = onnx_target.convert(head, shaken(saved_model.rebuild(head.model), seed=9))
    monkeypatch.setattr(onnx_target, "convert", lambda *_: other)
    said = "--onnx: probabilities: differs from the SavedModel's by .*, allowed 1e-03. Nothing was written for ONNX"
    with pytest.raises(InputError, match=said):
        targets.write(["onnx"], head, str(tmp_path), saved("classification").directory)
    assert os.listdir(tmp_path / "onnx") == []


# === Details of the network ===


@pytest.mark.slow(keep=["{'activation': 'gelu', 'pooler_activation': 'relu'}"])
@pytest.mark.parametrize(
    "settings",
    [
        {"activation": "gelu", "pooler_activation": "relu"},
        {"activation": "relu"},
        {"activation": "linear"},
        {"attention": "left_to_right"},
        {"layer_norm_epsilon": 0.1},
    ],
)
def test_settings_of_the_encoder(tmp_path, settings):
    head = Classification(
        shaken(BertTextClassifier(backbone(**settings), len(LABELS), compile=False)), assets(), LABELS
    )
    asked = real_text.requests(head, [2, 5])
    expected = []
    for request in asked:
        places = np.arange(request["token_ids"].shape[1])
        mask = (places < request["lengths"][:, None]).astype(np.int32)
        encoded = {name: request[name] for name in ("token_ids", "segment_ids")} | {"padding_mask": mask}
        expected.append({"probabilities": tf.nn.softmax(head.model(encoded)).numpy()})
    for target in (onnx_target, litert):
        path = str(tmp_path / target.__name__)
        with open(path, "wb") as file:
            file.write(target.convert(head, head.model))
        assert real_text.compare(head, asked, expected, target.run(path, asked)) <= 1e-5


@pytest.mark.parametrize(
    "settings",
    [{"pooling": "cls"}, {"pooling": "max"}]
    + [{"embedding_dim": 5, "embedding_activation": name} for name in (None, "tanh", "relu", "gelu", "sigmoid")],
)
def test_poolings_and_activations_of_embedders(tmp_path, settings):
    head = SentenceEmbedding(shaken(BertTextEmbedder(backbone(), **settings)), assets())
    (request,) = real_text.requests(head, [5])
    mask = (np.arange(request["token_ids"].shape[1]) < request["lengths"][:, None]).astype(np.int32)
    expected = head.model({**{name: request[name] for name in ("token_ids", "segment_ids")}, "padding_mask": mask})
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_target.convert(head, head.model))
    assert real_text.compare(head, [request], [{"embedding": expected}], onnx_target.run(str(path), [request])) <= 1e-5


def test_probabilities_of_a_classifier(tmp_path):
    """`activation="softmax"` is an argument of `BertTextClassifier`."""
    model = shaken(BertTextClassifier(backbone(), labels=LABELS, activation="softmax", compile=False))
    head = Classification(model, assets(), LABELS)
    (request,) = real_text.requests(head, [5])
    mask = (np.arange(request["token_ids"].shape[1]) < request["lengths"][:, None]).astype(np.int32)
    expected = model({**{name: request[name] for name in ("token_ids", "segment_ids")}, "padding_mask": mask})
    onnx_target.check_layers(head)
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_target.convert(head, model))
    answers = onnx_target.run(str(path), [request])
    assert real_text.compare(head, [request], [{"probabilities": expected}], answers) <= 1e-5
    np.testing.assert_allclose(answers[0]["probabilities"].sum(-1), 1.0, atol=1e-5)


@pytest.mark.parametrize("name", ALL_HEADS)
def test_all_heads_pass_the_check_before_conversion(name):
    onnx_target.check_layers(ALL_HEADS[name]())


def test_what_no_output_needs_is_left_out():
    without_pooler = onnx.load_from_string(
        onnx_target.convert(HEADS["embeddings without pooler"](), shaken(backbone()))
    )
    with_pooler = onnx.load_from_string(onnx_target.convert(HEADS["embeddings"](), shaken(backbone())))
    assert len(with_pooler.graph.initializer) == len(without_pooler.graph.initializer) + 2  # Kernel and bias.


def test_the_token_table_is_stored_once():
    head = HEADS["fill_mask"]()
    table = text_bounds.find_backbone(head.model).token_embedding.embeddings
    proto = onnx.load_from_string(onnx_target.convert(head, head.model))
    shapes = [tuple(tensor.dims) for tensor in proto.graph.initializer]
    # Once for looking up; ONNX Runtime folds the transposition for the output as it loads the model.
    assert shapes.count(tuple(table.shape)) == 1
    assert tuple(table.shape)[::-1] not in shapes


def test_a_foreign_layer_is_named(tmp_path):
    model = classifier()
    foreign = keras.Model(model.input, keras.layers.LeakyReLU(name="leak")(model.output))
    with pytest.raises(InputError, match="The layer 'leak' .LeakyReLU. cannot be written as ONNX"):
        targets.write(["onnx"], Classification(foreign, assets(), LABELS), str(tmp_path), str(tmp_path / "1"))
    assert os.listdir(tmp_path / "onnx") == []
    activated = keras.Model(model.input, keras.layers.Dense(3, "softplus", name="last")(model.output))
    with pytest.raises(InputError, match="The layer 'last' cannot be written .*Received: floats, softplus"):
        onnx_target.convert(Classification(activated, assets(), LABELS), activated)


# === Requests ===


@pytest.mark.slow(keep=["multiple_choice", "question_answering"])
@pytest.mark.parametrize("name", ALL_HEADS)
def test_requests_are_real_sentences(name):
    head = ALL_HEADS[name]()
    single, few = real_text.requests(head, [1, 4])
    assert set(single) == set(head.token_inputs)
    assert [len(request["lengths"]) for request in (single, few)] == [1, 4]
    assert few["token_ids"].dtype == few["lengths"].dtype == np.int32
    assert np.unique(few["lengths"]).size > 1 or few["lengths"].max() == head.preprocessor.sequence_length
    if "mask_positions" in few:
        at_masks = np.take_along_axis(few["token_ids"], few["mask_positions"], axis=1)
        assert (at_masks == head.preprocessor.tokenizer.mask_token_id).all()
