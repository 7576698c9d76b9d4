"""Presets: what a name means, how large each is, which case it has, and the way from a name to weights."""

import dataclasses
import doctest
import functools
import json
import os
import subprocess
import sys
import zipfile

import keras_nlp
import numpy as np
import pytest

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.layer import weights_follow
from keras_bert.errors import InputError
from keras_bert.presets import catalog
from keras_bert.presets.catalog import find_preset, list_presets
from keras_bert.tokenization.preprocessor import BertPreprocessor
from keras_bert.tokenization.tokenizer import BertTokenizer
from keras_bert.vocabulary import case_of_name

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A"]

# Encoder with pooler. The first nine are KerasHub's figures for Google's checkpoints; the next two follow from them, at
# 768 for each WordPiece more or less; whole-word masking changes no size; the rest was counted by hand, layer by layer.
PARAMETERS_OF_GOOGLE = {
    "tiny": 4_385_920,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "cased_L-12_H-768_A-12": 108_310_272,
    "chinese_L-12_H-768_A-12": 102_267_648,
    "multi_cased_L-12_H-768_A-12": 177_853_440,
    "large": 335_141_888,
    "cased_L-24_H-1024_A-16": 333_579_264,
    "multilingual_L-12_H-768_A-12": 177_853_440 - (119_547 - 105_879) * 768,
    "miniature_uncased_L-12_H-768_A-12": 109_482_240,
    "wwm_uncased_L-24_H-1024_A-16": 335_141_888,
    "wwm_cased_L-24_H-1024_A-16": 333_579_264,
    "mini": 11_170_560,
    "uncased_L-2_H-256_A-4": 9_591_040,
    "uncased_L-2_H-512_A-8": 22_458_880,
    "uncased_L-2_H-768_A-12": 38_603_520,
    "uncased_L-4_H-128_A-2": 4_782_464,
    "uncased_L-4_H-768_A-12": 52_779_264,
    "uncased_L-6_H-128_A-2": 5_179_008,
    "uncased_L-6_H-256_A-4": 12_750_080,
    "uncased_L-6_H-512_A-8": 35_068_416,
    "uncased_L-6_H-768_A-12": 66_955_008,
    "uncased_L-8_H-128_A-2": 5_575_552,
    "uncased_L-8_H-256_A-4": 14_329_600,
    "uncased_L-8_H-768_A-12": 81_130_752,
    "uncased_L-10_H-128_A-2": 5_972_096,
    "uncased_L-10_H-256_A-4": 15_909_120,
    "uncased_L-10_H-512_A-8": 47_677_952,
    "uncased_L-10_H-768_A-12": 95_306_496,
    "uncased_L-12_H-128_A-2": 6_368_640,
    "uncased_L-12_H-256_A-4": 17_488_640,
    "uncased_L-12_H-512_A-8": 53_982_720,
}
# E5's have the sizes of Google's and, for the small ones, of MiniLM with 12 layers.
PARAMETERS_OF_E5 = {"small": 33_360_000, "base": 109_482_240, "large": 335_141_888}
PARAMETERS_OF_E5 = {f"e5-{size}{end}": count for size, count in PARAMETERS_OF_E5.items() for end in ("", "-v2")}
# KerasHub 0.32 says 17,066,496, which no BERT of 3 layers of 384 over Google's vocabulary has: its six-layer sister
# (22,713,216 in KerasHub, too) is larger by three layers of 1,774,464.
MISCOUNTED_BY_KERAS_HUB = {"paraphrase_minilm_l3_v2_en": 22_713_216 - 3 * 1_774_464}


# === The table ===


def test_every_checkpoint_of_google_is_there():
    papers = [
        "2018_10_18/uncased_L-12_H-768_A-12",
        "2018_10_18/uncased_L-24_H-1024_A-16",
        "2018_10_18/cased_L-12_H-768_A-12",
        "2018_10_18/cased_L-24_H-1024_A-16",
        "2019_05_30/wwm_uncased_L-24_H-1024_A-16",
        "2019_05_30/wwm_cased_L-24_H-1024_A-16",
        "2018_11_03/multilingual_L-12_H-768_A-12",
        "2018_11_23/multi_cased_L-12_H-768_A-12",
        "2018_11_03/chinese_L-12_H-768_A-12",
    ]
    miniatures = [
        f"2020_02_20/uncased_L-{layers}_H-{hidden}_A-{hidden // 64}"
        for layers in (2, 4, 6, 8, 10, 12)
        for hidden in (128, 256, 512, 768)
    ]
    assert len(papers + miniatures) == 33
    archives = [preset.archive for preset in list_presets() if preset.archive]
    assert sorted(archives) == sorted(f"{name}.zip" for name in papers + miniatures)


