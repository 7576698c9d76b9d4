"""What fine-tuning a classifier or a regressor minimizes.

Shapes: B rows of a batch, C classes.
"""

import tensorflow as tf

from tasks.training import Objective


class ClassificationObjective(Objective):
    """Cross entropy; every row weighs 1 (google-research/bert run_classifier.py: create_model).

    Features: the encoder's inputs. Labels: `{"labels": int32 [B]}`. Outputs: float32 logits [B, C].
    """

    def weights(self, features, labels):
        del features
        return {"classification": _rows(labels)}

    def sums(self, outputs, labels):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels["labels"], outputs)
        return {"classification": tf.reduce_sum(losses)}


class RegressionObjective(Objective):
    """Mean squared error, mean((output - score)^2); every row weighs 1.

    google-research/bert has no regression; this is the loss of transformers' `BertForSequenceClassification` with one
    label. Features: the encoder's inputs. Labels: `{"labels": float32 [B]}`. Outputs: float32 [B, 1].
    """

    def weights(self, features, labels):
        del features
        return {"regression": _rows(labels)}

    def sums(self, outputs, labels):
        return {"regression": tf.reduce_sum(tf.square(outputs[:, 0] - labels["labels"]))}


def _rows(labels) -> tf.Tensor:
    return tf.cast(tf.size(labels["labels"]), tf.float32)
