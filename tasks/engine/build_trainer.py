"""Builds a trainer from the settings that every training shares."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tasks.engine.optimization import build_optimizer
from tasks.engine.settings import TrainingSettings
from tasks.engine.strategy import build_strategy, set_mixed_precision, wrap_loss_scale
from tasks.engine.train_step import Objective
from tasks.engine.training import Trainer


def prepare_devices(settings: TrainingSettings) -> tf.distribute.Strategy:
    """Builds the distribution strategy and sets the seed, number type and determinism of everything built afterwards.

    Call it before the first TensorFlow op: a multi-worker strategy must be created before TensorFlow initializes.

    Raises:
        InputError: as `build_strategy`.
    """
    if settings.deterministic_ops:
        tf.config.experimental.enable_op_determinism()
    strategy = build_strategy(settings.distribution_strategy, settings.num_gpus, settings.tpu)
    keras.utils.set_random_seed(settings.random_seed)
    set_mixed_precision(settings.mixed_precision)
    return strategy


def build_trainer(
    settings: TrainingSettings,
    build_model: Callable[[], keras.Model],
    objective: Objective,
    *,
    output_dir: str,
    num_train_steps: int,
    num_warmup_steps: int,
    strategy: tf.distribute.Strategy,
) -> Trainer:
    """Builds model, optimizer and trainer on the devices that the settings name.

    Args:
        settings: training settings.
        build_model: builds the model; called inside the strategy's scope, once the seed and number type are set.
        objective: the loss to minimize.
        output_dir: as in `Trainer`.
        num_train_steps, num_warmup_steps: as in `build_optimizer`.
        strategy: the result of `prepare_devices`.
    """
    with strategy.scope():
        model = build_model()
        optimizer = build_optimizer(
            settings.optimizer,
            settings.learning_rate,
            num_train_steps,
            num_warmup_steps,
            layer_decay=settings.layer_decay,
        )
        optimizer = wrap_loss_scale(optimizer, settings.mixed_precision)
    return Trainer(
        model,
        optimizer,
        objective,
        output_dir=output_dir,
        strategy=strategy,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        jit_compile=settings.jit_compile,
        random_seed=settings.random_seed,
        spike_factor=settings.spike_factor,
    )
