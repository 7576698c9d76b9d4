"""Writes the directory that transformers' `from_pretrained` loads: the class that the heads make, and a tokenizer."""

import os
from typing import NamedTuple

import numpy as np
from absl import logging
from safetensors.numpy import save_file

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import write_json, write_lines
from keras_bert.formats.checkpoint import Checkpoint, check_heads_follow_encoder
from keras_bert.formats.hugging_face_files import CONFIG_FILE, SAFETENSORS_FILE
from keras_bert.formats.hugging_face_tokenizer import SETTINGS_FILE, VOCABULARY_FILE
from keras_bert.formats.weight_names import (
    HEADS,
    HUGGING_FACE,
    POOLER,
    WeightSource,
    encoder_sources,
    head_sources,
    to_theirs,
)

NEEDED, KEPT, LEFT_OUT = "needed", "kept", "left out"


class Architecture(NamedTuple):
    """A class of transformers.

    Attributes:
        name: str.
        heads: set of str, those that it has; a file with others makes it warn.
        pooler: str, what happens to a pooler: `NEEDED`; `KEPT` if there is one; `LEFT_OUT`, since nothing of the
            class reads it.
    """

    name: str
    heads: frozenset[str]
    pooler: str


_ARCHITECTURES = (
    # Without a pooler: BertModel.from_pretrained(directory, add_pooling_layer=False).
    Architecture("BertModel", frozenset(), KEPT),
    Architecture("BertForPreTraining", frozenset({"masked_lm", "next_sentence"}), NEEDED),
    # The class has no pooler and says so when it meets one; whoever fine-tunes the encoder wants it.
    Architecture("BertForMaskedLM", frozenset({"masked_lm"}), KEPT),
    Architecture("BertForNextSentencePrediction", frozenset({"next_sentence"}), NEEDED),
    Architecture("BertForSequenceClassification", frozenset({"classification"}), NEEDED),
    Architecture("BertForTokenClassification", frozenset({"token_classification"}), LEFT_OUT),
    Architecture("BertForMultipleChoice", frozenset({"multiple_choice"}), NEEDED),
    Architecture("BertForQuestionAnswering", frozenset({"question_answering"}), LEFT_OUT),
)
_OUTPUTS = {"next_sentence": 2, "multiple_choice": 1, "question_answering": 2}  # Of the others: as many as labels.


def write(path: str, checkpoint: Checkpoint, tokenizer: dict | None) -> None:
    """Writes a checkpoint in Hugging Face's format.

    The class in `config.json` is the one that has just the checkpoint's heads; the tensors are stored as they are,
    bit by bit. A token classifier and a question-answering model have no pooler there: it is left out, and a warning
    says so.

    Args:
        path: of the directory, which does not exist.
        checkpoint: an open one.
        tokenizer: `vocabulary`, list of str, and `lowercase`, bool; or None.

    Raises:
        InputError: a tensor of the encoder is missing, no class of transformers has such heads, or the checkpoint
            holds what the format cannot tell.
    """
    architecture = _architecture(checkpoint)
    check_heads_follow_encoder(checkpoint, "transformers")
    sources = _sources(checkpoint, architecture)
    vocabulary = None if tokenizer is None else _checked_vocabulary(checkpoint, tokenizer["vocabulary"])
    config = _config(checkpoint, architecture, vocabulary)
    os.makedirs(path)
    write_json(os.path.join(path, CONFIG_FILE), config)
    prefix = "" if architecture.name == "BertModel" else "bert."
    tensors = _their_tensors(checkpoint, sources, prefix)
    # Without the mark transformers refuses the file; "pt" says that the layouts are PyTorch's.
    save_file(tensors, os.path.join(path, SAFETENSORS_FILE), metadata={"format": "pt"})
    if vocabulary is not None:
        _write_tokenizer(path, vocabulary, tokenizer["lowercase"], checkpoint.config)


def _architecture(checkpoint: Checkpoint) -> Architecture:
    for architecture in _ARCHITECTURES:
        if architecture.heads == set(checkpoint.heads):
            break
    else:
        known = "; ".join(" and ".join(sorted(each.heads)) for each in _ARCHITECTURES if each.heads)
        raise InputError(
            f"{checkpoint.source}: no class of transformers has just the heads {', '.join(checkpoint.heads)}. Expected "
            f"none, or: {known}."
        )
    if architecture.pooler == NEEDED and not checkpoint.has_pooler:
        raise InputError(
            f"{checkpoint.source}: lacks pooled_dense/kernel, without which there is no {architecture.name}."
        )
    if architecture.pooler == LEFT_OUT and checkpoint.has_pooler:
        logging.warning("%s: the pooler is left out: %s has none.", checkpoint.source, architecture.name)
    return architecture


