"""Presets and `.keras` files of KerasHub's own classes: `BertBackbone`, `BertMaskedLM`, `BertTextClassifier`.

Read by JSON and h5py, without building KerasHub's model; written by KerasHub itself, so that its files are its own.
"""

import contextlib
import os
from collections.abc import Iterator

from absl import logging

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_json, read_object
from keras_bert.formats import keras_preset, keras_task
from keras_bert.formats import weight_names as convert
from keras_bert.formats.checkpoint import Checkpoint
from keras_bert.formats.keras_h5 import WeightsFile, check_whole, open_weights, registered, stored_tensors

CONFIG_FILE = "config.json"
BACKBONES = ("keras_hub>BertBackbone", "keras_nlp>BertBackbone")  # The second: presets written before 2024-09.
_SIZES = (
    "vocabulary_size",
    "num_layers",
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "dropout",
    "max_sequence_length",
    "num_segments",
)
# What its class computes whatever its configuration says (keras_hub/src/models/bert/bert_backbone.py).
_FIXED = {"activation": "gelu_tanh", "layer_norm_epsilon": 1e-12, "attention": "bidirectional"}


def matches(path: str) -> bool:
    """Whether `config.json` is a serialized Keras object; asked after `keras_preset`."""
    file = os.path.join(path, CONFIG_FILE)
    values = read_json(file) if os.path.isfile(file) else None
    return isinstance(values, dict) and "registered_name" in values


def read_config(path: str) -> BertConfig:
    file = os.path.join(path, CONFIG_FILE)
    values = read_object(file)
    found = [backbone["config"] for backbone in registered(values, BACKBONES)]
    if not found:
        raise InputError(
            f"{file}: expected {keras_preset.BACKBONE} or {BACKBONES[0]}, found {values.get('registered_name')}. "
            "Of Keras models only those with a BERT can be read."
        )
    sizes = [{name: config[name] for name in _SIZES if name in config} for config in found]
    if any(other != sizes[0] for other in sizes):
        raise InputError(f"{file}: expected one {BACKBONES[0]}, found {len(found)} of different sizes.")
    try:
        return BertConfig(**sizes[0], **_FIXED)
    except (InputError, TypeError) as error:
        raise InputError(f"{file}: no configuration of a {BACKBONES[0]} ({error}).") from error


@contextlib.contextmanager
def open_checkpoint(path: str) -> Iterator[Checkpoint]:
    config = read_config(path)
    sources = convert.encoder_sources(convert.KERAS_HUB, config.num_layers)
    with contextlib.ExitStack() as stack:
        weights = stack.enter_context(open_weights(path, "model", _name_of_place))
        parents = weights.parents_of("token_embedding")
        if len(parents) != 1:
            raise InputError(f"{weights.path}: expected the weights of one {BACKBONES[0]}, found {len(parents)}.")
        tensors = stored_tensors(weights, sources, parents[0])
        check_whole(tensors, sources, weights.path)
        weights.check_depth(parents[0], config.num_layers)
        _check_heads(weights, parents[0], config, sources)
        model = read_json(os.path.join(path, CONFIG_FILE))
        heads, settings = stack.enter_context(keras_task.open_heads(path, model, weights, parents[0]))
        yield Checkpoint("keras_hub", path, config, {**tensors, **heads}, head_settings=settings)


