"""The multiple-choice model that `bert-swag` trains, not compiled; see `keras_bert.BertMultipleChoice`."""

from keras_bert.backbone import BertBackbone
from keras_bert.models import BertMultipleChoice


def build_multiple_choice(backbone: BertBackbone, num_choices: int, dropout: float | None = None) -> BertMultipleChoice:
    """Builds a model that scores each of `num_choices` texts. `dropout` None uses the encoder's."""
    return BertMultipleChoice(backbone, num_choices, dropout=dropout, compile=False, name="multiple_choice_model")
