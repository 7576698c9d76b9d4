"""Builds multiple-choice models on a backbone."""

from keras_bert.backbone import BertBackbone
from keras_bert.models import BertMultipleChoice


def build_multiple_choice(backbone: BertBackbone, num_choices: int, dropout: float | None = None) -> BertMultipleChoice:
    """Returns a multiple-choice model that is not compiled; the arguments are those of `BertMultipleChoice`."""
    return BertMultipleChoice(backbone, num_choices, dropout=dropout, compile=False, name="multiple_choice_model")
