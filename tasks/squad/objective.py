"""The loss of question answering: the cross entropy of the answer's first and last token among all tokens.

Shapes: B windows of a batch, S tokens of its longest window.
"""

import tensorflow as tf

from keras_bert.models.span_labeler import SpanLoss
from tasks.engine.train_step import Objective
from tasks.squad.windows import POSITIONS


class SpanObjective(Objective):
    """Mean over the windows of (cross entropy of the start + cross entropy of the end) / 2, which is `SpanLoss`.

        loss = -(log softmax(start_logits)[start] + log softmax(end_logits)[end]) / 2

    Source: section 4.2 of the paper, and google-research/bert, run_squad.py:646-659. There, every window is padded to
    max_seq_length, and the softmax includes padding. Here, a batch is padded to its longest window, and padding is
    masked, since otherwise the loss of a window would depend on the rest of its batch. Without padding, both are equal.

    Labels, int32 [B]: `start_positions` and `end_positions` within the window (0, the position of [CLS], if it does not
    contain the answer), and its number of tokens as `lengths`. Outputs: float32 logits [B, S, 2].
    """

    def weights(self, features, labels):
        return {"loss": tf.cast(tf.size(labels["lengths"]), tf.float32)}

    def sums(self, outputs, labels):
        truth = tf.stack([labels[name] for name in (*POSITIONS, "lengths")], axis=1)  # [B, 3], as `SpanLoss` takes it.
        return {"loss": tf.reduce_sum(SpanLoss().call(truth, outputs))}
