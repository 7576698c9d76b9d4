"""From the settings that every training shares to its trainer."""

from collections.abc import Callable

import keras

from tasks.optimization import build_optimizer
from tasks.settings import TrainingSettings
from tasks.strategy import build_strategy, set_mixed_precision
from tasks.training import Objective, Trainer


def build_trainer(
    settings: TrainingSettings,
    build_model: Callable[[], keras.Model],
    objective: Objective,
    *,
    output_dir: str,
    num_train_steps: int,
    num_warmup_steps: int,
) -> Trainer:
    """Builds model, optimizer and trainer on the devices that the settings name.

    Args:
        settings: how to train.
        build_model: called inside the strategy's scope, after seed and number type are set.
        objective: what is minimized.
        output_dir: as in `Trainer`.
        num_train_steps, num_warmup_steps: as in `build_optimizer`.
    """
    keras.utils.set_random_seed(settings.random_seed)
    set_mixed_precision(settings.mixed_precision)
    strategy = build_strategy(settings.distribution_strategy, settings.num_gpus)
    with strategy.scope():
        model = build_model()
        optimizer = build_optimizer(settings.optimizer, settings.learning_rate, num_train_steps, num_warmup_steps)
    return Trainer(
        model,
        optimizer,
        objective,
        output_dir=output_dir,
        strategy=strategy,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        jit_compile=settings.jit_compile,
        random_seed=settings.random_seed,
    )
