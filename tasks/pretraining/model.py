"""The model that `bert-pretrain` trains, not compiled; see `keras_bert.BertPretrainer`."""

from keras_bert.backbone import BertBackbone
from keras_bert.models import BertPretrainer


def build_pretrainer(backbone: BertBackbone, use_next_sentence: bool = True) -> BertPretrainer:
    """Puts the two pre-training heads on a backbone, or the masked-LM head alone; the model is not compiled."""
    return BertPretrainer(backbone, use_next_sentence=use_next_sentence, compile=False)
