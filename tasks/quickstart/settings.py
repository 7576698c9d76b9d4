"""The settings of bert-quickstart."""

from keras_bert.errors import InputError
from keras_bert.presets import PRESETS
from tasks.settings import Settings, changeable, setting


class QuickstartSettings(Settings):
    """Settings of bert-quickstart, which are its flags.

    Raises:
        InputError: a value is out of its bounds.
    """

    input_file: str | None = setting(
        None,
        "Your own text: one sentence per line, a blank line between documents; paths or patterns, separated by commas. "
        "Default: the docstrings of the installed Python packages.",
    )
    output_dir: str = changeable("runs/quickstart", "Directory for everything the run writes.")
    overwrite: bool = changeable(False, "Start anew where the directory holds a run.")
    preset: str = setting("tiny", "Sizes of the model to pre-train.", choices=tuple(PRESETS))
    vocab_size: int = setting(8000, "Maximum number of WordPieces.", at_least=200)
    max_seq_length: int = setting(
        64, "Tokens of a sequence.", at_least=16, at_most=PRESETS["tiny"].config.max_sequence_length
    )
    train_batch_size: int = setting(32, "Instances of a pre-training step.", at_least=1)
    num_train_steps: int = setting(3000, "Pre-training steps.", at_least=1)
    learning_rate: float = setting(4e-3, "Peak learning rate of pre-training.", at_least=0.0)
    num_train_epochs: int = setting(5, "Fine-tuning epochs.", at_least=1)
    num_labels: int = setting(8, "Packages (or input files) to tell apart.", at_least=2)
    rows_per_label: int = setting(250, "Maximum number of sentences per label for fine-tuning.", at_least=1)
    max_sentences_per_package: int = setting(20000, "Maximum number of sentences per package.", at_least=100)
    random_seed: int = setting(12345, "Seed of all random draws.", at_least=0)

    def __post_init__(self):
        super().__post_init__()
        if "," in self.output_dir:
            raise InputError(f"{self.output_dir}: a comma separates files in flags. Choose a path without one.")
