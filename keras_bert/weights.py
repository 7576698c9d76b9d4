"""From a preset to configuration, weights and tokenizer, whatever the format: the way in, and the way out."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping

import numpy as np
from absl import logging

from keras_bert import formats, presets
from keras_bert.casing import case_of_name, case_of_vocabulary
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import read_lines
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor, assign
from keras_bert.formats.weight_names import HEADS
from keras_bert.preset_table import Preset
from keras_bert.tokenization.vocabulary import read_vocabulary

_SHAPES = ("vocabulary_size", "num_heads", "hidden_dim", "intermediate_dim", "max_sequence_length", "num_segments")
_SETTINGS = (*BertConfig.__dataclass_fields__, "layout", "name", "trainable", "dtype")  # of BertBackbone


@contextlib.contextmanager
def open_checkpoint(preset: str | os.PathLike) -> Iterator[Checkpoint]:
    """Opens a preset's checkpoint; its tensors can be read inside the `with`.

    Args:
        preset: as in `BertBackbone.from_preset`.

    Raises:
        InputError: no place has it, or its files are of no known format, incomplete or damaged.
    """
    preset = presets.name_of(preset)
    path = presets.resolve_preset(preset, "weights")
    with formats.located(path) as place, formats.find_format(place).open_checkpoint(place) as checkpoint:
        known = _known(preset)
        if known is not None and checkpoint.format == "hugging_face":
            # Hugging Face's copies of Google's checkpoints say "gelu", the erf form; they were trained with tanh. A
            # name means the same model from every source; `hf://` means what Hugging Face says.
            config = checkpoint.config.replace(activation=known.config.activation)
            checkpoint = dataclasses.replace(checkpoint, config=config)
        yield checkpoint


def _known(preset: str) -> Preset | None:
    """The preset of a name; None for a path, a handle, and a name that a file here has too."""
    return None if os.path.exists(preset) else presets.find_preset(preset)


def read_bert_config(preset: str | os.PathLike) -> BertConfig:
    """Returns the sizes of a preset without building a model.

    Raises:
        InputError: as `open_checkpoint`.
    """
    preset = presets.name_of(preset)
    known = _known(preset)
    if known is not None:
        return known.config
    with formats.located(presets.resolve_preset(preset)) as place:
        return formats.find_format(place).read_config(place)


def load_backbone(cls, preset: str | os.PathLike, load_weights: bool = True, dtype=None, **overrides):
    """Builds a backbone of class `cls` from a preset; see `BertBackbone.from_preset`."""
    preset = presets.name_of(preset)
    if not load_weights:
        saved = as_saved(read_settings(preset), dtype=dtype, **overrides)
        return cls(**merge_settings(read_bert_config(preset), saved, preset))
    with open_checkpoint(preset) as checkpoint:
        saved = as_saved(checkpoint.settings, dtype=dtype, **overrides)
        backbone = cls(**merge_settings(checkpoint.config, saved, preset))
        load_weights_of(backbone, checkpoint)
    return backbone


def read_settings(preset: str | os.PathLike) -> dict:
    """Returns how a preset of ours was saved (`Checkpoint.settings`); of any other an empty dict.

    Raises:
        InputError: as `open_checkpoint`.
    """
    preset = presets.name_of(preset)
    if _known(preset) is not None:
        return {}
    with formats.located(presets.resolve_preset(preset)) as place:
        module = formats.find_format(place)
        return module.read_settings(place) if hasattr(module, "read_settings") else {}


def has_tokenizer(preset: str | os.PathLike) -> bool:
    """Whether a preset's files hold a tokenizer.

    Raises:
        InputError: no place has the preset.
    """
    with formats.located(presets.resolve_preset(presets.name_of(preset), "tokenizer")) as place:
        return formats.has_tokenizer(place)


def as_saved(settings: Mapping[str, object], *, dtype=None, **overrides) -> dict:
    """Arguments of `BertBackbone` beside a preset's sizes: as it was saved, but for what the caller says.

    A policy of the whole process (`keras.config.set_dtype_policy`) goes before the one that was saved.

    Args:
        settings: `Checkpoint.settings`.
        dtype, **overrides: the caller's; a `dtype` of None says nothing.
    """
    import keras

    saved = {name: settings[name] for name in ("layout", "trainable") if name in settings}
    if dtype is None and keras.config.dtype_policy().name == "float32":
        dtype = settings.get("dtype")
    return {**saved, **overrides, "dtype": dtype}


def load_weights_of(
    model, checkpoint: Checkpoint, uses_pooler: bool = True, heads: tuple[str, ...] = tuple(HEADS)
) -> list[str]:
    """Gives a model the checkpoint's weights: the encoder's, and those of the heads that both have.

    Args:
        model: `BertBackbone`, or a model that holds one and heads named as in `keras_bert.formats.weight_names.HEADS`.
        checkpoint: an open one.
        uses_pooler: whether anything follows the pooler; taggers, for one, have none to be missed.
        heads: those that a warning names if the checkpoint lacks them.

    Returns:
        Paths of the variables that stay as they were initialised: heads, or a pooler, that the checkpoint lacks. A
        warning names them.

    Raises:
        InputError: a weight of the encoder is missing, or a shape differs.
    """
    config = getattr(getattr(model, "backbone", model), "bert_config", checkpoint.config)
    left = assign(model.weights, checkpoint.tensors, by=_differing(config, checkpoint.config, _SHAPES))
    lacking = [path for path in left if path.partition("/")[0] not in (*HEADS, "pooled_dense")]
    if lacking:
        by = _differing(config, checkpoint.config, ("num_layers",))
        raise InputError(
            f"{checkpoint.source}: lacks {', '.join(lacking[:4])}, expected by {by}. Expected the weights of a BERT."
        )
    expected = (*heads, "pooled_dense") if uses_pooler else heads
    missed = [path for path in left if path.partition("/")[0] in expected]
    if missed:
        logging.warning("%s: has no %s; it starts from random weights.", checkpoint.source, ", ".join(missed))
    return left


def _differing(config: BertConfig, stored: BertConfig, names: tuple[str, ...]) -> str:
    """What expected shapes come from: the settings that were overridden, else the checkpoint's configuration."""
    values = {name: getattr(config, name) for name in names}
    overridden = [f"{name}={value}" for name, value in values.items() if value != getattr(stored, name)]
    return ", ".join(overridden) or "the configuration"


