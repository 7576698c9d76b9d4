"""Settings of every fine-tuning command."""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from keras_bert.answers.rules import LONG_TEXTS, POOLED
from keras_bert.errors import InputError
from keras_bert.files import exists, expand_file
from tasks.engine.settings import TrainingSettings
from tasks.fine_tuning.model_files import model_directory
from tasks.settings import Settings, changeable, replaced, setting
from tasks.text.bad_rows import BAD_ROWS

HELD_OUT = 0.2  # Share of the training rows to evaluate on if no flag names a dev file.
_DEV_SOURCES = ("dev_file", "predict_file", "data_dir")
# The paper's three epochs of a small table are too few steps (Zhang et al., arXiv:2006.05987, section 6).
DEFAULT_EPOCHS, MIN_STEPS = 3.0, 200
BASE_RATE = 5e-5  # The paper's highest, for BERT-base.
MAX_CHECKPOINT_STEPS = 1000


class StartSettings(Settings):
    """Settings that name the encoder and the vocabulary to start from."""

    preset: str | None = changeable(
        None,
        "Encoder and vocabulary: a short name (tiny ... large), a full name, a handle (hf://...), or a directory, zip "
        "or file of any known format. Default for a training: the best preset of an installed Python package.",
    )
    init_checkpoint: str | None = changeable(
        None,
        "google-research/bert's name of --preset: a TensorFlow checkpoint (bert_model.ckpt, with --vocab_file and "
        "--bert_config_file), any preset, or the output directory of an earlier run.",
        subject="start",
    )
    bert_config_file: str | None = changeable(None, "JSON file with the architecture of --init_checkpoint.")
    vocab_file: str | None = changeable(None, "WordPiece vocabulary, one token per line; default: the preset's.")
    do_lower_case: bool | None = changeable(None, "Lowercase and strip accents; default: the preset's setting.")
    load_weights: bool = setting(True, "Load the preset's weights; false: only sizes and vocabulary.")

    def __post_init__(self):
        super().__post_init__()
        if self.preset and (self.init_checkpoint or self.bert_config_file):
            raise InputError(
                "--preset and --init_checkpoint (or --bert_config_file) both say where to start. Give one."
            )

    @property
    def start(self) -> str | None:
        """The starting point: `preset`, or else `init_checkpoint`; for the output directory of a run, its model."""
        return self.preset or (self.init_checkpoint and model_directory(self.init_checkpoint))

    @property
    def kept_layers(self) -> list[int] | None:
        """Indices, from 0, of the encoder layers to keep; None for all."""
        return None


