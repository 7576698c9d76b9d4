"""The settings that every training shares, and which of them may change when a stopped training continues."""

import dataclasses
import zlib

import numpy as np

# Where and how fast a training runs, not what it computes.
CHANGEABLE = frozenset(
    {
        "eval_batch_size", "save_checkpoints_steps", "distribution_strategy", "num_gpus", "tpu", "jit_compile",
        "deterministic_ops", "spike_factor",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The flags of `tasks.flags.define_training` and `define_distribution`, by their names and with their defaults.

    Attributes:
        train_batch_size, eval_batch_size: examples of a step, over all devices.
        learning_rate: the peak.
        optimizer: name of a profile of `tasks.optimization`.
        layer_decay: factor of the learning rate from each encoder layer to the one below.
        gradient_accumulation_steps: parts that a batch is computed in.
        save_checkpoints_steps: steps between checkpoints.
        random_seed: seed of new weights, the order of the data, and dropout.
        spike_factor: multiple of its running median at which the loss stops the training; 0: none.
        distribution_strategy, num_gpus, tpu: as in `tasks.strategy.build_strategy`.
        mixed_precision: as in `tasks.strategy.set_mixed_precision`.
        jit_compile: whether to compile the step with XLA.
        deterministic_ops: whether TensorFlow may use deterministic operations only.
    """

    train_batch_size: int = 32
    eval_batch_size: int = 8
    learning_rate: float = 5e-5
    optimizer: str = "bert-2018"
    layer_decay: float = 1.0
    gradient_accumulation_steps: int = 1
    save_checkpoints_steps: int = 1000
    random_seed: int = 12345
    spike_factor: float = 0.0
    distribution_strategy: str = "one_device"
    num_gpus: int | None = None
    tpu: str | None = None
    mixed_precision: str = "float32"
    jit_compile: bool = False
    deterministic_ops: bool = False


def identify(
    settings: TrainingSettings, backbone, tokenizer, *, weights_are_loaded: bool, changeable: frozenset = CHANGEABLE
) -> dict:
    """What must stay when a stopped training continues: what it computes, not where, nor how fast.

    The encoder is told by content, since a path may move, and what is there may change.

    Args:
        settings: the task's.
        backbone: BertBackbone as the training starts from it, before a checkpoint is restored.
        tokenizer: BertTokenizer.
        weights_are_loaded: False for new weights, which follow from `random_seed` (but on another device not bit by
            bit); they are left out.
        changeable: names of the settings that may change, or that the encoder's content stands for.

    Returns:
        JSON values by name, for `tasks.checkpoints.keep_settings`.
    """
    kept = {name: value for name, value in dataclasses.asdict(settings).items() if name not in changeable}
    return {
        **kept,
        **backbone.bert_config.to_dict(),
        "do_lower_case": tokenizer.lowercase,
        "vocabulary_checksum": zlib.crc32("\n".join(tokenizer.get_vocabulary()).encode()),
        "weights_checksum": _weights_checksum(backbone) if weights_are_loaded else None,
    }


def _weights_checksum(backbone) -> int:
    total = 0
    for weight in backbone.get_weights():
        total = zlib.crc32(np.ascontiguousarray(weight), total)
    return total
