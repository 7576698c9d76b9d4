"""Hugging Face directories that are damaged, foreign or hostile: each one a clear error, and no code of theirs runs."""

import json
import os
import pickle
import sys

import h5py
import numpy as np
import pytest
from toy_hugging_face import (
    SAFETENSORS,
    TENSORFLOW,
    TORCH,
    copied,
    numpy_state,
    random_model,
    read_all,
    save_tensorflow,
    torch,
)

from keras_bert.errors import InputError

pytestmark = pytest.mark.oracle

WORDS = "bert.embeddings.word_embeddings.weight"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Directories of one model, whole, in shards, in PyTorch's and in TensorFlow's file; only to be read."""
    directory = tmp_path_factory.mktemp("pretrained")
    model = random_model()
    model.save_pretrained(directory / "whole")
    model.save_pretrained(directory / "shards", max_shard_size="4KB")
    model.config.save_pretrained(directory / "torch")
    torch.save(model.state_dict(), directory / "torch" / TORCH)
    model.config.save_pretrained(directory / "tensorflow")
    save_tensorflow(numpy_state(model), directory / "tensorflow")
    return directory


def refused(directory, *phrases):
    with pytest.raises(InputError) as caught:
        read_all(directory)
    message = str(caught.value)
    assert "\n" not in message and str(directory) in message
    for phrase in phrases:
        assert phrase in message


def without(*names):
    return lambda tensors: {name: value for name, value in tensors.items() if name not in names}


def with_words(change):
    return lambda tensors: {**tensors, WORDS: change(tensors[WORDS])}


HALVES = {
    "bert.encoder.layer.1.attention.self.key.bias": "encoder.layer.1.attention.self.key.bias",
    "bert.pooler.dense.weight": "pooler.dense.weight",
    **dict.fromkeys(("cls.predictions.bias", "cls.predictions.transform.dense.bias", "cls.seq_relationship.bias")),
}
DAMAGES = {
    **{
        f"without {name}": (
            {"tensors": without(name)},
            [f"{SAFETENSORS}: lacks {lacking or name}. Expected the weights of a BERT"],
        )
        for name, lacking in HALVES.items()
    },
    "another model": (
        {"tensors": lambda _: {"wte.weight": np.zeros((3, 2), "float32")}},
        ["lacks embeddings.word_embeddings.weight, ", " and 33 more"],
    ),
    "two names for one weight": (
        {"tensors": lambda tensors: {**tensors, WORDS[5:]: tensors[WORDS] + 1}},
        [f"{WORDS[5:]} name one weight"],
    ),
    "quantized": (
        {"tensors": with_words(lambda words: words.astype("int8"))},
        [f"{SAFETENSORS}: {WORDS}: expected floats (F64, F32, F16, BF16), found I8"],
    ),
    "more layers": ({"config": {"num_hidden_layers": 3}}, ["lacks encoder.layer.2.attention.self.query.weight"]),
    "activation": (
        {"config": {"hidden_act": "swish"}},
        ["config.json", "unknown hidden_act 'swish'. Expected one of gelu, gelu_new"],
    ),
    "kind": (
        {"config": {"model_type": "roberta"}},
        ["config.json", "distilbert, electra as model_type, found 'roberta'"],
    ),
    "decoder": ({"config": {"is_decoder": True}}, ["config.json", "expected is_decoder False, found True"]),
}


@pytest.mark.parametrize(("changes", "told"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_and_foreign_directories(pretrained, tmp_path, changes, told):
    refused(copied(pretrained / "whole", tmp_path, **changes), *told)


def test_a_wrong_shape_names_file_tensor_and_both_shapes(pretrained, tmp_path):
    from keras_bert.encoder.backbone import BertBackbone

    directory = copied(pretrained / "whole", tmp_path, tensors=with_words(lambda words: words[:, :15]))
    message = rf"{SAFETENSORS}: {WORDS}: expected shape \(100, 16\) by the configuration, found \(100, 15\)"
    with pytest.raises(InputError, match=message):
        BertBackbone.from_preset(str(directory))


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_an_untied_output_layer_is_refused_by_who_reads_the_head(pretrained, tmp_path, name):
    from keras_bert.presets import weights

    original = {"weight": WORDS, "bias": "cls.predictions.bias"}[name]
    copy = f"cls.predictions.decoder.{name}"
    directory = copied(
        pretrained / "whole", tmp_path, tensors=lambda tensors: {**tensors, copy: tensors[original] + 1e-6}
    )
    refused(directory, f"{SAFETENSORS}: {copy} differs from {original}. Expected BERT's masked-LM head")
    with weights.open_checkpoint(str(directory)) as checkpoint:
        assert checkpoint.tensors["pooled_dense/kernel"].read().shape == (16, 16)


# === Files ===


@pytest.mark.parametrize("kept", [0, 5, 500, -1])
@pytest.mark.parametrize(("form", "name"), [("whole", SAFETENSORS), ("torch", TORCH), ("tensorflow", TENSORFLOW)])
def test_truncated_files(pretrained, tmp_path, form, name, kept):
    directory = copied(pretrained / form, tmp_path)
    size = os.path.getsize(directory / name)
    os.truncate(directory / name, kept if kept >= 0 else size - 1)
    refused(directory, f"{name}: not a whole ", "Fetch it again")


def test_missing_shards_are_all_named(pretrained, tmp_path):
    directory = copied(pretrained / "shards", tmp_path)
    shards = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))
    for name in shards[1:3]:
        os.remove(directory / name)
    refused(directory, f"of the {len(shards)} shards that it lists, missing: {shards[1]}, {shards[2]}. Fetch them")


def test_shards_that_lack_tensors(pretrained, tmp_path):
    directory = copied(pretrained / "shards", tmp_path)
    shards = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))
    os.replace(directory / shards[0], directory / shards[1])
    (directory / shards[0]).write_bytes((directory / shards[1]).read_bytes())
    refused(directory, "index.json: lacks ", "Expected the weights of a BERT")


@pytest.mark.parametrize(
    "shard", ["../outside.safetensors", "/outside.safetensors", "a\\..\\b.safetensors", "a/b.safetensors", "..", ""]
)
def test_an_index_that_leads_outside(pretrained, tmp_path, shard):
    directory = copied(pretrained / "shards", tmp_path / "model")
    (tmp_path / "outside.safetensors").write_bytes((pretrained / "whole" / SAFETENSORS).read_bytes())
    index = directory / f"{SAFETENSORS}.index.json"
    content = json.loads(index.read_text())
    index.write_text(json.dumps({"weight_map": {**content["weight_map"], WORDS: shard}}))
    refused(directory, "index.json: expected `weight_map` to list .safetensors files beside the index", repr(shard))


def test_a_safetensors_index_never_leads_to_a_pickle(pretrained, tmp_path):
    directory = copied(pretrained / "shards", tmp_path)
    (directory / TORCH).write_bytes((pretrained / "torch" / TORCH).read_bytes())
    (directory / f"{SAFETENSORS}.index.json").write_text(json.dumps({"weight_map": {WORDS: TORCH}}))
    refused(directory, f"expected `weight_map` to list .safetensors files beside the index, found '{TORCH}'")


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}'])
def test_an_index_of_something_else(pretrained, tmp_path, content):
    directory = copied(pretrained / "shards", tmp_path)
    (directory / f"{SAFETENSORS}.index.json").write_text(content)
    refused(directory, "index.json: expected ")


# === TensorFlow's file ===

POOLER = "bert/tf_bert_model/bert/pooler/dense/kernel:0"


def _elsewhere(file):
    file[POOLER] = h5py.ExternalLink("/etc/passwd", "0")


def _hollow(file):
    file.create_dataset(POOLER, (2**40, 16), "float32")


def _narrow(file):
    file[POOLER] = np.zeros((16, 15), "float32")


def _deep(file):
    file.create_group("/".join(["group"] * 200))


TENSORFLOW_DAMAGES = {
    "missing": (lambda file: None, f"{TENSORFLOW}: lacks pooler.dense.weight"),
    "link": (_elsewhere, f"{TENSORFLOW}: lacks pooler.dense.weight"),
    "hollow": (_hollow, f"{TENSORFLOW}: truncated, compressed or hostile"),
    "narrow": (_narrow, f"{TENSORFLOW}: {POOLER}: expected shape (16, 16) by the configuration, found (16, 15)"),
    "deep": (_deep, f"{TENSORFLOW}: group/group"),
}


@pytest.mark.parametrize(("change", "told"), TENSORFLOW_DAMAGES.values(), ids=TENSORFLOW_DAMAGES)
def test_damaged_files_of_tensorflow(pretrained, tmp_path, change, told):
    directory = copied(pretrained / "tensorflow", tmp_path)
    with h5py.File(directory / TENSORFLOW, "a") as file:
        del file[POOLER]
        change(file)
    refused(directory, told)


# === PyTorch's file ===


class Evil:
    """Runs a command when it is unpickled by a loader that believes it."""

    def __init__(self, target):
        self.target = str(target)

    def __reduce__(self):
        return os.mkdir, (self.target,)


def _save(content, path):
    torch.save(content, path)


def _save_old(content, path):
    torch.save(content, path, _use_new_zipfile_serialization=False)


def _save_plain_pickle(content, path):
    path.write_bytes(pickle.dumps(content, protocol=2))


def _load_carelessly(path):
    return torch.load(path, weights_only=False)


@pytest.mark.parametrize(
    ("save", "careless_load"),
    [
        (_save, _load_carelessly),
        (_save_old, _load_carelessly),
        (_save_plain_pickle, lambda path: pickle.loads(path.read_bytes())),
    ],
    ids=["zip", "before 1.6", "plain pickle"],
)
def test_a_hostile_pickle_does_not_run(pretrained, tmp_path, save, careless_load):
    directory = copied(pretrained / "torch", tmp_path / "model")
    save({WORDS: Evil(tmp_path / "was here")}, directory / TORCH)
    refused(directory, f"{TORCH}: not a whole PyTorch file of tensors (it names posix.mkdir, which is no part")
    assert not os.path.exists(tmp_path / "was here")
    careless_load(directory / TORCH)
    assert os.path.exists(tmp_path / "was here")  # The file is as hostile as it should be.


@pytest.mark.parametrize("kind", ["list", "numbers", "no names", "tensor"])
def test_other_contents_than_a_state_dict(pretrained, tmp_path, kind):
    tensor = torch.zeros(2)
    content = {"list": [1, 2], "numbers": {"epoch": 3}, "no names": {3: tensor}, "tensor": tensor}[kind]
    directory = copied(pretrained / "torch", tmp_path)
    torch.save(content, directory / TORCH)
    expected = f"expected a model's state_dict, tensors by name, found {type(content).__name__}"
    refused(directory, f"{TORCH}: {'not a whole PyTorch file' if kind == 'no names' else expected}")


def test_tensors_that_are_no_floats(pretrained, tmp_path):
    directory = copied(pretrained / "torch", tmp_path)
    state = torch.load(directory / TORCH, weights_only=True)
    torch.save({**state, WORDS: state[WORDS].char()}, directory / TORCH)
    refused(directory, f"{TORCH}: {WORDS}: expected floats, found int8")


def test_no_torch_is_needed(pretrained, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    np.testing.assert_equal(read_all(pretrained / "torch"), read_all(pretrained / "whole"))


def test_views_of_storages(pretrained, tmp_path):
    """Tensors that begin inside a storage, or go through it by columns, as if converted from TensorFlow."""
    directory = copied(pretrained / "torch", tmp_path)
    state = torch.load(directory / TORCH, weights_only=True)
    wide = torch.stack([state[WORDS].T.contiguous(), torch.zeros_like(state[WORDS].T)])
    torch.save({**state, WORDS: wide[0].T}, directory / TORCH)
    np.testing.assert_equal(read_all(directory), read_all(pretrained / "whole"))
    torch.save({**state, WORDS: state[WORDS][:1].clone().expand(100, 16)}, directory / TORCH)
    refused(directory, f"{TORCH}: not a whole PyTorch file", "a tensor of shape (100, 16) beyond its storage of 16")
