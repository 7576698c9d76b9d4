"""Losses of embeddings, named and computed as in sentence-transformers.

Shapes: B rows of a replica's batch, G rows of the global batch, K texts of a row, D embedding. Outputs are float32
(B, K, D). A row competes with the rows of all replicas, so embeddings are gathered, and gradients flow back to each
replica.
"""

import math
from collections.abc import Sequence

import tensorflow as tf

from tasks.engine.train_step import Objective

SCALE = 20.0  # Factor of cosines before a softmax or exponential, sentence-transformers' default.


class EmbedObjective(Objective):
    """Mean loss over the rows, summed over `dims`.

    Args:
        dims: numbers of leading components that are also trained as normalized embeddings, besides the whole embedding
            (Matryoshka, Kusupati et al., arXiv:2205.13147); empty for the whole embedding alone.
    """

    needs_whole_batch = True

    def __init__(self, dims: Sequence[int] = ()):
        self.dims = set(dims)

    def weights(self, features, labels):
        return {"loss": tf.cast(tf.shape(labels["labels"])[0], tf.float32)}

    def sums(self, outputs, labels):
        dims = sorted(self.dims | {outputs.shape[-1]}) if self.dims else ()
        embeddings = [tf.math.l2_normalize(outputs[..., :dim], -1) for dim in dims] or [outputs]
        return {"loss": tf.add_n([self.loss_sum(part, labels["labels"]) for part in embeddings])}

    def loss_sum(self, embeddings, scores):
        """Returns the sum of the loss over the rows, a scalar, by embeddings (B, K, D) and scores, float32 (B,)."""
        raise NotImplementedError


class MultipleNegativesRanking(EmbedObjective):
    """Cross entropy of finding a row's second text, among the second and later texts of all rows, by its first text.

    Source: Henderson et al., arXiv:1705.00652, section 4.4. With one text per row, the second text is its second
    encoding (SimCSE, Gao et al., arXiv:2104.08821).
    """

    def loss_sum(self, embeddings, scores):
        unit = tf.math.l2_normalize(embeddings, -1)
        candidates = tf.transpose(gather(unit[:, 1:]), [1, 0, 2])  # [K - 1, G, D]: the matches, then the others.
        candidates = tf.reshape(candidates, [-1, unit.shape[-1]])
        similarities = SCALE * tf.matmul(unit[:, 0], candidates, transpose_b=True)  # [B, (K - 1) * G]
        own = first_row(tf.shape(unit)[0]) + tf.range(tf.shape(unit)[0])
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(own, similarities))


class CosineSimilarity(EmbedObjective):
    """Squared error of the cosine of a row's two texts, against a score in [-1, 1]."""

    def loss_sum(self, embeddings, scores):
        return tf.reduce_sum(tf.square(cosines(embeddings) - scores))


class CoSent(EmbedObjective):
    """log(1 + sum of exp(20 (cos_i - cos_j)) over the pairs of rows where row j has the higher score).

    Source: https://kexue.fm/archives/8847. The loss is that of the global batch, of which each replica adds an equal
    share.
    """

    def weights(self, features, labels):
        return {"loss": tf.constant(1.0 / num_replicas())}

    def loss_sum(self, embeddings, scores):
        similarities, scores = SCALE * gather(cosines(embeddings)), gather(scores)
        differences = similarities[:, tf.newaxis] - similarities
        is_wrong_way = scores[:, tf.newaxis] < scores
        exponents = tf.where(is_wrong_way, differences, -math.inf)
        exponents = tf.concat([tf.zeros([1]), tf.reshape(exponents, [-1])], 0)
        return tf.reduce_logsumexp(exponents) / num_replicas()


class Triplet(EmbedObjective):
    """max(0, distance to the second text - distance to the third + 5) (Schroff et al., arXiv:1503.03832).

    Distances are Euclidean and measured from the first text.
    """

    def loss_sum(self, embeddings, scores):
        distances = tf.norm(embeddings[:, :1] - embeddings[:, 1:3] + 1e-6, axis=-1)  # [B, 2], like torch's distance.
        return tf.reduce_sum(tf.nn.relu(distances[:, 0] - distances[:, 1] + 5.0))


OBJECTIVES = {
    "multiple_negatives_ranking": MultipleNegativesRanking,
    "cosine_similarity": CosineSimilarity,
    "cosent": CoSent,
    "triplet": Triplet,
}


def cosines(embeddings: tf.Tensor) -> tf.Tensor:
    """Returns the cosine of each row's first two texts: float32 (B,)."""
    unit = tf.math.l2_normalize(embeddings, -1)
    return tf.reduce_sum(unit[:, 0] * unit[:, 1], axis=-1)


# === Replicas ===


def num_replicas() -> int:
    return tf.distribute.get_replica_context().num_replicas_in_sync


def gather(rows: tf.Tensor) -> tf.Tensor:
    """Returns the rows of all replicas: (B, ...) to (G, ...)."""
    return tf.distribute.get_replica_context().all_gather(rows, axis=0) if num_replicas() > 1 else rows


def first_row(count: tf.Tensor) -> tf.Tensor:
    """Returns the index of this replica's first row among the rows of all replicas, int32. It has `count` rows."""
    counts = tf.cumsum(gather(count[tf.newaxis]), exclusive=True)
    return counts[tf.distribute.get_replica_context().replica_id_in_sync_group]