def test_parameter_counts_of_google():
    counts = {preset.name: preset.config.num_parameters for preset in list_presets() if preset.archive}
    assert counts == PARAMETERS_OF_GOOGLE


def test_every_preset_of_keras_hub_is_there_with_its_source_and_size():
    theirs = {**keras_nlp.models.BertBackbone.presets}
    assert theirs.pop("multilingual_e5_small")["kaggle_handle"]  # Its vocabulary is SentencePiece's.
    ours = {preset.keras_hub: preset for preset in list_presets() if preset.keras_hub}
    assert set(ours) == set(theirs)
    assert {name: f"kaggle://{preset.kaggle}" for name, preset in ours.items()} == {
        name: preset["kaggle_handle"] for name, preset in theirs.items()
    }
    expected = {name: preset["metadata"]["params"] for name, preset in theirs.items()} | MISCOUNTED_BY_KERAS_HUB
    assert {name: preset.config.num_parameters for name, preset in ours.items()} == expected


def test_each_can_be_built_and_has_the_parameters_that_its_publisher_states():
    stated = {name: preset["metadata"]["params"] for name, preset in keras_nlp.models.BertBackbone.presets.items()}
    stated |= PARAMETERS_OF_GOOGLE | PARAMETERS_OF_E5 | MISCOUNTED_BY_KERAS_HUB

    @functools.cache
    def count(config):
        with weights_follow():  # Drawing weights would take most of the time.
            backbone = BertBackbone.from_config(config.to_dict())
        return backbone.count_params(), backbone.get_layer("transformer_layer_0").count_params()

    for preset in list_presets():
        # All layers are alike: the first tells of the others.
        single, of_layer = count(dataclasses.replace(preset.config, num_layers=1))
        counted = single + (preset.config.num_layers - 1) * of_layer
        assert counted == stated[preset.name], preset.name
    with weights_follow():
        backbone = BertBackbone.from_preset("mini", load_weights=False)
    assert backbone.bert_config == find_preset("mini").config and backbone.count_params() == stated["mini"]
    assert len(list_presets()) == 65


def test_no_two_presets_share_a_name_and_every_name_finds_its_own():
    names = [name for preset in list_presets() for name in preset.names]
    assert len(names) == len(set(names)) > 130
    for preset in list_presets():
        assert all(find_preset(name) is preset for name in preset.names)
        assert preset.names[0] == preset.name and preset.full_name in preset.names
        assert preset.hugging_face or preset.kaggle
    base = find_preset("base")
    assert base.names == ("base", "uncased_L-12_H-768_A-12", "bert_base_en_uncased", "bert-base-uncased")
    assert find_preset("bert_uncased_L-12_H-768_A-12").name == "miniature_uncased_L-12_H-768_A-12"
    assert find_preset("huge") is None


def test_case_and_activation():
    for preset in list_presets():
        said = {case_of_name(name) for name in preset.names} - {None}
        assert said in (set(), {preset.lowercase}), preset.name
        trained_by_google = preset.archive or preset.name == "bert_tiny_en_uncased_sst2"
        assert preset.config.activation == ("gelu_tanh" if trained_by_google else "gelu")
        assert preset.config.intermediate_dim == 4 * preset.config.hidden_dim
    cased = [preset.full_name for preset in list_presets() if preset.lowercase is False]
    assert len(cased) == 4 and all("cased" in name and "uncased" not in name for name in cased)


def test_embedders_have_the_prompts_of_their_publishers(tmp_path):
    prompts = {preset.name: preset.prompts for preset in list_presets() if preset.prompts}
    for_passages = "Represent this sentence for searching relevant passages: "
    assert prompts["e5-base-v2"] == {"query": "query: ", "passage": "passage: "}
    assert prompts["bge_small_v1.5_en"] == prompts["mxbai_embed_large_v1_en"] == {"query": for_passages}
    assert prompts["bge_small_v1.5_zh"] == {"query": "为这个句子生成表示以用于检索相关文章："}
    assert all(name.startswith(("bge_", "mxbai_", "e5-")) for name in prompts) and len(prompts) == 20
    sources = {preset.prompt_source for preset in list_presets() if preset.prompts}
    assert sources == {f"https://huggingface.co/{find_preset(name).hugging_face}" for name in prompts}


