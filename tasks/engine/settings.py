"""Settings that every training shares, and the identity by which a stopped training is recognized."""

import dataclasses
import zlib

import numpy as np

from keras_bert.errors import InputError
from tasks.settings import Settings, changeable, kinds_of, setting

# The classes are in `tasks.engine.optimization`, in this order, which imports TensorFlow.
OPTIMIZERS = ("bert-2018", "adamw", "lamb", "muon")
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}  # Keras's names.


class TrainingSettings(Settings):
    """Settings of every training, with google-research/bert's defaults where it has them."""

    train_batch_size: int = setting(32, "Examples per training step, over all devices.", at_least=1)
    learning_rate: float = setting(5e-5, "Peak learning rate.", at_least=0.0)
    optimizer: str = setting(
        "bert-2018",
        "bert-2018: Adam with decoupled weight decay and no bias correction; adamw: with bias correction; lamb: for "
        "batches of thousands of examples.",
        choices=OPTIMIZERS[:-1],  # Muon is for pre-training alone.
        subject="training",
    )
    layer_decay: float = setting(
        1.0, "Learning rate of a layer, as a multiple of that of the layer above.", above=0.0, at_most=1.0
    )
    gradient_accumulation_steps: int = setting(1, "Parts of a batch to compute one by one, to save memory.", at_least=1)
    save_checkpoints_steps: int = changeable(1000, "Training steps between checkpoints.", at_least=1)
    random_seed: int = setting(12345, "Seed of data order, initial weights and dropout.", at_least=0, at_most=2**32 - 1)
    eval_batch_size: int = changeable(
        8, "Examples per evaluation step, over all devices.", at_least=1, subject="evaluation"
    )
    distribution_strategy: str = changeable(
        "one_device",
        "one_device: one GPU if there is one, else the CPU; mirrored: all GPUs of this machine; "
        "multi_worker_mirrored: the machines in the environment variable TF_CONFIG; tpu: the TPU in --tpu.",
        choices=("one_device", "mirrored", "multi_worker_mirrored", "tpu"),
        subject="devices",
    )
    num_gpus: int | None = changeable(
        None, "Number of GPUs to use; 0: the CPU. Default: all, or the first with one_device.", at_least=0
    )
    tpu: str | None = changeable(None, "Name or address (grpc://...) of the TPU, or local on a TPU VM.")
    mixed_precision: str = setting(
        "float32",
        "Type of the activations; weights stay float32. float16 uses a dynamic loss scale.",
        choices=tuple(POLICIES),
    )
    jit_compile: bool = changeable(False, "Compile the training step with XLA; slower on a CPU.")
    rematerialize: bool = changeable(
        False, "Compute each encoder layer once more for its gradients, to save memory; the gradients are the same."
    )
    deterministic_ops: bool = changeable(False, "Make runs bit-identical on one device; slower on GPUs.")

    def __post_init__(self):
        super().__post_init__()
        if (self.distribution_strategy == "tpu") != (self.tpu is not None):
            raise InputError(
                "--tpu and --distribution_strategy=tpu belong together. "
                f"Received: --tpu={self.tpu}, --distribution_strategy={self.distribution_strategy}"
            )
        if self.distribution_strategy == "one_device" and (self.num_gpus or 0) > 1:
            raise InputError(f"--num_gpus={self.num_gpus} needs --distribution_strategy=mirrored, not one_device.")

    @property
    def optimizer_options(self) -> dict:
        """Arguments of `build_optimizer`, by name."""
        return {"layer_decay": self.layer_decay}

    def of_all_workers(self) -> dict[str, object]:
        """Returns the values that must be equal on all workers, by flag. For a path, only whether it is given.

        Workers that evaluate or save at different steps would wait for each other forever.
        """
        values, kinds = {}, kinds_of(type(self))
        for field in dataclasses.fields(self):
            value, rule = getattr(self, field.name), field.metadata["rule"]
            is_path = not (rule.identifies or rule.choices) and kinds[field.name][0] is str
            values[f"--{rule.flag or field.name}"] = value is None if is_path else value
        return values


def tokenizer_identity(tokenizer) -> dict:
    """Returns what the token ids of a text depend on, as JSON values: letter case and a checksum of the vocabulary."""
    checksum = zlib.crc32("\n".join(tokenizer.get_vocabulary()).encode())
    return {"do_lower_case": tokenizer.lowercase, "vocabulary_checksum": checksum}


def weights_checksum(model) -> int:
    """Returns a CRC-32 of all weights of a Keras model or layer, in their order."""
    total = 0
    for weight in model.get_weights():
        total = zlib.crc32(np.ascontiguousarray(weight), total)
    return total


def identify(settings: TrainingSettings, backbone, tokenizer, *, weights_are_loaded: bool) -> dict:
    """Returns what must stay the same when a stopped training continues: what it computes, not where or how fast.

    The encoder is identified by its contents: its path may move, and the files there may change.

    Args:
        settings: settings of the task.
        backbone: BertBackbone in its initial state, before any checkpoint is restored.
        tokenizer: BertTokenizer.
        weights_are_loaded: False for random weights. These are left out: they follow from `random_seed`, and differ in
            the last bits between devices.

    Returns:
        JSON values by name, for `tasks.engine.checkpoints.keep_settings`.
    """
    return {
        **settings.identity(),
        **backbone.bert_config.to_dict(),
        **tokenizer_identity(tokenizer),
        "weights_checksum": weights_checksum(backbone) if weights_are_loaded else None,
    }
