"""The published BERTs: names, sizes, case, and where copies of each are kept: the rows of `presets.csv`.

Sources: google-research/bert's README (archives, sizes, case) and its `tokenization.py:28` (which are lower-cased);
Turc et al. 2019, arXiv:1908.08962 (the miniatures); `keras_hub/src/models/bert/bert_presets.py` (Kaggle handles) and
KerasHub's conversion scripts (which Hugging Face repository each was made from). The miniature of 12 layers of 768 has
the archive name of the base model of 2018, but other weights: it needs another name. KerasHub fine-tuned
`bert_tiny_en_uncased_sst2` with its tanh gelu, and published it at Kaggle only.
"""

import csv
import dataclasses
import os

from keras_bert.config import BertConfig


@dataclasses.dataclass(frozen=True)
class Preset:
    """A published BERT.

    Attributes:
        name: str, the short name, or the full one where there is no short one.
        full_name: str, its publisher's name of the checkpoint.
        config: BertConfig. Google trained with the tanh gelu; the sentence encoders were trained with the erf gelu.
            KerasHub knows the tanh form only: it runs those with tanh too, and so does a copy in its format.
        lowercase: bool, whether its vocabulary is uncased; None where the vocabulary is not BERT's WordPieces.
        keras_hub: str, KerasHub's name of the same weights, or None.
        hugging_face: str, `owner/name` of the copy in Hugging Face's format, or None.
        kaggle: str, `owner/model/framework/variation/version` of the copy in KerasHub's format, or None.
        archive: str, folder and file in Google's bucket of BERTs, or None.
    """

    name: str
    full_name: str
    config: BertConfig
    lowercase: bool | None
    keras_hub: str | None = None
    hugging_face: str | None = None
    kaggle: str | None = None
    archive: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names of this preset, the short one first, the repository's name at Hugging Face last."""
        at_hugging_face = self.hugging_face.rpartition("/")[2] if self.hugging_face else None
        names = (self.name, self.full_name, self.keras_hub, at_hugging_face)
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def parameters(self) -> int:
        """The number of weights of the encoder with its pooler."""
        return self.config.num_parameters


def _preset(row: dict[str, str]) -> Preset:
    names = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "max_sequence_length")
    sizes = {name: int(row.pop(name)) for name in names}
    config = BertConfig(**sizes, intermediate_dim=4 * sizes["hidden_dim"], activation=row.pop("activation"))
    lowercase = {"uncased": True, "cased": False, "": None}[row.pop("case")]
    return Preset(config=config, lowercase=lowercase, **{name: value or None for name, value in row.items()})


with open(os.path.join(os.path.dirname(__file__), "presets.csv"), encoding="utf-8", newline="") as _file:
    ALL = tuple(map(_preset, csv.DictReader(_file)))
SHORT = tuple(preset for preset in ALL if preset.archive and preset.name != preset.full_name)
