"""Writes the directory that transformers' `from_pretrained` loads: the class that fits the heads, and a tokenizer."""

import os

from absl import logging
from safetensors.numpy import save_file

from keras_bert.config import BertConfig
from keras_bert.errors import InputError
from keras_bert.files import write_json, write_lines
from keras_bert.formats import sentence_transformers, weight_names
from keras_bert.formats.checkpoint import Checkpoint, check_heads_follow_encoder, check_whole
from keras_bert.formats.hugging_face_files import CONFIG_FILE, SAFETENSORS_FILE
from keras_bert.formats.hugging_face_tokenizer import SETTINGS_FILE, VOCABULARY_FILE

_NEEDED, _KEPT, _LEFT_OUT = "needed", "kept", "left out"
# The class of transformers that has exactly these heads, and what happens to the pooler: it is needed, kept if there is
# one, or left out, since the class does not read it.
_ARCHITECTURES = {
    (): ("BertModel", _KEPT),  # Loads without a pooler by from_pretrained(directory, add_pooling_layer=False).
    ("masked_lm", "next_sentence"): ("BertForPreTraining", _NEEDED),
    # The class has no pooler, and reports one in the file as unexpected, but fine-tuning the encoder starts from it.
    ("masked_lm",): ("BertForMaskedLM", _KEPT),
    ("next_sentence",): ("BertForNextSentencePrediction", _NEEDED),
    ("classification",): ("BertForSequenceClassification", _NEEDED),
    ("token_classification",): ("BertForTokenClassification", _LEFT_OUT),
    ("multiple_choice",): ("BertForMultipleChoice", _NEEDED),
    ("question_answering",): ("BertForQuestionAnswering", _LEFT_OUT),
    ("embedding",): ("BertModel", _KEPT),  # The head is a file of its own.
}
_OUTPUTS = {"next_sentence": 2, "multiple_choice": 1, "question_answering": 2}  # Other heads have one for each label.


def write(path: str, checkpoint: Checkpoint, tokenizer: dict | None) -> None:
    """Writes a checkpoint in Hugging Face's format; an embedder's also in sentence-transformers'.

    `config.json` names the class that has exactly the checkpoint's heads. Tensors are written bit for bit. A token
    classifier and a question-answering model have no pooler in transformers: it is left out with a warning. A model
    whose pooler has ELECTRA's activation is written as ELECTRA. Every other model is written as BERT, without the
    pooler if its activation is not BERT's.

    Args:
        path: path of the directory, which must not exist.
        checkpoint: an open checkpoint.
        tokenizer: `vocabulary`, list of str, and `lowercase`, bool; or None.

    Raises:
        InputError: a tensor of the encoder is missing, no class of transformers has such heads, or the format cannot
            express the checkpoint.
    """
    architecture, pooler = _architecture(checkpoint)
    check_heads_follow_encoder(checkpoint, "transformers")
    sources = _sources(checkpoint, has_pooler=checkpoint.has_pooler and pooler != _LEFT_OUT)
    vocabulary = [] if tokenizer is None else tokenizer["vocabulary"]
    broken = [piece for piece in vocabulary if "\n" in piece or "\r" in piece]
    if broken:
        raise InputError(
            f"{checkpoint.source}: {VOCABULARY_FILE} cannot hold the piece {broken[0]!r}, of several lines."
        )
    config = _config(checkpoint, architecture, vocabulary)
    os.makedirs(path)
    write_json(os.path.join(path, CONFIG_FILE), config)
    is_electra = architecture.startswith("Electra")
    prefix = "" if architecture.endswith("Model") else "electra." if is_electra else "bert."
    outside = (*weight_names.HEADS, weight_names.POOLER) if is_electra else weight_names.HEADS
    tensors = {
        name if source.path.partition("/")[0] in outside else prefix + name: part
        for source, name, part in checkpoint.foreign_tensors(sources)
        if not source.path.startswith("embedding/")
    }
    if architecture == "ElectraForMultipleChoice":
        tensors = {name.replace("classifier.dense", "sequence_summary.summary"): part for name, part in tensors.items()}
    # Without the mark transformers refuses the file; "pt" means PyTorch's layouts.
    save_file(tensors, os.path.join(path, SAFETENSORS_FILE), metadata={"format": "pt"})
    if vocabulary:
        _write_tokenizer(path, vocabulary, tokenizer["lowercase"], checkpoint.config)
    if checkpoint.is_embedder:
        sentence_transformers.write(path, checkpoint)


