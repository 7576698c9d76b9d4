"""Where presets lie: prepared caches, the user's own directory, and what is said when no place has one."""

import os
import sys
import zipfile

import pytest
from absl import logging
from huggingface_hub import constants
from toy_hub import KERAS_HUB

from keras_bert.errors import InputError
from keras_bert.presets import downloads
from keras_bert.presets.catalog import resolve_preset

TINY_AT_KAGGLE = "keras/bert/keras/bert_tiny_en_uncased/3"
TINY_AT_HUGGING_FACE = "google/bert_uncased_L-2_H-128_A-2"


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Empty caches for this process, which is offline as all tests are."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KAGGLEHUB_CACHE", str(tmp_path / "kaggle"))
    monkeypatch.delenv("KERAS_BERT_HOME", raising=False)
    return tmp_path


def put(directory, *names):
    for name in names:
        path = os.path.join(directory, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write("{}")
    return str(directory)


def test_a_cache_of_hugging_face_that_others_filled(caches):
    model = caches / "cache" / "models--google-bert--bert-base-cased"
    directory = put(model / "snapshots" / "abc", "vocab.txt")
    put(model, "refs/main")
    (model / "refs" / "main").write_text("abc")
    for name in ("cased_L-12_H-768_A-12", "bert_base_en", "bert-base-cased", "hf://google-bert/bert-base-cased"):
        assert resolve_preset(name, "tokenizer") == directory
        with pytest.raises(InputError, match=r"Hugging Face's cache of \S+ \(lacks a configuration"):
            resolve_preset(name, "weights")
    put(directory, "config.json", "model.safetensors")
    assert resolve_preset("bert_base_en", "weights") == directory
    assert resolve_preset("hf://google-bert/bert-base-cased@abc", "weights") == directory
    # As `huggingface_hub` leaves it: a link to the blob. One that hangs in the air is no file.
    os.remove(os.path.join(directory, "model.safetensors"))
    os.symlink("../../blobs/0123", os.path.join(directory, "model.safetensors"))
    with pytest.raises(InputError, match=r"\(lacks weights"):
        resolve_preset("bert_base_en", "weights")


@pytest.mark.parametrize("whole", [True, False])
def test_a_cache_of_kaggle_that_keras_hub_filled(caches, whole):
    model = caches / "kaggle" / "models" / "keras" / "bge" / "keras" / "bge_small_en"
    directory = put(model / "1", *KERAS_HUB)
    with pytest.raises(InputError, match=r"Kaggle's cache of keras/bge/keras/bge_small_en/1 \(lacks"):
        resolve_preset("bge_small_en", "weights")  # no mark yet: the files may be halves
    put(model, *(["1.complete"] if whole else [f".complete/1/{name}.complete" for name in KERAS_HUB]))
    for purpose in ("config", "weights", "tokenizer"):
        assert resolve_preset("bge_small_en", purpose) == directory
        assert resolve_preset("kaggle://keras/bge/keras/bge_small_en", purpose) == directory


# === The user's own directory ===


@pytest.mark.parametrize(
    "files",
    [
        ("config.json", "model.safetensors"),
        ("config.json", "model.weights.h5"),
        ("config.json", "model.safetensors.index.json", "model-00001-of-00001.safetensors"),
        ("bert_config.json", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"),
        ("bert_config.json", "bert_model.ckpt-1.index", "bert_model.ckpt-1.data-00000-of-00002"),
        ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"),
    ],
)
@pytest.mark.parametrize("pack", ["directory", "zip", "nested zip"])
def test_home_serves_every_format_by_every_name(caches, monkeypatch, files, pack):
    monkeypatch.setenv("KERAS_BERT_HOME", str(caches))
    for name in ("base", "uncased_L-12_H-768_A-12", "2018_10_18/uncased_L-12_H-768_A-12"):
        path = put(caches / name, *files)
        if pack != "directory":
            path = zipped(path, "uncased_L-12_H-768_A-12/" if pack == "nested zip" else "")
        assert resolve_preset("bert_base_en_uncased", "weights") == path
        assert resolve_preset("base", "config") == path
        with pytest.raises(InputError, match=r"lacks a vocabulary .*Put a directory with vocab.txt at"):
            resolve_preset("base", "tokenizer")
        os.rename(path, path + ".away")


def zipped(directory, folder):
    """Packs a directory into a zip beside it, and removes it."""
    with zipfile.ZipFile(f"{directory}.zip", "w") as archive:
        for parent, _, names in os.walk(directory):
            for name in names:
                path = os.path.join(parent, name)
                archive.write(path, folder + os.path.relpath(path, directory))
                os.remove(path)
    return f"{directory}.zip"


def test_the_miniature_of_bases_size_is_not_the_base(caches, monkeypatch):
    monkeypatch.setenv("KERAS_BERT_HOME", str(caches))
    base = put(caches / "uncased_L-12_H-768_A-12", "config.json", "model.safetensors")
    with pytest.raises(InputError, match="2020_02_20/uncased_L-12_H-768_A-12.zip at .*/miniature_uncased_L-12_H-768_A"):
        resolve_preset("miniature_uncased_L-12_H-768_A-12", "weights")
    miniature = put(caches / "2020_02_20" / "uncased_L-12_H-768_A-12", "config.json", "model.safetensors")
    assert resolve_preset("miniature_uncased_L-12_H-768_A-12", "weights") == miniature
    assert resolve_preset("base", "weights") == base


def test_home_without_what_is_needed_is_passed_over_with_a_warning(caches, monkeypatch):
    monkeypatch.setenv("KERAS_BERT_HOME", str(caches))
    warnings = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: warnings.append(text % values))
    partial = put(caches / "tiny", "config.json", "vocab.txt")
    (caches / "uncased_L-2_H-128_A-2.zip").write_text("no zip")
    with pytest.raises(InputError, match=r"not a whole zip file.*Hugging Face's cache"):
        resolve_preset("tiny", "weights")
    assert warnings == [
        f"{partial}: not used (lacks weights (model.safetensors)).",
        f"{caches / 'uncased_L-2_H-128_A-2.zip'}: not used (not a whole zip file (File is not a zip file). Fetch it "
        "again.).",
    ]
    assert resolve_preset("tiny", "tokenizer") == partial
    model = put(caches / "toy" / "bert", "config.json")
    assert resolve_preset("hf://toy/bert", "config") == model


# === No place at all ===


def test_nowhere_lists_every_place_and_the_cure(caches, monkeypatch):
    with pytest.raises(InputError) as caught:
        resolve_preset("tiny", "weights")
    assert str(caught.value) == (
        f"tiny: weights not found. Tried: $KERAS_BERT_HOME (not set); installed packages (none carries it); "
        f"Hugging Face's cache of {TINY_AT_HUGGING_FACE} (not there); Kaggle's cache of {TINY_AT_KAGGLE} (not there); "
        f"download of {TINY_AT_HUGGING_FACE} from Hugging Face (HF_HUB_OFFLINE is set); "
        f"download of {TINY_AT_KAGGLE} from Kaggle (HF_HUB_OFFLINE is set). "
        "Put a directory with config.json, model.safetensors and vocab.txt at $KERAS_BERT_HOME/tiny, or Google's "
        "archive 2020_02_20/uncased_L-2_H-128_A-2.zip at $KERAS_BERT_HOME/uncased_L-2_H-128_A-2.zip, or pass "
        "load_weights=False for the architecture alone."
    )
    monkeypatch.setenv("KERAS_BERT_HOME", str(caches))
    with pytest.raises(
        InputError, match=rf"Tried: {caches}: toy/bert, as a directory or .zip \(not there\); installed"
    ):
        resolve_preset("hf://toy/bert", "weights")


@pytest.mark.parametrize(
    "preset, message",
    [
        ("bert-huge", "bert-huge: no such directory, and no preset of that name. .*one of tiny, mini, small"),
        ("bert-base-uncasd", "Close to it: bert-base-uncased, bert-base-cased"),
        ("bert_tiny_uncased", "Close to it: bert_tiny_en_uncased"),
        ("multilingual_e5_small", "no preset of that name"),  # Its vocabulary is SentencePiece's.
        ("./runs/none", "no such directory"),
        ("hf://", r"not a handle. Expected hf://owner/name\[@revision\]"),
        ("hf://a/b/c", "not a handle"),
        ("kaggle://keras/bert", r"Expected kaggle://owner/model/framework/variation\[/version\]"),
    ],
)
def test_what_is_no_preset(preset, message):
    with pytest.raises(InputError, match=message):
        resolve_preset(preset)


def test_a_path_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "model.ckpt.index", "base/config.json")
    for path in (str(tmp_path), "model.ckpt", "base"):
        assert resolve_preset(path, "weights") == path


