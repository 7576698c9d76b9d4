"""What the formats refuse: more layers than the configuration says, JSON of other types, damaged HDF5, other files."""

import json
import os
import random
import shutil
import tarfile
import zipfile

import fuzzing
import google_checkpoints
import h5py
import keras_nlp
import numpy as np
import pytest
import toy_hugging_face
from toy_checkpoints import checkpoint_of

from keras_bert import formats
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.files import read_json, read_object
from keras_bert.formats import google, hugging_face_tokenizer, keras_h5, keras_preset, model_garden, weight_names

TINY = {"vocabulary_size": 50, "num_layers": 3, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
DEEP = "[" * 200_000


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Whole checkpoints by format; tests change copies."""
    root = tmp_path_factory.mktemp("whole")
    toy_hugging_face.random_model("BertForMaskedLM").save_pretrained(str(root / "hugging_face"))
    keras_nlp.models.BertBackbone(**TINY).save_to_preset(str(root / "keras_hub"))
    ours = checkpoint_of(BertBackbone(**TINY))
    keras_preset.write(str(root / "keras_preset"), ours, None)
    google_checkpoints.publish(root / "google")
    return root


@pytest.fixture
def copy(directories, tmp_path):
    return lambda name: shutil.copytree(directories / name, tmp_path / name)


def change(file, function):
    """Rewrites a JSON file by what `function` does to, or makes of, its contents."""
    values = json.loads(file.read_text())
    file.write_text(json.dumps(function(values) or values))


def read_all(path):
    return toy_hugging_face.read_all(path)


def refused(path, *phrases, call=read_all):
    with pytest.raises(InputError) as caught:
        call(str(path))
    for phrase in phrases:
        assert phrase in str(caught.value)
    assert "\n" not in str(caught.value)


# === More in the file than in the configuration ===


def test_layers_beyond_the_configuration_are_refused(copy):
    directory = copy("hugging_face")
    assert "transformer_layer_1/self_attention/output_dense/kernel" in read_all(directory)
    change(directory / "config.json", lambda values: values.update(num_hidden_layers=1))
    refused(directory, "model.safetensors", "holds weights of layer 1, expected 1 layers by config.json")
    for name in ("keras_hub", "keras_preset"):
        directory = copy(name)
        read_all(directory)
        change(directory / "config.json", lambda values: values["config"].update(num_layers=1))
        refused(directory, "model.weights.h5", "holds weights of layer 1, expected 1 layers by config.json")


def test_the_heads_of_keras_hub_must_be_those_of_the_configuration(copy):
    directory = copy("keras_hub")
    change(directory / "config.json", lambda values: values["config"].update(num_heads=4))
    refused(directory, "model.weights.h5", "query/kernel", "expected shape (8, 4, 2)", "found (8, 2, 4)")


# === Which format, which place ===


def test_hugging_face_weights_beside_tensorflow_files_are_hugging_faces(copy):
    directory = copy("hugging_face")
    whole = read_all(directory)
    for file in copy("google").iterdir():
        if file.name.startswith("bert_model.ckpt"):
            shutil.copy(file, directory)
    assert not google.matches(str(directory))
    np.testing.assert_equal(read_all(directory), whole)
    os.rename(directory / "model.safetensors", directory / "pytorch_model.bin")
    assert not google.matches(str(directory))
    google_checkpoints.write_config(directory)
    assert google.matches(str(directory))


def test_a_file_of_another_kind_leads_to_its_directory(copy, tmp_path, monkeypatch):
    directory = copy("hugging_face")
    file = directory / "model.safetensors"
    message = (
        f"{file}: expected a directory, zip, tar, .keras file or the prefix of a TensorFlow checkpoint, found another "
        f"kind of file; its directory may be meant: {directory}"
    )
    refused(file, message)
    monkeypatch.chdir(directory)
    with pytest.raises(InputError, match=r"may be meant: \.$"), formats.located("config.json"):
        pass
    archive = shutil.make_archive(str(tmp_path / "model"), "zip", directory)
    content = open(archive, "rb").read()
    (tmp_path / "cut.zip").write_bytes(content[: len(content) // 2])
    refused(tmp_path / "cut.zip", "cut.zip: not a whole zip file")


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_what_macos_adds_to_an_archive_is_no_folder_of_the_model(copy, tmp_path, kind):
    directory = copy("hugging_face")
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX" / "._config.json").write_bytes(b"\0\5")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    names = ["__MACOSX/._config.json", ".DS_Store", *(f"hugging_face/{name}" for name in os.listdir(directory))]
    archive = tmp_path / f"model.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as file:
            for name in names:
                file.write(tmp_path / name, name)
    else:
        with tarfile.open(archive, "w") as file:
            for name in names:
                file.add(tmp_path / name, name)
    np.testing.assert_equal(read_all(archive), read_all(directory))


def test_the_one_directory_inside_with_a_checkpoint_is_named(copy, tmp_path):
    directory = copy("hugging_face")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    refused(tmp_path, "no BERT checkpoint", f"Did you mean {directory}?", call=formats.find_format)
    copy("google")
    with pytest.raises(InputError) as caught:
        formats.find_format(str(tmp_path))
    assert "Did you mean" not in str(caught.value)


def test_the_model_of_a_training_is_named(tmp_path):
    (tmp_path / "model.keras").touch()
    (tmp_path / "task.json").touch()
    refused(tmp_path, "no BERT checkpoint", f"Did you mean {tmp_path}/model.keras?", call=formats.find_format)


def test_the_output_directory_of_a_training_points_to_its_model(tmp_path):
    """Its checkpoints are one of a TensorFlow format, too, but with the optimizer's state for resuming."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.keras").touch()
    (tmp_path / "checkpoints").mkdir()
    for name in ("checkpoint", "ckpt-9.index", "ckpt-9.data-00000-of-00001"):
        (tmp_path / "checkpoints" / name).touch()
    refused(tmp_path, "no BERT checkpoint", f"Did you mean {tmp_path}/model?", call=formats.find_format)


# === Damaged HDF5 ===


@pytest.mark.slow(keep=["keras_preset"])
@pytest.mark.parametrize("name", ["keras_hub", "keras_preset"])
def test_damaged_hdf5_is_an_input_error_or_harmless(copy, name):
    directory = copy(name)
    file = directory / "model.weights.h5"
    content, places = file.read_bytes(), random.Random(7)
    refusals = set()
    for _ in range(fuzzing.some(200)):
        damaged = bytearray(content)
        start = places.randrange(len(content))
        damaged[start : start + 16] = places.randbytes(len(damaged[start : start + 16]))
        file.write_bytes(damaged)
        try:
            read_all(directory)
        except InputError as error:
            assert str(file) in str(error)
            refusals.add(str(error))
    assert any("not a whole HDF5 file" in message for message in refusals)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "y"),
        RuntimeError("z"),
        ValueError("v"),
        AttributeError("a"),
        TypeError("t"),
        OSError("o"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("place", ["File", "Group.visititems", "Dataset.__getitem__"])
def test_whatever_h5py_raises_names_the_file(copy, monkeypatch, error, place):
    directory = copy("keras_preset")

    def fail(*_, **__):
        raise error

    owner, _, method = place.rpartition(".")
    monkeypatch.setattr(getattr(h5py, owner) if owner else h5py, method, fail)
    reads_array_in_vain = place == "Dataset.__getitem__" and isinstance(error, OSError)
    refused(directory, "model.weights.h5", "cannot be read" if reads_array_in_vain else "not a whole HDF5 file")


def test_an_array_where_a_layer_should_be_is_refused(copy):
    directory = copy("keras_preset")
    with h5py.File(directory / "model.weights.h5", "a") as file:
        del file["layers/dense/vars"]
        file["layers/dense/vars"] = 1.0
    refused(directory, "model.weights.h5: not a whole HDF5 file")


# === JSON of other types ===


@pytest.mark.parametrize("architectures", [[None], [1], 3, "BertModel", {"a": 1}])
def test_architectures_must_be_names(copy, architectures):
    directory = copy("hugging_face")
    change(directory / "config.json", lambda values: values.update(architectures=architectures))
    refused(directory, "config.json: expected architectures to be a list of names", repr(architectures))


@pytest.mark.parametrize(
    "index",
    [
        [],
        1,
        {},
        {"weight_map": 1},
        {"weight_map": []},
        {"weight_map": {"a": 1}},
        {"weight_map": {"a": [None, "b"]}},
        {"weight_map": {"a": "../b.h5"}},
        {"weight_map": {"a": ""}},
    ],
)
def test_an_index_of_shards_must_name_files(copy, index):
    directory = copy("keras_preset")
    os.remove(directory / "model.weights.h5")
    (directory / "model.weights.json").write_text(json.dumps(index))
    refused(directory, "model.weights.json: expected ")


@pytest.mark.parametrize("content", [DEEP, DEEP.replace("[", '{"a":'), "1" * 5000])
def test_json_that_python_cannot_read_names_the_file(tmp_path, content):
    file = tmp_path / "x.json"
    file.write_text(content)
    refused(file, "x.json: not valid JSON", "digits" if content[0] == "1" else "(nested too deeply)", call=read_json)


def test_an_object_is_told_from_other_json(tmp_path):
    file = tmp_path / "x.json"
    file.write_text('{"a": [1]}')
    assert read_object(str(file)) == {"a": [1]}
    for content, kind in (("[1]", "list"), ("null", "NoneType"), ('"a"', "str")):
        file.write_text(content)
        refused(file, f"x.json: expected a JSON object, found {kind}", call=read_object)


@pytest.mark.parametrize(
    ("fast", "message"),
    [
        ([1], "expected a JSON object"),
        ({"normalizer": [1]}, "found 'WordPiece', None"),
        ({"normalizer": "BertNormalizer"}, "expected a BERT tokenizer"),
        ({"normalizer": {"type": [1]}}, "expected a BERT tokenizer"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": "1"}}}, "expected the vocabulary's ids"),
        ({"model": {"type": "WordPiece", "vocab": {"a": 0, "b": None}}}, "expected the vocabulary's ids"),
        ({"model": {"type": "WordPiece", "vocab": ["a"]}}, "expected the vocabulary's ids"),
        ({"normalizer": {"type": "BertNormalizer", "lowercase": [1]}}, "expected do_lower_case to be true or false"),
    ],
)
def test_a_fast_tokenizer_of_other_types_is_refused(tmp_path, fast, message):
    rules = {"normalizer": {"type": "BertNormalizer"}, "pre_tokenizer": {"type": "BertPreTokenizer"}}
    whole = {"model": {"type": "WordPiece", "vocab": {"a": 0}}, **rules}
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole))
    assert hugging_face_tokenizer.read_tokenizer(str(tmp_path))["vocabulary"] == ["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps({**whole, **fast} if isinstance(fast, dict) else fast))
    refused(tmp_path, message, call=hugging_face_tokenizer.read_tokenizer)


@pytest.mark.parametrize("activation", ["[gelu]", "{a: 1}", "3", "swish"])
def test_an_activation_of_another_type_is_refused(tmp_path, activation):
    file = tmp_path / "params.yaml"
    file.write_text(f"task: {{model: {{encoder: {{type: bert, bert: {{hidden_activation: {activation}}}}}}}}}\n")
    refused(file, "params.yaml: unknown hidden_activation", call=model_garden._read_params)


def test_yaml_that_is_nested_too_deeply_is_refused(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("task: " + "[" * 1000)
    refused(file, "params.yaml: expected task.model.encoder", call=model_garden._read_params)


def test_what_is_no_array_is_no_variable(copy):
    directory = copy("keras_preset")
    with h5py.File(directory / "model.weights.h5", "a") as file:
        del file["layers/dense/vars/0"]
        file.create_group("layers/dense/vars/0")
    with keras_h5.open_weights(str(directory), "model", str) as opened:
        tensors = opened.find(weight_names.encoder_sources(weight_names.OURS, 0), "")
        assert "pooled_dense/kernel" not in tensors and tensors["pooled_dense/bias"].shape == (8,)