def test_a_handle_brings_its_prompts_unless_its_files_have_some(tmp_path, monkeypatch):
    import keras_bert

    place = tmp_path / "intfloat" / "e5-small-v2"
    backbone = BertBackbone(len(PIECES), 1, 2, 8, 16, max_sequence_length=8)
    model = keras_bert.BertTextEmbedder(backbone, BertPreprocessor(BertTokenizer(PIECES), 8), compile=False)
    model.save_to_preset(str(place))
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path))
    read = keras_bert.BertTextEmbedder.from_preset("hf://intfloat/e5-small-v2")
    assert read.prompts == {"query": "query: ", "passage": "passage: "} and read.default_prompt is None
    model = keras_bert.BertTextEmbedder(backbone, model.preprocessor, prompts={"query": "own: "}, compile=False)
    model.save_to_preset(str(place))
    assert keras_bert.BertTextEmbedder.from_preset("hf://intfloat/e5-small-v2").prompts == {"query": "own: "}
    assert keras_bert.BertTextEmbedder.from_preset(place).prompts == {"query": "own: "}


def test_the_list_reads_as_a_table():
    lines = str(list_presets()).splitlines()
    assert len(lines) == 1 + len(list_presets())
    assert max(map(len, lines)) <= 120
    assert lines[0].split() == ["name", "checkpoint", "layers", "hidden", "heads", "parameters", "case"]
    assert [line.split()[0] for line in lines[1:8]] == [
        "tiny",
        "mini",
        "small",
        "medium",
        "base",
        "large",
        "cased_L-12_H-768_A-12",
    ]
    assert lines[5].split() == ["base", "uncased_L-12_H-768_A-12", "12", "768", "12", "109,482,240", "uncased"]
    assert repr(list_presets()) == str(list_presets())


def test_the_list_costs_no_heavy_import_and_docstrings_hold():
    script = (
        "import sys, time; start = time.perf_counter(); import keras_bert; str(keras_bert.list_presets());"
        "seconds = time.perf_counter() - start;"
        "heavy = {'tensorflow', 'keras', 'numpy', 'huggingface_hub', 'kagglehub', 'torch'} & set(sys.modules);"
        "sys.exit(f'{heavy} in {seconds:.2f} s' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert doctest.testmod(catalog).failed == 0


# === Case ===


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
    assert BertTokenizer.from_preset(str(directory)).tokenize("A").numpy().tolist() == [6]
    assert BertTokenizer.from_preset(str(directory), lowercase=True).tokenize("A").numpy().tolist() == [5]
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": true}')
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


# === From a name to weights ===


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small model as transformers publishes it, and what it answers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    directory = tmp_path_factory.mktemp("published")
    torch.manual_seed(0)
    model = transformers.BertModel(
        transformers.BertConfig(
            vocab_size=len(PIECES),
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
            initializer_range=0.5,
            hidden_act="gelu_new",
        )
    ).eval()
    model.save_pretrained(directory)
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    with torch.no_grad():
        return directory, model(torch.tensor([[2, 5, 6, 3]])).pooler_output.numpy()


@pytest.mark.oracle
@pytest.mark.parametrize("place", ["tiny", "uncased_L-2_H-128_A-2.zip", "2020_02_20/uncased_L-2_H-128_A-2.zip"])
def test_from_a_name_to_what_transformers_answers(published, tmp_path, monkeypatch, place):
    directory, expected = published
    monkeypatch.setenv("KERAS_BERT_HOME", str(tmp_path))
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    if place.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for name in os.listdir(directory):
                archive.write(directory / name, f"uncased_L-2_H-128_A-2/{name}")
    else:
        os.symlink(directory, path)
    tokens = np.array([[2, 5, 6, 3]], "int32")
    for name in ("tiny", "bert_tiny_en_uncased"):
        outputs = BertBackbone.from_preset(name)(
            {"token_ids": tokens, "segment_ids": np.zeros_like(tokens), "padding_mask": np.ones_like(tokens)}
        )
        np.testing.assert_allclose(outputs["pooled_output"], expected, atol=2e-5)
        assert BertTokenizer.from_preset(name).tokenize("a").numpy().tolist() == [5]
