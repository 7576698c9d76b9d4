"""`BertPretrainer`: the backbone with masked-LM and next-sentence heads (paper, section 3.1).

Shapes: B batch, S sequence, P masked positions, K examples of a packed sequence, V vocabulary.
"""

import keras
import keras_nlp
import tensorflow as tf

from keras_bert.answers.fill_mask import MaskAnswers
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.heads import LastPositions, TakePositions, output_head
from keras_bert.encoder.layer import keep_arguments
from keras_bert.models.masked_lm import BertMaskedLMPreprocessor, masked_lm_head
from keras_bert.models.task import BertTask, cross_entropy


@keras.saving.register_keras_serializable(package="keras_bert")
class BertPretrainerPreprocessor(BertMaskedLMPreprocessor):
    """Encodes pairs of texts and masks some of their tokens, chosen at random at every call.

    Args:
        tokenizer, sequence_length, pad_to_longest, mask_selection_rate, mask_selection_length, mask_token_rate,
            random_token_rate: as in `BertMaskedLMPreprocessor`.

    Call arguments:
        x: tuple of first and second texts, string, shape (B,) each; or texts alone, without next-sentence labels.
        y: int, shape (B,): 1 where the second text does not follow the first, else 0; or None.
        sample_weight: None.

    Returns:
        Tuple of features, labels and weights. The latter two are dicts of `masked_lm`, shape (B, P), and, with `y`,
        `next_sentence`, shape (B,).
    """

    def call(self, x, y=None, sample_weight=None):
        if sample_weight is not None:
            raise ValueError("The weights of masked tokens are drawn with them. Received: `sample_weight`")
        features, labels, weights = self.mask(self.encode(x))
        labels, weights = {"masked_lm": labels}, {"masked_lm": weights}
        if y is not None:
            labels["next_sentence"] = y
            weights["next_sentence"] = tf.ones(tf.shape(y))
        return features, labels, weights


@keras.saving.register_keras_serializable(package="keras_bert")
class BertPretrainer(BertTask, keras_nlp.models.Task):
    """The backbone with both heads of pre-training.

    `fit` takes pairs of texts with next-sentence labels, and masks the texts differently in every epoch: see
    `BertPretrainerPreprocessor`. The loss is the sum of both heads' cross entropies. `bert-pretrain` reads prepared
    records instead, in which the next sentences are already chosen. `answer` is the same as in `BertMaskedLM`.

    Inputs, a dict of int32: `token_ids`, `segment_ids`, `padding_mask` of shape (B, S), `mask_positions` (B, P).
    Outputs, a dict of float32 logits: `masked_lm` (B, P, V); `next_sentence` (B, 2), where class 1 is a random next
    segment and class 0 the actual one (google-research/bert create_pretraining_data.py:130).

    On a backbone of layout `"packed"`, `padding_mask` holds the numbers of the examples, a further input
    `first_positions` (B, K) holds the position where each example begins, and `next_sentence` has shape (B, K, 2). A
    preprocessor cannot pack texts: to use one with such a preset, pass `layout="rectangular"` to `from_preset`.

    Args:
        backbone: BertBackbone.
        masked_lm_activation, masked_lm_layer_norm_epsilon: as in `BertMaskedLM`.
        preprocessor: BertPretrainerPreprocessor, or None.
        use_next_sentence: bool; False leaves that head out (paper, section 5.1, "No NSP"), and the pooler untrained.
        **kwargs: as in `BertTextClassifier`.
    """

    preprocessor_cls = BertPretrainerPreprocessor
    answers_cls = MaskAnswers
    heads = ("masked_lm", "next_sentence")
    heads_are_pretrained = True

    def __init__(
        self,
        backbone: BertBackbone,
        masked_lm_activation: str | None = None,
        masked_lm_layer_norm_epsilon: float | None = None,
        preprocessor: BertPretrainerPreprocessor | None = None,
        use_next_sentence: bool = True,
        **kwargs,
    ):
        keep_arguments(self, locals())

        # === Layers ===
        masked_lm = masked_lm_head(backbone, masked_lm_activation, masked_lm_layer_norm_epsilon)
        next_sentence = output_head(2, backbone.initializer_range, name="next_sentence")

        # === Functional model ===
        inputs = {**backbone.input, "mask_positions": keras.Input((None,), dtype="int32", name="mask_positions")}
        encoded = backbone(backbone.input)
        self.uses_pooler = use_next_sentence
        outputs = {"masked_lm": masked_lm(encoded["sequence_output"], mask_positions=inputs["mask_positions"])}
        pooled = encoded["pooled_output"]
        if backbone.layout == "packed":
            # Records have this input with or without the head.
            positions = inputs["first_positions"] = keras.Input((None,), dtype="int32", name="first_positions")
            # Every example is pooled as the backbone pools the first: [B, K, H].
            if backbone.attention == "left_to_right":
                positions = LastPositions(name="last_positions")(inputs["padding_mask"], first_positions=positions)
            take = TakePositions(dtype=backbone.dtype_policy, name="pooled_tokens")
            pooled = backbone.get_layer("pooled_dense")(take(encoded["sequence_output"], positions=positions))
        if use_next_sentence:
            outputs["next_sentence"] = next_sentence(pooled)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)

    def default_loss(self):
        return {name: cross_entropy() for name in self.output}

    def default_metrics(self):
        return {name: [keras.metrics.SparseCategoricalAccuracy(name="accuracy")] for name in self.output}
