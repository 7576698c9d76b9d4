"""ONNX: token ids in, numbers out, with free batch and length, with only standard operators except for 8-bit products.

Shapes: B batch, S sequence, K choices, P masked positions, H hidden.
"""

from collections.abc import Callable, Collection, Mapping

import keras
import numpy as np
from onnx import TensorProto

from export.graph.onnx_encoder import EncoderGraph
from export.graph.served_backbone import named_weights
from export.heads.base import Head
from keras_bert.answers.base import TokenOutput
from keras_bert.answers.text_bounds import find_backbone
from keras_bert.encoder.backbone import BertBackbone
from keras_bert.encoder.heads import MaskedLMHead, PoolTokens
from keras_bert.errors import InputError
from keras_bert.models.multiple_choice import FlattenChoices

_ACTIVATIONS = ("linear", "tanh", "relu", "gelu", "sigmoid", "softmax")  # Those of heads. Keras's gelu is the erf form.


def convert(head: Head, model: keras.Model, int8: Collection[str] = ()) -> bytes:
    """Converts a head to an ONNX model.

    Args:
        head: declares inputs and outputs.
        model: the float32 rebuild of the head's model.
        int8: products to compute with integers, by an operator of ONNX Runtime's own; see
            `onnx_encoder.dense_products`.

    Returns:
        The serialized `ModelProto`: inputs `head.token_inputs`, int32; outputs `head.token_outputs`, float.

    Raises:
        InputError: a layer or an activation cannot be written as ONNX, or a layer is quantized.
    """
    backbone = find_backbone(model)
    settings = {**backbone.bert_config.to_dict(), "first_token_only": False}
    graph = EncoderGraph(settings, named_weights(backbone).__getitem__, unpadded=False, int8=int8)
    places = graph.node("Cast", graph.range(graph.size("token_ids", -1)), to=TensorProto.INT32)
    is_real = graph.node("Less", places, graph.node("Unsqueeze", "lengths", graph.integers(-1)))
    values = {**{name: name for name in head.token_inputs}, "padding_mask": is_real}
    wanted = _outputs_of(head, model)
    states = _encode(graph, model, values) if model is backbone else _walk(graph, model, wanted, values)
    outputs = {
        name: (_finish(graph, states[output.source], is_real, output), ("batch", *output.axes))
        for name, output in head.token_outputs.items()
    }
    return graph.model(head.task, {name: ("batch", *axes) for name, axes in head.token_inputs.items()}, outputs)


def check_layers(head: Head) -> None:
    """Raises InputError, as `convert` does, for a layer that cannot be written as ONNX, without converting anything."""
    if not isinstance(head.model, BertBackbone):
        for layer in keras.Model(head.model.input, _outputs_of(head, head.model)).layers:
            if not isinstance(layer, keras.layers.InputLayer):
                _writer_of(layer)


def _outputs_of(head: Head, model: keras.Model) -> dict:
    """Returns the model's outputs that `head.token_outputs` start from, by name; None names the only one."""
    sources = {output.source for output in head.token_outputs.values()}
    return {source: model.output if source is None else model.output[source] for source in sources}


def _finish(graph: EncoderGraph, value: str, is_real: str, output: TokenOutput) -> str:
    """Applies the steps of a `TokenOutput` to one of the Keras model's outputs."""
    if output.pool is not None:
        value = _pool(graph, value, is_real, output.pool)
    if output.column is not None:
        value = graph.node("Gather", value, graph.integer(output.column), axis=-1)
    if output.temperature != 1.0:
        value = graph.node("Div", value, graph.number(output.temperature))
    if output.softmax:
        value = graph.node("Softmax", value, axis=-1)
    if output.sigmoid:
        value = graph.node("Sigmoid", value)
    if output.padding is not None:
        value = graph.node("Where", is_real, value, graph.number(output.padding))
    return value


# === The Keras model ===


def _walk(graph: EncoderGraph, model: keras.Model, outputs, values: Mapping[str, str]):
    """Adds the layers of a functional model that some of its outputs need; returns the values of these outputs.

    Args:
        graph: the graph to which nodes are added.
        model: a functional model.
        outputs: structure of tensors of the model.
        values: values of the model's inputs, by name.
    """
    inputs = {name: keras.Input(batch_shape=ids.shape, dtype=ids.dtype, name=name) for name, ids in model.input.items()}
    names = {id(inputs[name]): value for name, value in values.items() if name in inputs}

    def call(layer, *args, **kwargs):
        tensors = layer(*args, **kwargs)
        known = keras.tree.map_structure(lambda value: names.get(id(value), value), (args, kwargs))
        added = keras.tree.flatten(_add(graph, layer, *known))
        names.update(zip(map(id, keras.tree.flatten(tensors)), added, strict=True))
        return tensors

    # In Keras's public interface, only cloning shows which layer computes a tensor from which inputs. The layers keep
    # the tensors alive, so that their ids stay unique.
    part = keras.Model(model.input, outputs)
    copy = keras.models.clone_model(part, inputs, clone_function=lambda layer: layer, call_function=call)
    return keras.tree.map_structure(lambda tensor: names[id(tensor)], copy.output)


