"""Runs the encoders of a version in ONNX Runtime; the tokenizer and everything else stay in the graph.

`export.saved_model` describes each encoder beside the graph: the function that computes it, and its weights. Here that
function becomes a call of `OnnxEncoder`, for all batches or only for small ones.
"""

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, types_pb2
from tensorflow.core.framework.function_pb2 import FunctionDef, FunctionDefLibrary
from tensorflow.core.protobuf import meta_graph_pb2

from export.base_path import ENCODERS_FILE, INT8_FILE
from keras_bert.errors import InputError, first_line
from keras_bert.files import read_optional_json

# Tokens of a batch. Up to here ONNX Runtime takes 0.5 to 0.9 of TensorFlow's time, and 1.1 of it for 4,096 tokens
# (docs/benchmarks.md).
_SMALL = 1024


def replace(
    meta_graph: meta_graph_pb2.MetaGraphDef, directory: str, *, small_batches_only: bool, num_threads: int, int8: bool
) -> None:
    """Replaces the encoders of a graph that is about to be loaded into the default graph, which keeps them alive.

    Args:
        meta_graph: the version's graph, which is changed in place.
        directory: the version's directory.
        small_batches_only: bool, whether TensorFlow keeps computing batches of more than `_SMALL` tokens.
        num_threads: threads of one operation; 0: one per core.
        int8: bool, whether to compute in integers the products that the export chose; a search's reranker has none.

    Raises:
        InputError: the version describes no encoder, or ONNX Runtime refuses it, or the export chose no products for
            integers; the graph is unchanged then.
    """
    chosen = read_optional_json(os.path.join(directory, INT8_FILE)) if int8 else {"products": ()}
    if not chosen:
        raise InputError(
            f"{directory}: nothing says which products may be 8 bits. Export the model by bert-export --int8, or leave "
            "out --precision=int8."
        )
    from export.graph.onnx_session import OnnxEncoder  # Imports ONNX Runtime, which is an extra.

    descriptions = read_optional_json(os.path.join(directory, ENCODERS_FILE))
    if not descriptions:
        raise InputError(
            f"{directory}: ONNX Runtime cannot compute the encoder. Expected {ENCODERS_FILE} with its description, as "
            "bert-export writes it for float32 models that read in both directions."
        )
    library = meta_graph.graph_def.library
    functions = {function.signature.name: function for function in library.function}
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
        if small_batches_only:
            names = ("in_onnxruntime", "in_tensorflow", "optimized")
            of_small, of_large, in_tensorflow = (_copy(library, function, name) for name in names)
            _call_by_size(function, of_small, of_large)
            # TensorFlow optimizes what this op calls, but not the branches of an If.
            _clear(of_large)
            _call(of_large, "StatefulPartitionedCall", f=in_tensorflow)
            function = of_small
        _call_instead(function, encoder)


def _copy(library: FunctionDefLibrary, function: FunctionDef, name: str) -> FunctionDef:
    copied = library.function.add()
    copied.CopyFrom(function)
    copied.signature.name = f"{function.signature.name}_{name}"
    return copied


def _call_by_size(function: FunctionDef, of_small: FunctionDef, of_large: FunctionDef) -> None:
    """Makes `function` call `of_small` for at most `_SMALL` tokens, else `of_large`; all have the same signature."""
    mask = tf.TensorSpec([None, None], tf.int32, "mask")
    is_small = tf.function(lambda mask: tf.reduce_sum(mask) <= _SMALL, input_signature=[mask])
    condition = is_small.get_concrete_function().function_def
    _clear(function)
    for node in condition.node_def:
        node.input[:] = [function.signature.input_arg[2].name if name == "mask" else name for name in node.input]
        function.node_def.append(node)
    call = _call(function, "If", then_branch=of_small, else_branch=of_large)
    call.input.insert(0, *condition.ret.values())
    call.attr["Tcond"].type = types_pb2.DT_BOOL
    # Lowered to Switch and Merge, each op of the branch not taken would take time, too: 0.5 ms of a text's 5.
    call.attr["_lower_using_switch_merge"].b = False


def _call(function: FunctionDef, op: str, **callees: FunctionDef) -> node_def_pb2.NodeDef:
    """Makes a function return what an op makes of other functions of the same signature, by attribute."""
    arguments, outputs = function.signature.input_arg, function.signature.output_arg
    call = function.node_def.add(name="encode", op=op)
    call.input[:] = [argument.name for argument in arguments]
    call.attr["Tin"].list.type[:] = [argument.type for argument in arguments]
    call.attr["Tout"].list.type[:] = [output.type for output in outputs]
    for attribute, callee in callees.items():
        call.attr[attribute].func.name = callee.signature.name
    _return(function, call)
    return call


def _call_instead(function: FunctionDef, encoder: Callable) -> None:
    """Replaces the body of a function by an encoder, whose inputs are the function's first three arguments."""
    ids = [tf.compat.v1.placeholder(tf.int32, [None, None]) for _ in range(3)]
    call = tf.numpy_function(encoder, ids, [tf.float32, tf.float32], stateful=False)[0].op.node_def
    call.name, call.input[:] = "encode", [argument.name for argument in function.signature.input_arg[:3]]
    _clear(function)
    function.node_def.append(call)
    _return(function, call)


def _clear(function: FunctionDef) -> None:
    del function.node_def[:]  # `clear` came with protobuf 6.
    function.control_ret.clear()
    function.signature.control_output[:] = []


def _return(function: FunctionDef, node: node_def_pb2.NodeDef) -> None:
    """Makes a function return the outputs of a node."""
    for number, output in enumerate(function.signature.output_arg):
        function.ret[output.name] = f"{node.name}:output:{number}"