class FineTuningSettings(TrainingSettings, StartSettings):
    """Settings of the starting point, the stages and the training of any fine-tuning.

    With several learning rates or batch sizes, every combination is trained and the best on dev is kept.
    """

    output_dir: str = changeable(dataclasses.MISSING, "Directory for metrics, report, model and checkpoints.")
    train_file: str | None = changeable(None, "Training file.")
    do_train: bool | None = changeable(
        None, "Train the model; default with --train_file, if no stage is given: train and evaluate."
    )
    do_eval: bool | None = changeable(None, "Evaluate the model.")
    do_predict: bool = changeable(False, "Write predictions.")
    max_seq_length: int | None = setting(128, "Longest sequence in tokens.", at_least=4)
    num_train_epochs: float | None = setting(
        None,
        f"Passes over the training data; default: {DEFAULT_EPOCHS:g}, or as many as give {MIN_STEPS} steps; always "
        f"{DEFAULT_EPOCHS:g} with --bert_config_file, as in google-research/bert.",
        above=0.0,
    )
    bad_rows: str | None = changeable(
        "refuse", "Refuse files with bad rows, or skip and report these rows.", choices=BAD_ROWS, subject="data"
    )
    drop_leaks: bool = changeable(False, "Leave out training rows whose texts are also in the dev or test file.")
    learning_rate: float | list[float] | None = setting(
        None,
        "Peak learning rate, or several to search over; default: 5e-5 for an encoder of width 768; for narrower ones "
        "it grows with the inverse square of the width, to at most 3e-4; always 5e-5 with --bert_config_file.",
        several=True,
        above=0.0,
    )
    warmup_proportion: float = setting(0.1, "Share of warm-up steps.", at_least=0.0, at_most=1.0, subject="training")
    num_frozen_layers: int = setting(0, "Lowest encoder layers to freeze, with the embeddings.", at_least=0)
    reinit_layers: int = setting(
        0, "Number of highest encoder layers to start from random weights, with the pooler.", at_least=0
    )
    lora_rank: int = setting(
        0,
        "Rank of the LoRA factors that adapt the attention kernels of a frozen encoder (Hu et al. 2021); 0: no LoRA, "
        "train the encoder itself.",
        at_least=0,
    )
    num_restarts: int = changeable(
        1, "Number of seeds to train each combination with; the best model is kept.", at_least=1, subject="evaluation"
    )
    early_stopping_patience: int = setting(
        0,
        "Stop after this many evaluations without improvement, and restore the best weights; 0: train all steps and "
        "keep the last weights.",
        at_least=0,
    )
    validation_share: float = setting(
        0.0,
        "Share of the training rows to hold out: early stopping and a search use these rows instead of the dev file. "
        "Rows of one text, context or document stay together.",
        at_least=0.0,
        at_most=0.9,
    )
    dev_share: float = setting(
        0.0,
        "Share of the training rows to hold out and to evaluate on; default: 0.2 if there is no dev file. Rows of one "
        "text, context or document stay together.",
        at_least=0.0,
        at_most=0.9,
    )
    use_tpu: bool = changeable(False, "google-research/bert's name for --distribution_strategy=tpu.", subject="devices")
    tpu_name: str | None = changeable(None, "google-research/bert's name for --tpu.")
    train_batch_size: int | list[int] = replaced(TrainingSettings, "train_batch_size", 32, several=True)
    optimizer: str | None = replaced(
        TrainingSettings,
        "optimizer",
        None,
        help="adamw: Adam with decoupled weight decay and bias correction; bert-2018: without it; lamb: for batches "
        "of thousands. Default: adamw, but bert-2018 with --bert_config_file, as in google-research/bert.",
    )
    save_checkpoints_steps: int | None = replaced(
        TrainingSettings,
        "save_checkpoints_steps",
        None,
        help="Training steps between checkpoints, each of which is evaluated. Default: a checkpoint after each epoch "
        f"and at least every {MAX_CHECKPOINT_STEPS} steps, with evaluations that take at most a fifth of the time.",
    )

    def __post_init__(self):
        if self.use_tpu:
            object.__setattr__(self, "distribution_strategy", "tpu")
        if self.distribution_strategy == "tpu":  # Without --use_tpu, google-research/bert ignores --tpu_name.
            object.__setattr__(self, "tpu", self.tpu or self.tpu_name)
        if self.use_tpu and not self.tpu:
            raise InputError("--use_tpu needs the TPU's name or address: give --tpu_name, which is local on a TPU VM.")
        is_default = bool(self.train_file) and not self.splits
        # Without bias correction some fine-tunings on few rows fail (Zhang et al., arXiv:2006.05987).
        optimizer = "bert-2018" if self.bert_config_file else "adamw"
        self.fill_in(do_train=is_default, do_eval=is_default, optimizer=optimizer)
        names_dev = any(getattr(self, name, None) for name in _DEV_SOURCES)
        if self.do_train and self.do_eval and not self.dev_share and not names_dev:
            object.__setattr__(self, "dev_share", HELD_OUT)
        if self.bert_config_file:
            self.fill_in(num_train_epochs=DEFAULT_EPOCHS, learning_rate=BASE_RATE)
        super().__post_init__()
        if self.num_frozen_layers and self.lora_rank:
            raise InputError("--lora_rank leaves the whole encoder as it is: give it without --num_frozen_layers.")
        if self.reinit_layers and (self.lora_rank or not self.load_weights):
            raise InputError(
                f"--reinit_layers={self.reinit_layers} replaces some of the preset's weights, and trains them. Give it "
                "without --lora_rank and --noload_weights."
            )
        if not self.do_train and (flags := self.changed("drop_leaks", "validation_share", "dev_share")):
            raise InputError(f"{flags[0]} is about the training rows. Give --do_train, or leave it out.")
        if self.dev_share and not self.do_eval:
            raise InputError("--dev_share holds out training rows to evaluate on. Give --do_eval, or leave it out.")
        if self.distribution_strategy == "multi_worker_mirrored" and (self.is_search or self.early_stopping_patience):
            raise InputError(
                "A search over rates, batch sizes or seeds, and --early_stopping_patience, run on one machine. Leave "
                "them out, or give another --distribution_strategy."
            )

    def fill_in(self, **defaults) -> None:
        """Sets the settings that are None. For `__post_init__`, before the values are checked."""
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def given_for(self, field: str) -> tuple[str, Any]:
        """Returns the name and value of the setting for a field of a spec.

        The value is None if it is the default, if there is no such setting, or if it cannot be compared.
        """
        name = "max_seq_length" if field == "sequence_length" else field
        value, default = (getattr(source, name, None) for source in (self, type(self)))
        return name, None if value == default else value

    @property
    def grid(self) -> dict[str, list]:
        """Lists of the values to search over, by name of the setting. Settings that are None are left out."""
        values = {name: getattr(self, name) for name in ("learning_rate", "train_batch_size")}
        lists = {name: list(value) if isinstance(value, list | tuple) else [value] for name, value in values.items()}
        return {name: values for name, values in lists.items() if values != [None]}

    @property
    def splits(self) -> list[str]:
        """Splits that the chosen stages read: "train", "dev", "test"."""
        stages = {"train": self.do_train, "dev": self.do_eval, "test": self.do_predict}
        return [split for split, is_chosen in stages.items() if is_chosen]

    @property
    def is_search(self) -> bool:
        """Whether several combinations or seeds are trained."""
        return self.num_restarts > 1 or any(len(values) > 1 for values in self.grid.values())


