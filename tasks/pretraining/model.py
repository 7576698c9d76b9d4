"""The pre-training model: backbone with masked-LM and next-sentence heads (paper, section 3.1).

Shapes: B batch, S sequence, P masked positions, K examples of a packed sequence, V vocabulary.
"""

import keras
import keras_nlp

from keras_bert import weights
from keras_bert.backbone import BertBackbone
from keras_bert.embeddings import weights_follow
from keras_bert.formats.checkpoint import Checkpoint
from keras_bert.heads import LastPositions, MaskedLMHead, TakePositions, output_head


@keras.saving.register_keras_serializable(package="keras_bert")
class BertPretrainer(keras_nlp.models.Task):
    """The backbone with both heads, a task of KerasHub's: `save_to_preset` keeps the heads beside the backbone.

    Its `get_config` gives the backbone whole: only so does the tied table survive `.keras` saving.

    Inputs, a dict of int32: `token_ids`, `segment_ids`, `padding_mask` of shape (B, S), `mask_positions` (B, P).
    Outputs, a dict of float32 logits: `masked_lm` (B, P, V); `next_sentence` (B, 2), where class 1 is a random next
    segment and class 0 the actual one (google-research/bert create_pretraining_data.py:130).

    On a backbone of layout `"packed"`, `padding_mask` holds the numbers of the examples, `first_positions` (B, K) is
    one more input, where each example begins, and `next_sentence` has shape (B, K, 2).

    Args:
        backbone: BertBackbone.
        masked_lm_activation: str, as `BertConfig.activation`; None: the backbone's, as in google-research/bert.
        masked_lm_layer_norm_epsilon: float; None: the backbone's. KerasHub's heads have `"gelu"` and 1e-5.
        preprocessor: None; a task of KerasHub's must take it.
        use_next_sentence: bool; False leaves that head out (paper, section 5.1, "No NSP"); the pooler stays random.
    """

    backbone_cls = BertBackbone

    def __init__(
        self,
        backbone: BertBackbone,
        masked_lm_activation: str | None = None,
        masked_lm_layer_norm_epsilon: float | None = None,
        preprocessor=None,
        use_next_sentence: bool = True,
        **kwargs,
    ):
        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        config = backbone.bert_config
        masked_lm_head = MaskedLMHead(
            backbone.token_embedding,
            activation=masked_lm_activation or config.activation,
            layer_norm_epsilon=masked_lm_layer_norm_epsilon or config.layer_norm_epsilon,
            initializer_range=config.initializer_range,
            dtype=backbone.dtype_policy,
            name="masked_lm",
        )
        next_sentence_head = output_head(2, config.initializer_range, name="next_sentence")

        # === Functional model ===
        inputs = {**backbone.input, "mask_positions": _positions("mask_positions")}
        encoded = backbone(backbone.input)
        outputs = {"masked_lm": masked_lm_head(encoded["sequence_output"], mask_positions=inputs["mask_positions"])}
        pooled = encoded["pooled_output"]
        if backbone.layout == "packed":
            inputs["first_positions"] = _positions("first_positions")  # The head or not, data has it.
            positions = inputs["first_positions"]
            if config.attention == "left_to_right":
                positions = LastPositions(name="last_positions")(inputs["padding_mask"], first_positions=positions)
            take = TakePositions(dtype=backbone.dtype_policy, name="pooled_tokens")
            pooled_tokens = take(encoded["sequence_output"], positions=positions)
            pooled = backbone.get_layer("pooled_dense")(pooled_tokens)
        if use_next_sentence:
            outputs["next_sentence"] = next_sentence_head(pooled)
        super().__init__(inputs=inputs, outputs=outputs, **{"compile": False, **kwargs})

        # === Config ===
        self.masked_lm_activation = masked_lm_activation
        self.masked_lm_layer_norm_epsilon = masked_lm_layer_norm_epsilon
        self.use_next_sentence = use_next_sentence

    def quantize(self, mode=None, **kwargs) -> None:
        """Quantizes the backbone, as `keras.Model.quantize`; the heads stay floats, which saving counts on."""
        self.backbone.quantize(mode, **kwargs)
        self.train_function = self.test_function = self.predict_function = None

    def get_config(self):
        return {
            **super().get_config(),
            "masked_lm_activation": self.masked_lm_activation,
            "masked_lm_layer_norm_epsilon": self.masked_lm_layer_norm_epsilon,
            "use_next_sentence": self.use_next_sentence,
        }

    @classmethod
    def from_preset(
        cls, preset: str, load_weights: bool = True, dtype=None, use_next_sentence: bool | None = None, **overrides
    ) -> "BertPretrainer":
        """Builds the model of a preset, with the heads that its checkpoint has.

        Args:
            preset, load_weights, dtype, **overrides: as in `BertBackbone.from_preset`.
            use_next_sentence: bool, as in the constructor; None: as the preset was saved, if it was by this class.

        Returns:
            A BertPretrainer. A head that the checkpoint lacks is random; a warning names its variables.

        Raises:
            InputError: as `BertBackbone.from_preset`.
        """
        if not load_weights:
            saved = weights.read_settings(preset)
            backbone = BertBackbone.from_preset(preset, load_weights=False, dtype=dtype, **overrides)
            return cls(backbone, use_next_sentence=_said(use_next_sentence, saved))
        with weights.open_checkpoint(preset) as checkpoint:
            has_next_sentence = _said(use_next_sentence, checkpoint.settings)
            overrides = weights.as_saved(checkpoint.settings, dtype=dtype, **overrides)
            return cls.from_checkpoint(checkpoint, use_next_sentence=has_next_sentence, **overrides)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, dtype=None, use_next_sentence: bool = True, **overrides
    ) -> "BertPretrainer":
        """Builds the model of an open checkpoint; see `from_preset`, but for how a preset was saved."""
        settings = weights.merge_settings(checkpoint.config, {**overrides, "dtype": dtype}, checkpoint.source)
        with weights_follow():
            backbone = BertBackbone(**settings)
        settings = checkpoint.head_settings.get("masked_lm", {})
        masked_lm = {f"masked_lm_{name}": value for name, value in settings.items()}
        model = cls(backbone, use_next_sentence=use_next_sentence, **masked_lm)
        weights.load_weights_of(model, checkpoint)
        return model


def _said(use_next_sentence: bool | None, settings) -> bool:
    return settings.get("use_next_sentence", True) if use_next_sentence is None else use_next_sentence


def _positions(name: str) -> keras.KerasTensor:
    return keras.Input(shape=(None,), dtype="int32", name=name)


def build_pretrainer(backbone: BertBackbone, use_next_sentence: bool = True) -> BertPretrainer:
    """Puts the two pre-training heads on a backbone, or the masked-LM head alone."""
    return BertPretrainer(backbone, use_next_sentence=use_next_sentence)
