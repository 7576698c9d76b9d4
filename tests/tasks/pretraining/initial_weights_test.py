"""The weights that a pre-training may start from: what each head looks at."""

import numpy as np
import pytest

from keras_bert.encoder.backbone import BertBackbone
from tasks.pretraining.train.initial_weights import attend_to_neighbors


def test_each_head_looks_at_a_distance_of_its_own():
    sizes = {"hidden_dim": 128, "num_heads": 2, "intermediate_dim": 8, "max_sequence_length": 70}
    backbone = BertBackbone(vocabulary_size=9, num_layers=3, **sizes)
    attend_to_neighbors(backbone)
    table = backbone.get_layer("embeddings").position_embedding.embeddings.numpy()
    assert np.sqrt(np.mean(table**2)) == pytest.approx(0.02, rel=1e-4)
    mean_distances = []
    for number in range(3):
        kernel = backbone.get_layer(f"transformer_layer_{number}").self_attention.query_key_value.kernel.numpy()
        query, key, value = np.split(kernel, 3, axis=1)
        assert 0.015 < value.std() < 0.02  # A normal of 0.02, cut off at 0.04.
        for head in (slice(0, 64), slice(64, 128)):
            scores = (table @ query[:, head]) @ (table @ key[:, head]).T
            distances = np.arange(10, 60) - scores[10:60].argmax(axis=1)
            mean_distances.append(round(distances.mean()))
            assert np.mean(np.abs(distances - mean_distances[-1]) <= 1) > 0.9
    assert mean_distances == [1, -1, 2, -2, 3, -3]