class SplitSettings(FineTuningSettings):
    """Settings of a task with one file per split."""

    train_file: str | None = changeable(None, "Training file; default: the one in --data_dir.")
    dev_file: str | None = changeable(None, "Labelled file to evaluate on; default: the one in --data_dir.")
    test_file: str | None = changeable(None, "File to predict, labelled or not; default: the one in --data_dir.")
    data_dir: str | None = changeable(None, "Directory with the train, dev and test files.", subject="data")

    def find_file(
        self, split: str, names: Sequence[str], extensions: Sequence[str], any_extension: bool = False
    ) -> str:
        """Finds the file of a split: the one that `--<split>_file` names, or else one in `--data_dir`.

        Args:
            split: "train", "dev" or "test".
            names: possible base names in `--data_dir`, without extension.
            extensions: possible extensions there.
            any_extension: whether a file named by a flag may have another extension.

        Raises:
            InputError: no file or several files match, or the format is unknown.
        """
        if file := getattr(self, f"{split}_file"):
            path = expand_file(f"--{split}_file", file)
            if not any_extension and os.path.splitext(path)[1].lower() not in extensions:
                raise InputError(f"{path}: expected a file name that ends in {' or '.join(extensions)}.")
            return path
        if not self.data_dir:
            wanted = names[0] + extensions[0]
            share = ", or --dev_share to hold out training rows" if split == "dev" else ""
            raise InputError(f"No {split} file was named. Give --{split}_file, or --data_dir with a {wanted}{share}.")
        candidates = [os.path.join(self.data_dir, name + extension) for name in names for extension in extensions]
        paths = [path for path in candidates if exists(path)]
        if len(paths) != 1:
            wanted = f"{os.path.join(self.data_dir, ' or '.join(names))}, ending in {' or '.join(extensions)}"
            state = f"{' or '.join(paths)}: {len(paths)} of them are there" if paths else f"{wanted}: no such file"
            raise InputError(f"{state}. Name the right one with --{split}_file.")
        return paths[0]


class LongTextSettings(SplitSettings):
    """Settings of a task that reads texts of any length."""

    long_text: str | None = changeable(
        None,
        "How to read a text longer than --max_seq_length. truncate: cut off its end; head_tail: cut out its middle, so "
        "that a quarter of the rest is the beginning; mean, max: read it in windows, and take the mean or the maximum "
        "of their outputs. Default: as in the model's training, else truncate.",
        choices=LONG_TEXTS,
        subject="data",
    )

    def __post_init__(self):
        super().__post_init__()
        compiler = "--jit_compile" if self.jit_compile else "--distribution_strategy=tpu"
        if self.long_text in POOLED and (self.jit_compile or self.distribution_strategy == "tpu"):
            raise InputError(
                f"--long_text={self.long_text} reads as many windows as a batch has, and {compiler} compiles each "
                "number anew. Leave out one of them; --long_text=head_tail keeps one sequence a text."
            )


def check_positions(sequence_length: int, positions: int, source: str) -> None:
    """Checks that an encoder has enough positions for sequences of this length.

    Raises:
        InputError: the encoder has too few.
    """
    if sequence_length > positions:
        raise InputError(
            f"--max_seq_length={sequence_length}: {source} has positions for {positions} tokens. Give no more."
        )
