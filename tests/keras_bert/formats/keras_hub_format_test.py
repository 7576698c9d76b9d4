"""Presets of KerasHub's own classes, both ways; KerasHub itself is the oracle."""

import json
import logging
import os
import sys

import h5py
import keras_nlp
import numpy as np
import processes
import pytest
from toy_checkpoints import checkpoint_of

from keras_bert.config import BertConfig
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.formats import keras_hub, keras_preset
from keras_bert.formats.checkpoint import Checkpoint
from keras_bert.models import BertPretrainer, BertTextClassifier, BertTextEmbedder
from keras_bert.presets import weights
from keras_bert.tokenization.tokenizer import BertTokenizer

TINY = {"vocabulary_size": 50, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(97 + i) for i in range(26)), *"0123456789!?,.;:-()"]
INPUTS = {
    "token_ids": np.array([[2, 7, 9, 3], [2, 8, 3, 0]], "int32"),
    "segment_ids": np.array([[0, 0, 1, 1], [0, 0, 0, 0]], "int32"),
    "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], "int32"),
}
MASKED = {**INPUTS, "mask_positions": np.array([[1, 2], [1, 0]], "int32")}
TOKENIZER = {"vocabulary": PIECES, "lowercase": True}


def filled(model):
    """A model whose variables, biases too, are all different."""
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=value.shape, scale=0.3).astype("float32") for value in model.get_weights()])
    return model


def same_outputs(ours, theirs, atol=2e-5):
    real = INPUTS["padding_mask"][..., None]
    outputs = ours(INPUTS)
    for name, expected in theirs(INPUTS).items():
        mask = real if name == "sequence_output" else 1
        np.testing.assert_allclose(outputs[name] * mask, expected * mask, atol=atol)


def equal_weights(model, other):
    for ours, theirs in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    """KerasHub's masked LM, and where its preset lies."""
    directory = str(tmp_path_factory.mktemp("hub") / "p")
    model = filled(keras_nlp.models.BertMaskedLM(keras_nlp.models.BertBackbone(**TINY, max_sequence_length=32)))
    model.save_to_preset(directory)
    return model, directory


@pytest.mark.oracle
def test_a_backbone_is_read(tmp_path):
    sizes = {**TINY, "num_layers": 11, "hidden_dim": 24, "num_heads": 3}
    theirs = filled(keras_nlp.models.BertBackbone(**sizes, num_segments=3, max_sequence_length=16, dropout=0.2))
    theirs.save_to_preset(str(tmp_path))
    ours = BertBackbone.from_preset(str(tmp_path))
    assert (ours.activation, ours.layer_norm_epsilon, ours.dropout) == ("gelu_tanh", 1e-12, 0.2)
    assert (ours.num_segments, ours.max_sequence_length) == (3, 16)
    same_outputs(ours, theirs)


def test_shards_and_files_of_older_versions_are_read(tmp_path):
    theirs = filled(keras_nlp.models.BertBackbone(**TINY))
    theirs.save_to_preset(str(tmp_path / "new"), max_shard_size=2e-5)
    assert (tmp_path / "new" / "model_00001.weights.h5").exists()
    ours = BertBackbone.from_preset(str(tmp_path / "new"))
    same_outputs(ours, theirs)
    theirs.save_to_preset(str(tmp_path / "old"))
    config = (tmp_path / "old" / "config.json").read_text()
    (tmp_path / "old" / "config.json").write_text(config.replace("keras_hub>", "keras_nlp>"))
    with h5py.File(tmp_path / "old" / "model.weights.h5", "a") as file:
        file.visititems(lambda place, item: item.attrs.clear())
        file.move("layers", "_layer_checkpoint_dependencies")
        for index in ("", "_1"):
            attention = file[f"_layer_checkpoint_dependencies/transformer_encoder{index}/_self_attention_layer"]
            for name in ("query", "key", "value", "output"):
                attention.move(f"{name}_dense", f"_{name}_dense")
    equal_weights(BertBackbone.from_preset(str(tmp_path / "old")), ours)