def _architecture(checkpoint: Checkpoint) -> tuple[str, str]:
    """Returns the class of transformers for a checkpoint, and what happens to its pooler."""
    if checkpoint.heads not in _ARCHITECTURES:
        known = "; ".join(" and ".join(heads) for heads in _ARCHITECTURES if heads)
        raise InputError(
            f"{checkpoint.source}: no class of transformers has just the heads {', '.join(checkpoint.heads)}. Expected "
            f"none, or: {known}."
        )
    name, pooler = _ARCHITECTURES[checkpoint.heads]
    config, kept = checkpoint.config, "Keep it in our format."
    if config.pooler_activation == "gelu":
        name = name.replace("Bert", "Electra")
        if checkpoint.heads == ("masked_lm",) and config.activation != "gelu":
            raise InputError(f"{checkpoint.source}: has {config.activation}, and the head of {name} gelu. {kept}")
    elif config.pooler_activation != "tanh" and pooler == _NEEDED:
        raise InputError(f"{checkpoint.source}: its pooler has {config.pooler_activation}, and {name}'s tanh. {kept}")
    if config.pooler_activation != "tanh" and pooler == _KEPT:
        pooler = _LEFT_OUT
    if pooler == _NEEDED and not checkpoint.has_pooler:
        raise InputError(f"{checkpoint.source}: lacks pooled_dense/kernel, without which there is no {name}.")
    if pooler == _LEFT_OUT and checkpoint.has_pooler:
        logging.warning("%s: the pooler is left out: %s has none of this kind.", checkpoint.source, name)
    return name, pooler


def _sources(checkpoint: Checkpoint, has_pooler: bool) -> list[weight_names.WeightSource]:
    """Returns the rows of the tensors to write; raises InputError if one is missing, or if a tensor has no row."""
    names = weight_names.ELECTRA if checkpoint.config.pooler_activation == "gelu" else weight_names.HUGGING_FACE
    sources = weight_names.encoder_sources(names, checkpoint.config.num_layers)
    sources += weight_names.head_sources(names, *checkpoint.heads)
    unknown = sorted(set(checkpoint.tensors) - {source.path for source in sources})
    if unknown:
        raise InputError(
            f"{checkpoint.source}: holds {', '.join(unknown[:4])}, which has no name in Hugging Face's format. "
            "Expected the weights of a BERT and its heads, neither adapted (LoRA) nor quantized."
        )
    sources = [source for source in sources if has_pooler or not source.path.startswith(f"{weight_names.POOLER}/")]
    check_whole(checkpoint.tensors, sources, checkpoint.source)
    return sources


def _config(checkpoint: Checkpoint, architecture: str, vocabulary: list[str]) -> dict:
    # transformers excludes the embedding of this id from training.
    padding = vocabulary.index("[PAD]") if "[PAD]" in vocabulary else 0
    values = {"architectures": [architecture], **checkpoint.config.to_hugging_face(), "pad_token_id": padding}
    for head in (head for head in checkpoint.heads if head not in ("masked_lm", "embedding")):
        bias = f"{head}/bias"
        (outputs,) = checkpoint.tensors[bias].shape
        if head not in _OUTPUTS:
            values |= _label_values(checkpoint, bias, outputs)
        elif outputs != _OUTPUTS[head]:
            expected = f"expected shape ({_OUTPUTS[head]},) in {architecture}"
            raise InputError(f"{checkpoint.source}: {bias}: {expected}, found ({outputs},).")
    task = checkpoint.settings.get("task", {})
    if task.get("multi_label"):
        values["problem_type"] = "multi_label_classification"
    elif "classification" in checkpoint.heads and checkpoint.tensors["classification/bias"].shape == (1,):
        values["problem_type"] = "regression"  # Otherwise transformers' pipeline turns the number into a probability.
    return values | {name: task[name] for name in ("num_choices",) if name in task}


def _label_values(checkpoint: Checkpoint, bias: str, count: int) -> dict:
    """Returns `id2label` and `label2id`, from which transformers also takes the number of classes."""
    labels = checkpoint.labels or [f"LABEL_{index}" for index in range(count)]
    if len(labels) != count or len(set(labels)) != count:
        raise InputError(
            f"{checkpoint.source}: expected {count} different labels, by the shape of {bias}, found {labels}."
        )
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


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
