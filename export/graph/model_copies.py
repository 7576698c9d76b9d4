"""Copies of a trained model: in float32, in another token layout, and as it is served."""

import keras
import numpy as np

from export.graph.served_backbone import ServedBackbone
from keras_bert.answers import text_bounds
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.heads import MaskedLMHead

_FLOAT_TYPES = frozenset({"float16", "bfloat16", "float64", "mixed_float16", "mixed_bfloat16"})
_POOLED_OUTPUT = 0  # Keras numbers a dictionary's outputs in the order of their names.


def is_float32(model: keras.Model) -> bool:
    """Returns whether all layers of a model have float32 policies."""
    config = keras.saving.serialize_keras_object(model)
    return _rewritten(config, changes={}) == config


def rebuild_for_serving(model: keras.Model, bfloat16: bool = False) -> keras.Model:
    """Copies a functional model in float32, with a `ServedBackbone` of the layout "unpadded" as its backbone.

    If the model reads only the backbone's pooled output, the copy computes only what that needs.

    Args:
        model: the model to copy.
        bfloat16: bool, whether the backbone computes its products in bfloat16; the head stays in float32.

    Raises:
        ValueError: the model contains no BertBackbone.
    """
    tied = any(isinstance(layer, MaskedLMHead) for layer in model._flatten_layers())
    changes = {"first_token_only": _reads_pooled_output_only(model), "bfloat16": bfloat16, "tied": tied}
    return rebuild(model, layout="unpadded", backbone_class=ServedBackbone, **changes)


def rebuild(
    model: keras.Model, layout: str | None = None, backbone_class: type[BertBackbone] = BertBackbone, **settings
) -> keras.Model:
    """Copies a functional model in float32, optionally with another token layout.

    A CPU serves Keras's mixed precision 2.4 (bfloat16) to 8 times (float16) slower.

    Args:
        model: the model to copy.
        layout: the layout of the copy's backbone; None: unchanged.
        backbone_class: the class of the copy's backbone, if a layout is given.
        **settings: further arguments of that class, if a layout is given.

    Raises:
        ValueError: a layout is given, but the model contains no BertBackbone.
    """
    config = keras.saving.serialize_keras_object(model)
    changes = {} if layout is None else {"layout": layout, **settings}
    copy = keras.saving.deserialize_keras_object(_rewritten(config, changes, backbone_class))
    if layout is not None and getattr(text_bounds.find_backbone(copy), "layout", None) != layout:
        raise ValueError(f"`model` must hold a BertBackbone, to be given the layout {layout!r}. Received: {model}")
    copy.set_weights([np.asarray(weight, dtype=np.float32) for weight in model.get_weights()])
    return copy


def _rewritten(config, changes: dict, backbone_class: type[BertBackbone] = BertBackbone):
    """Rewrites a model's config: every float type to float32, and with `changes` the backbone's class and settings."""
    if isinstance(config, list):
        return [_rewritten(item, changes, backbone_class) for item in config]
    if not isinstance(config, dict):
        return config
    config = {key: _rewritten(value, changes, backbone_class) for key, value in config.items()}
    if isinstance(config.get("dtype"), str) and config["dtype"] in _FLOAT_TYPES:
        config["dtype"] = "float32"
    if config.get("class_name") == "DTypePolicy" and config["config"]["name"] in _FLOAT_TYPES:
        config["config"]["name"] = "float32"
    if changes and config.get("registered_name") == keras.saving.get_registered_name(BertBackbone):
        config["config"] |= changes
        names = {"module": backbone_class.__module__, "class_name": backbone_class.__name__}
        config |= {**names, "registered_name": keras.saving.get_registered_name(backbone_class)}
    return config


def _reads_pooled_output_only(model: keras.Model) -> bool:
    """Returns True if a functional model reads its backbone's pooled output and no other of its outputs.

    Only private attributes of Keras show which layer reads which tensor.
    """
    backbone = text_bounds.find_backbone(model)
    outputs = [node.output_tensors for node in getattr(backbone, "_inbound_nodes", ())]
    numbers = {id(tensor): number for tensors in outputs for number, tensor in enumerate(tensors)}
    nodes = [node for operation in model.operations for node in operation._inbound_nodes]
    read = [*model.outputs, *(tensor for node in nodes for tensor in node.input_tensors)]
    return {numbers[id(tensor)] for tensor in read if id(tensor) in numbers} == {_POOLED_OUTPUT}
