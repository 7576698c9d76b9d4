"""Presets: what a name means, where its files may lie, and a case that contradicts the name."""

import json
import os

import huggingface_hub
import pytest

from keras_bert.casing import case_of_name
from keras_bert.errors import InputError
from keras_bert.preprocessor import BertPreprocessor
from keras_bert.presets import find_preset, list_presets, resolve_preset
from keras_bert.tokenizer import BertTokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A"]


def test_short_and_full_names_mean_the_same():
    assert find_preset("base") is find_preset("uncased_L-12_H-768_A-12")
    assert find_preset("huge") is None
    assert [preset.name for preset in list_presets()] == ["tiny", "mini", "small", "medium", "base", "large"]
    lines = str(list_presets()).splitlines()
    assert lines[0].split() == ["name", "checkpoint", "layers", "hidden", "heads", "parameters", "cased"]
    assert lines[5].split() == ["base", "uncased_L-12_H-768_A-12", "12", "768", "12", "109,482,240", "no"]


@pytest.mark.parametrize(
    "name, lowercase",
    [
        ("uncased_L-12_H-768_A-12", True),
        ("/models/cased_L-24_H-1024_A-16/", False),
        ("multi_cased_L-12_H-768_A-12", False),
        ("multilingual_L-12_H-768_A-12", True),
        ("chinese_L-12_H-768_A-12", True),
        ("wwm_uncased_L-24_H-1024_A-16", True),
        ("wwm_cased_L-24_H-1024_A-16", False),
        ("hf://google-bert/bert-base-cased", False),
        ("hf://google-bert/bert-base-uncased", True),
        ("base", None),
        ("runs/increased", None),
    ],
)
def test_the_case_that_a_name_says(name, lowercase):
    assert case_of_name(name) is lowercase


def test_a_case_that_contradicts_the_name_is_refused(tmp_path):
    directory = tmp_path / "cased_L-2_H-128_A-2"
    directory.mkdir()
    (directory / "vocab.txt").write_text("\n".join(PIECES))
    with pytest.raises(InputError, match="by its name the checkpoint is cased, but lowercase=True"):
        BertTokenizer.from_preset(str(directory))
    assert BertTokenizer.from_preset(str(directory), lowercase=False).tokenize("A").numpy().tolist() == [6]


def _preset_with(directory, positions):
    BertTokenizer(PIECES).save_to_preset(str(directory))
    sizes = {
        "vocab_size": 7,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "hidden_size": 8,
        "intermediate_size": 8,
    }
    (directory / "config.json").write_text(json.dumps({**sizes, "max_position_embeddings": positions}))


def test_the_preprocessor_is_as_long_as_the_encoder(tmp_path):
    _preset_with(tmp_path, positions=16)
    assert BertPreprocessor.from_preset(str(tmp_path)).sequence_length == 16
    assert BertPreprocessor.from_preset(str(tmp_path), sequence_length=8).sequence_length == 8
    with pytest.raises(InputError, match="has positions for 16 tokens. Received: sequence_length=17"):
        BertPreprocessor.from_preset(str(tmp_path), sequence_length=17)
    os.remove(tmp_path / "config.json")
    assert BertPreprocessor.from_preset(str(tmp_path)).sequence_length == 512


def test_a_cached_copy_without_the_weights_does_not_stop_the_download(tmp_path, monkeypatch):
    monkeypatch.delenv("KERAS_BERT_HOME", raising=False)
    asked = []
    for name, files in (("cache", ["config.json", "vocab.txt"]), ("hub", ["config.json", "model.safetensors"])):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_text("{}")

    def snapshot(handle, allow_patterns, local_files_only):
        asked.append((handle, local_files_only))
        return str(tmp_path / ("cache" if local_files_only else "hub"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    handle = "google/bert_uncased_L-2_H-128_A-2"
    needs = ("config.json", "model.safetensors")
    assert resolve_preset("tiny", needs) == str(tmp_path / "hub")
    assert asked == [(handle, True), (handle, False)]
    assert resolve_preset("tiny", ("vocab.txt",)) == str(tmp_path / "cache")
    with pytest.raises(InputError, match=r"tokenizer.model not found. Tried: .*\(lacks tokenizer.model\)"):
        resolve_preset("hf://some/bert", ("tokenizer.model",))
