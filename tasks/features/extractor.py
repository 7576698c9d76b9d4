"""Applying a feature extractor to sequences, in batches of similar length.

Shapes: R sequences, T tokens of all of them, B batch, S sequence, D features of a vector.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_bert.backbone import BertBackbone
from keras_bert.errors import InputError
from keras_bert.tokenizer import BertTokenizer
from tasks.examples import Examples, make_eval_dataset


def load_encoder(preset: str, max_seq_length: int) -> tuple[BertBackbone, BertTokenizer]:
    """Loads a preset's encoder, in the layout that computes real tokens only, and its tokenizer.

    Raises:
        InputError: no such preset; it is too short for `max_seq_length`, or its vocabulary does not fit.
    """
    backbone = BertBackbone.from_preset(preset, layout="unpadded", dtype=keras.config.dtype_policy())
    tokenizer = BertTokenizer.from_preset(preset)
    if max_seq_length > backbone.max_sequence_length:
        raise InputError(
            f"--max_seq_length={max_seq_length}: {preset} has positions for {backbone.max_sequence_length} tokens. "
            "Give at most that many."
        )
    if tokenizer.vocabulary_size() > backbone.vocabulary_size:
        raise InputError(
            f"{preset}: the vocabulary has {tokenizer.vocabulary_size()} tokens, but the encoder's table has "
            f"{backbone.vocabulary_size} rows. They are not of one checkpoint."
        )
    return backbone, tokenizer


class Extractor:
    """Applies a model of `build_feature_extractor` to any number of sequences.

    Args:
        model: of `build_feature_extractor`.
        batch_size: B.
    """

    def __init__(self, model, batch_size: int):
        self._batch_size = batch_size
        self.widths = {name: tensor.shape[-1] for name, tensor in model.output.items()}
        self._by_token = len(next(iter(model.output.values())).shape) == 3
        spec = tf.TensorSpec([None, None], tf.int32)

        @tf.function(input_signature=[dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), spec)])
        def forward(features):
            return {name: tf.cast(output, tf.float32) for name, output in model(features, training=False).items()}

        self._forward = forward

    def __call__(self, examples: Examples) -> dict[str, np.ndarray]:
        """Returns float32 arrays by name, in the order of the sequences: (T, D) of tokens, or pooled (R, D)."""
        count = len(examples.token_ids) if self._by_token else examples.num_examples
        outputs = {name: np.empty((count, width), np.float32) for name, width in self.widths.items()}
        dataset, order = make_eval_dataset(examples, self._batch_size)
        done = 0
        for (features,) in dataset:
            batch = {name: output.numpy() for name, output in self._forward(features).items()}
            mask = features["padding_mask"].numpy().astype(bool)  # [B, S]
            numbers = order[done : done + len(mask)]
            done += len(mask)
            if self._by_token:
                places = np.concatenate([np.arange(*examples.row_splits[number : number + 2]) for number in numbers])
            for name, output in batch.items():
                if self._by_token:
                    outputs[name][places] = output[mask]
                else:
                    outputs[name][numbers] = output
        return outputs
