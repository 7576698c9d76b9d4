"""Settings of every fine-tuning command."""

import dataclasses

from tasks.engine.settings import TrainingSettings
from tasks.settings import replaced, setting
from tasks.text.bad_rows import BAD_ROWS


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuningSettings(TrainingSettings):
    """What a fine-tuning starts from, which stages run, and how long it trains.

    Learning rates and batch sizes may be several: every combination is trained and the best on dev is kept.
    """

    output_dir: str = setting(
        dataclasses.MISSING,
        "Directory for everything the run writes: results, report, model, checkpoints, events, curve.",
        identifies=False,
    )
    do_train: bool = setting(False, "Train the model.", identifies=False)
    do_eval: bool = setting(False, "Evaluate the model.", identifies=False)
    do_predict: bool = setting(False, "Write predictions.", identifies=False)
    bad_rows: str = setting(
        "refuse",
        "A file with rows that cannot be used: refuse it, or skip and count them.",
        choices=BAD_ROWS,
        identifies=False,
    )
    preset: str | None = setting(
        None,
        "Encoder and vocabulary: a short name (tiny ... large), a full name, a handle (hf://...), or a directory, zip "
        "or file of any known format.",
        identifies=False,
    )
    init_checkpoint: str | None = setting(
        None,
        "google-research/bert's name for where to start: a TensorFlow checkpoint (bert_model.ckpt, with --vocab_file "
        "and --bert_config_file), any preset, or the output directory of an earlier run.",
        identifies=False,
    )
    bert_config_file: str | None = setting(
        None, "JSON file with the architecture of --init_checkpoint.", identifies=False
    )
    vocab_file: str | None = setting(
        None, "WordPiece vocabulary, one token a line; default: the preset's.", identifies=False
    )
    do_lower_case: bool | None = setting(
        None, "Lower the case and drop accents; default: as the preset.", identifies=False
    )
    load_weights: bool = setting(True, "False: the preset's sizes and vocabulary, with random weights.")
    max_seq_length: int | None = setting(128, "Longest sequence in tokens.", at_least=4)
    train_batch_size: int | list[int] = replaced(TrainingSettings, "train_batch_size", 32, several=True)
    learning_rate: float | list[float] = replaced(TrainingSettings, "learning_rate", 5e-5, several=True)
    num_restarts: int = setting(
        1,
        "Seeds to train each combination of settings from; the best is kept.",
        at_least=1,
        identifies=False,
    )
    num_train_epochs: float = setting(3.0, "Passes over the training data.", above=0.0)
    warmup_proportion: float = setting(0.1, "Share of warm-up steps.", at_least=0.0, at_most=1.0)
    early_stopping_patience: int = setting(
        0,
        "Evaluations without a better one after which training ends, with the weights of the best; 0: all steps, and "
        "the last weights.",
        at_least=0,
    )
    num_frozen_layers: int = setting(
        0, "Number of lowest encoder layers, and with them the embeddings, that are not trained.", at_least=0
    )
    lora_rank: int = setting(
        0,
        "Rank of the factors that adapt the attention's kernels while the encoder stays as it is (Hu et al. 2021, "
        "LoRA); 0: the encoder itself is trained.",
        at_least=0,
    )
    use_tpu: bool = setting(False, "google-research/bert's name for --distribution_strategy=tpu.", identifies=False)
    tpu_name: str | None = setting(None, "google-research/bert's name for --tpu.", identifies=False)

    def __post_init__(self):
        super().__post_init__()
        if self.use_tpu:
            object.__setattr__(self, "distribution_strategy", "tpu")
        object.__setattr__(self, "tpu", self.tpu or self.tpu_name)

    @property
    def grid(self) -> dict[str, list]:
        """Values of the settings that a search varies, by name; a single value gives a list of one."""
        values = {name: getattr(self, name) for name in ("learning_rate", "train_batch_size")}
        return {name: list(value) if isinstance(value, list | tuple) else [value] for name, value in values.items()}

    @property
    def is_search(self) -> bool:
        """Whether several combinations or seeds are trained."""
        return self.num_restarts > 1 or any(len(values) > 1 for values in self.grid.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSettings(FineTuningSettings):
    """Settings of a task with a file for each split."""

    data_dir: str | None = setting(None, "Directory with the train, dev and test files.", identifies=False)
    train_file: str | None = setting(None, "Training file; default: the one in --data_dir.", identifies=False)
    dev_file: str | None = setting(
        None, "Labelled file to evaluate on; default: the one in --data_dir.", identifies=False
    )
    test_file: str | None = setting(
        None, "File to predict, with or without labels; default: the one in --data_dir.", identifies=False
    )
