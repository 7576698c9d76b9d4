"""Runs the encoders of a version in ONNX Runtime; the tokenizer and everything else stay in the graph.

`export.saved_model` describes each encoder beside the graph: the function that computes it, and its weights. Here that
function becomes a call of `OnnxEncoder`.
"""

import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.protobuf import meta_graph_pb2

from export.base_path import ENCODERS_FILE, INT8_FILE
from keras_bert.errors import InputError, first_line
from keras_bert.files import read_optional_json


def replace(meta_graph: meta_graph_pb2.MetaGraphDef, directory: str, *, num_threads: int, int8: bool) -> None:
    """Replaces the encoders of a graph that is about to be loaded into the default graph, which keeps them alive.

    Args:
        meta_graph: the version's graph, which is changed in place.
        directory: the version's directory.
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
