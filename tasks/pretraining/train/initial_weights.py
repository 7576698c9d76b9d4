"""Sets weights to start a pre-training from, in place of random ones, that shorten the plateau at its beginning.

H: hidden, D: size of a head, P: positions.
"""

import numpy as np

from keras_bert.encoder.backbone import BertBackbone

# Wavelengths of the position table end at 2 pi times this; the original 10000 makes neighbors too similar.
_LONGEST = 64.0


def attend_to_neighbors(backbone: BertBackbone) -> None:
    """Lets each head begin by attending to the token at a distance of its own: 1 before, 1 after, 2 before, ...

    From random weights, a model first has to learn to tell positions apart. Until then, it only predicts how frequent
    words are. Here the position embeddings start from sinusoids (Vaswani et al. 2017, section 3.5), in which moving by
    d positions is a rotation: table[p] R_d = table[p + d]. If the key kernel of a head is R_d times its random query
    kernel, query i fits key i - d best. All of these weights are trained like any others.

    Args:
        backbone: BertBackbone with random weights and an even H.
    """
    config = backbone.bert_config
    num_heads, hidden_dim = config.num_heads, config.hidden_dim
    frequencies = _LONGEST ** (-np.arange(hidden_dim // 2) / (hidden_dim // 2))
    angles = np.arange(config.max_sequence_length)[:, np.newaxis] * frequencies  # [P, H / 2]
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    # With the same root mean square as a random table.
    backbone.get_layer("embeddings").position_embedding.embeddings.assign(table * config.initializer_range * 2**0.5)
    for number in range(config.num_layers):
        kernel = backbone.get_layer(f"transformer_layer_{number}").self_attention.query_key_value.kernel
        query, _, value = np.split(kernel.numpy(), 3, axis=1)
        heads = np.split(query, num_heads, axis=1)  # of [H, D]
        keys = [_rotation(_distance(place), frequencies) @ head for place, head in enumerate(heads, number * num_heads)]
        kernel.assign(np.concatenate([query, *keys, value], axis=1))


def _distance(place: int) -> int:
    """Returns how many tokens back a head looks: 1, -1, 2, -2, ..., 4, -4, then from the start."""
    distance = place // 2 % 4 + 1
    return distance if place % 2 == 0 else -distance


def _rotation(distance: int, frequencies: np.ndarray) -> np.ndarray:
    """Returns the matrix R_d, shape (H, H)."""
    sine, cosine = np.diag(np.sin(distance * frequencies)), np.diag(np.cos(distance * frequencies))
    return np.block([[cosine, -sine], [sine, cosine]])
