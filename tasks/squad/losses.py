"""What fine-tuning on questions minimizes: the cross entropy of the answer's first and last token among all tokens.

Shapes: B windows of a batch, S tokens of its longest window.
"""

import numpy as np
import tensorflow as tf

from tasks.examples import Examples
from tasks.train_step import Objective


class QuestionAnsweringObjective(Objective):
    """Mean over the windows of (cross entropy of the start + cross entropy of the end) / 2.

        loss = -(log softmax(start_logits)[start] + log softmax(end_logits)[end]) / 2

    (google-research/bert run_squad.py: compute_loss; paper, section 4.2). There every window is padded to
    max_seq_length, and padding takes part in the softmax. Here a batch is padded to its longest window only, so that
    padding must not count: the loss of a window would depend on its neighbours. Without padding both are equal.

    Features: the encoder's inputs. Labels: `start_positions`, `end_positions`, `lengths`: int32 [B], positions within
    the window ((0, 0), [CLS], where it holds no answer) and the window's tokens. Outputs: float32 logits [B, S, 2].
    """

    def weights(self, features, labels):
        del features
        return {TOTAL: _count(labels)}

    def sums(self, outputs, labels):
        masked = _masked(outputs, labels)
        losses = [
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels[name], masked[..., side])  # [B]
            for side, name in enumerate(POSITIONS)
        ]
        return {TOTAL: tf.reduce_sum(losses) / 2.0}

    def metric_sums(self, outputs, labels):
        best = tf.argmax(_masked(outputs, labels), axis=1, output_type=tf.int32)  # [B, 2]
        true = tf.stack([tf.cast(labels[name], tf.int32) for name in POSITIONS], axis=1)
        correct = tf.reduce_all(tf.equal(best, true), axis=1)
        return {"span_accuracy": (tf.reduce_sum(tf.cast(correct, tf.float32)), _count(labels))}


TOTAL = "question_answering"
POSITIONS = ("start_positions", "end_positions")


def with_lengths(examples: Examples) -> Examples:
    """Adds to the labels what the objective masks padding by: `lengths`, int32 (N,)."""
    return examples._replace(labels={**examples.labels, "lengths": examples.lengths.astype(np.int32)})


def window_losses(logits: np.ndarray, examples: Examples) -> np.ndarray:
    """The objective of each window, on the host.

    Args:
        logits: float32, shape (T, 2), of all tokens, as `tasks.examples.compute_token_outputs` gives them.
        examples: with the labels `start_positions` and `end_positions`.

    Returns:
        float64, shape (N,).
    """
    logits, starts = logits.astype(np.float64), examples.row_splits[:-1]
    peaks = np.maximum.reduceat(logits, starts)  # [N, 2]
    powers = np.exp(logits - np.repeat(peaks, examples.lengths, axis=0))
    totals = peaks + np.log(np.add.reduceat(powers, starts))
    gold = [logits[starts + examples.labels[name], side] for side, name in enumerate(POSITIONS)]
    return (totals - np.stack(gold, axis=1)).mean(axis=1)


def _masked(outputs, labels):
    """The logits [B, S, 2], those of padding at the lowest number."""
    is_real = tf.sequence_mask(labels["lengths"], tf.shape(outputs)[1])[..., tf.newaxis]  # [B, S, 1]
    return tf.where(is_real, outputs, outputs.dtype.min)


def _count(labels) -> tf.Tensor:
    return tf.cast(tf.size(labels["lengths"]), tf.float32)
