"""Finds the most probable tokens for each mask of a text.

Shapes: B batch, S sequence, M masks, R masks of all texts, K tokens named, V vocabulary, H hidden.
"""

from collections.abc import Mapping

import keras
import tensorflow as tf

from keras_bert.answers import masked_texts, text_bounds
from keras_bert.answers.base import Answers, TokenOutput
from keras_bert.answers.pieces import in_pieces
from keras_bert.answers.ties import settle_ties
from keras_bert.errors import InputError
from keras_bert.tokenization.preprocessor import BertPreprocessor, after

# Number of masks whose logits are in memory at a time: 31 MB for a vocabulary of 30,522.
_MASKS_AT_A_TIME = 256
# Log-probabilities that differ by at most this count as equal: the token with the lower id comes first.
TIE = 1e-4


class MaskAnswers(Answers):
    """Fills in masks.

    Args:
        model: has a masked-LM head, as BertPretrainer has.
        preprocessor: gives the tokenizer and the longest sequence.
        top_k: int, number of tokens named for each mask.

    Raises:
        InputError: `top_k` is not from 1 to the size of the vocabulary.
    """

    padding = {"count": "num_masks", "values": {"tokens": "", "probabilities": 0.0, "positions": -1}}
    token_outputs = {"probabilities": TokenOutput(("masked", "classes"), "masked_lm", softmax=True)}

    def __init__(self, model: keras.Model, preprocessor: BertPreprocessor, top_k: int = 5):
        super().__init__(model, preprocessor)
        size = preprocessor.tokenizer.vocabulary_size()
        if not 1 <= top_k <= size:
            raise InputError(f"top_k={top_k}: expected 1 to {size}, the size of the vocabulary.")
        self.top_k = top_k

    def answer_texts(self, model, texts):
        encoded = masked_texts.encode(self.preprocessor, texts["text"])
        of_text = {"positions": encoded.pop("characters"), "num_masks": encoded.pop("num_masks")}
        return {**self._fill(model, encoded), **of_text}

    def answer_token_ids(self, model, encoded):
        check = _check_positions(encoded["mask_positions"], encoded["padding_mask"])
        return self._fill(model, {**encoded, "mask_positions": after(check, encoded["mask_positions"])})

    def _fill(self, model: keras.Model, encoded: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Names the best tokens, of real masks only: `tokens`, string [B, M, K], and their `probabilities`."""
        return in_pieces(text_bounds.find_backbone(model), encoded, lambda *both: self.fill_piece(model, *both))

    def fill_piece(self, model: keras.Model, outputs: Mapping, encoded: Mapping) -> dict[str, tf.Tensor]:
        """Names the best tokens, as `_fill` returns them, from the encoder's outputs and inputs."""
        states, mask_positions = outputs["sequence_output"], encoded["mask_positions"]
        is_mask = mask_positions >= 0  # [B, M]
        flat_positions = tf.range(tf.shape(states)[0])[:, tf.newaxis] * tf.shape(states)[1] + mask_positions
        rows = tf.boolean_mask(flat_positions, is_mask)  # [R], among the B * S positions
        ids, probabilities = self._best(model, tf.reshape(states, [1, -1, states.shape[-1]]), rows)
        tokens = tf.gather(tf.constant(self.preprocessor.tokenizer.get_vocabulary()), ids)
        shape, real = tf.concat([tf.shape(is_mask), [self.top_k]], axis=0), tf.where(is_mask)
        return {
            "tokens": tf.tensor_scatter_nd_update(tf.fill(shape, ""), real, tokens),
            "probabilities": tf.tensor_scatter_nd_update(tf.zeros(shape), real, probabilities),
        }

    def _best(self, model: keras.Model, states: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds ids and probabilities [R, K] of the best tokens at `rows` [R] of `states` [1, B * S, H], in parts."""
        head, size = model.get_layer("masked_lm"), self.preprocessor.tokenizer.vocabulary_size()

        def add_part(start, ids, probabilities):
            logits = head(states, mask_positions=rows[tf.newaxis, start : start + _MASKS_AT_A_TIME])[0]
            # The table may have more rows than the vocabulary has tokens. They take part in the softmax, but have no
            # name.
            best, best_ids = tf.math.top_k(tf.nn.softmax(logits)[:, :size], self.top_k)
            order = settle_ties(tf.math.log(best), best_ids, TIE)
            best, best_ids = (tf.gather(column, order, batch_dims=1) for column in (best, best_ids))
            longer = tf.concat([ids, best_ids], axis=0), tf.concat([probabilities, best], axis=0)
            return start + _MASKS_AT_A_TIME, *longer

        state = (0, tf.zeros([0, self.top_k], tf.int32), tf.zeros([0, self.top_k]))
        shapes = (tf.TensorShape([]), *[tf.TensorShape([None, self.top_k])] * 2)
        return tf.while_loop(lambda start, *_: start < tf.size(rows), add_part, state, shapes)[1:]


def _check_positions(mask_positions: tf.Tensor, padding_mask: tf.Tensor) -> tf.Operation:
    """Returns an op that fails, with a message for the client, unless every position is -1 or a token of its row."""
    lengths = tf.reduce_sum(padding_mask, axis=-1)
    same_size = tf.shape(mask_positions)[0] == tf.size(lengths)
    right = tf.cond(
        same_size,
        lambda: tf.reduce_all((mask_positions >= -1) & (mask_positions < lengths[:, tf.newaxis])),
        lambda: False,
    )
    message = "`mask_positions` must have a row for each of `token_ids`: -1, or 0 to its length - 1. Received shape:"
    return tf.debugging.Assert(right, [message, tf.shape(mask_positions), "values:", mask_positions], summarize=8)