def _sources(checkpoint: Checkpoint, architecture: Architecture) -> list[WeightSource]:
    """The rows of what is written; raises if one is missing, or if a tensor has no row."""
    sources = encoder_sources(HUGGING_FACE, checkpoint.config.num_layers)
    for head in checkpoint.heads:
        sources += head_sources(HUGGING_FACE, head)
    others = sorted(set(checkpoint.tensors) - {source.path for source in sources})
    if others:
        raise InputError(
            f"{checkpoint.source}: holds {', '.join(others[:4])}, which has no name in Hugging Face's format. "
            "Expected the weights of a BERT and its heads, neither adapted (LoRA) nor quantized."
        )
    if architecture.pooler == LEFT_OUT or not checkpoint.has_pooler:
        sources = [source for source in sources if not source.path.startswith(f"{POOLER}/")]
    missing = [source.path for source in sources if source.path not in checkpoint.tensors]
    if missing:
        raise InputError(f"{checkpoint.source}: lacks {', '.join(missing[:4])}. Expected the weights of a BERT.")
    return sources


def _their_tensors(checkpoint: Checkpoint, sources: list[WeightSource], prefix: str) -> dict[str, np.ndarray]:
    tensors = {}
    for source in sources:
        value = np.asarray(checkpoint.tensors[source.path].read())
        is_head = source.path.partition("/")[0] in HEADS
        for name, part in zip(source.names, to_theirs(value, source, checkpoint.config.num_heads), strict=True):
            tensors[name if is_head else prefix + name] = part
    return tensors


def _config(checkpoint: Checkpoint, architecture: Architecture, vocabulary: list[str] | None) -> dict:
    padding = vocabulary.index("[PAD]") if vocabulary and "[PAD]" in vocabulary else 0
    values = {
        "architectures": [architecture.name],
        **checkpoint.config.to_hugging_face(),
        "pad_token_id": padding,
    }
    for head in sorted(architecture.heads - {"masked_lm"}):
        bias = f"{head}/bias"
        (outputs,) = checkpoint.tensors[bias].read().shape
        if head not in _OUTPUTS:
            values |= _label_values(checkpoint, bias, outputs)
        elif outputs != _OUTPUTS[head]:
            raise InputError(
                f"{checkpoint.source}: {bias}: expected shape ({_OUTPUTS[head]},) in {architecture.name}, found "
                f"({outputs},)."
            )
    return values


def _label_values(checkpoint: Checkpoint, bias: str, count: int) -> dict:
    """`id2label` and `label2id`: from them, too, transformers takes the number of classes."""
    labels = checkpoint.labels or [f"LABEL_{index}" for index in range(count)]
    if len(labels) != count or len(set(labels)) != count:
        raise InputError(
            f"{checkpoint.source}: expected {count} different labels, by the shape of {bias}, found {labels}."
        )
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def _checked_vocabulary(checkpoint: Checkpoint, vocabulary: list[str]) -> list[str]:
    rows = checkpoint.config.vocabulary_size
    if len(vocabulary) > rows:  # Fewer is common: tables padded to a round number of rows.
        raise InputError(
            f"{checkpoint.source}: expected a vocabulary of at most {rows} pieces, the rows of the word table, found "
            f"{len(vocabulary)}. Give the vocabulary that the model was trained with."
        )
    broken = [piece for piece in vocabulary if "\n" in piece or "\r" in piece]
    if broken:
        raise InputError(
            f"{checkpoint.source}: {VOCABULARY_FILE} cannot hold the piece {broken[0]!r}, of several lines."
        )
    return vocabulary


def _write_tokenizer(path: str, vocabulary: list[str], lowercase: bool, config: BertConfig) -> None:
    write_lines(os.path.join(path, VOCABULARY_FILE), vocabulary)
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercase,
        "strip_accents": None,  # As do_lower_case.
        "tokenize_chinese_chars": True,
        "model_max_length": config.max_sequence_length,
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    }
    write_json(os.path.join(path, SETTINGS_FILE), settings)
