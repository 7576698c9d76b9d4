"""Loss of a student: the loss of its task, and that of imitating the teacher's answers.

Shapes: B rows of a batch, S tokens of the longest one, C classes, K texts of a row, D embedding of the student.
"""

import tensorflow as tf

from tasks.embed.objectives import EmbedObjective, gather
from tasks.engine.train_step import Objective
from tasks.fine_tuning.objectives import CrossEntropy, SigmoidCrossEntropy, SquaredError
from tasks.squad.objective import SpanObjective


class Distillation(Objective):
    """Weighted mean of the task's own loss and of the loss of imitating the teacher (Hinton et al., arXiv:1503.02531).

    Labels, besides those of the task: `teacher`, the teacher's outputs; and `taught`, float32 [B], or [B, S] if the
    task answers for tokens: 1 where the student imitates the teacher. If there are rows without labels, also
    `labelled`, float32 [B]: 0 for these, and for the others the share of labelled rows in the data, so that all rows
    weigh the same. Outputs: those of the task.

    Args:
        own: the task's objective, with one loss.
        label_weight: share of the task's loss in the total, from 0 to 1.
        temperature: divisor of the logits of student and teacher before they are compared.
    """

    def __init__(self, own: Objective, label_weight: float, temperature: float):
        self.own, self.temperature = own, temperature
        self.needs_whole_batch = own.needs_whole_batch
        self.loss_weights = {"labels": label_weight, "teacher": 1.0 - label_weight}
        self._losses = next(losses for kind, losses in _LOSSES.items() if isinstance(own, kind))

    def weights(self, features, labels):
        [weight] = self.own.weights(features, _labelled(labels, labels)).values()
        return {"labels": weight, "teacher": tf.reduce_sum(self._taught(labels))}

    def sums(self, outputs, labels):
        [own] = self.own.sums(_labelled(labels, outputs), _labelled(labels, labels)).values()
        if "labelled" in labels:
            own *= tf.maximum(tf.reduce_max(labels["labelled"]), 0.0)  # The maximum of an empty batch is -inf.
        losses = self._losses(outputs, labels["teacher"], labels["taught"], self.temperature)
        return {"labels": own, "teacher": tf.reduce_sum(losses * self._taught(labels))}

    def _taught(self, labels) -> tf.Tensor:
        """Returns the weight of each imitation loss. For spans, there is one loss per row."""
        taught = labels["taught"]
        return tf.reduce_max(taught, 1) if isinstance(self.own, SpanObjective) else taught


def _labelled(labels, values):
    """Returns nested values without the unlabelled rows."""
    if "labelled" not in labels:
        return values
    return tf.nest.map_structure(lambda rows: tf.boolean_mask(rows, labels["labelled"] > 0), values)


# === Losses of imitation, for each row or token ===


def _of_classes(outputs, teacher, taught, temperature):
    """Cross entropy with the teacher's probabilities. The squared temperature keeps the size of the gradients."""
    shares = tf.nn.softmax(teacher / temperature)
    return temperature**2 * tf.nn.softmax_cross_entropy_with_logits(shares, outputs / temperature)


def _of_label_sets(outputs, teacher, taught, temperature):
    shares = tf.sigmoid(teacher / temperature)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(shares, outputs / temperature)
    return temperature**2 * tf.reduce_mean(losses, -1)


def _of_scores(outputs, teacher, taught, temperature):
    return tf.square(outputs - teacher)[..., 0]


def _of_spans(outputs, teacher, taught, temperature):
    """Mean of the cross entropies of start and end, whose classes are the tokens: [B, S, 2] to [B]."""
    padding = -1e9 * (1.0 - taught)[:, tf.newaxis]
    ends = [tf.transpose(logits, [0, 2, 1]) + padding for logits in (outputs, teacher)]  # [B, 2, S]
    return tf.reduce_mean(_of_classes(*ends, taught, temperature), -1)


def _of_vectors(outputs, teacher, taught, temperature):
    """Squared errors of the cosines with all texts of the batch and, if the sizes agree, of the unit vectors.

    The student's embeddings have the shape [B, K, D], the teacher's [B, K, D'].
    """
    vectors, targets = (tf.math.l2_normalize(values, -1) for values in (outputs, teacher))

    def cosines(values):  # [B, K, texts of all replicas]
        return tf.einsum("bkd,nd->bkn", values, tf.reshape(gather(values), [-1, values.shape[-1]]))

    losses = tf.reduce_mean(tf.math.squared_difference(cosines(vectors), cosines(targets)), [1, 2])
    if vectors.shape[-1] == targets.shape[-1]:
        losses += tf.reduce_mean(tf.reduce_sum(tf.math.squared_difference(vectors, targets), -1), -1)
    return losses


_LOSSES = {
    CrossEntropy: _of_classes,
    SigmoidCrossEntropy: _of_label_sets,
    SquaredError: _of_scores,
    SpanObjective: _of_spans,
    EmbedObjective: _of_vectors,
}
