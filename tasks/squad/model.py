"""The question answerer that `bert-squad` trains, not compiled; see `keras_bert.BertSpanLabeler`."""

from keras_bert.backbone import BertBackbone
from keras_bert.models import BertSpanLabeler


def build_question_answerer(backbone: BertBackbone) -> BertSpanLabeler:
    """Puts a head for an answer's first and last token on a backbone."""
    return BertSpanLabeler(backbone, compile=False)
