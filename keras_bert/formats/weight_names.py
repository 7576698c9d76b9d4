"""Which foreign weight name maps to which variable of ours: one table, a column for each format.

A row names one layer; `_PARTS` says how each format spells that layer's variables and how it lays them out. `{i}` is
the number of the encoder layer, `{query,key,value}` stands for three names, which are one product here. Letters: H
hidden, N heads, D = H / N, and O the outputs of a layer.
"""

from typing import NamedTuple

import numpy as np

HUGGING_FACE, GOOGLE, KERAS_HUB, MODEL_GARDEN = "hugging_face", "google", "keras_hub", "model_garden"


class Row(NamedTuple):
    """One layer under all its names; None where a format has no such layer.

    A name of Model Garden's is the layer's place in the object graph of `BertPretrainerV2`, below its encoder.
    """

    kind: str
    ours: str
    hugging_face: str | None
    google: str | None
    keras_hub: str | None
    model_garden: str | None


_TABLE = (
    Row(
        "table",
        "embeddings/token_embedding",
        "embeddings.word_embeddings",
        "bert/embeddings/word_embeddings",
        "token_embedding",
        "_embedding_layer",
    ),
    Row(
        "table",
        "embeddings/segment_embedding",
        "embeddings.token_type_embeddings",
        "bert/embeddings/token_type_embeddings",
        "segment_embedding",
        "_type_embedding_layer",
    ),
    Row(
        "table",
        "embeddings/position_embedding",
        "embeddings.position_embeddings",
        "bert/embeddings/position_embeddings",
        "position_embedding",
        "_position_embedding_layer",
    ),
    Row(
        "norm",
        "embeddings/layer_norm",
        "embeddings.LayerNorm",
        "bert/embeddings/LayerNorm",
        "embeddings_layer_norm",
        "_embedding_norm_layer",
    ),
    Row(
        "attention_in",
        "transformer_layer_{i}/self_attention/query_key_value",
        "encoder.layer.{i}.attention.self.{query,key,value}",
        "bert/encoder/layer_{i}/attention/self/{query,key,value}",
        "transformer_layer_{i}/self_attention_layer/{query,key,value}",
        "_transformer_layers/{i}/_attention_layer/{_query_dense,_key_dense,_value_dense}",
    ),
    Row(
        "attention_out",
        "transformer_layer_{i}/self_attention/output_dense",
        "encoder.layer.{i}.attention.output.dense",
        "bert/encoder/layer_{i}/attention/output/dense",
        "transformer_layer_{i}/self_attention_layer/attention_output",
        "_transformer_layers/{i}/_attention_layer/_output_dense",
    ),
    Row(
        "norm",
        "transformer_layer_{i}/self_attention_layer_norm",
        "encoder.layer.{i}.attention.output.LayerNorm",
        "bert/encoder/layer_{i}/attention/output/LayerNorm",
        "transformer_layer_{i}/self_attention_layer_norm",
        "_transformer_layers/{i}/_attention_layer_norm",
    ),
    Row(
        "dense",
        "transformer_layer_{i}/intermediate_dense",
        "encoder.layer.{i}.intermediate.dense",
        "bert/encoder/layer_{i}/intermediate/dense",
        "transformer_layer_{i}/feedforward_intermediate_dense",
        "_transformer_layers/{i}/_intermediate_dense",
    ),
    Row(
        "dense",
        "transformer_layer_{i}/output_dense",
        "encoder.layer.{i}.output.dense",
        "bert/encoder/layer_{i}/output/dense",
        "transformer_layer_{i}/feedforward_output_dense",
        "_transformer_layers/{i}/_output_dense",
    ),
    Row(
        "norm",
        "transformer_layer_{i}/output_layer_norm",
        "encoder.layer.{i}.output.LayerNorm",
        "bert/encoder/layer_{i}/output/LayerNorm",
        "transformer_layer_{i}/feedforward_layer_norm",
        "_transformer_layers/{i}/_output_layer_norm",
    ),
    Row("dense", "pooled_dense", "pooler.dense", "bert/pooler/dense", "pooled_dense", "_pooler_layer"),
)

# The heads, by name. KerasHub has two of them, in its BertMaskedLM and its BertTextClassifier.
_HEADS = {
    "masked_lm": (
        Row(
            "dense",
            "masked_lm/transform_dense",
            "cls.predictions.transform.dense",
            "cls/predictions/transform/dense",
            "mlm_head/intermediate_dense",
            "masked_lm/dense",
        ),
        Row(
            "norm",
            "masked_lm/transform_layer_norm",
            "cls.predictions.transform.LayerNorm",
            "cls/predictions/transform/LayerNorm",
            "mlm_head/intermediate_layer_norm",
            "masked_lm/layer_norm",
        ),
        Row(
            "vector",
            "masked_lm/output_bias",
            "cls.predictions.bias",
            "cls/predictions/output_bias",
            "mlm_head/output_bias",
            "masked_lm/bias",
        ),
    ),
    "next_sentence": (
        Row("head", "next_sentence", "cls.seq_relationship", "cls/seq_relationship/output_", None, "next_sentence"),
    ),
    "classification": (Row("head", "classification", "classifier", "output_", "logits", "classification"),),
    "token_classification": (Row("head", "token_classification", "classifier", None, None, "token_classification"),),
    "multiple_choice": (Row("head", "multiple_choice", "classifier", None, None, None),),
    "question_answering": (
        Row("head", "question_answering", "qa_outputs", "cls/squad/output_", None, "question_answering"),
    ),
}
HEADS = tuple(_HEADS)
POOLER = "pooled_dense"

