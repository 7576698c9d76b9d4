"""Presets and `.keras` files of KerasHub's own classes: `BertBackbone`, `BertMaskedLM`, `BertTextClassifier`.

They are read as JSON and HDF5, without building KerasHub's model, and written by KerasHub itself.
"""

import contextlib
import os

from absl import logging

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_object, read_optional_json
from keras_bert.formats import keras_model, keras_preset
from keras_bert.formats.checkpoint import Checkpoint, check_output_activation, check_whole
from keras_bert.formats.keras_preset import read_tokenizer as read_tokenizer
from keras_bert.formats.weight_names import KERAS_HUB, WeightSource, encoder_sources, head_sources

BACKBONES = ("keras_hub>BertBackbone", "keras_nlp>BertBackbone")  # The second is in presets written before 2024-09.
_SIZES = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "dropout")
_SIZES += ("max_sequence_length", "num_segments")
# KerasHub's class has these whatever the configuration says (keras_hub/src/models/bert/bert_backbone.py).
_FIXED = {"activation": "gelu_tanh", "layer_norm_epsilon": 1e-12, "attention": "bidirectional"}
_FIXED |= {"pooler_activation": "tanh"}


def matches(path: str) -> bool:
    """Returns whether `config.json` is a serialized Keras object; `keras_preset` is tried first."""
    values = read_optional_json(os.path.join(path, keras_model.CONFIG_FILE))
    return isinstance(values, dict) and "registered_name" in values


def read_config(path: str) -> BertConfig:
    file = os.path.join(path, keras_model.CONFIG_FILE)
    values = read_object(file)
    if not keras_model.registered(values, BACKBONES):
        raise InputError(
            f"{file}: expected {keras_preset.BACKBONE} or {BACKBONES[0]}, found {values.get('registered_name')}. "
            "Of Keras models only those with a BERT can be read."
        )
    return keras_model.read_sizes(path, BACKBONES, _SIZES, **_FIXED)


def read_settings(path: str) -> dict:
    """Returns the arguments of the task model, if there is one; see `Checkpoint.settings`."""
    return keras_model.read_task_settings(path, read_object(os.path.join(path, keras_model.CONFIG_FILE)))


def open_checkpoint(path: str) -> contextlib.AbstractContextManager[Checkpoint]:
    empty = Checkpoint("keras_hub", path, read_config(path), {}, settings=read_settings(path))
    return keras_model.open_model(empty, KERAS_HUB, BACKBONES[0], _name_of_place)


_NAMES = {
    "reversible_embedding": "token_embedding",
    "embedding": "segment_embedding",
    "layer_normalization": "embeddings_layer_norm",
    "transformer_encoder": "transformer_layer_0",
    "dense": "pooled_dense",
    "query_dense": "query",
    "key_dense": "key",
    "value_dense": "value",
    "output_dense": "attention_output",
}


def _name_of_place(place: str) -> str:
    place = place.lstrip("_")
    return _NAMES.get(place) or place.replace("transformer_encoder_", "transformer_layer_")


def write(path: str, checkpoint: Checkpoint, tokenizer: dict | None) -> None:
    """Fills the directory `path` with a preset of KerasHub's own classes, which loads without our package.

    One head is written too, if KerasHub's computes the same: classification, or a masked LM of KerasHub's kind.

    Raises:
        InputError: KerasHub's backbone would compute something else, the format cannot store the activation of the
            outputs, or a variable of the encoder is missing.
    """
    check_output_activation(checkpoint, "KerasHub")
    config = checkpoint.config
    for name, value in _FIXED.items():
        if getattr(config, name) != value:
            raise InputError(
                f"{checkpoint.source}: its {name} is {getattr(config, name)!r}, and KerasHub's BertBackbone always "
                f"computes with {value!r}. Write another format, such as keras."
            )
    import keras_nlp

    backbone = keras_nlp.models.BertBackbone(**{name: getattr(config, name) for name in _SIZES}, name="bert_backbone")
    _assign(backbone, encoder_sources(KERAS_HUB, config.num_layers), checkpoint)
    if not checkpoint.has_pooler:
        logging.warning("%s: has no pooler; the preset's is random.", checkpoint.source)
    if config.attention_dropout not in (None, config.dropout):
        logging.warning("%s: KerasHub has one dropout, %s, for attention too.", checkpoint.source, config.dropout)
    described = None
    if tokenizer is not None:
        lowercase = bool(tokenizer["lowercase"])
        described = keras_nlp.models.BertTokenizer(
            vocabulary=list(tokenizer["vocabulary"]),
            lowercase=lowercase,
            strip_accents=lowercase,
            special_tokens_in_strings=tokenizer.get("special_tokens_in_strings", False),
        )
    task = _task(checkpoint, backbone, described)
    (task or backbone).save_to_preset(path)
    if described is not None and task is None:
        described.save_to_preset(path)


def _assign(model, sources: list[WeightSource], checkpoint: Checkpoint) -> None:
    variables = {variable.path: variable for variable in model.weights}
    check_whole(checkpoint.tensors, sources, checkpoint.source)
    for _, name, value in checkpoint.foreign_tensors(sources):
        variables[name].assign(value)


def _task(checkpoint: Checkpoint, backbone, tokenizer):
    """Returns KerasHub's model of the first head that KerasHub has too, or None; warns of the heads left out."""
    import keras_nlp

    known = ("classification",) if checkpoint.pooling is None else ()
    known += ("masked_lm",) if checkpoint.masked_lm == keras_model.KERAS_HUB_MASKED_LM else ()
    alike = next((head for head in known if head in checkpoint.heads), None)
    left_out = [head for head in checkpoint.heads if head != alike]
    if left_out:
        logging.warning(
            "%s: the preset leaves out %s: KerasHub has no such head, or one that computes something else (its masked "
            "LM takes exact gelu and a LayerNorm epsilon of 1e-5). --to_format=keras keeps all heads.",
            checkpoint.source,
            ", ".join(left_out),
        )
    if alike is None:
        return None
    task_class, arguments = keras_nlp.models.BertMaskedLM, {}
    if alike == "classification":
        task_class = keras_nlp.models.BertTextClassifier
        arguments = {"num_classes": checkpoint.tensors["classification/bias"].shape[0]}
    length = checkpoint.settings.get("task", {}).get("sequence_length") or checkpoint.config.max_sequence_length
    preprocessor = tokenizer and task_class.preprocessor_cls(tokenizer, sequence_length=length)
    task = task_class(backbone, preprocessor=preprocessor, **arguments)
    _assign(task, head_sources(KERAS_HUB, alike), checkpoint)
    return task
