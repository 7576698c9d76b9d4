"""ONNX: token ids in, numbers out, with free batch and length, from standard operators alone."""

import functools
from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from export.heads.base import Head
from export.onnx_nodes import OnnxNodes
from export.targets import network


class OnnxOps(OnnxNodes):
    """Writes nodes for the operations of `network.TensorFlowOps`."""

    def _size(self, value: str, axis: int) -> str:
        """Returns one size of a value, int64 (1,)."""
        return self.node("Gather", self.node("Shape", value), self.integers(axis), axis=0)

    add = functools.partialmethod(OnnxNodes.node, "Add")
    multiply = functools.partialmethod(OnnxNodes.node, "Mul")
    divide = functools.partialmethod(OnnxNodes.node, "Div")
    minimum = functools.partialmethod(OnnxNodes.node, "Min")
    matmul = functools.partialmethod(OnnxNodes.node, "MatMul")
    softmax = functools.partialmethod(OnnxNodes.node, "Softmax", axis=-1)
    take = functools.partialmethod(OnnxNodes.node, "Gather", axis=0)
    layer_norm = functools.partialmethod(OnnxNodes.node, "LayerNormalization", axis=-1)

    def take_positions(self, states, positions):
        index = self.node("Unsqueeze", self.node("Cast", positions, to=TensorProto.INT64), self.integers(-1))
        return self.node("GatherND", states, index, batch_dims=1)

    def leading_rows(self, table, token_ids):
        return self.node("Slice", table, self.integers(0), self._size(token_ids, 1), self.integers(0))

    def _places(self, value: str) -> str:
        """Returns 0, 1, ... along the last axis, int32 (S,)."""
        zero, one = (self.constant(np.int64(number)) for number in (0, 1))
        size = self.node("Squeeze", self._size(value, -1), self.integers(0))
        return self.node("Cast", self.node("Range", zero, size, one), to=TensorProto.INT32)

    def length_mask(self, lengths, token_ids):
        is_real = self.node("Less", self._places(token_ids), self.node("Unsqueeze", lengths, self.integers(-1)))
        return self.node("Cast", is_real, to=TensorProto.FLOAT)

    def later_positions(self, token_ids):
        places = self._places(token_ids)
        is_later = self.node("Greater", places, self.node("Unsqueeze", places, self.integers(1)))
        return self.node("Cast", is_later, to=TensorProto.FLOAT)

    def sum(self, a, axis):
        return self.node("ReduceSum", a, self.integers(axis), keepdims=0)

    def split(self, a, count):
        return self.node("Split", a, outputs=count, axis=-1)

    def transpose(self, a, order):
        return self.node("Transpose", a, perm=list(order))

    def reshape(self, a, sizes):
        return self.node("Reshape", a, self.integers(*sizes))

    def join_leading(self, a):
        sizes = self.node("Concat", self.integers(-1), self._size(a, -1), axis=0)
        return self.node("Reshape", a, sizes)

    def first(self, a):
        return self.node("Gather", a, self.constant(np.int64(0)), axis=1)

    def activation(self, a, name):
        half, one = (self.constant(np.float32(number)) for number in (0.5, 1.0))
        if name == "gelu":  # In the form that ONNX Runtime fuses.
            inner = self.node("Erf", self.divide(a, self.constant(np.float32(np.sqrt(2.0)))))
            return self.multiply(self.multiply(a, self.add(inner, one)), half)
        if name == "gelu_tanh":
            cube = self.multiply(self.multiply(a, a), a)
            inner = self.add(a, self.multiply(cube, self.constant(np.float32(0.044715))))
            inner = self.node("Tanh", self.multiply(inner, self.constant(np.float32(np.sqrt(2.0 / np.pi)))))
            return self.multiply(self.multiply(a, self.add(inner, one)), half)
        return a if name == "linear" else self.node({"tanh": "Tanh", "relu": "Relu"}[name], a)


def convert(head: Head, model) -> bytes:
    """Converts a head to an ONNX model.

    Args:
        head: declares inputs and outputs.
        model: as `network.outputs_of` takes it.

    Returns:
        The serialized `ModelProto`: inputs `head.token_inputs`, int32; outputs `head.token_outputs`, float.

    Raises:
        InputError: as `network.outputs_of`.
    """
    ops = OnnxOps()
    found = network.outputs_of(head, model, ops, {name: name for name in head.token_inputs})
    for name, value in found.items():
        ops.output(name, value)
    outputs = {name: output.axes for name, output in head.token_outputs.items()}
    infos = _infos(head.token_inputs, TensorProto.INT32), _infos(outputs, TensorProto.FLOAT)
    return ops.model(head.task, *infos)


def _infos(axes: Mapping[str, tuple], kind: int) -> dict[str, tuple]:
    return {name: (kind, ["batch", *its]) for name, its in axes.items()}


def run(path: str, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Answers requests by ONNX Runtime, on the CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(names, request), strict=True)) for request in requests]
