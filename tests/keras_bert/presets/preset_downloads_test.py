"""Downloads of presets, from a local server that errs in the ways of networks."""

import os
import sys

import processes
import pytest
from repository import ROOT
from toy_hub import HUGGING_FACE, KERAS_HUB, SMALL, ToyHub

from keras_bert.errors import InputError

# Both libraries read their settings at import, and kagglehub has none for its server: each download is a process, which
# imports them anew. What they need has been imported before the fork. kagglehub asks all modules who called it, so that
# the large ones go.
SCRIPT = """
import os, sys
for name in list(sys.modules):
    if name.partition(".")[0] in {"huggingface_hub", "kagglehub", "tensorflow", "keras", "keras_hub", "scipy"}:
        del sys.modules[name]
from kagglesdk import kaggle_env
kaggle_env._env_to_endpoint[kaggle_env.KaggleEnv.PROD] = os.environ["HF_ENDPOINT"]
from keras_bert.errors import InputError
from keras_bert.presets.catalog import resolve_preset
try:
    print("path=" + resolve_preset(*sys.argv[1:]))
except InputError as error:
    print("error=" + str(error))
"""
LARGE = bytes(range(256)) * (24 << 12)  # 24 MiB: both libraries write whole chunks, of 10 and 1 MiB
TINY_AT_KAGGLE = "keras/bert/keras/bert_tiny_en_uncased/3"
TINY_AT_HUGGING_FACE = "google/bert_uncased_L-2_H-128_A-2"


@pytest.fixture
def hub():
    hub = ToyHub()
    yield hub
    hub.close()