def checkpoint_of(model, source: str = "the model", labels: list[str] | None = None) -> Checkpoint:
    """Shows a model's weights as a checkpoint, to be written in another format.

    Args:
        model: as in `load_weights_of`.
        source: its name in messages.
        labels: the classes of a fine-tuned head, in the order of its outputs.

    Raises:
        InputError: the model is quantized.
    """
    backbone = getattr(model, "backbone", model)
    values = {variable.path: variable.numpy for variable in model.weights}
    for layer in model._flatten_layers():
        if getattr(layer, "quantization_mode", None):
            raise InputError(f"{source}: {layer.path} is quantized. Expected the model as it was before `quantize`.")
        if getattr(layer, "lora_enabled", False):
            values = {path: read for path, read in values.items() if not path.startswith(f"{layer.path}/lora_")}
            values[f"{layer.path}/kernel"] = lambda layer=layer: np.asarray(layer.kernel)  # with the factors added
    tensors = {path: StoredTensor(f"{source}: {path}", read) for path, read in values.items()}
    own = {name: getattr(model, f"masked_lm_{name}", None) for name in ("activation", "layer_norm_epsilon")}
    settings = {name: value for name, value in own.items() if value is not None}
    head_settings = {"masked_lm": settings} if settings else {}
    return Checkpoint("model", source, backbone.bert_config, tensors, labels, head_settings)


def merge_settings(config: BertConfig, overrides: dict, preset: str) -> dict:
    """Arguments of `BertBackbone`: a preset's sizes, and what is to be other than they are.

    Raises:
        InputError: a name is none of `BertBackbone`'s arguments, or a value does not fit; the message names `preset`.
    """
    unknown = sorted(set(overrides) - set(_SETTINGS))
    if unknown:
        raise InputError(f"{preset}: unknown setting {', '.join(unknown)}. Expected some of: {', '.join(_SETTINGS)}.")
    ours = {name: value for name, value in overrides.items() if name in BertConfig.__dataclass_fields__}
    others = {name: value for name, value in overrides.items() if name not in ours}  # layout, dtype, name, trainable
    try:
        return {**config.replace(**ours).to_dict(), **others}
    except InputError as error:
        raise InputError(f"{preset}: {error}") from error