# How a tensor is laid out there: as here; turned, (O, H); or with the heads on axes of their own.
AS_HERE, TURNED, HEADS_LAST, HEADS_FIRST = "as here", "turned", "(H, N, D)", "(N, D, H)"

_DENSE = (("/kernel", "/kernel", AS_HERE), ("/bias", "/bias", AS_HERE))
_NORM = (("/gamma", "/gamma", AS_HERE), ("/beta", "/beta", AS_HERE))
_DENSE_OF_TORCH = (("/kernel", ".weight", TURNED), ("/bias", ".bias", AS_HERE))

# For each format and kind of row: our ending, theirs, and their layout.
_PARTS = {
    HUGGING_FACE: {
        "table": (("/embeddings", ".weight", AS_HERE),),
        "norm": (("/gamma", ".weight", AS_HERE), ("/beta", ".bias", AS_HERE)),
        "attention_in": _DENSE_OF_TORCH,
        "attention_out": _DENSE_OF_TORCH,
        "dense": _DENSE_OF_TORCH,
        "head": _DENSE_OF_TORCH,
        "vector": (("", "", AS_HERE),),
    },
    GOOGLE: {
        "table": (("/embeddings", "", AS_HERE),),
        "norm": _NORM,
        "attention_in": _DENSE,
        "attention_out": _DENSE,
        "dense": _DENSE,
        "head": (("/kernel", "weights", TURNED), ("/bias", "bias", AS_HERE)),
        "vector": (("", "", AS_HERE),),
    },
    KERAS_HUB: {
        "table": (("/embeddings", "/embeddings", AS_HERE),),
        "norm": _NORM,
        "attention_in": (("/kernel", "/kernel", HEADS_LAST), ("/bias", "/bias", HEADS_FIRST)),
        "attention_out": (("/kernel", "/kernel", HEADS_FIRST), ("/bias", "/bias", AS_HERE)),
        "dense": _DENSE,
        "head": _DENSE,
        "vector": (("", "", AS_HERE),),
    },
}
_PARTS[MODEL_GARDEN] = _PARTS[KERAS_HUB]  # Keras took its attention over from Model Garden.


class WeightSource(NamedTuple):
    """Where one of our variables comes from.

    Attributes:
        path: str, Keras path of our variable.
        names: tuple of str, the foreign tensors; several lie side by side on our last axis.
        layout: str, how the foreign tensors are laid out.
    """

    path: str
    names: tuple[str, ...]
    layout: str


def encoder_sources(format_name: str, num_layers: int) -> list[WeightSource]:
    """Lists the sources of every variable of an encoder with `num_layers` layers, its pooler last."""
    rows = []
    for row in _TABLE:
        rows += [(row, index) for index in range(num_layers)] if "{i}" in row.ours else [(row, 0)]
    return [source for row, index in rows for source in _sources(format_name, row, index)]


def head_sources(format_name: str, head: str) -> list[WeightSource]:
    """Lists the sources of a head's variables; empty where the format has no such head."""
    return [source for row in _HEADS[head] for source in _sources(format_name, row, 0)]


def _sources(format_name: str, row: Row, index: int) -> list[WeightSource]:
    theirs = getattr(row, format_name)
    if theirs is None:
        return []
    stem, _, rest = theirs.replace("{i}", str(index)).partition("{")
    stems = [stem + part for part in rest.rstrip("}").split(",")]
    ours = row.ours.replace("{i}", str(index))
    return [
        WeightSource(ours + our_ending, tuple(stem + ending for stem in stems), layout)
        for our_ending, ending, layout in _PARTS[format_name][row.kind]
    ]


def to_ours(parts: list[np.ndarray], source: WeightSource) -> np.ndarray:
    """Joins the foreign tensors of one variable into our layout."""
    if source.layout == TURNED:
        parts = [part.T for part in parts]
    elif source.layout == HEADS_LAST:
        parts = [part.reshape(part.shape[0], -1) for part in parts]
    elif source.layout == HEADS_FIRST:  # (N, D, H), or a bias, (N, D)
        parts = [part.reshape(-1, *part.shape[2:]) for part in parts]
    return np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def to_theirs(value: np.ndarray, source: WeightSource, num_heads: int) -> list[np.ndarray]:
    """Takes one of our variables apart into the foreign tensors, in the order of `source.names`."""
    parts = np.split(value, len(source.names), axis=-1)
    if source.layout == TURNED:
        parts = [part.T for part in parts]
    elif source.layout == HEADS_LAST:
        parts = [part.reshape(part.shape[0], num_heads, -1) for part in parts]
    elif source.layout == HEADS_FIRST:
        parts = [part.reshape(num_heads, part.shape[0] // num_heads, *part.shape[1:]) for part in parts]
    return [np.ascontiguousarray(part) for part in parts]
