"""The loss of question answering: the cross entropy of the answer's first and last token among all tokens.

Shapes: B windows of a batch, S tokens of its longest window.
"""

import tensorflow as tf

from tasks.engine.train_step import Objective
from tasks.squad.windows import POSITIONS


class SpanObjective(Objective):
    """Mean over the windows of (cross entropy of the start + cross entropy of the end) / 2.

        loss = -(log softmax(start_logits)[start] + log softmax(end_logits)[end]) / 2

    See google-research/bert run_squad.py:646-659, and the paper, section 4.2. There every window is padded to
    max_seq_length, and the softmax includes padding. Here a batch is padded to its longest window, and padding is
    masked, since otherwise the loss of a window would depend on the rest of its batch. Without padding both are equal.

    Labels, int32 [B]: `start_positions` and `end_positions` within the window (0, the position of [CLS], if it does not
    contain the answer), and its number of tokens as `lengths`. Outputs: float32 logits [B, S, 2].
    """

    name = "question_answering"

    def weights(self, features, labels):
        del features
        return {self.name: _count(labels)}

    def sums(self, outputs, labels):
        masked = _masked(outputs, labels)
        losses = [
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels[name], masked[..., side])  # [B]
            for side, name in enumerate(POSITIONS)
        ]
        return {self.name: tf.reduce_sum(losses) / 2.0}

    def metric_sums(self, outputs, labels):
        best = tf.argmax(_masked(outputs, labels), axis=1, output_type=tf.int32)  # [B, 2]
        true = tf.stack([tf.cast(labels[name], tf.int32) for name in POSITIONS], axis=1)
        correct = tf.reduce_all(tf.equal(best, true), axis=1)
        return {"span_accuracy": (tf.reduce_sum(tf.cast(correct, tf.float32)), _count(labels))}


def _masked(outputs, labels) -> tf.Tensor:
    """Returns the logits [B, S, 2], with those of padding replaced by the lowest float."""
    is_real = tf.sequence_mask(labels["lengths"], tf.shape(outputs)[1])[..., tf.newaxis]  # [B, S, 1]
    return tf.where(is_real, outputs, outputs.dtype.min)


def _count(labels) -> tf.Tensor:
    return tf.cast(tf.size(labels["lengths"]), tf.float32)
