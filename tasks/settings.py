"""The settings that every training shares, and which of them may change when a stopped training continues."""

import dataclasses

# Where and how fast a training runs, not what it computes.
CHANGEABLE = frozenset(
    {"eval_batch_size", "save_checkpoints_steps", "distribution_strategy", "num_gpus", "jit_compile"}
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The flags of `tasks.flags.define_training` and `define_distribution`, by their names and with their defaults.

    Attributes:
        train_batch_size, eval_batch_size: examples of a step, over all devices.
        learning_rate: the peak.
        optimizer: name of a profile of `tasks.optimization`.
        gradient_accumulation_steps: parts that a batch is computed in.
        save_checkpoints_steps: steps between checkpoints.
        random_seed: seed of new weights, the order of the data, and dropout.
        distribution_strategy, num_gpus: as in `tasks.strategy.build_strategy`.
        mixed_precision: as in `tasks.strategy.set_mixed_precision`.
        jit_compile: whether to compile the step with XLA.
    """

    train_batch_size: int = 32
    eval_batch_size: int = 8
    learning_rate: float = 5e-5
    optimizer: str = "bert-2018"
    gradient_accumulation_steps: int = 1
    save_checkpoints_steps: int = 1000
    random_seed: int = 12345
    distribution_strategy: str = "one_device"
    num_gpus: int | None = None
    mixed_precision: str = "float32"
    jit_compile: bool = False
