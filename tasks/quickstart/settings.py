"""The settings of bert-quickstart."""

from keras_bert.errors import InputError
from keras_bert.presets.catalog import PRESETS
from tasks.settings import Settings, changeable, setting


class QuickstartSettings(Settings):
    """Settings of bert-quickstart, which are its flags.

    Raises:
        InputError: a value is out of its bounds.
    """

    extra = "serve"

    input_file: str | None = setting(
        None,
        "Your own text: one sentence per line, a blank line between documents; paths or patterns, separated by commas. "
        "Default: the docstrings of the installed Python packages.",
    )
    output_dir: str = changeable("runs/quickstart", "Directory for all files of the run.")
    preset: str = setting("tiny", "Sizes of the model to pre-train.", choices=tuple(PRESETS))
    time_budget_minutes: float = setting(2.5, "Minutes of pre-training.", above=0.0)
    rows_per_label: int = setting(100, "Maximum number of sentences per label for fine-tuning.", at_least=1)
    random_seed: int = setting(12345, "Seed of all random draws.", at_least=0, at_most=2**32 - 1)

    def __post_init__(self):
        super().__post_init__()
        if "," in self.output_dir:
            raise InputError(f"{self.output_dir}: a comma separates files in flags. Choose a path without one.")
