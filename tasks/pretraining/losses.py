"""The pre-training losses: masked LM and next sentence.

B: batch, P: masked positions, V: vocabulary.
"""

import tensorflow as tf

from tasks.training import Objective


class PretrainingObjective(Objective):
    """Masked-LM loss plus next-sentence loss, unweighted (google-research/bert, run_pretraining.py:240-310).

        masked LM:     sum(mask_weights * cross-entropy) / (sum(mask_weights) + 1e-5)
        next sentence: mean cross-entropy

    Both sums and both weights are over the global batch. The source takes the masked-LM mean on each TPU core and
    averages those, which weighs a core's few masked tokens more than another's many; here every token weighs the same.

    Outputs: dict of float32 logits, `masked_lm` (B, P, V) and `next_sentence` (B, 2).
    Labels: dict of `mask_ids` int (B, P), `mask_weights` float32 (B, P), `next_sentence_labels` int (B,).
    """

    # run_pretraining.py:277. The trainer adds it to the number of examples too: 3e-7 of the next-sentence loss at 32.
    epsilon = 1e-5

    def weights(self, features, labels) -> dict[str, tf.Tensor]:
        num_examples = tf.cast(tf.shape(labels["next_sentence_labels"])[0], tf.float32)
        return {"masked_lm": tf.reduce_sum(labels["mask_weights"]), "next_sentence": num_examples}

    def sums(self, outputs, labels) -> dict[str, tf.Tensor]:
        masked_lm = _cross_entropy(labels["mask_ids"], outputs["masked_lm"])  # [B, P]
        next_sentence = _cross_entropy(labels["next_sentence_labels"], outputs["next_sentence"])  # [B]
        return {
            "masked_lm": tf.reduce_sum(masked_lm * labels["mask_weights"]),
            "next_sentence": tf.reduce_sum(next_sentence),
        }

    def metric_sums(self, outputs, labels) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Accuracies; the losses themselves the trainer reports."""
        weights = self.weights({}, labels)
        masked_lm = _is_correct(labels["mask_ids"], outputs["masked_lm"])
        next_sentence = _is_correct(labels["next_sentence_labels"], outputs["next_sentence"])
        return {
            "masked_lm_accuracy": (tf.reduce_sum(masked_lm * labels["mask_weights"]), weights["masked_lm"]),
            "next_sentence_accuracy": (tf.reduce_sum(next_sentence), weights["next_sentence"]),
        }


def _cross_entropy(ids: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """-log softmax(logits)[ids]: ids int (...), logits (..., C) -> float32 (...).

    TensorFlow's fused op takes 106 ms, forward and backward, for 640 rows of 30,522 logits on 2 cores; keeping the
    softmax for the gradient takes 49 ms. The largest probability is 1 / sum(exp(logits - max)), hence the log of the
    sum without another pass of exp, and without a log of a probability that may have become 0.
    """
    flat_ids = tf.reshape(ids, [-1])

    @tf.custom_gradient
    def by_row(rows):
        probabilities = tf.nn.softmax(rows)
        log_sum = tf.reduce_max(rows, axis=-1) - tf.math.log(tf.reduce_max(probabilities, axis=-1))

        def gradient(upstream):
            row_numbers = tf.range(tf.shape(flat_ids)[0], dtype=flat_ids.dtype)
            answers = tf.stack([row_numbers, flat_ids], axis=1)
            return tf.tensor_scatter_nd_sub(probabilities * upstream[:, None], answers, upstream)

        return log_sum - tf.gather(rows, flat_ids, batch_dims=1), gradient

    rows = tf.reshape(tf.cast(logits, tf.float32), [-1, logits.shape[-1]])
    return tf.reshape(by_row(rows), tf.shape(ids))


def _is_correct(ids: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.argmax(logits, axis=-1, output_type=ids.dtype) == ids, tf.float32)
