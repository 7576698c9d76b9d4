"""From a preset to configuration, weights and tokenizer, whatever the format: the way in, and the way out."""

import contextlib
import os
from collections.abc import Iterator

from absl import logging

from keras_bert import formats, presets
from keras_bert.config import BertConfig
from keras_bert.convert import HEADS
from keras_bert.errors import InputError
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor, assign


@contextlib.contextmanager
def open_checkpoint(preset: str) -> Iterator[Checkpoint]:
    """Opens a preset's checkpoint; its tensors can be read inside the `with`.

    Args:
        preset: as in `BertBackbone.from_preset`.

    Raises:
        InputError: no place has it, or its files are of no known format, incomplete or damaged.
    """
    path = presets.resolve_preset(preset, "weights")
    with formats.located(path) as place, formats.find_format(place).open_checkpoint(place) as checkpoint:
        yield checkpoint


def read_bert_config(preset: str) -> BertConfig:
    """Returns the sizes of a preset without building a model.

    Raises:
        InputError: as `open_checkpoint`.
    """
    known = presets.find_preset(preset)
    if known is not None and not os.path.exists(preset):
        return known.config
    with formats.located(presets.resolve_preset(preset)) as place:
        return formats.find_format(place).read_config(place)


def load_backbone(cls, preset: str, load_weights: bool = True, dtype=None, **overrides):
    """Builds a backbone of class `cls` from a preset; see `BertBackbone.from_preset`."""
    if not load_weights:
        return cls(**_merged(read_bert_config(preset), overrides, preset), dtype=dtype)
    with open_checkpoint(preset) as checkpoint:
        backbone = cls(**_merged(checkpoint.config, overrides, preset), dtype=dtype)
        load_weights_of(backbone, checkpoint)
    return backbone


def load_weights_of(model, checkpoint: Checkpoint) -> list[str]:
    """Gives a model the checkpoint's weights: the encoder's, and those of the heads that both have.

    Args:
        model: `BertBackbone`, or a model that holds one and heads named as in `keras_bert.convert.HEADS`.
        checkpoint: an open one.

    Returns:
        Paths of the variables that stay as they were initialised: heads, or a pooler, that the checkpoint lacks. A
        warning names them.

    Raises:
        InputError: a weight of the encoder is missing, or a shape differs.
    """
    left = assign(model.weights, checkpoint.tensors, by="the configuration")
    lacking = [path for path in left if path.partition("/")[0] not in (*HEADS, "pooled_dense")]
    if lacking:
        raise InputError(f"{checkpoint.source}: lacks {', '.join(lacking[:4])}. Expected the weights of a BERT.")
    if left:
        logging.warning("%s: has no %s; it starts from random weights.", checkpoint.source, ", ".join(left))
    return left


def checkpoint_of(model, source: str = "the model") -> Checkpoint:
    """Shows a model's weights as a checkpoint, to be written in another format.

    Args:
        model: as in `load_weights_of`.
        source: its name in messages.
    """
    backbone = getattr(model, "backbone", model)
    tensors = {variable.path: StoredTensor(f"{source}: {variable.path}", variable.numpy) for variable in model.weights}
    return Checkpoint("model", source, backbone.bert_config, tensors)


def _merged(config: BertConfig, overrides: dict, preset: str) -> dict:
    ours = {name: value for name, value in overrides.items() if name in BertConfig.__dataclass_fields__}
    others = {name: value for name, value in overrides.items() if name not in ours}  # layout, name, trainable
    try:
        return {**config.replace(**ours).to_dict(), **others}
    except InputError as error:
        raise InputError(f"{preset}: {error}") from error


@contextlib.contextmanager
def open_tokenizer(preset: str) -> Iterator[dict]:
    """Gives a preset's tokenizer settings: `vocabulary`, path or list; `lowercase`, None if it is not said.

    Raises:
        InputError: no place has it, or what is there has no tokenizer.
    """
    with formats.located(presets.resolve_preset(preset, "tokenizer")) as place:
        yield formats.read_tokenizer(place)
