"""`BertMaskedLM`: predicts masked tokens (paper, section 3.1, task 1).

Shapes: B batch, S sequence, P masked positions, V vocabulary.
"""

import math

import keras
import keras_nlp
import tensorflow as tf

from keras_bert.answers.fill_mask import MaskAnswers
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.heads import MaskedLMHead
from keras_bert.encoder.layer import keep_arguments
from keras_bert.models.task import BertTask
from keras_bert.tokenization.preprocessor import BertPreprocessor


@keras.saving.register_keras_serializable(package="keras_bert")
class BertMaskedLMPreprocessor(BertPreprocessor):
    """Encodes texts and masks some of their tokens, chosen at random at every call.

    By default 80% of the chosen tokens become [MASK], 10% a random token, and 10% stay (paper, section 3.1). It needs
    tensorflow-text.

    Args:
        tokenizer, sequence_length, pad_to_longest: as in `BertPreprocessor`.
        mask_selection_rate: float, share of the tokens that are chosen.
        mask_selection_length: int, P, largest number of tokens chosen; None: that share of `sequence_length`, rounded
            up.
        mask_token_rate: float, share of the chosen tokens that become [MASK].
        random_token_rate: float, share of the chosen tokens that become a random token; the rest is unchanged.

    Call arguments:
        x: as in `BertPreprocessor`.
        y: None; the labels come from the texts.
        sample_weight: None.

    Returns:
        Tuple of features, with `mask_positions` int32 (B, P), labels int32 (B, P), and weights float32 (B, P), 0 where
        fewer than P tokens were chosen.
    """

    def __init__(
        self,
        tokenizer,
        sequence_length=512,
        pad_to_longest=False,
        mask_selection_rate=0.15,
        mask_selection_length=None,
        mask_token_rate=0.8,
        random_token_rate=0.1,
        **kwargs,
    ):
        super().__init__(tokenizer, sequence_length, pad_to_longest, **kwargs)
        keep_arguments(self, locals())

    def call(self, x, y=None, sample_weight=None):
        if y is not None or sample_weight is not None:
            raise ValueError("The labels of a masked LM are its texts' own tokens. Received: `y` or `sample_weight`")
        return self.mask(self.encode(x))

    @tf.autograph.experimental.do_not_convert  # As in `encode`.
    def mask(self, features: dict[str, tf.Tensor]) -> tuple[dict, tf.Tensor, tf.Tensor]:
        """Masks encoded texts; returns features, labels and weights as a call does."""
        tokenizer, token_ids = self.tokenizer, features["token_ids"]
        mask = keras_nlp.layers.MaskedLMMaskGenerator(
            tokenizer.vocabulary_size(),
            self.mask_selection_rate,
            tokenizer.mask_token_id,
            self.mask_selection_length or math.ceil(self.sequence_length * self.mask_selection_rate),
            mask_token_rate=self.mask_token_rate,
            random_token_rate=self.random_token_rate,
            unselectable_token_ids=[tokenizer.pad_token_id, tokenizer.cls_token_id, tokenizer.sep_token_id],
            _allow_python_workflow=False,  # Otherwise it masks in Python when called eagerly.
        )
        masked = mask(token_ids)
        shown, positions = (tf.cast(masked[name], tf.int32) for name in ("token_ids", "mask_positions"))
        features = {**features, "token_ids": tf.ensure_shape(shown, token_ids.shape), "mask_positions": positions}
        return features, tf.cast(masked["mask_ids"], tf.int32), tf.cast(masked["mask_weights"], tf.float32)


@keras.saving.register_keras_serializable(package="keras_bert")
class BertMaskedLM(BertTask, keras_nlp.models.MaskedLM):
    """Backbone with a masked-LM head, whose output kernel is the token table.

    `fit` takes only texts, and masks them differently in every epoch: see `BertMaskedLMPreprocessor`. The loss is the
    cross entropy of the masked tokens, averaged over those of a batch.

    `answer` takes texts with `[MASK]` in them. For each mask it returns the `top_k` most probable `tokens`, 5 by
    default, with their `probabilities`, and in `positions` the index of the mask's first character in the text;
    `num_masks` counts the masks that were read.

    Inputs: the backbone's, and `mask_positions`, int32 of shape (B, P). Output: float32 logits of shape (B, P, V).

    Args:
        backbone: BertBackbone.
        preprocessor: BertMaskedLMPreprocessor, or None.
        masked_lm_activation: str, a `BertConfig.activation`; None: the backbone's, as in google-research/bert.
        masked_lm_layer_norm_epsilon: float; None: the backbone's. KerasHub's heads have `"gelu"` and 1e-5.
        **kwargs: as in `BertTextClassifier`.
    """

    preprocessor_cls = BertMaskedLMPreprocessor
    answers_cls = MaskAnswers
    heads = ("masked_lm",)
    heads_are_pretrained = True
    uses_pooler = False

    def __init__(
        self,
        backbone: BertBackbone,
        preprocessor: BertMaskedLMPreprocessor | None = None,
        masked_lm_activation: str | None = None,
        masked_lm_layer_norm_epsilon: float | None = None,
        **kwargs,
    ):
        keep_arguments(self, locals())

        # === Layers ===
        head = masked_lm_head(backbone, masked_lm_activation, masked_lm_layer_norm_epsilon)

        # === Functional model ===
        inputs = {**backbone.input, "mask_positions": keras.Input((None,), dtype="int32", name="mask_positions")}
        tokens = backbone(backbone.input)["sequence_output"]  # [B, S, H]
        super().__init__(inputs=inputs, outputs=head(tokens, mask_positions=inputs["mask_positions"]), **kwargs)


def masked_lm_head(backbone: BertBackbone, activation: str | None, layer_norm_epsilon: float | None) -> MaskedLMHead:
    """Returns a masked-LM head for a backbone; the arguments are those of `BertMaskedLM`."""
    return MaskedLMHead(
        backbone.token_embedding,
        activation=activation or backbone.activation,
        layer_norm_epsilon=layer_norm_epsilon or backbone.layer_norm_epsilon,
        initializer_range=backbone.initializer_range,
        dtype=backbone.dtype_policy,
        name="masked_lm",
    )
