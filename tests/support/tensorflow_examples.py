"""A pre-training instance written by TensorFlow's own protocol buffers, for tests to compare with or to read."""

import numpy as np
import tensorflow as tf

from tasks.pretraining.data.record_names import FEATURE_NAMES


def serialize_instance(
    token_ids: np.ndarray,
    first_segment_length: int,
    mask_positions: np.ndarray,
    mask_ids: np.ndarray,
    is_random_next: bool,
    *,
    max_seq_length: int,
    max_predictions_per_seq: int,
) -> bytes:
    """Writes one instance as a `tf.train.Example` under google-research/bert's names, padded with zeros.

    Args:
        token_ids: int32, shape (L,), L at most S.
        first_segment_length: int, tokens of segment 0, [CLS] and the first [SEP] included.
        mask_positions, mask_ids: int32, shape (M,), M at most P. Their weight is 1.0, that of the padding 0.0.
        is_random_next: bool; label 1 means a random second segment, 0 the actual next.
    """
    length, masked = len(token_ids), len(mask_positions)
    padding, padding_masked = [0] * (max_seq_length - length), [0] * (max_predictions_per_seq - masked)
    values = {
        "token_ids": token_ids.tolist() + padding,
        "padding_mask": [1] * length + padding,
        "segment_ids": [0] * first_segment_length + [1] * (length - first_segment_length) + padding,
        "mask_positions": mask_positions.tolist() + padding_masked,
        "mask_ids": mask_ids.tolist() + padding_masked,
        "next_sentence_labels": [int(is_random_next)],
    }
    features = {
        FEATURE_NAMES[name][0]: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
        for name, value in values.items()
    }
    weights = tf.train.FloatList(value=[1.0] * masked + padding_masked)
    features[FEATURE_NAMES["mask_weights"][0]] = tf.train.Feature(float_list=weights)
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
