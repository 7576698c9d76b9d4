"""Our own preset, in KerasHub's layout: `config.json`, `model.weights.h5`, `tokenizer.json`, `assets/tokenizer/`."""

import contextlib
import os
from collections.abc import Iterator

import h5py

from keras_bert import convert
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_json
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.weights.h5"
TOKENIZER_FILE = "tokenizer.json"
VOCABULARY_FILE = os.path.join("assets", "tokenizer", "vocabulary.txt")


def matches(path: str) -> bool:
    file = os.path.join(path, CONFIG_FILE)
    return os.path.isfile(file) and "registered_name" in read_json(file)


def read_config(path: str) -> BertConfig:
    file = os.path.join(path, CONFIG_FILE)
    values = read_json(file)
    if values["registered_name"] != "keras_bert>BertBackbone":
        raise InputError(f"{file}: expected keras_bert>BertBackbone, found {values['registered_name']}.")
    fields = BertConfig.__dataclass_fields__
    return BertConfig(**{name: value for name, value in values["config"].items() if name in fields})


@contextlib.contextmanager
def open_checkpoint(path: str) -> Iterator[Checkpoint]:
    config = read_config(path)
    file = os.path.join(path, WEIGHTS_FILE)
    if not os.path.isfile(file):
        raise InputError(f"{file}: no such file. Expected the preset's weights beside {CONFIG_FILE}.")
    try:
        stored = h5py.File(file)
    except OSError as error:
        raise InputError(f"{file}: not a whole HDF5 file ({error}).") from error
    with stored:
        tensors = {}
        for source in convert.encoder_sources(convert.GOOGLE, config.num_layers):
            place = _place(source.path)
            tensors[source.path] = StoredTensor(f"{file}: {place}", lambda place=place: stored[place][()])
        yield Checkpoint("keras_preset", path, config, tensors)


def _place(path: str) -> str:
    layer, _, rest = path.partition("/")
    if layer == "embeddings":
        layer = "bert_embeddings"
    elif layer.startswith("transformer_layer_"):
        layer = "bert_encoder_layer" + ("" if layer.endswith("_0") else layer.removeprefix("transformer_layer"))
    elif layer == "pooled_dense":
        layer = "dense"
    *parents, name = rest.split("/")
    return "/".join(["layers", layer, *parents, "vars", "1" if name in ("bias", "beta") else "0"])


def read_tokenizer(path: str) -> dict | None:
    vocabulary = os.path.join(path, VOCABULARY_FILE)
    if not os.path.isfile(vocabulary):
        return None
    config = read_json(os.path.join(path, TOKENIZER_FILE)).get("config", {})
    return {"vocabulary": vocabulary, "lowercase": config.get("lowercase", False)}
