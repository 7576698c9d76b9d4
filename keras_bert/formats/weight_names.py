"""The table of weight names: which tensors of a foreign checkpoint hold each of our variables, and in which layout.

A row of `weight_names.csv` names one layer in every format; a cell is empty if the format has no such layer. The
encoder comes first, then the heads. `_ENDINGS` and `_PARTS` add the endings and layouts of a layer's variables, by its
kind. In a name, `{i}` is the number of the encoder layer, and `*` stands for `query`, `key` and `value`, which are one
kernel here; `?` stands for their initials. DistilBERT and ELECTRA have names of their own in Hugging Face's format. A
name of Model Garden's is the layer's place in the object graph of `BertPretrainerV2`, below its encoder. KerasHub has
two of the heads, in its BertMaskedLM and its BertTextClassifier. `embedding` is sentence-transformers' Dense.

Letters: H hidden, N heads, D = H / N, and O the outputs of a layer.
"""

import csv
import math
import os
from typing import NamedTuple

import numpy as np

OURS, HUGGING_FACE, GOOGLE, KERAS_HUB, MODEL_GARDEN = "ours", "hugging_face", "google", "keras_hub", "model_garden"
DISTILBERT, ELECTRA = "distilbert", "electra"

with open(os.path.join(os.path.dirname(__file__), "weight_names.csv"), encoding="utf-8", newline="") as _file:
    _TABLE = list(csv.DictReader(_file))
HEADS = tuple(dict.fromkeys(row["head"] for row in _TABLE if row["head"]))
POOLER = "pooled_dense"

# The layout of a foreign tensor: as here; transposed, (O, H); or with a separate axis for the heads.
AS_HERE, TURNED, HEADS_LAST, HEADS_FIRST = "as here", "turned", "(H, N, D)", "(N, D, H)"

# The endings of our variables, by kind of row; those of all other kinds.
_ENDINGS = {"table": ("/embeddings",), "norm": ("/gamma", "/beta"), "vector": ("",)}
_DENSE = ("/kernel", "/bias")
# The foreign endings and layouts where they differ from ours, by format and kind of row.
_PARTS = {
    OURS: {},
    HUGGING_FACE: {
        "table": ((".weight", AS_HERE),),
        "norm": ((".weight", AS_HERE), (".bias", AS_HERE)),
        **dict.fromkeys(("attention_in", "attention_out", "dense", "head"), ((".weight", TURNED), (".bias", AS_HERE))),
    },
    GOOGLE: {"table": (("", AS_HERE),), "head": (("weights", TURNED), ("bias", AS_HERE))},
    KERAS_HUB: {
        "attention_in": (("/kernel", HEADS_LAST), ("/bias", HEADS_FIRST)),
        "attention_out": (("/kernel", HEADS_FIRST), ("/bias", AS_HERE)),
    },
}
_PARTS[DISTILBERT] = _PARTS[ELECTRA] = _PARTS[HUGGING_FACE]
_PARTS[MODEL_GARDEN] = _PARTS[KERAS_HUB]  # Keras's attention layer comes from Model Garden.


class WeightSource(NamedTuple):
    """The foreign tensors that make one of our variables.

    Attributes:
        path: str, Keras path of our variable.
        names: tuple of str, the foreign tensors; several are concatenated on our last axis.
        layout: str, one of `AS_HERE`, `TURNED`, `HEADS_LAST`, `HEADS_FIRST`.
    """

    path: str
    names: tuple[str, ...]
    layout: str


def encoder_sources(format_name: str, num_layers: int) -> list[WeightSource]:
    """Lists the sources of every variable of an encoder with `num_layers` layers, its pooler last."""
    rows = [row for row in _TABLE if not row["head"]]
    layers = [(row, index) for row in rows for index in range(num_layers if "{i}" in row["ours"] else 1)]
    return [source for row, index in layers for source in _sources(format_name, row, index)]


def head_sources(format_name: str, *heads: str) -> list[WeightSource]:
    """Lists the sources of the variables of heads, in the order of `HEADS`; none of a head that the format lacks."""
    return [source for row in _TABLE if row["head"] in heads for source in _sources(format_name, row, 0)]


def _sources(format_name: str, row: dict[str, str], index: int) -> list[WeightSource]:
    ours, theirs = (row[name].replace("{i}", str(index)) for name in (OURS, format_name))
    if not theirs:
        return []
    stems = list(dict.fromkeys(theirs.replace("*", part).replace("?", part[0]) for part in ("query", "key", "value")))
    endings = _ENDINGS.get(row["kind"], _DENSE)
    parts = _PARTS[format_name].get(row["kind"]) or [(ending, AS_HERE) for ending in endings]
    return [
        WeightSource(ours + our_ending, tuple(stem + ending for stem in stems), layout)
        for our_ending, (ending, layout) in zip(endings, parts, strict=True)
    ]


def _our_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    if layout == TURNED:
        return shape[::-1]
    if layout == HEADS_LAST:
        return *shape[:1], math.prod(shape[1:])
    return (math.prod(shape[:2]), *shape[2:]) if layout == HEADS_FIRST else shape  # (N, D, H), or a bias, (N, D)


def shape_to_ours(shapes: list[tuple[int, ...]], source: WeightSource) -> tuple:
    """Returns the shape of `to_ours` for arrays of these shapes, or all of the shapes if they do not fit together."""
    shapes = [_our_shape(shape, source.layout) for shape in shapes]
    if len({shape[:-1] for shape in shapes}) > 1:
        return tuple(shapes)
    return (*shapes[0][:-1], *([sum(shape[-1] for shape in shapes)] if shapes[0] else []))


def to_ours(arrays: list[np.ndarray], source: WeightSource) -> np.ndarray:
    """Joins the foreign tensors of one variable into our layout."""
    arrays = [
        array.T if source.layout == TURNED else array.reshape(_our_shape(array.shape, source.layout))
        for array in arrays
    ]
    return np.concatenate(arrays, axis=-1) if len(arrays) > 1 else arrays[0]


def to_theirs(value: np.ndarray, source: WeightSource, num_heads: int) -> list[np.ndarray]:
    """Splits one of our variables into the foreign tensors, in the order of `source.names`."""
    arrays = np.split(value, len(source.names), axis=-1)
    if source.layout == TURNED:
        arrays = [array.T for array in arrays]
    elif source.layout == HEADS_LAST:
        arrays = [array.reshape(array.shape[0], num_heads, -1) for array in arrays]
    elif source.layout == HEADS_FIRST:
        arrays = [array.reshape(num_heads, array.shape[0] // num_heads, *array.shape[1:]) for array in arrays]
    return [np.ascontiguousarray(array) for array in arrays]
