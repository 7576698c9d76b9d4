"""Writes ONNX graphs node by node, in standard operators except for 8-bit products. Imports only onnx."""

import hashlib
from collections.abc import Container, Mapping, Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

# Opset 17 is the first with LayerNormalization; ONNX Runtime has supported it since 1.12 (2022).
OPSET = 17
_IR_VERSION = 8  # Released with opset 17; an older runtime refuses a higher number.
_RUNTIME_OPERATORS = "com.microsoft"  # ONNX Runtime's own.
# A processor without VNNI adds two 8-bit products in 16 bits: 2 * 255 * 64 fits, 2 * 255 * 127 would saturate. The same
# limit is used on all processors, so that what an export measures is true wherever the model is served.
_LARGEST_INT8 = 64
_STANDARD_ACTIVATIONS = {
    **{"linear": "Identity", "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid"},
    "softmax": "Softmax",  # Along the last axis by default.
}

Axes = Sequence[int | str]


class OnnxNodes:
    """A graph under construction; its values are represented by their names.

    Attributes:
        nodes: the nodes so far.
        weights: name -> array of each weight and constant.
    """

    def __init__(self):
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self._names: dict[tuple, str] = {}

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes) -> str | list[str]:
        """Adds a node; returns its output's name, or a list of several outputs' names."""
        number = len(self.nodes)
        names = [f"{kind}_{number}" if outputs == 1 else f"{kind}_{number}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}_{number}", **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array) -> str:
        """Returns a weight (a Keras variable or an array) or a NumPy number as a value."""
        array = np.asarray(array, order="C")
        key = (array.shape, array.dtype.str, hashlib.sha256(array).digest())
        if key not in self._names:  # The token table, which the masked-LM head uses too, is stored once.
            self._names[key] = f"constant_{len(self.weights)}"
            self.weights[self._names[key]] = array
        return self._names[key]

    def integers(self, *numbers: int) -> str:
        """Returns int64 numbers, shape (count,), as a value."""
        return self.constant(np.array(numbers, np.int64))

    def integer(self, number: int) -> str:
        """Returns an int64 number, shape (), as a value."""
        return self.constant(np.int64(number))

    def number(self, value: float) -> str:
        """Returns a float32 number as a value."""
        return self.constant(np.float32(value))

    def size(self, value: str, axis: int) -> str:
        """Returns one size of a value, int64 ()."""
        return self.node("Gather", self.node("Shape", value), self.integer(axis))

    def range(self, size: str) -> str:
        """Returns 0, 1, ... up to a size, int64 (size,)."""
        return self.node("Range", self.integer(0), size, self.integer(1))

    def first(self, sequences: str) -> str:
        """Takes position 0: (B, S, ...) to (B, ...)."""
        return self.node("Gather", sequences, self.integer(0), axis=1)

    def dense(self, rows: str, kernel, bias) -> str:
        """Computes a dense layer without its activation."""
        return self.node("Add", self.node("MatMul", rows, self.constant(kernel)), self.constant(bias))

    def dense_int8(self, rows: str, kernel, bias) -> str:
        """Computes a dense layer with integers, with a scale for each column of the kernel and one for all rows."""
        kernel = np.asarray(kernel)
        scale = np.maximum(np.abs(kernel).max(axis=0), np.finfo(np.float32).tiny * 1e3) / np.float32(_LARGEST_INT8)
        integers = np.rint(kernel / scale).astype(np.int8)
        values = (self.constant(integers), self.constant(scale), "", self.constant(bias))  # No zero point: it is 0.
        return self.node("DynamicQuantizeMatMul", rows, *values, domain=_RUNTIME_OPERATORS)

    def layer_norm(self, rows: str, scale, offset, epsilon: float) -> str:
        """Normalizes over the last axis."""
        return self.node("LayerNormalization", rows, self.constant(scale), self.constant(offset), epsilon=epsilon)

    def activate(self, rows: str, name: str) -> str:
        """Applies an activation of `BertConfig`, sigmoid or softmax; GELU has the form that ONNX Runtime fuses."""
        if name == "gelu":
            inner = self.node("Erf", self.node("Div", rows, self.number(2.0**0.5)))
        elif name == "gelu_tanh":
            cube = self.node("Mul", self.node("Pow", rows, self.number(3.0)), self.number(0.044715))
            scaled = self.node("Mul", self.node("Add", rows, cube), self.number((2.0 / np.pi) ** 0.5))
            inner = self.node("Tanh", scaled)
        else:
            return self.node(_STANDARD_ACTIVATIONS[name], rows)
        return self.node("Mul", self.node("Mul", rows, self.number(0.5)), self.node("Add", inner, self.number(1.0)))

    def model(
        self,
        name: str,
        inputs: Mapping[str, Axes],
        outputs: Mapping[str, tuple[str, Axes | None]],
        outside: Container[str] = (),
    ) -> bytes:
        """Returns the finished graph, a serialized `ModelProto`, without nodes and weights that no output needs.

        Args:
            name: name of the graph.
            inputs: name -> shape, with names for free dimensions; all are int32.
            outputs: name -> value and its shape, None if it is unknown; all are float32.
            outside: names of weights that are only declared, since the session gets their arrays.
        """
        named = [helper.make_node("Identity", [value], [key], name=key) for key, (value, _) in outputs.items()]
        needed, nodes = set(outputs), []
        for node in reversed([*self.nodes, *named]):
            if needed.intersection(node.output):
                needed.update(node.input)
                nodes.insert(0, node)
        graph = helper.make_graph(
            nodes,
            name,
            [helper.make_tensor_value_info(key, TensorProto.INT32, axes) for key, axes in inputs.items()],
            [helper.make_tensor_value_info(key, TensorProto.FLOAT, axes) for key, (_, axes) in outputs.items()],
            [_initializer(key, array, key in outside) for key, array in self.weights.items() if key in needed],
        )
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain == _RUNTIME_OPERATORS for node in nodes):
            opsets.append(helper.make_opsetid(_RUNTIME_OPERATORS, 1))
        proto = helper.make_model(graph, producer_name="keras-bert-zoo", opset_imports=opsets, ir_version=_IR_VERSION)
        return proto.SerializeToString()


def _initializer(name: str, array: np.ndarray, is_outside: bool) -> TensorProto:
    if not is_outside:
        return numpy_helper.from_array(array, name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name=name, dims=array.shape, data_type=kind, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="memory")
    return tensor
