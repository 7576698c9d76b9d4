"""Reads configuration, weights and tokenizer of a preset in any format, and shows a model as a checkpoint to write."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping

import numpy as np
from absl import logging

from keras_bert import formats, presets
from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import absolute, exists, read_lines
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor, assign, check_shapes
from keras_bert.formats.weight_names import HEADS
from keras_bert.presets import Preset
from keras_bert.tokenization.vocabulary import case_of_name, case_of_vocabulary, read_vocabulary

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
    with _located(preset, "weights") as place, formats.find_format(place).open_checkpoint(place) as checkpoint:
        known = _known(preset)
        if known is not None and checkpoint.format == "hugging_face":
            # Hugging Face's copies of Google's checkpoints say "gelu", the erf form, but were trained with tanh. A name
            # means the same model from every source; `hf://` means the model as Hugging Face describes it.
            config = checkpoint.config.replace(activation=known.config.activation)
            checkpoint = dataclasses.replace(checkpoint, config=config)
        check_shapes(checkpoint)
        yield checkpoint


def _located(preset: str | os.PathLike, purpose: str = "config") -> contextlib.AbstractContextManager[str]:
    """Finds a preset's files for a purpose, as `resolve_preset` does; gives their directory or prefix."""
    return formats.located(presets.resolve_preset(preset, purpose), purpose)


def _known(preset: str | os.PathLike) -> Preset | None:
    """Returns the preset of a name, or None for a path, a handle, and a name that a file here has too."""
    name = presets.name_of(preset)
    return None if exists(name) else presets.find_preset(name)


def read_bert_config(preset: str | os.PathLike) -> BertConfig:
    """Returns the sizes of a preset without building a model.

    Raises:
        InputError: as `open_checkpoint`.
    """
    known = _known(preset)
    if known is not None:
        return known.config
    with _located(preset) as place:
        return formats.find_format(place).read_config(place)


def read_settings(preset: str | os.PathLike) -> dict:
    """Returns the settings that a preset of ours was saved with (`Checkpoint.settings`); {} for any other preset.

    Raises:
        InputError: as `open_checkpoint`.
    """
    if _known(preset) is not None:
        return {}
    with _located(preset) as place:
        module = formats.find_format(place)
        return module.read_settings(place) if hasattr(module, "read_settings") else {}


def has_tokenizer(preset: str | os.PathLike) -> bool:
    """Tells whether a preset's files hold a tokenizer.

    Raises:
        InputError: no place has the preset.
    """
    with _located(preset, "tokenizer") as place:
        return formats.find_tokenizer(place) is not None


def as_saved(settings: Mapping[str, object], *, dtype=None, **overrides) -> dict:
    """Returns the arguments of `BertBackbone` beside a preset's sizes: as saved, unless the caller gives others.

    A policy of the whole process (`keras.config.set_dtype_policy`) precedes the saved one.

    Args:
        settings: `Checkpoint.settings`.
        dtype, **overrides: the caller's; a `dtype` of None stands for no choice.
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
        model: `BertBackbone`, or a model that holds one and heads named as in `keras_bert.formats.weight_names.HEADS`.
        checkpoint: an open one.
        uses_pooler: whether the model reads the pooler. If not, as in taggers, a missing pooler causes no warning.
        heads: those whose absence from the checkpoint causes a warning.

    Returns:
        Paths of the variables that keep their initial values: heads, or a pooler, that the checkpoint lacks. A warning
        names them.

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
    """Names the origin of expected shapes: the settings that were overridden, else the checkpoint's configuration."""
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
        if getattr(layer, "lora_enabled", False):  # Other formats have no place for the factors.
            values = {path: read for path, read in values.items() if not path.startswith(f"{layer.path}/lora_")}
            values[f"{layer.path}/kernel"] = lambda layer=layer: np.asarray(layer.kernel)  # With the factors added.
    shapes = {variable.path: tuple(variable.shape) for variable in model.weights}
    tensors = {path: StoredTensor(f"{source}: {path}", shapes[path], read) for path, read in values.items()}
    own = {name: getattr(model, f"masked_lm_{name}", None) for name in ("activation", "layer_norm_epsilon")}
    settings = {name: value for name, value in own.items() if value is not None}
    head_settings = {"masked_lm": settings} if settings else {}
    task = {}
    if hasattr(model, "pooling"):  # An embedder.
        task = {name: getattr(model, name) for name in ("pooling", "normalize", "embedding_activation")}
        task |= {
            "class_name": type(model).__name__,
            "sequence_length": getattr(model.preprocessor, "sequence_length", None),
        }
    return Checkpoint("model", source, backbone.bert_config, tensors, labels, head_settings, {"task": task})


