"""Runs the encoders of a version in ONNX Runtime; the rest stays in the graph (but see `short_texts`).

`export.saved_model` describes each encoder beside the graph: the function that computes it, and its weights. Here that
function becomes a call of `OnnxEncoder`.
"""

import functools
import os
from collections.abc import Callable, Iterable

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.core.protobuf import meta_graph_pb2

from export.base_path import ENCODERS_FILE, INT8_FILE
from keras_bert.errors import InputError, first_line
from keras_bert.files import read_optional_json
from tasks.settings import require_extra


def replace(meta_graph: meta_graph_pb2.MetaGraphDef, directory: str, *, num_threads: int, int8: bool) -> Callable:
    """Replaces the encoders of a graph that is about to be loaded into the default graph, which keeps them alive.

    Returns the model's own encoder.

    Args:
        meta_graph: the version's graph, which is changed in place.
        directory: the version's directory.
        num_threads: threads of one operation; 0: one per core.
        int8: bool, whether to compute in integers the products that the export chose; a search's reranker has none.

    Raises:
        InputError: ONNX Runtime is not installed or refuses the encoder, the version describes none, or the export
            chose no products for integers; the graph is unchanged then.
    """
    chosen = read_optional_json(os.path.join(directory, INT8_FILE)) if int8 else {"products": ()}
    if not chosen:
        raise InputError(
            f"{directory}: nothing says which products may be 8 bits. Export the model by bert-export --int8, or leave "
            "out --precision=int8."
        )
    require_extra("onnx", f"{directory}: ONNX Runtime, which takes about half of TensorFlow's time for a phrase,")
    from export.graph.onnx_session import OnnxEncoder

    descriptions = read_optional_json(os.path.join(directory, ENCODERS_FILE))
    if not descriptions:
        raise InputError(
            f"{directory}: ONNX Runtime cannot compute the encoder. Expected {ENCODERS_FILE} with its description, as "
            "bert-export writes it for float32 models that read in both directions."
        )
    functions = {function.signature.name: function for function in meta_graph.graph_def.library.function}
    try:
        weights = tf.train.load_checkpoint(os.path.join(directory, "variables", "variables"))

        def read(name: str) -> np.ndarray:
            return weights.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE")

        replaced = []
        for number, description in enumerate(descriptions):
            products = chosen["products"] if number == 0 else ()  # The model's own encoder comes first.
            replaced.append((functions[description["function"]], OnnxEncoder(description, read, num_threads, products)))
    except Exception as error:  # ONNX Runtime's errors have no base of their own.
        raise InputError(f"{directory}: ONNX Runtime cannot compute the encoder ({first_line(error)}).") from error
    for function, encoder in replaced:
        _call_instead(function, encoder)
    return replaced[0][1]


def unread_variables(meta_graph: meta_graph_pb2.MetaGraphDef) -> list[str]:
    """Returns the names of the float32 variables that no signature reads, since ONNX Runtime has their values."""
    graph_def = meta_graph.graph_def
    functions = {function.signature.name: function for function in graph_def.library.function}

    @functools.cache
    def read_arguments(name: str) -> list[int]:
        read = read_values(functions[name].node_def)
        return [number for number, argument in enumerate(functions[name].signature.input_arg) if argument.name in read]

    def read_values(nodes: Iterable[NodeDef]) -> set[str]:
        values = set()
        for node in nodes:
            inputs = [value for value in node.input if not value.startswith("^")]
            called = [attribute.func.name for attribute in node.attr.values() if attribute.HasField("func")]
            for function in called:  # The last inputs are its arguments; before them, an If has its condition.
                start = len(inputs) - len(functions[function].signature.input_arg)
                values.update(inputs[start + number] for number in read_arguments(function))
            values.update(() if called else inputs)
        return values

    saver = meta_graph.saver_def
    others = (saver.restore_op_name, saver.save_tensor_name.partition(":")[0])
    read = read_values(node for node in graph_def.node if node.op != "ReadVariableOp" and node.name not in others)
    return [
        node.name
        for node in graph_def.node
        if node.op == "VarHandleOp" and node.attr["dtype"].type == tf.float32.as_datatype_enum and node.name not in read
    ]


def _call_instead(function: FunctionDef, encoder: Callable) -> None:
    """Replaces the body of a function by an encoder, whose inputs are the function's first three arguments."""
    ids = [tf.compat.v1.placeholder(tf.int32, [None, None]) for _ in range(3)]
    call = tf.numpy_function(encoder, ids, [tf.float32, tf.float32], stateful=False)[0].op.node_def
    call.name, call.input[:] = "encode", [argument.name for argument in function.signature.input_arg[:3]]
    del function.node_def[:]  # `clear` came with protobuf 6.
    function.control_ret.clear()
    function.signature.control_output[:] = []
    function.node_def.append(call)
    for number, output in enumerate(function.signature.output_arg):
        function.ret[output.name] = f"{call.name}:output:{number}"
