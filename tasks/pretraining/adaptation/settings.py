"""The settings of bert-adapt."""

from dataclasses import MISSING

from keras_bert.errors import InputError
from tasks.engine.settings import TrainingSettings
from tasks.pretraining.data.settings import InstanceSettings
from tasks.pretraining.train.settings import PretrainingSettings
from tasks.settings import changeable, replaced, setting


class AdaptSettings(TrainingSettings):
    """Settings of bert-adapt, which are its flags.

    Raises:
        InputError: a value is out of its bounds, or values contradict each other.
    """

    preset: str = changeable(MISSING, "Model to adapt: a name, or a directory of any format with a tokenizer.")
    input_file: str | list[str] = changeable(MISSING, "Text: paths or patterns, separated by commas.")
    output_dir: str = changeable(MISSING, "Directory for all files of the run.")
    num_new_tokens: int = setting(2000, "Most WordPieces to add; 0: keep the old vocabulary.", at_least=0)
    max_seq_length: int = replaced(InstanceSettings, "max_seq_length", 128)
    num_train_steps: int = replaced(PretrainingSettings, "num_train_steps", 2000)
    time_budget_minutes: float | None = replaced(PretrainingSettings, "time_budget_minutes", None)
    do_lower_case: bool | None = setting(
        None, "Whether the vocabulary is lowercase, if --preset does not say.", subject="data"
    )
    input_format: str = replaced(InstanceSettings, "input_format", "sentences")
    sentence_splitter: str = replaced(InstanceSettings, "sentence_splitter", "none")
    sentence_language: str = replaced(InstanceSettings, "sentence_language", "en")
    optimizer: str = replaced(PretrainingSettings, "optimizer", "adamw")

    def __post_init__(self):
        super().__post_init__()
        if self.distribution_strategy == "multi_worker_mirrored":
            raise InputError(
                "--distribution_strategy=multi_worker_mirrored: bert-adapt runs on one machine. Train what it wrote on "
                "several by bert-pretrain."
            )