def _add(graph: EncoderGraph, layer, args: tuple, kwargs: Mapping):
    by_name = {name: value for name, value in kwargs.items() if isinstance(value, str)}
    return _writer_of(layer)(graph, layer, *args, **by_name)


def _writer_of(layer) -> Callable:
    """Returns the function that adds a layer to the graph; raises InputError if it cannot be written."""
    if isinstance(layer, keras.layers.Dense):
        name = layer.activation.__name__
        if layer.quantization_mode is not None or name not in _ACTIVATIONS:
            raise InputError(
                f"The layer {layer.name!r} cannot be written as ONNX: expected floats and one of the activations "
                f"{', '.join(_ACTIVATIONS)}. Received: {layer.quantization_mode or 'floats'}, {name}. Leave out --onnx."
            )
    for kind, add in _LAYERS.items():
        if isinstance(layer, kind):
            return add
    if type(layer).__name__ == "Reshape" and hasattr(layer, "newshape"):  # keras.ops.reshape
        return lambda graph, layer, value, **_: graph.node("Reshape", value, graph.integers(*layer.newshape))
    raise InputError(
        f"The layer {layer.name!r} ({type(layer).__name__}) cannot be written as ONNX: expected a model of this "
        "project's tasks. Leave out --onnx."
    )


def _encode(graph: EncoderGraph, _, inputs: Mapping[str, str]) -> dict[str, str]:
    return graph.encode(inputs["token_ids"], inputs["segment_ids"], inputs["padding_mask"])


def _dense(graph: EncoderGraph, layer: keras.layers.Dense, value: str) -> str:
    return graph.activate(graph.dense(value, layer.kernel, layer.bias), layer.activation.__name__)


def _pool(graph: EncoderGraph, states: str, is_real: str, pooling: str) -> str:
    """Pools tokens as `PoolTokens` does."""
    if pooling == "cls":
        return graph.first(states)
    is_real = graph.node("Unsqueeze", is_real, graph.integers(-1))
    if pooling == "max":
        return graph.node("ReduceMax", graph.node("Where", is_real, states, graph.number(-1e9)), axes=[1], keepdims=0)
    count = graph.node("ReduceSum", graph.node("Cast", is_real, to=TensorProto.FLOAT), graph.integers(1), keepdims=0)
    real = graph.node("Where", is_real, states, graph.number(0.0))
    return graph.node("Div", graph.node("ReduceSum", real, graph.integers(1), keepdims=0), count)


def _normalize(graph: EncoderGraph, _: keras.layers.UnitNormalization, value: str) -> str:
    length = graph.node("ReduceL2", value, axes=[-1])
    return graph.node("Div", value, graph.node("Max", length, graph.number(1e-12)))


def _masked_lm(graph: EncoderGraph, layer: MaskedLMHead, states: str, mask_positions: str) -> str:
    index = graph.node("Unsqueeze", graph.node("Cast", mask_positions, to=TensorProto.INT64), graph.integers(-1))
    rows = graph.node("GatherND", states, index, batch_dims=1)  # [B, P, H]
    dense, norm = layer.transform_dense, layer.transform_layer_norm
    rows = graph.activate(graph.dense(rows, dense.kernel, dense.bias), layer.activation)
    rows = graph.layer_norm(rows, norm.gamma, norm.beta, norm.epsilon)
    table = graph.node("Transpose", graph.constant(layer.token_embedding.embeddings), perm=[1, 0])
    return graph.node("Add", graph.node("MatMul", rows, table), graph.constant(layer.output_bias))


_LAYERS: dict[type, Callable] = {
    keras.layers.Dropout: lambda graph, _, value: value,
    keras.layers.Dense: _dense,
    keras.layers.UnitNormalization: _normalize,
    BertBackbone: _encode,
    FlattenChoices: lambda graph, _, value: graph.node("Flatten", value, axis=-1),
    PoolTokens: lambda graph, layer, states, mask: _pool(graph, states, mask, layer.pooling),
    MaskedLMHead: _masked_lm,
}


def run(path: str, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Answers requests by ONNX Runtime, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(names, request), strict=True)) for request in requests]
