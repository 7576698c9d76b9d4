"""Loads where a fine-tuning starts from: encoder, weights and vocabulary, by preset or google-research/bert's flags."""

import contextlib
import dataclasses
import glob
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.layer import weights_follow
from keras_bert.errors import InputError
from keras_bert.files import absolute, expand_file, local_copy
from keras_bert.formats.tensorflow_files import find_prefix
from keras_bert.models.task import BertTask
from keras_bert.presets import weights
from keras_bert.tokenization.tokenizer import BertTokenizer
from keras_bert.vocabulary import check_rows
from tasks.fine_tuning.settings import BASE_RATE, FineTuningSettings, StartSettings, check_positions


@dataclasses.dataclass(frozen=True)
class Start:
    """Encoder and vocabulary to start from.

    Attributes:
        preset: name or path of any format.
        load_weights: False for random weights.
        tokenizer_options: further arguments of `BertTokenizer.from_preset`.
        layers: indices, from 0, of the encoder layers to keep; None for all.
    """

    preset: str
    load_weights: bool
    tokenizer_options: dict
    layers: list[int] | None = None

    def tokenizer(self) -> BertTokenizer:
        return BertTokenizer.from_preset(self.preset, **self.tokenizer_options)


@contextlib.contextmanager
def find_start(settings: StartSettings) -> Iterator[Start]:
    """Resolves `--preset`, or `--init_checkpoint`, `--bert_config_file` and `--vocab_file` instead.

    google-research/bert's three files are linked into one directory, which is removed when the context is left.

    Raises:
        InputError: a file is missing.
    """
    options = {}
    if settings.vocab_file:
        options["vocabulary"] = expand_file("--vocab_file", settings.vocab_file)
    if settings.do_lower_case is not None:
        options["lowercase"] = settings.do_lower_case
    preset, load_weights = settings.start, settings.load_weights
    if not settings.bert_config_file:
        yield Start(preset, load_weights, options, settings.kept_layers)
        return
    with tempfile.TemporaryDirectory() as directory:
        preset = _assemble(settings, options.get("vocabulary"), directory)
        try:
            yield Start(preset, load_weights and settings.init_checkpoint is not None, options, settings.kept_layers)
        except InputError as error:  # The user knows the files, not the directory of their links.
            source = settings.init_checkpoint or settings.bert_config_file
            files = {"/vocab.txt": settings.vocab_file or "", "/bert_config.json": settings.bert_config_file}
            message = str(error)
            for name, file in {**files, "/bert_model.ckpt": source, "": source}.items():
                message = message.replace(f"{preset}{name}", file)
            raise InputError(message) from error


def _assemble(settings: StartSettings, vocabulary: str | None, parent: str) -> str:
    """Links google-research/bert's three files into a new directory, which is a preset in Google's format."""
    files = {"bert_config.json": expand_file("--bert_config_file", settings.bert_config_file)}
    if vocabulary:
        files["vocab.txt"] = vocabulary
    if settings.init_checkpoint:
        prefix = find_prefix(local_copy(settings.init_checkpoint))
        if prefix is None:
            raise InputError(
                f"--init_checkpoint={settings.init_checkpoint}: no TensorFlow checkpoint. Expected the path before "
                ".index, as in bert_model.ckpt."
            )
        for path in (f"{prefix}.index", *glob.glob(f"{glob.escape(prefix)}.data-*")):
            files[f"bert_model.ckpt{path.removeprefix(prefix)}"] = path
    # Keep the directory's name, which may tell whether the checkpoint is cased.
    source_directory = os.path.dirname(absolute(files["bert_config.json"]))
    directory = os.path.join(parent, os.path.basename(source_directory) or "bert")
    os.mkdir(directory)
    for name, source in files.items():
        os.symlink(absolute(local_copy(source)), os.path.join(directory, name))
    return directory


# === The model ===


def build_model(start: Start, settings: FineTuningSettings, model_class: type[BertTask], arguments: dict) -> BertTask:
    """Builds the model to train. Call it inside the strategy's scope.

    The head starts from the checkpoint's own if that has the same kind and shape, else from random weights.

    Args:
        start: encoder and vocabulary.
        settings: number of layers to reinitialize or to freeze, or the rank of LoRA's factors.
        model_class: class in `keras_bert.models`.
        arguments: arguments of its constructor, besides the backbone.
    """
    if start.load_weights:
        with weights.open_checkpoint(start.preset) as checkpoint:
            checkpoint = checkpoint if start.layers is None else checkpoint.of_layers(start.layers)
            model = model_class.from_checkpoint(checkpoint, compile=False, **arguments)
    else:
        config = weights.read_bert_config(start.preset)
        config = config if start.layers is None else config.replace(num_layers=len(start.layers))
        backbone = BertBackbone(**weights.merge_settings(config, {}, start.preset))
        model = model_class(backbone, compile=False, **arguments)
    backbone = model.backbone
    if settings.reinit_layers:
        _start_anew(backbone, settings.reinit_layers)
    if settings.lora_rank:
        backbone.enable_lora(settings.lora_rank)
    elif settings.num_frozen_layers:
        for name in ("embeddings", *(f"transformer_layer_{index}" for index in range(settings.num_frozen_layers))):
            backbone.get_layer(name).trainable = False
    return model


