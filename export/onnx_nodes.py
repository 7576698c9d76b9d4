"""Writes graphs for ONNX Runtime, node by node. Imports onnx alone."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

# Opset 17 is the first with LayerNormalization; ONNX Runtime has supported it since 1.12 (2022).
OPSET = 17
_IR_VERSION = 8  # Released with opset 17; an older runtime refuses a higher number.
MICROSOFT = "com.microsoft"  # The domain of ONNX Runtime's own operators.


class OnnxNodes:
    """A graph in the making; a value is its name."""

    def __init__(self):
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._constants: dict[tuple, str] = {}

    def node(self, kind: str, *inputs: str, outputs: int = 1, **attributes) -> str | list[str]:
        """Adds a node; returns its output's name, or a list of several outputs' names."""
        number = len(self.nodes)
        names = [f"{kind}_{number}" if outputs == 1 else f"{kind}_{number}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}_{number}", **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array) -> str:
        """Returns a weight or another fixed array as a value."""
        array = np.array(array, order="C")
        key = (array.shape, array.dtype.str, array.tobytes())
        if key not in self._constants:  # Stores the token table, which the masked-LM head uses as well, once.
            name = f"constant_{len(self.initializers)}"
            self.initializers.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def integers(self, *numbers: int) -> str:
        """Returns int64 numbers, shape (count,), as a value."""
        return self.constant(np.array(numbers, np.int64))

    def output(self, name: str, value: str) -> None:
        """Gives a value the name of an output."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=name))

    def model(
        self, name: str, inputs: Mapping[str, tuple[int, Sequence]], outputs: Mapping[str, tuple[int, Sequence]]
    ) -> bytes:
        """Returns the finished graph, a serialized `ModelProto`.

        Args:
            name: of the graph.
            inputs, outputs: name -> element type and shape; of free dimensions the names.
        """
        infos = [
            [helper.make_tensor_value_info(key, *its) for key, its in values.items()] for values in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, name, *infos, initializer=self.initializers)
        domains = sorted({node.domain for node in self.nodes} | {""})
        opsets = [helper.make_opsetid(domain, 1 if domain else OPSET) for domain in domains]
        proto = helper.make_model(graph, producer_name="keras-bert-zoo", opset_imports=opsets, ir_version=_IR_VERSION)
        return proto.SerializeToString()
