"""Settings of `bert-ner`: a tagger whose encoder is fine-tuned, or a BiLSTM on the features of a frozen one."""

from keras_bert.errors import InputError
from tasks.features.settings import COMBINES
from tasks.fine_tuning.rare_labels import RareLabelSettings
from tasks.fine_tuning.word_task import WordSettings
from tasks.settings import changeable, setting
from tasks.text.tags import SCHEMES

# A BiLSTM starts from random weights. It needs a higher rate, more epochs, and Adam's bias correction, also with
# --bert_config_file.
FROZEN_DEFAULTS = {"learning_rate": 1e-3, "optimizer": "adamw", "num_train_epochs": 10.0}
# The settings of each value of `encoder`, which have no meaning with the other value.
OWN = {
    "trained": ("doc_stride", "layer_decay", "lora_rank", "num_frozen_layers", "reinit_layers"),
    "frozen": ("layers", "combine", "lstm_units", "lstm_layers", "lstm_dropout"),
}


class NerSettings(WordSettings, RareLabelSettings):
    """Settings of `bert-ner`, which are its flags.

    Raises:
        InputError: a value is out of its bounds, or a setting does not apply to the encoder.
    """

    tag_scheme: str = changeable(
        "auto", "Scheme of the tags; auto: recognized in each file.", choices=("auto", *SCHEMES), subject="data"
    )
    encoder: str = setting(
        "trained",
        "trained: fine-tune the encoder; frozen: train a BiLSTM on features of its layers, by default at a learning "
        "rate of 1e-3 for 10 epochs.",
        choices=tuple(OWN),
        subject="model",
    )
    # The spec identifies a run by its layers and their combination.
    layers: list[str] | None = changeable(
        None, "frozen: layers, from 1 (lowest) or -1 (last); 0 or embeddings; or all. Default: the last four."
    )
    combine: str = changeable(
        "concatenate",
        "frozen: how to combine the layers; weighted_sum learns its weights.",
        choices=(*COMBINES[1:], "weighted_sum"),
    )
    lstm_units: int = setting(768, "frozen: units of each LSTM direction (the paper: 768).", at_least=1)
    lstm_layers: int = setting(2, "frozen: number of stacked BiLSTMs (the paper: 2).", at_least=1)
    lstm_dropout: float = setting(0.1, "frozen: dropout around each BiLSTM.", at_least=0.0, at_most=0.9)

    def __post_init__(self):
        if self.encoder == "frozen":
            self.fill_in(**FROZEN_DEFAULTS)
        super().__post_init__()
        other = next(encoder for encoder in OWN if encoder != self.encoder)
        for flag in self.changed(*OWN[other]):
            raise InputError(f"{flag} is for --encoder={other}, not for --encoder={self.encoder}. Leave it out.")
        # Several workers would write the same features.
        if self.encoder == "frozen" and self.distribution_strategy == "multi_worker_mirrored":
            raise InputError("--encoder=frozen runs on one machine. Give another --distribution_strategy.")

    def given_for(self, field):
        name, given = super().given_for(field)
        if self.encoder == "frozen" and given is not None:
            # Only the encoder tells which number a name such as -1 stands for.
            given = {"layers": None, "document_context": given == "document"}.get(field, given)
        return name, given
