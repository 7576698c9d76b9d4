"""Reading a preset's configuration and weights from its directory, whatever its format."""

import os

import keras
import numpy as np

from keras_bert import presets
from keras_bert.config import BertConfig
from keras_bert.convert import KERNEL, hugging_face_name, hugging_face_sources
from keras_bert.errors import InputError
from keras_bert.files import read_json

CONFIG_FILE = "config.json"
KERAS_WEIGHTS_FILE = "model.weights.h5"
HUGGING_FACE_WEIGHTS_FILE = "model.safetensors"
# How a model was run when it was saved says nothing about how it will be run.
_NOT_OF_THE_CHECKPOINT = ("dtype", "trainable", "layout")


def load_backbone(cls, preset: str, load_weights: bool = True, dtype=None, **overrides):
    """Builds a backbone of class `cls` from a preset; see `BertBackbone.from_preset`."""
    known = presets.find_preset(preset)
    if known is not None and not load_weights and not os.path.isdir(preset):
        return cls(**_merged(known.config, overrides, preset), dtype=dtype)
    directory = presets.resolve_preset(preset, needs=(CONFIG_FILE, HUGGING_FACE_WEIGHTS_FILE)[: 1 + load_weights])
    values = _read_config(directory)
    if "registered_name" in values:
        settings = {name: value for name, value in values["config"].items() if name not in _NOT_OF_THE_CHECKPOINT}
        backbone = cls(**{**settings, **overrides}, dtype=dtype)
        load = _load_keras_weights
    else:
        config = BertConfig.from_json_file(os.path.join(directory, CONFIG_FILE))
        backbone = cls(**_merged(config, overrides, preset), dtype=dtype)
        load = _load_hugging_face_weights
    if load_weights:
        load(backbone, directory)
    return backbone


def read_bert_config(preset: str) -> BertConfig:
    """Returns the sizes of a preset without building a model.

    Raises:
        InputError: as `load_backbone`.
    """
    known = presets.find_preset(preset)
    if known is not None and not os.path.isdir(preset):
        return known.config
    directory = presets.resolve_preset(preset)
    values = _read_config(directory)
    if "registered_name" not in values:
        return BertConfig.from_json_file(os.path.join(directory, CONFIG_FILE))
    fields = BertConfig.__dataclass_fields__
    return BertConfig(**{name: value for name, value in values["config"].items() if name in fields})


def _merged(config: BertConfig, overrides: dict, preset: str) -> dict:
    ours = {name: value for name, value in overrides.items() if name in BertConfig.__dataclass_fields__}
    others = {name: value for name, value in overrides.items() if name not in ours}  # layout, name, trainable
    try:
        return {**config.replace(**ours).to_dict(), **others}
    except InputError as error:
        raise InputError(f"{preset}: {error}") from error


def _read_config(directory: str) -> dict:
    path = os.path.join(directory, CONFIG_FILE)
    if not os.path.isfile(path):
        found = ", ".join(sorted(os.listdir(directory))[:8]) or "nothing"
        raise InputError(f"{path}: no such file. A preset's directory needs it; {directory} holds {found}.")
    values = read_json(path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a JSON object, found {type(values).__name__}.")
    if "registered_name" in values and values["registered_name"] != "keras_bert>BertBackbone":
        raise InputError(f"{path}: expected keras_bert>BertBackbone, found {values['registered_name']}.")
    return values


def _load_keras_weights(backbone: keras.Model, directory: str) -> None:
    path = os.path.join(directory, KERAS_WEIGHTS_FILE)
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file. Expected the preset's weights beside {CONFIG_FILE}.")
    try:
        backbone.load_weights(path)
    except (ValueError, OSError, KeyError) as error:
        raise InputError(f"{path}: the weights do not fit {CONFIG_FILE} ({str(error).splitlines()[0]}).") from error


def _load_hugging_face_weights(backbone: keras.Model, directory: str) -> None:
    from safetensors import SafetensorError, safe_open

    path = os.path.join(directory, HUGGING_FACE_WEIGHTS_FILE)
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file. Expected the weights in the safetensors format.")
    try:
        with safe_open(path, framework="numpy") as tensors:
            _assign_hugging_face(backbone, tensors, path)
    except SafetensorError as error:
        raise InputError(f"{path}: not a whole safetensors file ({error}). Fetch it again.") from error


def _assign_hugging_face(backbone: keras.Model, tensors, path: str) -> None:
    available = {hugging_face_name(name): name for name in tensors.keys()}
    variables = {variable.path: variable for variable in backbone.weights}
    for source in hugging_face_sources(backbone.num_layers):
        missing = [name for name in source.names if name not in available]
        if missing:
            raise InputError(f"{path}: lacks {', '.join(missing)}. Expected the weights of a BERT with its pooler.")
        parts = [tensors.get_tensor(available[name]) for name in source.names]
        if source.kind == KERNEL:
            parts = [part.T for part in parts]
        value = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
        variable = variables[source.path]
        if tuple(value.shape) != tuple(variable.shape):
            raise InputError(
                f"{path}: {', '.join(source.names)}: expected shape {tuple(variable.shape)} by {CONFIG_FILE}, "
                f"found {tuple(value.shape)}."
            )
        variable.assign(value)
