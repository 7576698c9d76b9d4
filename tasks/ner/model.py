"""The tagger that `bert-ner` trains, not compiled; see `keras_bert.BertTokenClassifier`."""

from keras_bert.backbone import BertBackbone
from keras_bert.models import BertTokenClassifier


def build_tagger(backbone: BertBackbone, num_labels: int, dropout: float | None = None) -> BertTokenClassifier:
    """Builds a model with a classification head on every token. `dropout` None uses the encoder's."""
    if num_labels < 2:
        raise ValueError(f"`num_labels` must be at least 2. Received: num_labels={num_labels}")
    return BertTokenClassifier(backbone, num_labels, dropout=dropout, compile=False)