def merge_settings(config: BertConfig, overrides: dict, preset: str) -> dict:
    """Returns the arguments of `BertBackbone` for a preset's sizes with some changes.

    Raises:
        InputError: a name is not an argument of `BertBackbone`, a value does not fit, or the model would not fit into
            memory; the message names `preset`.
    """
    unknown = sorted(set(overrides) - set(_SETTINGS))
    if unknown:
        raise InputError(f"{preset}: unknown setting {', '.join(unknown)}. Expected some of: {', '.join(_SETTINGS)}.")
    ours = {name: value for name, value in overrides.items() if name in BertConfig.__dataclass_fields__}
    others = {name: value for name, value in overrides.items() if name not in ours}  # layout, dtype, name, trainable
    try:
        config = config.replace(**ours)
        config.check_memory()
        return {**config.to_dict(), **others}
    except InputError as error:
        raise InputError(f"{preset}: {error}") from error


@contextlib.contextmanager
def open_tokenizer(preset: str | os.PathLike) -> Iterator[dict]:
    """Gives a preset's tokenizer settings.

    They are `vocabulary`, path or list; `lowercase`, None if the files do not tell; in KerasHub's layout
    `special_tokens_in_strings`; and `place`, the directory of the files, in an archive the one inside.

    Raises:
        InputError: no place has the preset, or it has no tokenizer.
    """
    with _located(preset, "tokenizer") as place:
        settings = formats.find_tokenizer(place)
        if settings is None:
            raise InputError(
                f"{place}: no tokenizer. Expected assets/tokenizer/vocabulary.txt (with tokenizer.json), vocab.txt, or "
                "assets/vocab.txt."
            )
        yield settings


def _published_case(preset: str) -> bool | None:
    """Returns whether a published checkpoint is lower-cased, whatever its copies say: Chinese BERT's say it is not."""
    known = _known(preset) or presets.find_handle(preset)
    return None if known is None else known.lowercase


def case_of_preset(preset: str) -> bool | None:
    """Returns whether a preset of this name is lower-cased, or None if the name does not tell."""
    known = _published_case(preset)
    if known is not None:
        return known
    is_prefix = exists(f"{preset}.index") or preset.endswith(".index")  # Of a TensorFlow checkpoint.
    name = os.path.dirname(absolute(preset)) if is_prefix else preset
    return case_of_name(absolute(name) if exists(name) else name)


def decide_case(preset: str, settings: dict, lowercase: bool | None = None) -> bool | None:
    """Decides whether a preset is lower-cased, and checks its vocabulary.

    The first of these that tells decides: `lowercase`, the checkpoint's publication, its own settings, the pieces of
    the vocabulary, the preset's name.

    Args:
        preset: its name or path.
        settings: of `open_tokenizer`.
        lowercase: bool, the user's choice, or None.

    Returns:
        bool; None if nothing tells.

    Raises:
        InputError: the vocabulary is not one of BERT's (`read_vocabulary`) or contradicts the decision; or `lowercase`
            or the settings contradict the meaning of the preset's name, and the vocabulary does not confirm them.
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
        lowercase: bool, the user's choice, or None; see `decide_case`.

    Returns:
        Dict of `vocabulary`, list of pieces; `lowercase`, bool; and the other settings of `open_tokenizer`.

    Raises:
        InputError: as `decide_case`; or nothing tells whether the vocabulary is lower-cased; or `lowercase` contradicts
            the checkpoint's own settings, and neither vocabulary nor name confirms it.
    """
    preset = presets.name_of(preset)
    with _located(preset, "tokenizer") as place:
        settings = formats.find_tokenizer(place)
        if settings is None:
            return None
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
    del settings["place"]
    return settings | {"vocabulary": pieces, "lowercase": case}
