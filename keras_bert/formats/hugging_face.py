"""Hugging Face's directory: `config.json`, `model.safetensors` or another file of weights, `vocab.txt`.

The way in; the way out is `hugging_face_out.py`.
"""

import contextlib
import os
import re
from collections.abc import Iterator

import numpy as np
from absl import logging

from keras_bert.config import BertConfig, is_foreign
from keras_bert.errors import InputError
from keras_bert.files import read_json, read_object
from keras_bert.formats import weight_names as convert
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor, collect
from keras_bert.formats.hugging_face_files import CONFIG_FILE, WeightFile, find_weights, open_weights
from keras_bert.formats.hugging_face_out import write as write
from keras_bert.formats.hugging_face_tokenizer import read_tokenizer as read_tokenizer
from keras_bert.formats.weight_names import WeightSource

_TABLE = "embeddings.word_embeddings.weight"
_OUTPUT_BIAS = "cls.predictions.bias"
# The tied output layer of the masked-LM head: copies of the word table and of the bias, stored by some.
_DECODER = {"cls.predictions.decoder.weight": _TABLE, "cls.predictions.decoder.bias": _OUTPUT_BIAS}
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # Numbers from 0, and zeros: no weights.
_CLASSIFIERS = {"ForTokenClassification": "token_classification", "ForMultipleChoice": "multiple_choice"}


def matches(path: str) -> bool:
    if find_weights(path) is not None:
        return True
    file = os.path.join(path, CONFIG_FILE)
    return os.path.isfile(file) and is_foreign(read_json(file))


def read_config(path: str) -> BertConfig:
    # Of the few old directories that do not name their model_type, too, Hugging Face takes "gelu" as the erf form.
    return BertConfig.from_json_file(os.path.join(path, CONFIG_FILE), at_hugging_face=True)


@contextlib.contextmanager
def open_checkpoint(path: str) -> Iterator[Checkpoint]:
    config = read_config(path)
    settings = read_object(os.path.join(path, CONFIG_FILE))
    parts = _parts(config.num_layers, _classifier(path, settings))
    with open_weights(path) as weights:
        available = _table_names(weights)
        _check_depth(config.num_layers, weights, available)
        tensors = {}
        for part in parts:
            tensors |= _collect(part, weights, available)
        bias = tensors.get("masked_lm/output_bias")
        if bias is not None:
            tensors["masked_lm/output_bias"] = _after_check_of_ties(bias, weights, available)
        _warn_of_others(parts, weights, available)
        has_classes = "classification/bias" in tensors or "token_classification/bias" in tensors
        labels = _labels(path, settings) if has_classes else None
        yield Checkpoint("hugging_face", path, config, tensors, labels)


def _table_names(weights: WeightFile) -> dict[str, str]:
    """The stored names by those of the table: without prefix, and of today.

    Checkpoints converted before 2019, bert-base-uncased among them, keep TensorFlow's gamma and beta.
    """
    available = {}
    for stored in weights.readers:
        name = stored.removeprefix("bert.")
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name in available:
            raise InputError(f"{weights.path}: {available[name]} and {stored} name one weight. Remove one of them.")
        available[name] = stored
    for copy, original in _DECODER.items():
        if copy in available:
            available.setdefault(original, available[copy])
    return available


def _check_depth(num_layers: int, weights: WeightFile, available: dict[str, str]) -> None:
    stored = [int(match[1]) for match in (re.match(r"encoder\.layer\.(\d+)\.", name) for name in available) if match]
    beyond = [index for index in stored if index >= num_layers]
    if beyond:
        raise InputError(
            f"{weights.path}: holds weights of layer {min(beyond)}, expected {num_layers} layers by {CONFIG_FILE}."
        )


def _parts(num_layers: int, classifier: str) -> list[list[WeightSource]]:
    """The encoder's sources, then those of what may be missing as a whole: pooler and heads."""
    encoder, pooler = [], []
    for source in convert.encoder_sources(convert.HUGGING_FACE, num_layers):
        (pooler if source.path.startswith(f"{convert.POOLER}/") else encoder).append(source)
    heads = ("masked_lm", "next_sentence", classifier, "question_answering")
    return [encoder, pooler, *(convert.head_sources(convert.HUGGING_FACE, head) for head in heads)]


def _classifier(path: str, settings: dict) -> str:
    """Which head is named `classifier`: three classes of transformers share the name."""
    architectures = settings.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        file = os.path.join(path, CONFIG_FILE)
        raise InputError(f"{file}: expected architectures to be a list of names, found {architectures!r}.")
    for architecture in architectures:
        for ending, head in _CLASSIFIERS.items():
            if architecture.endswith(ending):
                return head
    return "classification"


def _collect(part: list[WeightSource], weights: WeightFile, available: dict[str, str]) -> dict[str, StoredTensor]:
    names = [name for source in part for name in source.names]
    if _TABLE not in names and not any(name in available for name in names):
        return {}
    tensors, missing = collect(part, available, lambda stored: weights.readers[stored](), weights.path)
    if missing:
        more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
        raise InputError(f"{weights.path}: lacks {', '.join(missing[:4])}{more}. Expected the weights of a BERT.")
    return tensors


def _after_check_of_ties(bias: StoredTensor, weights: WeightFile, available: dict[str, str]) -> StoredTensor:
    """The output bias, read only once the stored output layer is seen to be the word table."""

    def read():
        for copy, original in _DECODER.items():
            if available.get(copy, available[original]) == available[original]:
                continue
            if not np.array_equal(weights.readers[available[copy]](), weights.readers[available[original]]()):
                raise InputError(
                    f"{weights.path}: {available[copy]} differs from {available[original]}. Expected BERT's masked-LM "
                    "head, whose output layer is the word table itself; untied ones cannot be read."
                )
        return bias.read()

    return bias._replace(read=read)


def _warn_of_others(parts: list[list[WeightSource]], weights: WeightFile, available: dict[str, str]) -> None:
    known = {name for part in parts for source in part for name in source.names} | {*_DECODER, *_BUFFERS}
    others = [stored for name, stored in available.items() if name not in known]
    if others:
        logging.warning(
            "%s: %d tensors belong to no part of BERT known here, and are not read: %s%s.",
            weights.path,
            len(others),
            ", ".join(others[:4]),
            ", ..." if len(others) > 4 else "",
        )


def _labels(path: str, settings: dict) -> list[str] | None:
    """The classes' names in their order; None where they are no more than numbers."""
    names = settings.get("id2label")
    if names is None:
        return None
    file = os.path.join(path, CONFIG_FILE)
    if not isinstance(names, dict) or sorted(names) != sorted(map(str, range(len(names)))):
        raise InputError(f"{file}: expected id2label to name the classes 0, 1, ..., found {names!r}.")
    labels = [str(names[str(index)]) for index in range(len(names))]
    return None if all(re.fullmatch(r"LABEL_\d+", label) for label in labels) else labels
