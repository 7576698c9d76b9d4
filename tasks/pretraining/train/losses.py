"""The pre-training losses, masked LM and next sentence, and metrics that the trainer does not compute.

B: batch, P: masked positions, K: examples of a packed sequence, V: vocabulary.
"""

import math

import numpy as np
import tensorflow as tf

from tasks.engine.training import Objective


class PretrainingObjective(Objective):
    """Masked-LM loss plus next-sentence loss (google-research/bert, run_pretraining.py:240-310).

        masked LM:     sum(mask_weights * cross-entropy) / (sum(mask_weights) + 1e-5)
        next sentence: mean cross-entropy

    Both sums and both weights are over the global batch. The source averages the masked-LM means of the TPU cores, so
    that tokens weigh more on a core with few of them; here every token weighs the same.

    Outputs: dict of float32 logits, `masked_lm` (B, P, V) and `next_sentence` (B, 2), packed (B, K, 2).
    Labels: dict of `mask_ids` int (B, P), `mask_weights` float32 (B, P), `next_sentence_labels` int (B,). Packed,
    the latter are (B, K), with `next_sentence_weights` float32 (B, K), 0.0 where a sequence has fewer than K examples.

    Args:
        use_next_sentence: bool; False: the masked-LM loss alone (section 5.1 of the paper, "No NSP").
        next_sentence_weight: float, factor of the next-sentence loss; 1.0 is the source's.
    """

    # run_pretraining.py:277. The trainer adds it to the number of examples too: 3e-7 of the next-sentence loss at 32.
    epsilon = 1e-5

    def __init__(self, use_next_sentence: bool = True, next_sentence_weight: float = 1.0):
        self.use_next_sentence = use_next_sentence
        self.loss_weights = {"next_sentence": next_sentence_weight}

    def weights(self, features, labels) -> dict[str, tf.Tensor]:
        return {name: tf.reduce_sum(weights) for name, (_, weights) in self._answers(labels).items()}

    def sums(self, outputs, labels) -> dict[str, tf.Tensor]:
        return {
            name: tf.reduce_sum(_cross_entropy(ids, outputs[name]) * weights)
            for name, (ids, weights) in self._answers(labels).items()
        }

    def metric_sums(self, outputs, labels) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Returns the sums of the accuracies; the trainer reports the losses."""
        return {
            f"{name}_accuracy": (tf.reduce_sum(_is_correct(ids, outputs[name]) * weights), tf.reduce_sum(weights))
            for name, (ids, weights) in self._answers(labels).items()
        }

    def real_tokens(self, features) -> tf.Tensor:
        """Counts the real tokens. In a packed batch, `padding_mask` has the number of each token's example, from 1."""
        return tf.reduce_sum(tf.cast(features["padding_mask"] > 0, tf.float32))

    def _answers(self, labels) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
        """Returns the right answers and float32 weights of their shape, for each loss."""
        answers = {"masked_lm": (labels["mask_ids"], labels["mask_weights"])}
        if self.use_next_sentence:
            ids = labels["next_sentence_labels"]
            weights = labels.get("next_sentence_weights")
            answers["next_sentence"] = (ids, tf.ones_like(ids, tf.float32) if weights is None else weights)
        return answers


def _cross_entropy(ids: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Computes -log softmax(logits)[ids], float32 (...), for ids int (...) and logits (..., C).

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


# === Metrics ===


def most_frequent_accuracy(train_counts: np.ndarray, eval_counts: np.ndarray) -> float:
    """Returns the accuracy of always giving the most frequent answer of training, which a model has to beat.

    Args:
        train_counts, eval_counts: int, shape (answers,), how often each answer is right: WordPieces at masked
            positions, or the two labels of next-sentence prediction (`tasks.pretraining.data.shard_index.Records`).

    Returns:
        Share of the held-out questions with that answer; 0.0 if there are none.
    """
    total = int(eval_counts.sum())
    return float(eval_counts[np.argmax(train_counts)]) / total if total else 0.0


def perplexity(masked_lm_loss: float) -> float:
    """Returns exp(mean cross-entropy in nats), as in the paper's table 6; infinite where that overflows."""
    return math.exp(masked_lm_loss) if masked_lm_loss < 700 else math.inf
