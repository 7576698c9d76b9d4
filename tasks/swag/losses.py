"""What fine-tuning on choices minimizes: the mean cross entropy of the softmax over a row's choices.

Shapes: B rows of a batch, K choices.
"""

import tensorflow as tf

from tasks.train_step import Objective


class MultipleChoiceObjective(Objective):
    """Cross entropy and accuracy; every row weighs 1 (paper, section 4.4).

    Features: the encoder's inputs, [B, K, S]. Labels: `{"labels": int32 [B]}`. Outputs: float32 logits [B, K].
    """

    def weights(self, features, labels):
        del features
        return {"multiple_choice": _rows(labels)}

    def sums(self, outputs, labels):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels["labels"], outputs)
        return {"multiple_choice": tf.reduce_sum(losses)}

    def metric_sums(self, outputs, labels):
        correct = tf.equal(tf.argmax(outputs, axis=-1, output_type=tf.int32), labels["labels"])
        return {"accuracy": (tf.reduce_sum(tf.cast(correct, tf.float32)), _rows(labels))}


def _rows(labels) -> tf.Tensor:
    return tf.cast(tf.size(labels["labels"]), tf.float32)
