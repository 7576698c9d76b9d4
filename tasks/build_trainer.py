"""From the settings that every training shares to its trainer."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tasks.optimization import build_optimizer
from tasks.settings import TrainingSettings
from tasks.strategy import build_strategy, set_mixed_precision, wrap_loss_scale
from tasks.train_step import Objective
from tasks.training import Trainer


def prepare_devices(settings: TrainingSettings) -> tf.distribute.Strategy:
    """Builds the strategy and sets number type, seed and determinism of what is built next.

    To be called before TensorFlow's first operation: of several workers only then is it possible.

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
    strategy: tf.distribute.Strategy | None = None,
) -> Trainer:
    """Builds model, optimizer and trainer on the devices that the settings name.

    Args:
        settings: how to train.
        build_model: called inside the strategy's scope, after seed and number type are set.
        objective: what is minimized.
        output_dir: as in `Trainer`.
        num_train_steps, num_warmup_steps: as in `build_optimizer`.
        strategy: what `prepare_devices` gave; None: it is called here.
    """
    strategy = strategy or prepare_devices(settings)
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
