"""Builds a trainer from the settings that every training shares."""

from collections.abc import Callable

import keras
import tensorflow as tf

from tasks.engine.optimization import build_optimizer
from tasks.engine.settings import TrainingSettings
from tasks.engine.strategy import build_strategy, set_mixed_precision, wrap_loss_scale
from tasks.engine.train_step import Objective
from tasks.engine.training import Trainer
from tasks.engine.workers import Workers


def prepare_devices(settings: TrainingSettings) -> tf.distribute.Strategy:
    """Builds the distribution strategy and sets the seed, number type and determinism of everything built afterwards.

    Call it before the first TensorFlow op: a multi-worker strategy must be created before TensorFlow initializes.

    Raises:
        InputError: as in `build_strategy`; or the flags of the workers differ.
    """
    if settings.deterministic_ops:
        tf.config.experimental.enable_op_determinism()
    strategy = build_strategy(settings.distribution_strategy, settings.num_gpus, settings.tpu)
    Workers(strategy).check_equal(settings.of_all_workers())
    keras.utils.set_random_seed(settings.random_seed)
    set_mixed_precision(settings.mixed_precision)
    return strategy


def build_trainer(
    settings: TrainingSettings,
    build_model: Callable[[], keras.Model],
    objective: Objective,
    strategy: tf.distribute.Strategy,
    num_steps: tuple[int, int],
    pooling: str | None = None,
) -> Trainer:
    """Builds model, optimizer and trainer on the devices that the settings name.

    Args:
        settings: training settings, with an `output_dir`.
        build_model: builds the model; called inside the strategy's scope, once the seed and number type are set.
        objective: the loss to minimize.
        strategy: the result of `prepare_devices`.
        num_steps: `num_train_steps` and `num_warmup_steps`, as in `build_optimizer`.
        pooling: as in `tasks.engine.train_step.TrainStep`.
    """
    with strategy.scope():
        model = build_model()
        options = settings.optimizer_options
        optimizer = build_optimizer(settings.optimizer, settings.learning_rate, *num_steps, **options)
        optimizer = wrap_loss_scale(optimizer, settings.mixed_precision)
    names = ("output_dir", "gradient_accumulation_steps", "jit_compile", "rematerialize", "random_seed")
    options = {name: getattr(settings, name) for name in names}
    return Trainer(model, optimizer, objective, strategy=strategy, pooling=pooling, **options)
