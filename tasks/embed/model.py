"""Builds the model that `bert-embed` trains: an embedder, applied to every text of a row.

Shapes: B batch, K texts of a row, S sequence, D embedding.
"""

import keras
from keras import ops

from keras_bert.models import BertTextEmbedder
from keras_bert.models.multiple_choice import FlattenChoices


class _Regroup(keras.layers.Layer):
    """Reshapes embeddings `[B * K, D]` to `[B, K, D]`, with the K of `token_ids`, `[B, K, S]`."""

    def call(self, embeddings, token_ids):
        return ops.reshape(embeddings, (-1, ops.shape(token_ids)[1], embeddings.shape[-1]))

    def compute_output_spec(self, embeddings, token_ids):
        return keras.KerasTensor((None, None, embeddings.shape[-1]), dtype=embeddings.dtype)


def embed_groups(embedder: BertTextEmbedder) -> keras.Model:
    """Returns a model of features int32 (B, K, S) to embeddings float32 (B, K, D), for any K."""
    embedder.name = "text_embedder"
    inputs = {name: keras.Input((None, None), dtype="int32", name=name) for name in embedder.input}
    flat = {name: FlattenChoices(name=f"flatten_{name}")(value) for name, value in inputs.items()}
    if not embedder.include_prompt:
        # The marks of `mark_prompts` in the segment ids move to the padding mask.
        flat["padding_mask"] = flat["padding_mask"] * (1 + flat["segment_ids"] // 2)
        flat["segment_ids"] = flat["segment_ids"] % 2
    regroup = _Regroup(name="regroup", dtype="float32")  # Also with a bfloat16 or float16 encoder.
    return keras.Model(inputs, regroup(embedder(flat), inputs["token_ids"]))
