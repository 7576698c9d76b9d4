"""Runs the encoders of a version in ONNX Runtime; tokenizing and all else stay in its graph.

`export.saved_model` describes each encoder beside the graph: the function that computes it, and its weights. Here that
function becomes one call of `OnnxEncoder`, for all signatures. The weights that nothing else in the graph reads leave
it: their handles would cost time in each run, and their values memory.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2, types_pb2
from tensorflow.core.protobuf import meta_graph_pb2

from export.base_path import ENCODERS_FILE
from keras_bert.errors import InputError
from keras_bert.files import is_file, read_json

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_BRANCHES, _LOOPS = ("If", "StatelessIf"), ("While", "StatelessWhile")


def replace(meta_graph: meta_graph_pb2.MetaGraphDef, directory: str, num_threads: int = 0) -> list[str]:
    """Replaces the encoders of a graph that is about to be loaded into the default graph, which keeps them alive.

    Args:
        meta_graph: of the version, is changed.
        directory: the version's.
        num_threads: threads of one operation; 0: one a core.

    Returns:
        Names of the variables' handles that no signature reads any more.

    Raises:
        InputError: the version describes no encoder.
    """
    from export.onnx_encoder import OnnxEncoder  # Brings ONNX Runtime, which only --runtime=onnxruntime needs.

    path = os.path.join(directory, ENCODERS_FILE)
    descriptions = read_json(path) if is_file(path) else []
    if not descriptions:
        raise InputError(
            f"{directory}: describes no encoder for --runtime=onnxruntime. Expected {ENCODERS_FILE} with one, as "
            "bert-export writes it for float32 models that read in both directions. Export the model again, or leave "
            "out the flag."
        )
    functions = {function.signature.name: function for function in meta_graph.graph_def.library.function}
    weights = tf.train.load_checkpoint(os.path.join(directory, "variables", "variables"))
    for description in descriptions:
        encoder = OnnxEncoder(
            description, lambda name: weights.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE"), num_threads
        )
        _call_instead(functions[description["function"]], encoder)
    drop_unread_arguments(meta_graph)
    return _unread_handles(meta_graph, functions)


def drop_unread_arguments(meta_graph: meta_graph_pb2.MetaGraphDef) -> None:
    """Drops the resources that no function of a graph reads from its arguments."""
    functions = {function.signature.name: function for function in meta_graph.graph_def.library.function}
    _Arguments(functions).drop_unread(meta_graph.graph_def.node)


def _call_instead(function: function_pb2.FunctionDef, encoder: Callable) -> None:
    """Makes an encoder the body of a function of the same outputs, of which the first three arguments are its own."""
    ids = [tf.compat.v1.placeholder(tf.int32, [None, None]) for _ in range(3)]
    call = tf.numpy_function(encoder, ids, [tf.float32, tf.float32], stateful=False)[0].op.node_def
    call.name, call.input[:] = "encode", [argument.name for argument in function.signature.input_arg[:3]]
    function.node_def.clear()
    function.control_ret.clear()
    function.signature.control_output[:] = []
    function.node_def.append(call)
    for number, output in enumerate(function.signature.output_arg):
        function.ret[output.name] = f"encode:output:{number}"


class _Arguments:
    """The arguments of a graph's functions.

    Args:
        functions: by name, are changed.
    """

    def __init__(self, functions: Mapping[str, function_pb2.FunctionDef]):
        self._functions = functions
        nodes = [node for function in functions.values() for node in function.node_def]
        # Functions that other ops name, such as If, keep their arguments.
        others = [value for node in nodes if node.op not in _CALLS for value in node.attr.values()]
        self._fixed = {value.func.name for value in others} | {f.name for value in others for f in value.list.func}
        self._unread = functools.cache(self._find_unread)

    def drop_unread(self, nodes: Sequence[node_def_pb2.NodeDef]) -> None:
        """Drops the resources that a function does not read from its arguments and from all calls of it.

        Args:
            nodes: outside the functions, are changed.
        """
        unread = {name: self._unread(name) for name in self._functions}
        inner = [node for function in self._functions.values() for node in function.node_def]
        for node in [*nodes, *inner]:
            for place in reversed(unread.get(_callee(node), ())):
                del node.input[place], node.attr["Tin"].list.type[place]
        for name, function in self._functions.items():
            attributes = [function.arg_attr[number] for number in range(len(function.signature.input_arg))]
            for place in reversed(unread[name]):
                del function.signature.input_arg[place], attributes[place]
                if function.attr["_input_shapes"].list.shape:
                    del function.attr["_input_shapes"].list.shape[place]
            kept = [function_pb2.FunctionDef.ArgAttrs.FromString(one.SerializeToString()) for one in attributes]
            function.arg_attr.clear()
            for number, one in enumerate(kept):
                function.arg_attr[number].CopyFrom(one)

    def _find_unread(self, name: str) -> list[int]:
        if name in self._fixed or name not in self._functions:
            return []
        function = self._functions[name]
        read = set(function.ret.values())
        for node in function.node_def:
            unread = self._unread(_callee(node))
            read |= {value for place, value in enumerate(node.input) if place not in unread}
        arguments = enumerate(function.signature.input_arg)
        return [place for place, it in arguments if it.type == types_pb2.DT_RESOURCE and it.name not in read]


def _callee(node: node_def_pb2.NodeDef) -> str:
    """Returns the function that a node calls, "" for none."""
    return node.attr["f"].func.name if node.op in _CALLS else ""


def calls(node: node_def_pb2.NodeDef) -> list[tuple[str, Sequence[str]]]:
    """Returns the functions that a node calls, each with its arguments; none for other kinds of ops."""
    if node.op in _CALLS:
        return [(node.attr["f"].func.name, node.input)]
    if node.op in _BRANCHES:  # The condition comes first.
        return [(node.attr[name].func.name, node.input[1:]) for name in ("then_branch", "else_branch")]
    if node.op in _LOOPS:
        return [(node.attr[name].func.name, node.input) for name in ("cond", "body")]
    return []


def _unread_handles(
    meta_graph: meta_graph_pb2.MetaGraphDef, functions: Mapping[str, function_pb2.FunctionDef]
) -> list[str]:
    """Names the variables' handles that no output of a signature depends on, even if functions get them."""

    @functools.cache
    def unread(name: str) -> set[int]:
        """Returns the places of the resources that a function does no more with than to pass them on."""
        function = functions[name]
        read = {value for node in function.node_def for value in read_by(node)}
        arguments = enumerate(function.signature.input_arg)
        return {place for place, it in arguments if it.type == types_pb2.DT_RESOURCE and it.name not in read}

    def read_by(node: node_def_pb2.NodeDef) -> list[str]:
        called = calls(node)
        if not called:
            return list(node.input)
        passed = {value for name, values in called for place, value in enumerate(values) if place in unread(name)}
        kept = [value for name, values in called for place, value in enumerate(values) if place not in unread(name)]
        return kept + [value for value in node.input if value not in passed]

    nodes = {node.name: node for node in meta_graph.graph_def.node}
    outputs = (info for signature in meta_graph.signature_def.values() for info in signature.outputs.values())
    reached, waiting = set(), [info.name for info in outputs]
    while waiting:
        name = waiting.pop().lstrip("^").partition(":")[0]
        if name in nodes and name not in reached:
            reached.add(name)
            waiting += read_by(nodes[name])
    return [name for name, node in nodes.items() if node.op == "VarHandleOp" and name not in reached]
