"""The classifier and the regressor that `bert-classify` trains, not compiled; see `keras_bert.BertTextClassifier`."""

from keras_bert.backbone import BertBackbone
from keras_bert.models import BertTextClassifier


def build_classifier(backbone: BertBackbone, num_classes: int, dropout: float | None = None) -> BertTextClassifier:
    """Builds a model with a classification head. `dropout` None uses the encoder's."""
    if num_classes < 2:
        raise ValueError(f"`num_classes` must be at least 2. Received: num_classes={num_classes}")
    return BertTextClassifier(backbone, num_classes, dropout=dropout, compile=False)


def build_regressor(backbone: BertBackbone, dropout: float | None = None) -> BertTextClassifier:
    """Builds a model with a single output, a score. `dropout` None uses the encoder's."""
    return BertTextClassifier(backbone, 1, dropout=dropout, compile=False)
