"""Filling in masks with the most probable tokens, by a model of `bert-pretrain` or any preset with a masked-LM head.

Shapes: B batch, M masks, V vocabulary.
"""

import numpy as np

from export import signatures
from export.heads.base import About, Head
from export.verification import probes
from export.verification.verify import TOLERANCE
from keras_bert.answers import masked_texts, text_bounds
from keras_bert.answers.fill_mask import TIE, MaskAnswers
from keras_bert.answers.pieces import in_pieces
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
        """Computes the right answers eagerly.

        A text is undecided if rounding decides which tokens of a mask are the most probable, or which count as equal.
        """
        size = self.preprocessor.tokenizer.vocabulary_size()
        wider = FillMask(self.model, self.preprocessor, min(self.top_k + 1, size))

        def fill(outputs, rows):
            more = wider.fill_piece(model, outputs, rows)["probabilities"]
            return {**self.fill_piece(model, outputs, rows), "more": more}

        inputs = {name: encoded[name] for name in ("token_ids", "segment_ids", "padding_mask", "mask_positions")}
        answer = probes.on_cpu(lambda rows: in_pieces(text_bounds.find_backbone(model), rows, fill), inputs)
        largest = np.sort(answer.pop("more"), axis=-1)[..., ::-1]
        is_near = largest[..., :-1] - largest[..., 1:] <= TIE * largest[..., :-1] + 2 * TOLERANCE
        undecided = (is_near.any(axis=-1) & (encoded["mask_positions"] >= 0)).any(axis=1)
        by_text = {**answer, "positions": encoded["characters"], "num_masks": encoded["num_masks"]}
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
            token_inputs={"mask_positions": "positions of the ids to predict; -1 for none"},
            token_outputs=outputs,
            more={"top_k": count},
        )