@contextlib.contextmanager
def open_tokenizer(preset: str | os.PathLike) -> Iterator[dict]:
    """Gives a preset's tokenizer settings: `vocabulary`, path or list; `lowercase`, None if its files do not say it;
    `place`, the directory that they are in, of an archive the one inside.

    Raises:
        InputError: no place has it, or what is there has no tokenizer.
    """
    preset = presets.name_of(preset)
    known = _published_case(preset)
    with formats.located(presets.resolve_preset(preset, "tokenizer")) as place:
        settings = {**formats.read_tokenizer(place), "place": place}
        yield settings if known is None else {**settings, "lowercase": known}


def _published_case(preset: str) -> bool | None:
    """Whether a published checkpoint is lower-cased: copies of the Chinese BERT say no, google-research/bert yes."""
    known = _known(preset) or presets.find_handle(preset)
    return None if known is None else known.lowercase


def case_of_preset(preset: str) -> bool | None:
    """Whether a preset of this name is lower-cased, as far as the name says it."""
    known = _published_case(preset)
    if known is not None:
        return known
    is_prefix = os.path.exists(f"{preset}.index") or preset.endswith(".index")  # of a TensorFlow checkpoint
    name = os.path.dirname(os.path.abspath(preset)) if is_prefix else preset
    return case_of_name(os.path.abspath(name) if os.path.exists(name) else name)


def decide_case(preset: str, settings: dict, lowercase: bool | None = None) -> bool | None:
    """Decides whether a preset is lower-cased, and checks its vocabulary.

    The first that says it: `lowercase`, what the checkpoint was published as, its own settings, the vocabulary's
    pieces, the preset's name.

    Args:
        preset: its name or path.
        settings: of `open_tokenizer`.
        lowercase: bool, what the user says, or None.

    Returns:
        bool; None where nothing says it.

    Raises:
        InputError: the vocabulary is none of BERT's (`read_vocabulary`) or contradicts the decision; `lowercase` or the
            settings contradict what the preset's name means, and the vocabulary does not bear them out.
    """
    vocabulary = settings["vocabulary"]
    source = f"{preset}: its vocabulary"
    by_vocabulary = case_of_vocabulary(read_vocabulary(vocabulary, source=source))
    published, by_name = _published_case(preset), case_of_preset(preset)
    if by_name is None:
        by_name = case_of_name(settings.get("place", ""))
    answers = {
        "the argument": lowercase,
        "what it was published as": published,
        "its own settings": settings["lowercase"],
        "its vocabulary": by_vocabulary,
        "its name": by_name,
    }
    why, case = next(((why, case) for why, case in answers.items() if case is not None), ("", None))
    read_vocabulary(vocabulary, case, source, why)
    if None in (by_name, case) or case in (by_name, by_vocabulary) or (lowercase is not None and published is None):
        return case
    cure = f"Pass lowercase={by_name} (--do_lower_case={by_name})"
    if published is None:
        cure += f", or lowercase={case} where the name misleads"
    raise InputError(
        f"{preset}: by its name the checkpoint is {'uncased' if by_name else 'cased'}, but lowercase={case} by {why}. "
        f"{cure}."
    )


def read_tokenizer(preset: str | os.PathLike, lowercase: bool | None = None) -> dict | None:
    """Returns a preset's tokenizer settings, or None if the checkpoint has no vocabulary.

    Args:
        preset: as in `BertBackbone.from_preset`.
        lowercase: bool, what the user says, or None; see `decide_case`.

    Returns:
        Dict of `vocabulary`, list of pieces, and `lowercase`, bool.

    Raises:
        InputError: as `decide_case`; or nothing says whether the vocabulary is lower-cased; or `lowercase` contradicts
            the checkpoint's own settings, and neither vocabulary nor name bears it out.
    """
    preset = presets.name_of(preset)
    with formats.located(presets.resolve_preset(preset, "tokenizer")) as place:
        if not formats.has_tokenizer(place):
            return None
        settings = {**formats.read_tokenizer(place), "place": place}
        case = decide_case(preset, settings, lowercase)
        pieces = settings["vocabulary"]
        if isinstance(pieces, str):
            pieces = [piece for _, piece in read_lines(pieces)]
    if case is None:
        raise InputError(f"{preset}: nothing says whether its vocabulary is lower-cased. Say it by --do_lower_case.")
    own = settings["lowercase"]
    if None not in (lowercase, own) and case not in (own, case_of_vocabulary(pieces), case_of_preset(preset)):
        raise InputError(
            f"{preset}: by its own settings its vocabulary is {'un' if own else ''}cased. Received: do_lower_case="
            f"{lowercase}. Pass --do_lower_case={own}."
        )
    return {"vocabulary": pieces, "lowercase": case}
