"""The pre-training model: backbone with masked-LM and next-sentence heads (paper, section 3.1).

Shapes: B batch, S sequence, P masked positions, V vocabulary.
"""

import keras

from keras_bert.backbone import BertBackbone
from keras_bert.heads import MaskedLMHead, output_head


@keras.saving.register_keras_serializable(package="keras_bert")
class BertPretrainer(keras.Model):
    """A functional model with a `get_config` of its own: only so does the tied table survive `.keras` saving.

    Inputs, a dict of int32: `token_ids`, `segment_ids`, `padding_mask` of shape (B, S), `mask_positions` (B, P).
    Outputs, a dict of float32 logits: `masked_lm` (B, P, V); `next_sentence` (B, 2), where class 1 is a random next
    segment and class 0 the actual one (google-research/bert create_pretraining_data.py:130).

    Args:
        backbone: BertBackbone.
    """

    def __init__(self, backbone: BertBackbone, **kwargs):
        config = backbone.bert_config
        inputs = {
            **backbone.input,
            "mask_positions": keras.Input(shape=(None,), dtype="int32", name="mask_positions"),
        }
        encoded = backbone({name: tensor for name, tensor in inputs.items() if name != "mask_positions"})
        masked_lm_head = MaskedLMHead(
            backbone.token_embedding,
            activation=config.activation,
            layer_norm_epsilon=config.layer_norm_epsilon,
            initializer_range=config.initializer_range,
            dtype=backbone.dtype_policy,
            name="masked_lm",
        )
        next_sentence_head = output_head(2, config.initializer_range, name="next_sentence")
        outputs = {
            "masked_lm": masked_lm_head(encoded["sequence_output"], mask_positions=inputs["mask_positions"]),
            "next_sentence": next_sentence_head(encoded["pooled_output"]),
        }
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        self.backbone = backbone

    def get_config(self):
        return {
            "name": self.name,
            "trainable": self.trainable,
            "backbone": keras.saving.serialize_keras_object(self.backbone),
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        backbone = keras.saving.deserialize_keras_object(config.pop("backbone"))
        return cls(backbone, **config)


def build_pretrainer(backbone: BertBackbone) -> BertPretrainer:
    """Puts the two pre-training heads on a backbone."""
    return BertPretrainer(backbone)
