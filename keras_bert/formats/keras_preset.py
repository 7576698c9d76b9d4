"""Our own preset, in KerasHub's layout, and `.keras` files that hold our backbone anywhere.

A preset has `config.json`, `model.weights.h5` (or shards), `metadata.json`, `tokenizer.json`, `assets/tokenizer/` and,
with heads, `task.json` and `task.weights.h5`. A `.keras` file, unpacked, has the first three of a whole model.
Nothing is deserialised: sizes are read from JSON and arrays from HDF5.
"""

import contextlib
import datetime
import importlib.metadata
import os
from collections.abc import Iterator

from absl import logging

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_json, read_object, write_json
from keras_bert.formats import keras_task
from keras_bert.formats import weight_names as convert
from keras_bert.formats.checkpoint import Checkpoint
from keras_bert.formats.keras_h5 import (
    check_whole,
    find_vocabulary,
    open_weights,
    registered,
    stored_tensors,
    write_weights,
)
from keras_bert.formats.weight_names import AS_HERE, WeightSource

CONFIG_FILE = "config.json"
METADATA_FILE = "metadata.json"
WEIGHTS_FILE = "model.weights.h5"
TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILE = os.path.join("assets", "tokenizer", "vocabulary.txt")
BACKBONE = "keras_bert>BertBackbone"
_TOKENIZERS = ("keras_bert>BertTokenizer", "keras_hub>BertTokenizer", "keras_nlp>BertTokenizer")
_DTYPES = ("float32", "mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64")
_FLOAT32 = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": None}


def matches(path: str) -> bool:
    file = os.path.join(path, CONFIG_FILE)
    return os.path.isfile(file) and bool(registered(read_json(file), (BACKBONE,)))


def read_config(path: str) -> BertConfig:
    file = os.path.join(path, CONFIG_FILE)
    fields = BertConfig.__dataclass_fields__
    found = []
    for backbone in registered(read_json(file), (BACKBONE,)):
        try:
            config = BertConfig(**{name: value for name, value in backbone["config"].items() if name in fields})
        except (InputError, TypeError) as error:
            raise InputError(f"{file}: no configuration of a {BACKBONE} ({error}).") from error
        if config not in found:
            found.append(config)
    if len(found) != 1:
        raise InputError(f"{file}: expected one {BACKBONE}, found {len(found)} of different sizes.")
    return found[0]


def read_settings(path: str) -> dict:
    """How the model was saved, beside its sizes; see `Checkpoint.settings`."""
    model = read_json(os.path.join(path, CONFIG_FILE))
    backbone = registered(model, (BACKBONE,))[0]["config"]
    settings = {
        name: backbone[name]
        for name, kind in (("layout", str), ("trainable", bool))
        if isinstance(backbone.get(name), kind)
    }
    dtype = backbone.get("dtype")
    if isinstance(dtype, dict) and dtype.get("class_name") == "DTypePolicy":  # Not of one that was quantized.
        dtype = dtype.get("config", {}).get("name")
    if dtype in _DTYPES:
        settings["dtype"] = dtype
    task = keras_task.read_settings(path, model)
    return settings | ({"task": task} if task else {})


@contextlib.contextmanager
def open_checkpoint(path: str) -> Iterator[Checkpoint]:
    config = read_config(path)
    sources = _sources(config)
    with contextlib.ExitStack() as stack:
        weights = stack.enter_context(open_weights(path, "model", _name_of_place))
        parents = weights.parents_of("embeddings/token_embedding")
        if len(parents) != 1:
            raise InputError(f"{weights.path}: expected the weights of one {BACKBONE}, found {len(parents)}.")
        tensors = stored_tensors(weights, sources, parents[0])
        check_whole(tensors, sources, weights.path)
        weights.check_depth(parents[0], config.num_layers)
        model = read_json(os.path.join(path, CONFIG_FILE))
        heads, settings = stack.enter_context(keras_task.open_heads(path, model, weights, parents[0]))
        saved = read_settings(path)
        labels = _labels(path) or saved.get("task", {}).get("labels")
        yield Checkpoint("keras_preset", path, config, {**tensors, **heads}, labels, settings, saved)


def _sources(config: BertConfig) -> list[WeightSource]:
    paths = [source.path for source in convert.encoder_sources(convert.GOOGLE, config.num_layers)]
    return [WeightSource(path, (path,), AS_HERE) for path in paths]


def _labels(path: str) -> list[str] | None:
    file = os.path.join(path, METADATA_FILE)
    labels = read_object(file).get("labels") if os.path.isfile(file) else None
    if labels is not None and not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
        raise InputError(f"{file}: expected labels to be a list of names, found {labels!r}.")
    return labels


