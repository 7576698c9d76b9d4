"""Which foreign weight name maps to which variable of ours.

Names are given relative to the encoder.
"""

from typing import NamedTuple

TABLE, KERNEL, VECTOR = "table", "kernel", "vector"


def hugging_face_name(stored: str) -> str:
    """The name that the table below uses for a stored tensor's: without prefix, and of today.

    Checkpoints converted before 2019, bert-base-uncased among them, keep TensorFlow's gamma and beta.
    """
    name = stored.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


class WeightSource(NamedTuple):
    """Where one of our variables comes from.

    Attributes:
        path: str, Keras path of our variable within the backbone.
        names: tuple of str, Hugging Face tensors; several are concatenated on the last axis, after transposing.
        kind: str, `"kernel"` is transposed (PyTorch keeps (out, in)), `"table"` and `"vector"` are taken as they are.
    """

    path: str
    names: tuple[str, ...]
    kind: str


def _dense(path: str, *names: str) -> list[WeightSource]:
    return [
        WeightSource(f"{path}/kernel", tuple(f"{name}.weight" for name in names), KERNEL),
        WeightSource(f"{path}/bias", tuple(f"{name}.bias" for name in names), VECTOR),
    ]


def _layer_norm(path: str, name: str) -> list[WeightSource]:
    return [
        WeightSource(f"{path}/gamma", (f"{name}.weight",), VECTOR),
        WeightSource(f"{path}/beta", (f"{name}.bias",), VECTOR),
    ]


def hugging_face_sources(num_layers: int) -> list[WeightSource]:
    """Lists the Hugging Face source of every variable of a backbone with `num_layers` layers."""
    sources = [
        WeightSource(f"embeddings/{ours}_embedding/embeddings", (f"embeddings.{theirs}_embeddings.weight",), TABLE)
        for ours, theirs in (("token", "word"), ("segment", "token_type"), ("position", "position"))
    ]
    sources += _layer_norm("embeddings/layer_norm", "embeddings.LayerNorm")
    for index in range(num_layers):
        ours, theirs = f"transformer_layer_{index}", f"encoder.layer.{index}"
        heads = (f"{theirs}.attention.self.{part}" for part in ("query", "key", "value"))
        sources += _dense(f"{ours}/self_attention/query_key_value", *heads)
        sources += _dense(f"{ours}/self_attention/output_dense", f"{theirs}.attention.output.dense")
        sources += _layer_norm(f"{ours}/self_attention_layer_norm", f"{theirs}.attention.output.LayerNorm")
        sources += _dense(f"{ours}/intermediate_dense", f"{theirs}.intermediate.dense")
        sources += _dense(f"{ours}/output_dense", f"{theirs}.output.dense")
        sources += _layer_norm(f"{ours}/output_layer_norm", f"{theirs}.output.LayerNorm")
    return sources + _dense("pooled_dense", "pooler.dense")