@pytest.mark.oracle
def test_masked_lm_logits_are_keras_hubs(masked_lm, tmp_path):
    theirs, directory = masked_lm
    expected = theirs(MASKED)
    theirs.save(tmp_path / "m.keras")
    for preset in (directory, str(tmp_path / "m.keras")):
        ours = BertPretrainer.from_preset(preset)
        np.testing.assert_allclose(ours(MASKED)["masked_lm"], expected, atol=5e-5)
    as_google = BertPretrainer(ours.backbone)
    with weights.open_checkpoint(directory) as checkpoint:
        assert checkpoint.heads == ("masked_lm",)
        weights.load_weights_of(as_google, checkpoint)
    assert np.abs(as_google(MASKED)["masked_lm"] - expected).max() > 5e-5  # Its epsilon and gelu do matter.


@pytest.mark.oracle
def test_masked_lm_logits_survive_further_presets(masked_lm, tmp_path):
    theirs, directory = masked_lm
    expected = theirs(MASKED)
    with weights.open_checkpoint(directory) as checkpoint:
        keras_preset.write(str(tmp_path / "ours"), checkpoint, TOKENIZER)
        keras_hub.write(str(tmp_path / "theirs"), checkpoint, TOKENIZER)
    for name in ("ours", "theirs"):
        again = keras_nlp.models.MaskedLM.from_preset(str(tmp_path / name))
        np.testing.assert_allclose(again(MASKED), expected, atol=5e-5)
        assert isinstance(again, keras_nlp.models.MaskedLM) and again.preprocessor.sequence_length == 32
    pretrainer = BertPretrainer.from_preset(str(tmp_path / "ours"))
    assert (pretrainer.masked_lm_activation, pretrainer.masked_lm_layer_norm_epsilon) == ("gelu", 1e-5)


@pytest.mark.oracle
def test_a_classifier_there_and_back(tmp_path):
    theirs = filled(keras_nlp.models.BertTextClassifier(keras_nlp.models.BertBackbone(**TINY), 3))
    theirs.save_to_preset(str(tmp_path / "a"))
    theirs.save(tmp_path / "a.keras")
    expected = theirs(INPUTS)
    for preset in (str(tmp_path / "a"), str(tmp_path / "a.keras")):
        with weights.open_checkpoint(preset) as checkpoint:
            assert checkpoint.heads == ("classification",)
            ours = BertTextClassifier(BertBackbone.from_preset(preset), 3, compile=False)
            head = [checkpoint.tensors[f"classification/{name}"].read() for name in ("kernel", "bias")]
            ours.get_layer("classification").set_weights(head)
        np.testing.assert_allclose(ours(INPUTS), expected, atol=2e-5)
    with weights.open_checkpoint(str(tmp_path / "a")) as checkpoint:
        keras_hub.write(str(tmp_path / "b"), checkpoint, TOKENIZER)
    again = keras_nlp.models.BertTextClassifier.from_preset(str(tmp_path / "b"))
    equal_weights(again, theirs)
    ids = again.preprocessor(["a b.", "c"])["token_ids"][:, :5]
    np.testing.assert_array_equal(ids, [[2, 5, 6, PIECES.index("."), 3], [2, 7, 3, 0, 0]])


FRESH = """
import sys
import keras_nlp, numpy as np
directory, inputs = sys.argv[1], dict(np.load(sys.argv[2]))
outputs = keras_nlp.models.BertBackbone.from_preset(directory)(inputs)
ids = np.array(keras_nlp.models.BertTokenizer.from_preset(directory)("a C! \\u00c9"))
assert not any(name.partition(".")[0] == "keras_bert" for name in sys.modules)
np.savez(sys.argv[3], ids=ids, **{name: np.array(value) for name, value in outputs.items()})
"""


@pytest.mark.oracle
@pytest.mark.skipif(not hasattr(keras_nlp.models, "BertTextEmbedder"), reason="KerasHub has no embedder.")
def test_an_embedder_keeps_pooling_normalization_and_length(tmp_path):
    backbone = filled(keras_nlp.models.BertBackbone(**TINY, max_sequence_length=16))
    tokenizer = keras_nlp.models.BertTokenizer(PIECES, lowercase=True)
    preprocessor = keras_nlp.models.BertTextEmbedderPreprocessor(tokenizer, sequence_length=6)
    theirs = keras_nlp.models.BertTextEmbedder(backbone, preprocessor, pooling_mode="max", normalize=False)
    theirs.save_to_preset(str(tmp_path / "p"))
    theirs.save(tmp_path / "p.keras")
    expected = theirs.predict(["a", "b c d e f g h"], verbose=0)
    for path in ("p", "p.keras"):
        ours = BertTextEmbedder.from_preset(str(tmp_path / path))
        assert (ours.pooling, ours.normalize, ours.preprocessor.sequence_length) == ("max", False, 6)
        np.testing.assert_allclose(ours.encode(["a", "b c d e f g h"]), expected, atol=1e-5)