def test_a_missing_library_is_a_reason_like_another(caches, monkeypatch):
    monkeypatch.setitem(sys.modules, "kagglehub.cache", None)
    with pytest.raises(InputError, match=r"Kaggle's cache of \S+ \(ModuleNotFoundError: .*kagglehub"):
        resolve_preset("bge_small_en", "weights")


@pytest.mark.parametrize(
    "files, whole",
    [
        (("vocab.txt",), True),
        (("tokenizer.json", "tokenizer_config.json"), True),  # transformers 5
        (("tokenizer.json", "config.json", "model.weights.h5"), False),  # KerasHub, without its assets
        (("config.json", "assets/layers/tokenizer/vocabulary.txt"), True),  # a `.keras` file
        (("saved_model.pb", "assets/vocab_of_its_own.txt"), True),
        (("config.json", "sentencepiece.bpe.model"), False),
    ],
)
def test_what_counts_as_a_vocabulary(caches, monkeypatch, files, whole):
    monkeypatch.setenv("KERAS_BERT_HOME", str(caches))
    path = put(caches / "tiny", *files)
    if whole:
        assert resolve_preset("tiny", "tokenizer") == path
    else:
        with pytest.raises(InputError, match=r"tiny \(lacks a vocabulary \(vocab.txt\)\)"):
            resolve_preset("tiny", "tokenizer")


def test_what_kaggle_is_asked_for_satisfies_the_purpose():
    for purpose, files in downloads._AT_KAGGLE.items():
        assert downloads._lacks(files, purpose) == ""
        assert all(downloads._lacks(set(files) - {name}, purpose) for name in files if name != "tokenizer.json")