def _check_heads(weights: WeightsFile, parent: str, config: BertConfig, sources: list[convert.WeightSource]) -> None:
    """Holds the kernels (H, N, D) of the attention against the configuration: ours, (H, 3H), no longer say N."""
    expected = (config.hidden_dim, config.num_heads, config.hidden_dim // config.num_heads)
    kernels = [name for source in sources if source.path.endswith("/query_key_value/kernel") for name in source.names]
    for name in kernels:
        found = weights.shape_of(parent + name)
        if found != expected:
            raise InputError(
                f"{weights.path}: {name}: expected shape {expected} by {CONFIG_FILE}, num_heads {config.num_heads} "
                f"among it, found {found}."
            )


_NAMES = {
    "reversible_embedding": "token_embedding",
    "embedding": "segment_embedding",
    "layer_normalization": "embeddings_layer_norm",
    "dense": "pooled_dense",
    "query_dense": "query",
    "key_dense": "key",
    "value_dense": "value",
    "output_dense": "attention_output",
}


def _name_of_place(place: str) -> str:
    place = place.lstrip("_")
    if place.startswith("transformer_encoder"):
        return "transformer_layer" + (place.removeprefix("transformer_encoder") or "_0")
    return _NAMES.get(place, place)


def read_tokenizer(path: str) -> dict | None:
    """As `keras_preset`'s: both lay it out the same way."""
    return keras_preset.read_tokenizer(path)


def write(path: str, checkpoint: Checkpoint, tokenizer: dict | None) -> None:
    """Fills the directory `path` with a preset of KerasHub's own classes, which needs nothing of ours to be loaded.

    A head comes along where KerasHub's computes the same: classification, or a masked LM of KerasHub's kind.

    Raises:
        InputError: KerasHub's backbone would compute something else.
    """
    config = checkpoint.config
    for name, value in _FIXED.items():
        if getattr(config, name) != value:
            raise InputError(
                f"{checkpoint.source}: its {name} is {getattr(config, name)!r}, and KerasHub's BertBackbone always "
                f"computes with {value!r}. Write another format, such as keras."
            )
    import keras_nlp

    backbone = keras_nlp.models.BertBackbone(**{name: getattr(config, name) for name in _SIZES}, name="bert_backbone")
    sources = convert.encoder_sources(convert.KERAS_HUB, config.num_layers)
    _assign(backbone, sources, checkpoint)
    if not checkpoint.has_pooler:
        logging.warning("%s: has no pooler; the preset's is random.", checkpoint.source)
    if config.attention_dropout not in (None, config.dropout):
        logging.warning("%s: KerasHub has one dropout, %s, for attention too.", checkpoint.source, config.dropout)
    described = None
    if tokenizer is not None:
        lowercase = bool(tokenizer["lowercase"])
        described = keras_nlp.models.BertTokenizer(
            vocabulary=list(tokenizer["vocabulary"]), lowercase=lowercase, strip_accents=lowercase
        )
    task = _task(checkpoint, backbone, described)
    if task is not None:
        task.save_to_preset(path)
        return
    backbone.save_to_preset(path)
    if described is not None:
        described.save_to_preset(path)


def _assign(model, sources: list[convert.WeightSource], checkpoint: Checkpoint) -> None:
    variables = {variable.path: variable for variable in model.weights}
    check_whole(checkpoint.tensors, sources, checkpoint.source)
    for source in sources:
        if source.path in checkpoint.tensors:
            stored = checkpoint.tensors[source.path]
            values = convert.to_theirs(stored.read(), source, checkpoint.config.num_heads)
            for name, value in zip(source.names, values, strict=True):
                if tuple(value.shape) != tuple(variables[name].shape):
                    expected = f"{tuple(variables[name].shape)} by the configuration"
                    raise InputError(f"{stored.source}: expected shape {expected}, found {tuple(value.shape)}.")
                variables[name].assign(value)


def _task(checkpoint: Checkpoint, backbone, tokenizer):
    """KerasHub's model of the first head that it has alike, or None; a warning names the heads that stay behind."""
    import keras_nlp

    alike = [head for head in ("classification", "masked_lm") if head in checkpoint.heads]
    if checkpoint.head_settings.get("masked_lm") != keras_task.KERAS_HUB_MASKED_LM:
        alike = [head for head in alike if head != "masked_lm"]
    left = [head for head in checkpoint.heads if head not in alike[:1]]
    if left:
        logging.warning(
            "%s: the preset leaves out %s: KerasHub has no such head, or one that computes something else (its masked "
            "LM takes exact gelu and a LayerNorm epsilon of 1e-5). --to_format=keras keeps all heads.",
            checkpoint.source,
            ", ".join(left),
        )
    if not alike:
        return None
    models = keras_nlp.models
    tensors, options = checkpoint.tensors, {"sequence_length": checkpoint.config.max_sequence_length}
    if alike[0] == "classification":
        preprocessor = tokenizer and models.BertTextClassifierPreprocessor(tokenizer, **options)
        num_classes = tensors["classification/bias"].read().shape[0]
        task = models.BertTextClassifier(backbone, num_classes, preprocessor)
    else:
        preprocessor = tokenizer and models.BertMaskedLMPreprocessor(tokenizer, **options)
        task = models.BertMaskedLM(backbone, preprocessor)
    variables = {variable.path: variable for variable in task.weights}
    for path, theirs in keras_task.keras_hub_paths(alike[0]).items():
        variables[theirs].assign(tensors[path].read())
    return task