@pytest.mark.oracle
def test_a_classifier_keeps_its_activation(tmp_path):
    backbone = filled(keras_nlp.models.BertBackbone(**TINY))
    theirs = filled(keras_nlp.models.BertTextClassifier(backbone, num_classes=3, activation="softmax", dropout=0.3))
    theirs.save_to_preset(str(tmp_path))
    ours = BertTextClassifier.from_preset(str(tmp_path))
    assert ours.dropout == 0.3
    np.testing.assert_allclose(ours(INPUTS), theirs(INPUTS), atol=1e-5)


def test_what_we_write_needs_nothing_of_ours(tmp_path):
    ours = filled(BertBackbone(**TINY))
    keras_hub.write(str(tmp_path / "p"), checkpoint_of(ours), TOKENIZER)
    np.savez(tmp_path / "inputs.npz", **INPUTS)
    command = [sys.executable, "-c", FRESH, tmp_path / "p", tmp_path / "inputs.npz", tmp_path / "outputs.npz"]
    done = processes.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    outputs = np.load(tmp_path / "outputs.npz")
    same_outputs(ours, lambda inputs: {name: outputs[name] for name in ("sequence_output", "pooled_output")})
    assert outputs["ids"].tolist() == BertTokenizer(PIECES).tokenize("a C! \u00c9").numpy().tolist()
    equal_weights(BertBackbone.from_preset(str(tmp_path / "p")), ours)
    tokenizer = BertTokenizer.from_preset(str(tmp_path / "p"))
    assert tokenizer.get_vocabulary() == PIECES and tokenizer.lowercase


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"activation": "gelu"},
            "its activation is 'gelu', and KerasHub's BertBackbone always computes with 'gelu_tanh'",
        ),
        ({"layer_norm_epsilon": 1e-5}, "its layer_norm_epsilon is 1e-05, and KerasHub's BertBackbone always"),
    ],
)
def test_what_keras_hub_would_compute_otherwise_is_refused(tmp_path, changes, message):
    checkpoint = checkpoint_of(BertBackbone(**TINY, **changes))
    with pytest.raises(InputError, match=message):
        keras_hub.write(str(tmp_path / "p"), checkpoint, None)
    assert not (tmp_path / "p").exists()


def test_heads_that_keras_hub_has_otherwise_stay_behind_with_a_warning(tmp_path, caplog):
    model = filled(BertPretrainer(BertBackbone(**TINY)))
    with caplog.at_level(logging.WARNING, logger="absl"):
        keras_hub.write(str(tmp_path / "p"), checkpoint_of(model), None)
    assert "leaves out masked_lm, next_sentence" in caplog.text and "--to_format=keras keeps all heads" in caplog.text
    assert sorted(os.listdir(tmp_path / "p")) == ["config.json", "metadata.json", "model.weights.h5"]


def test_a_missing_tensor_is_refused(tmp_path):
    few = Checkpoint("google", "some.ckpt", BertConfig(**TINY), {})
    with pytest.raises(InputError, match="some.ckpt: lacks embeddings/token_embedding/embeddings"):
        keras_hub.write(str(tmp_path / "p"), few, None)
    assert not (tmp_path / "p").exists()


def test_keras_models_without_a_bert_are_refused(tmp_path):
    sizes = {**TINY, "max_sequence_length": 16}
    keras_nlp.models.RobertaBackbone(**sizes).save_to_preset(str(tmp_path))
    with pytest.raises(
        InputError, match="expected keras_bert>BertBackbone or keras_hub>BertBackbone, found keras_hub>Rob"
    ):
        BertBackbone.from_preset(str(tmp_path))
    values = json.loads((tmp_path / "config.json").read_text())
    values |= {"registered_name": "keras_hub>BertBackbone", "config": {**values["config"], "num_heads": 3}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(
        InputError, match=r"config.json: no configuration of a keras_hub>BertBackbone \(`num_heads` must"
    ):
        BertBackbone.from_preset(str(tmp_path))
