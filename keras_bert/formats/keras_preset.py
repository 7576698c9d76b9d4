"""Our own preset, in KerasHub's layout, and `.keras` files that contain our backbone at any depth.

A preset has `config.json`, `model.weights.h5` (or shards), `tokenizer.json`, `assets/tokenizer/` and, with heads,
`task.json` and `task.weights.h5`. A `.keras` file, unpacked, has the first two of a whole model.
Nothing is deserialised: sizes are read from JSON and arrays from HDF5.
"""

import contextlib
import glob
import os

from absl import logging

from keras_bert.config import LAYOUTS, BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_json, read_optional_json, write_json, write_lines
from keras_bert.formats import keras_model
from keras_bert.formats.checkpoint import Checkpoint, check_whole
from keras_bert.formats.keras_h5 import write_weights
from keras_bert.formats.weight_names import OURS, encoder_sources

WEIGHTS_FILE = "model.weights.h5"
TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILE = os.path.join("assets", "tokenizer", "vocabulary.txt")
BACKBONE = "keras_bert>BertBackbone"
_TOKENIZERS = ("keras_bert>BertTokenizer", "keras_hub>BertTokenizer", "keras_nlp>BertTokenizer")
_DTYPES = ("float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64")
_FLOAT32 = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": None}


def matches(path: str) -> bool:
    return bool(keras_model.registered(read_optional_json(os.path.join(path, keras_model.CONFIG_FILE)), (BACKBONE,)))


def read_config(path: str) -> BertConfig:
    return keras_model.read_sizes(path, (BACKBONE,), BertConfig.__dataclass_fields__)


def read_settings(path: str) -> dict:
    """Returns the settings that the model was saved with, besides its sizes; see `Checkpoint.settings`."""
    model = read_json(os.path.join(path, keras_model.CONFIG_FILE))
    backbone = keras_model.registered(model, (BACKBONE,))[0]["config"]
    values = {"layout": LAYOUTS, "trainable": (False, True)}
    settings = {name: backbone[name] for name, known in values.items() if backbone.get(name) in known}
    dtype = backbone.get("dtype")
    if isinstance(dtype, dict) and dtype.get("class_name") == "DTypePolicy":  # A quantized model has another class.
        dtype = dtype.get("config")
        dtype = dtype.get("name") if isinstance(dtype, dict) else None
    if dtype in _DTYPES:
        settings["dtype"] = dtype
    return settings | keras_model.read_task_settings(path, model)


def open_checkpoint(path: str) -> contextlib.AbstractContextManager[Checkpoint]:
    saved = read_settings(path)
    labels = saved.get("task", {}).get("labels")
    empty = Checkpoint("keras_preset", path, read_config(path), {}, labels, settings=saved)
    return keras_model.open_model(empty, OURS, BACKBONE, _name_of_place)


# Keras numbers the layers of a class, starting with the second.
_PLACES = {"embeddings": "bert_embeddings", "pooled_dense": "dense", "transformer_layer_0": "bert_encoder_layer"}
_NAMES = {place: name for name, place in _PLACES.items()}


def _place_of_name(name: str) -> str:
    return _PLACES.get(name) or name.replace("transformer_layer_", "bert_encoder_layer_")


def _name_of_place(place: str) -> str:
    return _NAMES.get(place) or place.replace("bert_encoder_layer_", "transformer_layer_")


def read_tokenizer(path: str) -> dict | None:
    """Reads the tokenizer of the preset, or the one inside an unpacked `.keras` file."""
    vocabulary = os.path.join(path, VOCABULARY_FILE)
    file = os.path.join(path, TOKENIZER_FILE)
    if not os.path.isfile(vocabulary) or not os.path.isfile(file):
        vocabularies = glob.glob(os.path.join(glob.escape(path), "assets", "**", "vocabulary.txt"), recursive=True)
        file = os.path.join(path, keras_model.CONFIG_FILE)
        if not vocabularies or not os.path.isfile(file):
            return None
        vocabulary = min(vocabularies, key=len)
    tokenizers = keras_model.registered(read_json(file), _TOKENIZERS)
    if not tokenizers:
        raise InputError(f"{file}: expected one of {', '.join(_TOKENIZERS)} for {vocabulary}, found another tokenizer.")
    config = tokenizers[0]["config"]
    settings = {name: bool(config.get(name, False)) for name in ("lowercase", "special_tokens_in_strings")}
    return {"vocabulary": vocabulary, **settings}


# === Writing ===


def write(path: str, checkpoint: Checkpoint, tokenizer: dict | None) -> None:
    """Fills the directory `path` with a preset that KerasHub can read too."""
    sources = encoder_sources(OURS, checkpoint.config.num_layers)
    check_whole(checkpoint.tensors, sources, checkpoint.source)
    if not checkpoint.has_pooler:
        logging.warning("%s: has no pooler, nor has the preset: KerasHub's own reader needs one.", checkpoint.source)
    tensors = {source.path: checkpoint.tensors[source.path] for source in sources if source.path in checkpoint.tensors}
    saved = checkpoint.settings
    dtype = {**_FLOAT32, "config": {"name": saved.get("dtype", "float32")}}
    own = {"name": "bert_backbone", "trainable": saved.get("trainable", True), "dtype": dtype}
    arguments = {**own, **checkpoint.config.to_dict(), "layout": saved.get("layout", "rectangular")}
    backbone = keras_model.serialized("keras_bert.encoder.backbone", "BertBackbone", arguments)
    os.makedirs(path)
    write_json(os.path.join(path, keras_model.CONFIG_FILE), backbone)
    write_weights(os.path.join(path, WEIGHTS_FILE), tensors, _place_of_name)
    described = None if tokenizer is None else _write_tokenizer(path, tokenizer)
    keras_model.write_heads(path, checkpoint, backbone, described)


def _write_tokenizer(path: str, tokenizer: dict) -> dict:
    write_lines(os.path.join(path, VOCABULARY_FILE), tokenizer["vocabulary"])
    config = {
        "name": "bert_tokenizer",
        "trainable": True,
        "dtype": {**_FLOAT32, "config": {"name": "int32"}},
        "config_file": TOKENIZER_FILE,
        "vocabulary": None,
        "lowercase": bool(tokenizer["lowercase"]),
        "special_tokens_in_strings": tokenizer.get("special_tokens_in_strings", False),
    }
    described = keras_model.serialized("keras_bert.tokenization.tokenizer", "BertTokenizer", config)
    write_json(os.path.join(path, TOKENIZER_FILE), described)
    return described
