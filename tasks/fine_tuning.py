"""What the fine-tuning of every task shares: from a preset to a trainer, and from examples to trained weights."""

import dataclasses
import time
from collections.abc import Callable
from typing import NamedTuple

import keras
from absl import logging

from keras_bert import weights
from keras_bert.backbone import BertBackbone
from keras_bert.convert import HEADS
from keras_bert.embeddings import weights_follow
from keras_bert.errors import InputError
from keras_bert.formats.checkpoint import Checkpoint, assign
from keras_bert.tokenizer import BertTokenizer
from tasks.build_trainer import build_trainer
from tasks.checkpoints import keep_settings
from tasks.early_stopping import EarlyStopping
from tasks.examples import Examples, make_train_dataset
from tasks.settings import CHANGEABLE, TrainingSettings, identify
from tasks.train_step import Objective
from tasks.training import Trainer

_WITHOUT_POOLER = ("token_classification", "question_answering")  # Heads on every token; checkpoints have no pooler.
EVALUATIONS = 20  # Epochs may be shorter than this part of a training; checkpoints and evaluations then are not.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningSettings(TrainingSettings):
    """How a task is fine-tuned; the flags of `tasks.flags.define_fine_tuning` have the same names.

    Attributes:
        preset: encoder and vocabulary to start from.
        load_weights: False starts from random weights.
        max_seq_length: tokens of a sequence at most; with `jit_compile` every sequence is padded to it.
        num_train_epochs: passes over the examples.
        warmup_proportion: share of the steps over which the learning rate rises.
        early_stopping_patience: evaluations without a better one after which training ends; the best one's weights
            are kept. 0: all steps, and the last weights.
        num_frozen_layers: the embeddings and so many of the lowest encoder layers stay as they are; 0: none.
        lora_rank: rank of the factors that adapt the attention's kernels, while the rest of the encoder stays as it
            is (Hu et al. 2021, LoRA); 0: the encoder itself is trained.
    """

    preset: str
    load_weights: bool = True
    max_seq_length: int = 128
    num_train_epochs: float = 3.0
    warmup_proportion: float = 0.1
    early_stopping_patience: int = 0
    num_frozen_layers: int = 0
    lora_rank: int = 0


class FineTuner(NamedTuple):
    """What `start` builds.

    Attributes:
        trainer: of the whole model, `trainer.model`.
        backbone: the model's encoder.
        tokenizer: the preset's.
        identity: what must stay when a stopped training continues: settings, and the encoder by its content.
    """

    trainer: Trainer
    backbone: BertBackbone
    tokenizer: BertTokenizer
    identity: dict


def start(
    settings: FineTuningSettings,
    build_head: Callable[[BertBackbone], keras.Model],
    objective: Objective,
    *,
    output_dir: str,
    num_steps: int,
) -> FineTuner:
    """Builds the model of a preset, with its weights, and a trainer for it.

    Args:
        settings: how to train.
        build_head: puts the task's head on the backbone. Where the head's layer has a name of
            `keras_bert.convert.HEADS`, and the preset's checkpoint holds such a head of the same shape, training starts
            from that; else from random weights.
        objective: what is minimized.
        output_dir: where checkpoints, events and curve go.
        num_steps: steps of the whole training.

    Raises:
        InputError: no such preset; it is too short, or has too few layers, for the settings, or its vocabulary does not
            fit.
    """
    tokenizer = BertTokenizer.from_preset(settings.preset)
    built: list[BertBackbone] = []

    def build_model() -> keras.Model:
        backbone, model = _build_model(settings, build_head)
        _check_preset(settings, backbone, tokenizer)
        _freeze(backbone, settings)
        built.append(backbone)
        return model

    trainer = build_trainer(
        settings,
        build_model,
        objective,
        output_dir=output_dir,
        num_train_steps=num_steps,
        num_warmup_steps=int(num_steps * settings.warmup_proportion),
    )
    identity = identify(
        settings,
        built[0],
        tokenizer,
        weights_are_loaded=settings.load_weights,
        changeable=CHANGEABLE | {"preset"},
    )
    return FineTuner(trainer, built[0], tokenizer, identity)


