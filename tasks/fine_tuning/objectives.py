"""Losses of several tasks, as sums over a batch.

Shapes: B examples of a batch, S tokens of the longest one, C classes.
"""

import tensorflow as tf

from tasks.engine.train_step import Objective


class WeightedObjective(Objective):
    """Mean loss over the rows, or over the tokens, weighted by `labels["weights"]`."""

    name = "loss"

    def weights(self, features, labels):
        return {self.name: tf.reduce_sum(_weights(labels))}

    def sums(self, outputs, labels):
        return {self.name: tf.reduce_sum(self.losses(outputs, labels["labels"]) * _weights(labels))}

    def losses(self, outputs, labels):
        """Returns the loss of each row or token, float32, in the shape of `labels`."""
        raise NotImplementedError


class CrossEntropy(WeightedObjective):
    """Softmax cross entropy and accuracy of classes, of choices, or of tokens.

    As in google-research/bert (run_classifier.py: create_model). Labels: `{"labels": int32 [B] or [B, S]}`, and for
    tokens `"weights"`, float32 of the same shape. Outputs: float32 logits [B, C] or [B, S, C].

    Args:
        metric: name of the accuracy.
    """

    def __init__(self, metric: str = "accuracy"):
        self.metric = metric

    def losses(self, outputs, labels):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)

    def metric_sums(self, outputs, labels):
        correct = tf.equal(tf.argmax(outputs, axis=-1, output_type=tf.int32), labels["labels"])
        weights = _weights(labels)
        return {self.metric: (tf.reduce_sum(tf.cast(correct, tf.float32) * weights), tf.reduce_sum(weights))}


class SquaredError(WeightedObjective):
    """Squared difference between the single output and a score, of rows or of tokens.

    Labels: `{"labels": float32 [B] or [B, S]}`, and for tokens `"weights"`. Outputs: float32 [B, 1] or [B, S, 1].
    google-research/bert has no regression. This is the loss of transformers' `BertForSequenceClassification` with one
    label.
    """

    def losses(self, outputs, labels):
        return tf.square(outputs[..., 0] - labels)


def _weights(labels) -> tf.Tensor:
    weights = labels.get("weights")
    return tf.ones_like(labels["labels"], tf.float32) if weights is None else weights
