"""Reads Hugging Face's directory: `config.json`, `model.safetensors` or another file of weights, `vocab.txt`.

DistilBERT and ELECTRA are read as BERT under other names. DistilBERT has no segments, so it gets a segment table of
zeros. `hugging_face_out.py` writes the format.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator

import numpy as np
from absl import logging

from keras_bert.config import BertConfig, is_foreign
from keras_bert.errors import InputError, shown
from keras_bert.files import read_object, read_optional_json
from keras_bert.formats import hugging_face_tokenizer, sentence_transformers, weight_names
from keras_bert.formats.checkpoint import Checkpoint, StoredTensor, check_depth, collect, listed
from keras_bert.formats.hugging_face_files import CONFIG_FILE, WeightFile, find_weights, open_weights
from keras_bert.formats.hugging_face_out import write as write
from keras_bert.formats.weight_names import WeightSource, encoder_sources, head_sources

_TABLE = "embeddings.word_embeddings.weight"
# The tied output layer of the masked-LM head: copies of the word table and the bias, which some files store.
_DECODER = {"cls.predictions.decoder.weight": _TABLE, "cls.predictions.decoder.bias": "cls.predictions.bias"}
_DECODER |= dict.fromkeys(("vocab_projector.weight", "generator_lm_head.weight"), _TABLE)
# The table's column, by model_type.
_NAMES = {"bert": weight_names.HUGGING_FACE, "distilbert": weight_names.DISTILBERT, "electra": weight_names.ELECTRA}
_SEGMENTS = "embeddings/segment_embedding/embeddings"
_BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")  # Numbers from 0, and zeros; not weights.
_CLASSIFIERS = {"ForTokenClassification": "token_classification", "ForMultipleChoice": "multiple_choice"}


def matches(path: str) -> bool:
    path = sentence_transformers.encoder_path(path)
    return find_weights(path) is not None or is_foreign(read_optional_json(os.path.join(path, CONFIG_FILE)))


def read_config(path: str) -> BertConfig:
    # Hugging Face takes "gelu" as the erf form, in the few old directories without a model_type too.
    file = os.path.join(sentence_transformers.encoder_path(path), CONFIG_FILE)
    return BertConfig.from_json_file(file, at_hugging_face=True)


def read_tokenizer(path: str) -> dict | None:
    path = sentence_transformers.encoder_path(path)
    tokenizer = hugging_face_tokenizer.read_tokenizer(path)
    return tokenizer and {**tokenizer, "lowercase": sentence_transformers.check_case(path, tokenizer["lowercase"])}


def read_settings(path: str) -> dict:
    """Returns the task that the directory describes, if any; see `Checkpoint.settings`."""
    task = sentence_transformers.read_settings(path)
    config = read_object(os.path.join(sentence_transformers.encoder_path(path), CONFIG_FILE))
    if config.get("problem_type") == "multi_label_classification":
        task = {"class_name": "BertTextClassifier", "multi_label": True}
    if "num_choices" in config:  # This name is ours: transformers takes any number of choices.
        task = {"class_name": "BertMultipleChoice", "num_choices": config["num_choices"]}
    return {"task": task} if task else {}


@contextlib.contextmanager
def open_checkpoint(path: str) -> Iterator[Checkpoint]:
    config, place = read_config(path), sentence_transformers.encoder_path(path)
    settings = read_object(os.path.join(place, CONFIG_FILE))
    family = settings.get("model_type") or "bert"
    encoder = encoder_sources(_NAMES[family], config.num_layers)  # The last two are the pooler's.
    classifier = _classifier(place, settings)
    heads = ("masked_lm", "next_sentence", classifier, "question_answering")
    groups = [encoder[:-2], encoder[-2:], *(head_sources(_NAMES[family], head) for head in heads)]
    with contextlib.ExitStack() as stack:
        weights = stack.enter_context(open_weights(place))
        available = _by_table_names(weights, f"{family}.")
        stem = "transformer.layer." if family == "distilbert" else "encoder.layer."
        check_depth(available, stem, config.num_layers, weights.path)
        tensors = {}
        for group in groups:
            matches, missing = collect(group, available, weights.path)
            # The pooler and each head may be missing as a whole.
            if missing and (group is groups[0] or any(name in available for source in group for name in source.names)):
                raise InputError(f"{weights.path}: lacks {listed(missing)}. Expected the weights of a BERT.")
            tensors |= matches
        if family == "distilbert":
            shape = (config.num_segments, config.hidden_dim)
            zeros = functools.partial(np.zeros, shape, np.float32)
            tensors[_SEGMENTS] = StoredTensor(f"{weights.path}: no segments", shape, zeros)
        bias = tensors.get("masked_lm/output_bias")
        if bias is not None:
            tensors["masked_lm/output_bias"] = _after_check_of_ties(bias, weights, available)
        _warn_of_others(groups, weights, available)
        outputs, labels = tensors.get(f"{classifier}/bias"), None
        if outputs is not None and classifier != "multiple_choice":
            try:
                labels = _labels(place, settings, outputs.shape[0])
            except InputError as error:
                logging.warning("%s: its %s head is not read. %s", path, classifier, error)
                tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{classifier}/")}
        saved = read_settings(path)
        task = saved.get("task", {})
        if "embedding_activation" in task:
            tensors |= sentence_transformers.read_dense(path, stack)
        if "refusal" in task:
            logging.warning("%s: only the encoder can be read. %s", path, task["refusal"])
        # ELECTRA's masked-LM head has this activation whatever its encoder has.
        masked_lm = {"activation": "gelu"} if family == "electra" and bias is not None else {}
        yield Checkpoint("hugging_face", path, config, tensors, labels, masked_lm, saved)


def _by_table_names(weights: WeightFile, prefix: str) -> dict[str, StoredTensor]:
    """Returns the tensors by the table's names, without the encoder's prefix.

    Checkpoints converted before 2019, bert-base-uncased among them, keep TensorFlow's gamma and beta.
    """
    available = {}
    for stored, tensor in weights.tensors.items():
        name = stored.removeprefix(prefix).replace("sequence_summary.summary.", "classifier.dense.")
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name in available:
            raise InputError(
                f"{weights.path}: {available[name].source} and {stored} name one weight. Remove one of them."
            )
        available[name] = tensor
    for copy, original in _DECODER.items():
        if copy in available:
            available.setdefault(original, available[copy])
    return available


def _classifier(path: str, settings: dict) -> str:
    """Returns the head that the name `classifier` means, since three classes of transformers use it."""
    architectures = settings.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        file = os.path.join(path, CONFIG_FILE)
        raise InputError(f"{file}: expected architectures to be a list of names, found {shown(architectures)}.")
    endings = ((name, ending) for name in architectures for ending in _CLASSIFIERS)
    return next((_CLASSIFIERS[ending] for name, ending in endings if name.endswith(ending)), "classification")


def _after_check_of_ties(bias: StoredTensor, weights: WeightFile, available: dict[str, StoredTensor]) -> StoredTensor:
    """Makes reading the output bias check first that the stored output layer equals the word table."""

    def read():
        for copy, original in _DECODER.items():
            ours, theirs = available.get(original), available.get(copy)
            if theirs is None or theirs is ours:
                continue
            if theirs.shape != ours.shape or not np.array_equal(theirs.read(), ours.read()):
                raise InputError(
                    f"{weights.path}: {theirs.source} differs from {ours.source}. Expected BERT's masked-LM "
                    "head, whose output layer is the word table itself; untied ones cannot be read."
                )
        return bias.read()

    return bias._replace(read=read)


def _warn_of_others(groups: list[list[WeightSource]], weights: WeightFile, available: dict[str, StoredTensor]) -> None:
    known = {name for group in groups for source in group for name in source.names} | {*_DECODER, *_BUFFERS}
    unknown = [tensor.source for name, tensor in available.items() if name not in known]
    if unknown:
        message = "%s: %d tensors belong to no part of BERT known here, and are not read: %s."
        logging.warning(message, weights.path, len(unknown), listed(unknown))


def _labels(path: str, settings: dict, count: int) -> list[str] | None:
    """Returns the names of `count` classes in their order, or None if the classes are only numbered."""
    file, names = os.path.join(path, CONFIG_FILE), settings.get("id2label")
    if settings.get("problem_type") == "regression" and count > 1:
        raise InputError(f"{file}: expected classes, or one number to predict, found a regression of {count} numbers.")
    if names is None:
        return None
    if not isinstance(names, dict) or sorted(names) != sorted(map(str, range(len(names)))):
        raise InputError(f"{file}: expected id2label to name the classes 0, 1, ..., found {shown(names)}.")
    labels = [str(names[str(index)]) for index in range(len(names))]
    if len(labels) != count or len(set(labels)) != count:
        raise InputError(f"{file}: expected id2label to name {count} different classes, found {shown(names)}.")
    return None if all(re.fullmatch(r"LABEL_\d+", label) for label in labels) else labels
