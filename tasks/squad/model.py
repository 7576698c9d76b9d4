"""The question answerer that `bert-squad` trains, not compiled; see `keras_bert.BertSpanLabeler`."""

from keras_bert.backbone import BertBackbone
from keras_bert.models import BertSpanLabeler


def build_question_answerer(backbone: BertBackbone) -> BertSpanLabeler:
    """Builds a model with a head for the first and last token of an answer."""
    return BertSpanLabeler(backbone, compile=False)
