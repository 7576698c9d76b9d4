"""Losses that several tasks share, as sums over a batch.

Shapes: B examples of a batch, S tokens of the longest one, C classes.
"""

import types

import tensorflow as tf

from tasks.engine.train_step import Objective


class WeightedObjective(Objective):
    """Mean loss over the rows, or over the tokens, weighted by `labels["weights"]`."""

    def weights(self, features, labels):
        return {"loss": tf.reduce_sum(_weights(labels))}

    def sums(self, outputs, labels):
        return {"loss": tf.reduce_sum(self.losses(outputs, labels["labels"]) * _weights(labels))}

    def losses(self, outputs, labels):
        """Returns the loss of each row or token, float32, in the shape of `labels`."""
        raise NotImplementedError


class CrossEntropy(WeightedObjective):
    """Softmax cross entropy of classes, of choices, or of tokens.

    Source: google-research/bert, run_classifier.py: create_model. Labels: `{"labels": int32 [B] or [B, S]}`, and for
    tokens, or rows of weighted classes, `"weights"`, float32 of the same shape. Outputs: float32 logits [B, C] or
    [B, S, C].
    """

    def losses(self, outputs, labels):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)


class SigmoidCrossEntropy(WeightedObjective):
    """Binary cross entropy of rows with any number of labels, the mean over the classes.

    Labels: `{"labels": float32 [B, C]}`, 0.0 or 1.0, and for weighted labels `"weights"` of the same shape. Outputs:
    float32 logits [B, C]. google-research/bert has no such task. This is the loss of transformers'
    `BertForSequenceClassification` with the problem type `multi_label_classification`.
    """

    def losses(self, outputs, labels):
        return tf.nn.sigmoid_cross_entropy_with_logits(labels, outputs)


class SquaredError(WeightedObjective):
    """Squared difference between the single output and a score, of rows or of tokens.

    Labels: `{"labels": float32 [B] or [B, S]}`, and for tokens `"weights"`. Outputs: float32 [B, 1] or [B, S, 1].
    google-research/bert has no regression. This is the loss of transformers' `BertForSequenceClassification` with one
    label.
    """

    def losses(self, outputs, labels):
        return tf.square(outputs[..., 0] - labels)


class SupervisedContrast(Objective):
    """Mean of the cross entropy of classes and a contrastive loss, which pulls rows with the same label together.

    Source: Gunel et al., arXiv:2011.01403, equation 1, with the contrast of Khosla et al., arXiv:2004.11362, equation
    2. Labels: `{"labels": int32 [B]}`. Outputs: float32 logits [B, C] and vectors [B, D] of any norm. A row whose label
    no other row of the batch has adds nothing to the contrast.
    """

    needs_whole_batch = True
    temperature = 0.1  # Khosla et al.
    loss_weights = types.MappingProxyType({"class": 0.5, "contrast": 0.5})

    def weights(self, features, labels):
        return dict.fromkeys(self.loss_weights, tf.cast(tf.shape(labels["labels"])[0], tf.float32))

    def sums(self, outputs, labels):
        (logits, vectors), numbers = outputs, labels["labels"]
        unit = tf.math.l2_normalize(vectors, -1)
        is_self = tf.eye(tf.shape(unit)[0])
        similarities = tf.matmul(unit, unit, transpose_b=True) / self.temperature
        logs = tf.nn.log_softmax(similarities - 1e9 * is_self, -1)
        is_match = tf.cast(numbers[:, tf.newaxis] == numbers, tf.float32) - is_self  # [B, B]
        matched = tf.reduce_sum(tf.where(is_match > 0, logs, 0.0), 1)
        return {
            "class": tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(numbers, logits)),
            "contrast": -tf.reduce_sum(tf.math.divide_no_nan(matched, tf.reduce_sum(is_match, 1))),
        }


def _weights(labels) -> tf.Tensor:
    weights = labels.get("weights")
    return tf.ones_like(labels["labels"], tf.float32) if weights is None else weights
