"""Filling in masks with the most probable tokens, by a model of `bert-pretrain` or any preset with a masked-LM head.

Shapes: B batch, M masks, V vocabulary.
"""

import numpy as np
import tensorflow as tf

from export import signatures
from export.heads.base import About, Head
from export.verification import probes
from keras_bert.answers import masked_texts, pieces, text_bounds
from keras_bert.answers.fill_mask import MaskAnswers
from keras_bert.errors import InputError
from keras_bert.models import BertPretrainer
from keras_bert.presets import weights
from keras_bert.tokenization.preprocessor import BertPreprocessor

TEXTS = (
    "The cat [MASK] on the [MASK].",
    "no mask here",
    "[MASK]",
    "",
    "[MASK][MASK]s naïve \U0001f600 [MASK]",
    b"invalid \xff\xfe UTF-8 \xe4[MASK] [MA\xffSK] \xe4\xb8",
    "ΟΔΥΣΣΕΥΣ[MASK], 今天天气[MASK]很好 [mask] [ MASK ]",
    "[MASK] " * 3000,
    "a long text " * 1000 + "[MASK]",
    "x" * 20_000 + " [MASK]",
    " " * 20_000 + "[MASK]",
)


class FillMask(MaskAnswers, Head):
    """A masked language model; see `MaskAnswers`."""

    task = "fill_mask"
    settings = ("top_k",)
    token_inputs = {**signatures.TOKEN_AXES, "mask_positions": ("masked",)}

    @classmethod
    def load_preset(cls, directory: str, source: str, sequence_length: int | None = None, top_k: int = 5):
        """Builds the head of a preset (`directory` and `source`) that has the masked-LM head."""
        with weights.open_checkpoint(source) as checkpoint:
            if "masked_lm" not in checkpoint.heads:
                raise InputError(
                    f"{checkpoint.source}: holds no masked-LM head. Expected what bert-pretrain wrote, or another "
                    "checkpoint that kept the heads of its pre-training."
                )
            model = BertPretrainer.from_checkpoint(checkpoint, use_next_sentence=False)
        return cls(model, BertPreprocessor.from_preset(directory, sequence_length), top_k)

    # === Probes ===

    def probe_texts(self):
        return {"text": probes.as_bytes(TEXTS)}

    def encode(self, texts):
        """Encodes texts eagerly, with `characters` and `num_masks`."""
        return probes.on_cpu(lambda text: masked_texts.encode(self.preprocessor, text), texts["text"])

    def expected(self, model, texts, encoded):
        tokens = probes.as_bytes(self.preprocessor.tokenizer.get_vocabulary())
        is_mask = encoded["mask_positions"] >= 0
        inputs = {name: encoded[name] for name in ("token_ids", "segment_ids", "padding_mask")}
        inputs["mask_positions"] = np.maximum(encoded["mask_positions"], 0)

        def rank(outputs, rows):
            logits = model.get_layer("masked_lm")(outputs["sequence_output"], mask_positions=rows["mask_positions"])
            named = tf.nn.softmax(logits)[..., : len(tokens)]  # [B, M, V]
            return tf.math.top_k(named, min(self.top_k + 1, len(tokens)))._asdict()

        ranked = probes.on_cpu(lambda rows: pieces.in_pieces(text_bounds.find_backbone(model), rows, rank), inputs)
        answer = {
            "tokens": np.where(is_mask[..., None], tokens[ranked["indices"][..., : self.top_k]], np.array(b"", object)),
            "probabilities": np.where(is_mask[..., None], ranked["values"][..., : self.top_k], np.float32(0)),
        }
        undecided = (probes.undecided(ranked["values"], self.top_k) & is_mask).any(axis=1)
        of_text = {"positions": encoded["characters"], "num_masks": encoded["num_masks"]}
        by_text = {**answer, **of_text}
        return {signatures.SERVING_DEFAULT: (by_text, undecided), signatures.TOKEN_IDS: (answer, undecided)}

    # === Other targets ===

    def sample(self, sentences, count):
        """Puts a mask before and after each sentence's first word."""
        words = (sentence.split(maxsplit=1) for sentence in sentences)
        masked = (" ".join([masked_texts.MASK, first, masked_texts.MASK, *rest]) for first, *rest in words)
        return super().sample(masked, count)

    def comparable(self, request, outputs):
        named = outputs["probabilities"][..., : self.preprocessor.tokenizer.vocabulary_size()]
        return {"probabilities": np.sort(named, axis=-1)[..., ::-1][..., : self.top_k]}

    # === Description ===

    def about(self):
        count, longest = self.top_k, self.preprocessor.sequence_length - 2
        outputs = {
            "tokens": f'string (masked, {count}): the likeliest tokens, "##..." inside a word; "" where no mask is',
            "probabilities": f"float (masked, {count}): their probabilities",
        }
        of_text = {
            "positions": "int32 (masked): the character where each [MASK] begins; -1 where no mask is",
            "num_masks": f"int32: how many masks the text has in its first {longest} tokens",
        }
        return About(
            "Fill in the mask",
            f"Names the {count} most probable tokens for each [MASK] of a text, among its first {longest} tokens.",
            ["The capital of France is [MASK].", "She [MASK] the door and [MASK] in."],
            {"text": "string: the text, with [MASK] where a token is to be named"},
            {**outputs, **of_text},
            token_inputs={"mask_positions": "which of the ids to name; -1 for none"},
            token_outputs=outputs,
            more={"top_k": count},
        )
