"""Reads the configuration and the weights of a preset in any format."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping

from absl import logging

from keras_bert import formats
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import is_directory
from keras_bert.formats.checkpoint import Checkpoint, assign, check_shapes
from keras_bert.formats.weight_names import HEADS
from keras_bert.presets.catalog import located, original_of, published

_SHAPES = ("vocabulary_size", "num_heads", "hidden_dim", "intermediate_dim", "max_sequence_length", "num_segments")
_SETTINGS = (*BertConfig.__dataclass_fields__, "layout", "name", "trainable", "dtype")  # of BertBackbone


@contextlib.contextmanager
def open_checkpoint(preset: str | os.PathLike) -> Iterator[Checkpoint]:
    """Opens a preset's checkpoint; its tensors can be read inside the `with`.

    Args:
        preset: as in `BertBackbone.from_preset`.

    Raises:
        InputError: the preset is not found, or its files have no known format, are incomplete or damaged.
    """
    with located(preset, "weights") as place, formats.find_format(place).open_checkpoint(place) as checkpoint:
        known = published(preset)
        if known is not None and checkpoint.format == "hugging_face":
            # Hugging Face's copies of Google's checkpoints say "gelu", the erf form, but were trained with the tanh
            # form. A name means the same model from every source; `hf://` means it as Hugging Face describes it.
            config = checkpoint.config.replace(activation=known.config.activation)
            checkpoint = dataclasses.replace(checkpoint, config=config)
        checkpoint = dataclasses.replace(checkpoint, settings=_with_prompts(checkpoint.settings, preset))
        check_shapes(checkpoint)
        yield checkpoint


def has_config(preset: str | os.PathLike) -> bool:
    """Returns whether a preset has a configuration, unlike a directory with only a tokenizer."""
    if not is_directory(preset):
        return True
    with located(preset, "tokenizer") as place:
        return formats.format_of(place) is not None


def read_bert_config(preset: str | os.PathLike) -> BertConfig:
    """Returns the configuration of a preset without building a model.

    Raises:
        InputError: as `open_checkpoint`.
    """
    known = published(preset)
    if known is not None:
        return known.config
    with located(preset) as place:
        return formats.find_format(place).read_config(place)


def read_settings(preset: str | os.PathLike) -> dict:
    """Returns the settings that a preset was saved with (`Checkpoint.settings`).

    For the name of a published preset, these are the prompts of an embedder, or none.

    Raises:
        InputError: as `open_checkpoint`.
    """
    if published(preset) is not None:
        return _with_prompts({}, preset)
    with located(preset) as place:
        module = formats.find_format(place)
        settings = module.read_settings(place) if hasattr(module, "read_settings") else {}
    return _with_prompts(settings, preset)


def _with_prompts(settings: Mapping[str, object], preset: str | os.PathLike) -> dict:
    """Adds the prompts that an embedder was published with, unless its files contain prompts."""
    known, task = original_of(preset), settings.get("task", {})
    own = task.get("prompts")
    if known is None or not known.prompts or (isinstance(own, dict) and any(own.values())):
        return dict(settings)
    return {**settings, "task": {"class_name": "BertTextEmbedder", **task, "prompts": known.prompts}}


def as_saved(settings: Mapping[str, object], *, dtype=None, **overrides) -> dict:
    """Returns the arguments of `BertBackbone` besides a preset's sizes: as saved, unless the caller gives others.

    A dtype policy of the whole process (`keras.config.set_dtype_policy`) takes precedence over the saved one.

    Args:
        settings: `Checkpoint.settings`.
        dtype, **overrides: the caller's choices; a `dtype` of None means no choice.
    """
    import keras

    saved = {name: settings[name] for name in ("layout", "trainable") if name in settings}
    if dtype is None and keras.config.dtype_policy().name == "float32":  # Keras's default, hence not chosen.
        dtype = settings.get("dtype")
    return {**saved, **overrides, "dtype": dtype}


def load_weights_of(
    model, checkpoint: Checkpoint, uses_pooler: bool = True, heads: tuple[str, ...] = tuple(HEADS)
) -> list[str]:
    """Assigns the checkpoint's weights to a model: the encoder's, and those of the heads that both have.

    Args:
        model: `BertBackbone`, or a model that contains one, and heads named as in
            `keras_bert.formats.weight_names.HEADS`.
        checkpoint: an open checkpoint.
        uses_pooler: bool, whether the model reads the pooler. If not, as in taggers, a missing pooler causes no
            warning.
        heads: the heads whose absence from the checkpoint causes a warning.

    Returns:
        Paths of the variables that keep their initial values: heads, or a pooler, that the checkpoint lacks. A warning
        names them.

    Raises:
        InputError: a weight of the encoder is missing, or a shape differs.
    """
    config = getattr(getattr(model, "backbone", model), "bert_config", checkpoint.config)
    unassigned = assign(model.weights, checkpoint.tensors, by=_differing(config, checkpoint.config, _SHAPES))
    lacking = [path for path in unassigned if path.partition("/")[0] not in (*HEADS, "pooled_dense")]
    if lacking:
        by = _differing(config, checkpoint.config, ("num_layers",))
        raise InputError(
            f"{checkpoint.source}: lacks {', '.join(lacking[:4])}, expected by {by}. Expected the weights of a BERT."
        )
    expected = (*heads, "pooled_dense") if uses_pooler else heads
    missed = [path for path in unassigned if path.partition("/")[0] in expected]
    if missed:
        logging.warning("%s: has no %s; random weights replace them.", checkpoint.source, ", ".join(missed))
    return unassigned


def _differing(config: BertConfig, stored: BertConfig, names: tuple[str, ...]) -> str:
    """Returns the origin of the expected shapes, for messages: the overridden settings, else the configuration."""
    values = {name: getattr(config, name) for name in names}
    overridden = [f"{name}={value}" for name, value in values.items() if value != getattr(stored, name)]
    return ", ".join(overridden) or "the configuration"


def merge_settings(config: BertConfig, overrides: dict, preset: str) -> dict:
    """Returns the arguments of `BertBackbone` for a preset's configuration with overrides.

    Raises:
        InputError: a name is not an argument of `BertBackbone`, a value does not fit, or the model would not fit into
            memory; the message names `preset`.
    """
    unknown = sorted(set(overrides) - set(_SETTINGS))
    if unknown:
        raise InputError(f"{preset}: unknown setting {', '.join(unknown)}. Expected some of: {', '.join(_SETTINGS)}.")
    ours = {name: value for name, value in overrides.items() if name in BertConfig.__dataclass_fields__}
    if "dropout" in ours and config.attention_dropout == config.dropout:
        ours = {"attention_dropout": None, **ours}  # Files store both rates, even where one follows the other.
    others = {name: value for name, value in overrides.items() if name not in ours}  # layout, dtype, name, trainable
    try:
        config = config.replace(**ours)
        config.check_memory()
        return {**config.to_dict(), **others}
    except InputError as error:
        raise InputError(f"{preset}: {error}") from error