@pytest.fixture
def resolve(hub, tmp_path):
    """Calls `resolve_preset` in a process that knows the toy server and the caches `resolve.cache` and `.kaggle`."""

    def call(preset, purpose="weights", **environment):
        done = processes.run(
            [sys.executable, "-c", SCRIPT, preset, purpose],
            env={
                **{name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_HOME")},
                "HF_ENDPOINT": hub.url,
                "HF_HUB_CACHE": str(tmp_path / "cache"),
                "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                "KAGGLEHUB_CACHE": str(tmp_path / "kaggle"),
                "HOME": str(tmp_path),
                "NO_PROXY": "127.0.0.1",
                "PYTHONPATH": ROOT,
                **environment,
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        kind, _, text = done.stdout.strip().splitlines()[-1].partition("=")
        if kind == "error":
            raise InputError(text)
        return text

    call.cache, call.kaggle = tmp_path / "cache", tmp_path / "kaggle"
    return call


def content(directory, name):
    with open(os.path.join(directory, name), "rb") as file:
        return file.read()


# === Downloads from Hugging Face ===


def test_only_what_the_purpose_needs_is_downloaded_and_once(hub, resolve):
    hub.models["toy/bert"] = HUGGING_FACE
    assert content(resolve("hf://toy/bert", "config"), "config.json") == b"{}"
    assert hub.fetched() == ["config.json"]
    assert content(resolve("hf://toy/bert", "weights"), "model.safetensors") == b"weights"
    assert hub.fetched() == ["model.safetensors"]
    directory = resolve("hf://toy/bert", "tokenizer")
    assert sorted(hub.fetched()) == ["tokenizer_config.json", "vocab.txt"]
    for purpose in ("config", "weights", "tokenizer"):
        assert resolve("hf://toy/bert", purpose, HF_HUB_OFFLINE="1") == directory
    assert hub.requests == []


def test_what_else_says_how_texts_are_split_comes_along(hub, resolve):
    names = ("added_tokens.json", "special_tokens_map.json", "sentence_bert_config.json")
    added = {name: name.encode() for name in names}
    hub.models["toy/added"] = {**HUGGING_FACE, **added}
    resolve("hf://toy/added", "tokenizer")
    assert sorted(hub.fetched()) == sorted(["tokenizer_config.json", "vocab.txt", *added])


def test_what_sentence_transformers_adds_comes_along(hub, resolve):
    small = ("modules.json", "config_sentence_transformers.json", "1_Pooling/config.json", "2_Dense/config.json")
    more = {name: name.encode() for name in (*small, "onnx/model.onnx")} | {"2_Dense/model.safetensors": b"dense"}
    hub.models["toy/embedder"] = {**HUGGING_FACE, **more}
    resolve("hf://toy/embedder", "config")
    assert sorted(hub.fetched()) == sorted(["config.json", *small])
    assert content(resolve("hf://toy/embedder", "weights"), "2_Dense/model.safetensors") == b"dense"
    assert sorted(hub.fetched()) == ["2_Dense/model.safetensors", "model.safetensors"]
    hub.models["toy/damaged"] = {**HUGGING_FACE, "2_Dense/model.safetensors": b"other"}
    hub.faults["2_Dense/model.safetensors"] = "corrupt"
    with pytest.raises(InputError, match="2_Dense/model.safetensors arrived damaged"):
        resolve("hf://toy/damaged", "weights")


def test_a_revision_is_another_copy(hub, resolve):
    hub.models = {"toy/bert": HUGGING_FACE, "toy/bert@v2": {**HUGGING_FACE, "model.safetensors": b"second"}}
    assert content(resolve("hf://toy/bert@v2"), "model.safetensors") == b"second"
    assert content(resolve("hf://toy/bert"), "model.safetensors") == b"weights"
    assert content(resolve("hf://toy/bert@v2", HF_HUB_OFFLINE="1"), "model.safetensors") == b"second"


def test_a_pickle_is_fetched_only_where_there_is_nothing_else(hub, resolve):
    hub.models["toy/old"] = {**SMALL, "tf_model.h5": b"keras 2"}
    assert content(resolve("hf://toy/old"), "tf_model.h5") == b"keras 2"
    hub.models["toy/bert"] = {**SMALL, "pytorch_model.bin": b"pickle", "tf_model.h5": b"keras 2"}
    assert content(resolve("hf://toy/bert"), "pytorch_model.bin") == b"pickle"
    assert hub.fetched().count("tf_model.h5") == 1
    hub.models["toy/both"] = HUGGING_FACE
    resolve("hf://toy/both")
    assert "pytorch_model.bin" not in hub.fetched()


def test_shards_come_all_or_do_not_count(hub, resolve):
    shards = {f"model-0000{part}-of-00003.safetensors": b"part%d" % part for part in (1, 2, 3)}
    hub.models["toy/bert"] = {**SMALL, **shards, "model.safetensors.index.json": b'{"metadata": {}}'}
    directory = resolve("hf://toy/bert")
    assert sorted(hub.fetched()) == sorted([*shards, "config.json", "model.safetensors.index.json"])
    os.remove(os.path.join(directory, "model-00002-of-00003.safetensors"))
    with pytest.raises(InputError, match=r"Hugging Face's cache of toy/bert \(lacks weights"):
        resolve("hf://toy/bert", HF_HUB_OFFLINE="1")


def test_keras_hubs_format_at_hugging_face(hub, resolve):
    hub.models["keras/toy"] = KERAS_HUB
    assert content(resolve("hf://keras/toy", "weights"), "model.weights.h5") == b"weights"
    assert sorted(hub.fetched()) == ["config.json", "model.weights.h5"]
    resolve("hf://keras/toy", "tokenizer")
    assert sorted(hub.fetched()) == ["assets/tokenizer/vocabulary.txt", "tokenizer.json"]


def test_a_broken_connection_is_resumed_where_it_broke(hub, resolve):
    hub.models["toy/bert"] = {**HUGGING_FACE, "model.safetensors": LARGE}
    hub.faults["model.safetensors"] = "cut"
    assert content(resolve("hf://toy/bert"), "model.safetensors") == LARGE
    ranges = [asked for method, name, asked in hub.requests if (method, name) == ("GET", "model.safetensors")]
    assert ranges == [None, f"bytes={10 << 20}-"]


def test_a_failed_download_says_why_and_the_next_fetches_the_rest(hub, resolve):
    hub.models["toy/bert"] = HUGGING_FACE
    hub.faults["model.safetensors"] = "error"
    with pytest.raises(InputError, match=r"download of toy/bert from Hugging Face \(HfHubHTTPError: .*500"):
        resolve("hf://toy/bert")
    assert "config.json" in hub.fetched()
    resolve("hf://toy/bert")
    assert hub.fetched() == ["model.safetensors"]


@pytest.mark.slow(keep=["corrupt"])
@pytest.mark.parametrize(
    "fault, reason",
    [
        ("corrupt", r"model.safetensors arrived damaged: expected SHA-256 [0-9a-f]{64}, received [0-9a-f]{64}"),
        ("short", "file should be of size 7 but has size 6"),
    ],
    ids=["corrupt", "short"],
)
def test_a_damaged_download_is_refused_and_not_kept(hub, resolve, fault, reason):
    hub.models["toy/bert"] = HUGGING_FACE
    hub.faults["model.safetensors"] = fault
    with pytest.raises(InputError, match=reason):
        resolve("hf://toy/bert")
    assert not [name for _, _, names in os.walk(resolve.cache) for name in names if name == "model.safetensors"]
    with pytest.raises(InputError, match=r"cache of toy/bert \(lacks weights"):
        resolve("hf://toy/bert", HF_HUB_OFFLINE="1")
    assert content(resolve("hf://toy/bert"), "model.safetensors") == b"weights"


def test_no_such_repository_and_no_such_revision(hub, resolve):
    hub.models["toy/bert"] = HUGGING_FACE
    with pytest.raises(InputError, match=r"hf://toy/none: weights not found.*RepositoryNotFoundError: 404"):
        resolve("hf://toy/none")
    with pytest.raises(InputError, match=r"hf://toy/bert@v9: weights not found.*404"):
        resolve("hf://toy/bert@v9")


# === Downloads from Kaggle ===


def test_a_name_of_keras_hub_asks_kaggle_and_other_names_hugging_face(hub, resolve):
    hub.models[TINY_AT_HUGGING_FACE] = HUGGING_FACE
    hub.kaggle[TINY_AT_KAGGLE] = KERAS_HUB
    directory = resolve("bert_tiny_en_uncased")
    assert directory == str(resolve.kaggle / "models" / TINY_AT_KAGGLE)
    assert hub.fetched() == ["config.json", "model.weights.h5"]
    assert resolve("bert_tiny_en_uncased", "tokenizer") == directory
    assert hub.fetched() == ["tokenizer.json", "assets/tokenizer/vocabulary.txt"]
    # Whatever the name: what is cached anywhere goes before a download.
    assert resolve("tiny") == directory
    assert hub.requests == []
    assert resolve("hf://" + TINY_AT_HUGGING_FACE).startswith(str(resolve.cache))


def test_each_server_stands_in_for_the_other(hub, resolve):
    hub.kaggle[TINY_AT_KAGGLE] = KERAS_HUB
    assert resolve("tiny") == str(resolve.kaggle / "models" / TINY_AT_KAGGLE)
    hub.kaggle.clear()
    hub.models["google-bert/bert-base-cased"] = HUGGING_FACE
    assert resolve("bert_base_en").startswith(str(resolve.cache))


def test_a_preset_with_a_head_brings_it(hub, resolve):
    hub.kaggle["keras/bert/keras/bert_tiny_en_uncased_sst2/5"] = {
        **KERAS_HUB,
        "task.json": b"{}",
        "task.weights.h5": b"h",
    }
    assert content(resolve("bert_tiny_en_uncased_sst2"), "task.weights.h5") == b"h"


def test_a_broken_download_from_kaggle_does_not_count_and_is_resumed(hub, resolve):
    hub.kaggle[TINY_AT_KAGGLE] = {**KERAS_HUB, "model.weights.h5": LARGE}
    hub.faults["model.weights.h5"] = "cut"
    with pytest.raises(InputError, match=r"download of keras/bert/\S+ from Kaggle \(\w+Error: .*IncompleteRead"):
        resolve("kaggle://" + TINY_AT_KAGGLE)
    with pytest.raises(InputError, match=r"Kaggle's cache of \S+ \(lacks weights .*HF_HUB_OFFLINE is set"):
        resolve("kaggle://" + TINY_AT_KAGGLE, HF_HUB_OFFLINE="1")
    hub.requests.clear()
    assert content(resolve("kaggle://" + TINY_AT_KAGGLE), "model.weights.h5") == LARGE
    assert ("GET", "model.weights.h5", f"bytes={len(LARGE) // 2}-") in hub.requests


def test_a_wrong_checksum_at_kaggle(hub, resolve):
    hub.kaggle[TINY_AT_KAGGLE] = KERAS_HUB
    hub.faults["model.weights.h5"] = "corrupt"
    with pytest.raises(InputError, match="DataCorruptionError: The X-Goog-Hash header"):
        resolve("kaggle://" + TINY_AT_KAGGLE)
    assert content(resolve("kaggle://" + TINY_AT_KAGGLE), "model.weights.h5") == b"weights"


def test_without_a_version_the_newest_at_kaggle_or_in_its_cache(hub, resolve):
    hub.kaggle = {"me/bert/keras/toy/2": KERAS_HUB, "me/bert/keras/toy/10": KERAS_HUB}
    assert resolve("kaggle://me/bert/keras/toy/2").endswith("toy/2")
    assert resolve("kaggle://me/bert/keras/toy/10").endswith("toy/10")
    assert resolve("kaggle://me/bert/keras/toy", HF_HUB_OFFLINE="1").endswith("toy/10")
