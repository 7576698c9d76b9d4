"""What fine-tuning a tagger minimizes: the mean cross entropy of the words, each by its first sub-token.

Shapes: B batch, S sequence, C labels.
"""

import tensorflow as tf

from tasks.train_step import Objective


class TaggingObjective(Objective):
    """Cross entropy and accuracy of the tokens that weigh 1.

    Features: the encoder's inputs. Labels: `{"labels": int32 [B, S], "weights": float32 [B, S]}`, as
    `tasks.ner.data.make_examples` makes them. Outputs: float32 logits [B, S, C].
    """

    def weights(self, features, labels):
        del features
        return {"tagging": tf.reduce_sum(labels["weights"])}

    def sums(self, outputs, labels):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels["labels"], outputs)  # [B, S]
        return {"tagging": tf.reduce_sum(losses * labels["weights"])}

    def metric_sums(self, outputs, labels):
        correct = tf.equal(tf.argmax(outputs, axis=-1, output_type=tf.int32), labels["labels"])
        weights = labels["weights"]
        return {"token_accuracy": (tf.reduce_sum(tf.cast(correct, tf.float32) * weights), tf.reduce_sum(weights))}