_PLACES = {"embeddings": "bert_embeddings", "pooled_dense": "dense"}
_NAMES = {place: name for name, place in _PLACES.items()}
_LAYER, _PLACE = "transformer_layer", "bert_encoder_layer"


def _place_of_name(name: str) -> str:
    """Place of a layer of the backbone: Keras counts the layers of a class from the second on."""
    if name.startswith(f"{_LAYER}_"):
        return _PLACE + name.removeprefix(_LAYER).removesuffix("_0" if name == f"{_LAYER}_0" else "")
    return _PLACES.get(name, name)


def _name_of_place(place: str) -> str:
    if place.startswith(_PLACE):
        return _LAYER + (place.removeprefix(_PLACE) or "_0")
    return _NAMES.get(place, place)


def read_tokenizer(path: str) -> dict | None:
    """Says what the preset, or the tokenizer inside an unpacked `.keras` file, has."""
    vocabulary = os.path.join(path, VOCABULARY_FILE)
    file = os.path.join(path, TOKENIZER_FILE)
    if not os.path.isfile(vocabulary) or not os.path.isfile(file):
        vocabulary, file = find_vocabulary(path), os.path.join(path, CONFIG_FILE)
        if vocabulary is None or not os.path.isfile(file):
            return None
    found = registered(read_json(file), _TOKENIZERS)
    if not found:
        raise InputError(f"{file}: expected one of {', '.join(_TOKENIZERS)} for {vocabulary}, found another tokenizer.")
    return {"vocabulary": vocabulary, "lowercase": found[0]["config"].get("lowercase", False)}


# === Writing ===


def write(path: str, checkpoint: Checkpoint, tokenizer: dict | None) -> None:
    """Fills the directory `path` with a preset that KerasHub's reader takes too."""
    sources = _sources(checkpoint.config)
    check_whole(checkpoint.tensors, sources, checkpoint.source)
    if not checkpoint.has_pooler:
        logging.warning("%s: has no pooler, nor has the preset: KerasHub's own reader needs one.", checkpoint.source)
    tensors = {source.path: checkpoint.tensors[source.path] for source in sources if source.path in checkpoint.tensors}
    backbone = _backbone_object(checkpoint.config)
    os.makedirs(path)
    write_json(os.path.join(path, CONFIG_FILE), backbone)
    write_weights(os.path.join(path, WEIGHTS_FILE), tensors, _place_of_name)
    metadata = {
        "keras_version": importlib.metadata.version("keras"),
        "keras_hub_version": importlib.metadata.version("keras-hub"),
        "parameter_count": sum(int(tensor.read().size) for tensor in tensors.values()),
        "date_saved": datetime.datetime.now().strftime("%Y-%m-%d@%H:%M:%S"),
        "tasks": ["MaskedLM", "TextClassifier"],
    }
    labels = {} if checkpoint.labels is None else {"labels": checkpoint.labels}
    write_json(os.path.join(path, METADATA_FILE), {**metadata, **labels})
    described = None if tokenizer is None else _write_tokenizer(path, tokenizer)

    def preprocessor(task: str) -> dict | None:
        return None if described is None else _preprocessor_object(task, described, checkpoint.config)

    keras_task.write_heads(path, checkpoint, backbone, preprocessor)


def _backbone_object(config: BertConfig) -> dict:
    settings = {"name": "bert_backbone", "trainable": True, "dtype": _FLOAT32, **config.to_dict()}
    return {
        "module": "keras_bert.backbone",
        "class_name": "BertBackbone",
        "config": {**settings, "layout": "rectangular"},
        "registered_name": BACKBONE,
    }


def _write_tokenizer(path: str, tokenizer: dict) -> dict:
    vocabulary = os.path.join(path, VOCABULARY_FILE)
    os.makedirs(os.path.dirname(vocabulary))
    with open(vocabulary, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{piece}\n" for piece in tokenizer["vocabulary"])
    described = {
        "module": "keras_bert.tokenization.tokenizer",
        "class_name": "BertTokenizer",
        "config": {
            "name": "bert_tokenizer",
            "trainable": True,
            "dtype": {**_FLOAT32, "config": {"name": "int32"}},
            "config_file": TOKENIZER_FILE,
            "vocabulary": None,
            "lowercase": bool(tokenizer["lowercase"]),
        },
        "registered_name": "keras_bert>BertTokenizer",
    }
    write_json(os.path.join(path, TOKENIZER_FILE), described)
    return described


def _preprocessor_object(task: str, tokenizer: dict, config: BertConfig) -> dict:
    name = "BertPreprocessor" if task == "BertTextClassifier" else f"{task}Preprocessor"
    return {
        "module": "keras_bert.models",
        "class_name": name,
        "config": {"tokenizer": tokenizer, "sequence_length": config.max_sequence_length},
        "registered_name": f"keras_bert>{name}",
    }