@contextlib.contextmanager
def standardized_head(model: BertTask, name: str, center: float, spread: float) -> Iterator[None]:
    """Lets the head of a regression answer in standard deviations from a mean; afterwards it answers in units again."""
    head = model.get_layer(name)
    if np.any(head.bias):  # It was trained. A new head has a bias of zeros, and answers about the mean.
        head.kernel.assign(head.kernel / spread)
        head.bias.assign((head.bias - center) / spread)
    yield
    head.kernel.assign(head.kernel * spread)
    head.bias.assign(head.bias * spread + center)


def with_layout(model: BertTask, layout: str) -> BertTask:
    """Copies a model of `build_model` with its weights; `layout` is that of `BertBackbone`."""
    config = model.get_config()
    config["backbone"]["config"]["layout"] = layout
    with weights_follow():
        copy = type(model).from_config(config)
    copy.set_weights(model.get_weights())
    return copy


def _start_anew(backbone: BertBackbone, num_layers: int) -> None:
    """Gives the highest layers and the pooler random weights (Zhang et al., arXiv:2006.05987, section 5)."""
    sizes = {**backbone.bert_config.to_dict(), "vocabulary_size": 1, "num_layers": num_layers}
    random, first = BertBackbone(**sizes), backbone.num_layers - num_layers
    names = {f"transformer_layer_{index}": f"transformer_layer_{first + index}" for index in range(num_layers)}
    for name, name_here in {**names, "pooled_dense": "pooled_dense"}.items():
        backbone.get_layer(name_here).set_weights(random.get_layer(name).get_weights())


def check_encoder(start: Start, settings: FineTuningSettings, sequence_length: int, vocabulary_size: int) -> None:
    """Checks the settings against the encoder's sizes, before any weight is read.

    Raises:
        InputError: the encoder has too few positions or layers, or fewer token embeddings than the vocabulary.
    """
    config = weights.read_bert_config(start.preset)
    check_positions(sequence_length, config.max_sequence_length, start.preset)
    check_rows(start.preset, vocabulary_size, config.vocabulary_size)
    chosen = {name: getattr(settings, name) for name in ("num_frozen_layers", "reinit_layers")}
    num_layers = config.num_layers if start.layers is None else len(start.layers)
    if sum(chosen.values()) > num_layers:
        given = " ".join(f"--{name}={count}" for name, count in chosen.items() if count)
        raise InputError(f"{given}: {start.preset} has {num_layers} layers. Give no more.")


def default_rate(hidden_dim: int) -> float:
    """Returns the peak learning rate for an encoder of this width.

    BERT-base takes at most 5e-5 (appendix A.3 of the paper), smaller encoders up to 3e-4 (Turc et al.,
    arXiv:1908.08962). At 5e-5, some of them never learn to give another answer than the most frequent label (see
    docs/benchmarks.md).

    >>> [round(default_rate(width), 6) for width in (1024, 768, 384, 128)]
    [2.8e-05, 5e-05, 0.0002, 0.0003]
    """
    return min(BASE_RATE * (768 / hidden_dim) ** 2, 3e-4)


def load_fine_tuned(preset: str, task, parts: list) -> tuple[BertTask, Any]:
    """Loads a checkpoint that was fine-tuned elsewhere, including its head.

    Args:
        preset: name or path of any format, e.g. a directory of transformers' `BertForSequenceClassification`.
        task: the `tasks.fine_tuning.task.Task` to load it for.
        parts: files of this call.

    Returns:
        The model, an instance of the task's `model_class`, and its spec.

    Raises:
        InputError: the preset does not exist, lacks the task's head, or does not fit the flags.
    """
    model_class = task.model_class()
    if model_class is None:
        raise InputError(f"{preset}: expected a model that {task.command} trained. Train it: --do_train.")
    head = model_class.heads[0]
    with weights.open_checkpoint(preset) as checkpoint:
        if not model_class.has_head(checkpoint):
            there = ", ".join(checkpoint.heads) or "none"
            raise InputError(
                f"{checkpoint.source}: expected a fine-tuned {head} head, found {there}. Train it first: --do_train."
            )
        # An embedder without a dense layer has the outputs of the encoder.
        kernel, config = checkpoint.tensors.get(f"{head}/kernel"), checkpoint.config
        num_outputs = config.hidden_dim if kernel is None else kernel.shape[-1]
        spec = task.foreign_spec(preset, checkpoint.labels, num_outputs, parts)
        check_positions(spec.sequence_length, config.max_sequence_length, preset)
        arguments = task.model_arguments(spec)
        several = checkpoint.settings.get("task", {}).get("multi_label")
        if several is not None and several != arguments.get("multi_label", several):
            kind, flag = ("several labels", "--multi_label") if several else ("one label", "--nomulti_label")
            raise InputError(f"{checkpoint.source}: was trained on {kind} a row. Give {flag}, and rows to match.")
        return model_class.from_checkpoint(checkpoint, compile=False, **arguments), spec