def fit(
    tuner: FineTuner,
    examples: Examples,
    num_steps: int,
    settings: FineTuningSettings,
    *,
    output_dir: str,
    identity: dict,
    metric: str,
    evaluate: Callable[[], dict[str, float]] | None = None,
    higher_is_better: bool = True,
    description: str = "fine-tuning",
) -> float | None:
    """Trains up to the last step, from the newest checkpoint in `output_dir` if there is one.

    Args:
        tuner: of `start`.
        examples: what is trained on.
        num_steps: as in `start`.
        settings: as in `start`.
        output_dir: as in `start`.
        identity: what else must stay when a stopped training continues, JSON values by name: labels, a checksum of the
            examples.
        metric: figure of `evaluate` by which the best weights are kept, with `early_stopping_patience`.
        evaluate: called at every checkpoint: once an epoch, or every `save_checkpoints_steps` if that is more often,
            but not for a few steps each; None: no evaluation.
        higher_is_better: False where `metric` is a loss.
        description: the progress bar's title.

    Returns:
        The seconds it took, or None if the training had been finished before.

    Raises:
        InputError: `output_dir` holds a training with other settings; early stopping without an evaluation; as
            `Trainer.fit`.
    """
    started = time.monotonic()
    stopping = None
    if settings.early_stopping_patience:
        if evaluate is None:
            raise InputError("--early_stopping_patience needs an evaluation: give --do_eval with a dev file.")
        stopping = EarlyStopping(metric, settings.early_stopping_patience, higher_is_better)
    keep_settings(output_dir, {**tuner.identity, **identity})
    length = settings.max_seq_length if settings.jit_compile else None  # XLA compiles every shape anew.
    trainer = tuner.trainer
    first_step = trainer.restore()
    steps_of_epoch = max(1, examples.num_examples // settings.train_batch_size)
    history = trainer.fit(
        lambda step: make_train_dataset(
            examples, settings.train_batch_size, settings.random_seed, step, num_steps, length=length
        ),
        num_steps,
        save_checkpoints_steps=min(settings.save_checkpoints_steps, max(steps_of_epoch, num_steps // EVALUATIONS)),
        evaluate=evaluate,
        early_stopping=stopping,
        description=description,
    )
    was_over = first_step >= num_steps or not any(row["step"] > first_step for row in history.training)
    return None if was_over else time.monotonic() - started


def load_fine_tuned(
    preset: str, head: str, build_head: Callable[[BertBackbone, int], keras.Model]
) -> tuple[keras.Model, BertTokenizer, list[str] | None]:
    """Loads a checkpoint that has been fine-tuned elsewhere, head and all.

    Args:
        preset: name or path of any format, e.g. a directory of transformers' `BertForSequenceClassification`.
        head: name of its head, of `keras_bert.convert.HEADS`.
        build_head: puts that head with so many outputs on a backbone.

    Returns:
        (model, tokenizer, labels in the order of the outputs, or None where the checkpoint has none).

    Raises:
        InputError: no such preset, or it has no such head.
    """
    tokenizer = BertTokenizer.from_preset(preset)
    with weights.open_checkpoint(preset) as checkpoint:
        if head not in checkpoint.heads:
            there = ", ".join(checkpoint.heads) or "none"
            raise InputError(
                f"{checkpoint.source}: expected a fine-tuned {head} head, found {there}. Train it first: --do_train."
            )
        backbone = _load_backbone(checkpoint, uses_pooler=head not in _WITHOUT_POOLER)
        num_outputs = checkpoint.tensors[f"{head}/kernel"].read().shape[-1]
        model = build_head(backbone, num_outputs)
        assign(model.get_layer(head).weights, checkpoint.tensors)
        return model, tokenizer, checkpoint.labels


def _build_model(
    settings: FineTuningSettings, build_head: Callable[[BertBackbone], keras.Model]
) -> tuple[BertBackbone, keras.Model]:
    if not settings.load_weights:
        backbone = BertBackbone(**weights.read_bert_config(settings.preset).to_dict())
        return backbone, build_head(backbone)
    with weights.open_checkpoint(settings.preset) as checkpoint:
        backbone = _load_backbone(checkpoint)
        model = build_head(backbone)
        _load_head(model, checkpoint)
    return backbone, model


def _load_backbone(checkpoint: Checkpoint, uses_pooler: bool = True) -> BertBackbone:
    with weights_follow():
        backbone = BertBackbone(**checkpoint.config.to_dict())
    weights.load_weights_of(backbone, checkpoint, uses_pooler)
    return backbone


def _load_head(model: keras.Model, checkpoint: Checkpoint) -> None:
    """Gives the model's head the checkpoint's weights, if it has them, and in the same shapes."""
    for layer in model.layers:
        if layer.name not in HEADS or layer.name not in checkpoint.heads:
            continue
        stored = [checkpoint.tensors[variable.path].read().shape for variable in layer.weights]
        wanted = [tuple(variable.shape) for variable in layer.weights]
        if stored == wanted:
            assign(layer.weights, checkpoint.tensors)
            logging.info("%s: training starts from its %s head.", checkpoint.source, layer.name)
        else:
            logging.warning(
                "%s: its %s head has shapes %s, this task's %s: that starts from random weights.",
                checkpoint.source, layer.name, stored, wanted,
            )  # fmt: skip


def _check_preset(settings: FineTuningSettings, backbone: BertBackbone, tokenizer: BertTokenizer) -> None:
    if settings.max_seq_length > backbone.max_sequence_length:
        raise InputError(
            f"--max_seq_length={settings.max_seq_length}: {settings.preset} has positions for "
            f"{backbone.max_sequence_length} tokens. Give at most that many."
        )
    if tokenizer.vocabulary_size() > backbone.vocabulary_size:
        raise InputError(
            f"{settings.preset}: the vocabulary has {tokenizer.vocabulary_size()} tokens, but the encoder's table "
            f"has {backbone.vocabulary_size} rows. They are not of one checkpoint."
        )
    if settings.num_frozen_layers > backbone.num_layers:
        raise InputError(
            f"--num_frozen_layers={settings.num_frozen_layers}: {settings.preset} has {backbone.num_layers} layers."
        )
    if settings.num_frozen_layers and settings.lora_rank:
        raise InputError("--lora_rank leaves the whole encoder as it is: give it without --num_frozen_layers.")


def _freeze(backbone: BertBackbone, settings: FineTuningSettings) -> None:
    if settings.lora_rank:
        backbone.enable_lora(settings.lora_rank)
    elif settings.num_frozen_layers:
        names = ["embeddings", *(f"transformer_layer_{index}" for index in range(settings.num_frozen_layers))]
        for name in names:
            backbone.get_layer(name).trainable = False
