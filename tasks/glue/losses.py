"""What fine-tuning a classifier minimizes: the mean cross entropy of the rows.

Shapes: B rows of a batch, C classes.
"""

import tensorflow as tf

from tasks.training import Objective


class ClassificationObjective(Objective):
    """Cross entropy and accuracy; every row weighs 1 (google-research/bert run_classifier.py: create_model).

    Features: the encoder's inputs. Labels: `{"labels": int32 [B]}`. Outputs: float32 logits [B, C].
    """

    def weights(self, features, labels):
        del features
        return {"classification": _rows(labels)}

    def sums(self, outputs, labels):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels["labels"], outputs)
        return {"classification": tf.reduce_sum(losses)}

    def metric_sums(self, outputs, labels):
        correct = tf.equal(tf.argmax(outputs, axis=-1, output_type=tf.int32), labels["labels"])
        return {"accuracy": (tf.reduce_sum(tf.cast(correct, tf.float32)), _rows(labels))}


def _rows(labels) -> tf.Tensor:
    return tf.cast(tf.size(labels["labels"]), tf.float32)
