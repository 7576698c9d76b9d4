"""Lets a single short text run in one thread, where that is faster, on the same weights.

The products of a few rows take less time than waking other threads for them, and a graph has some sixty of them. The
number of threads belongs to a session, so there is a second one. It shares the weights: TensorFlow takes an array with
its own alignment as it is, without a copy, and so both sessions get the same arrays.

Sessions have pools of their own only under TF_OVERRIDE_GLOBAL_THREADPOOL=1, which bert-serve sets. Without it the
second session is not faster, and is closed again.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.saved_model import loader_impl

_ALIGNMENT = 64  # Of TensorFlow's allocator (EIGEN_MAX_ALIGN_BYTES), and at least of any array that it takes as it is.
# Bytes of text that are tried, in this order. A token of English takes four to five.
_LENGTHS = (64, 128, 256)
_WARM_UP, _TRIALS = 3, 9
_WORTH = 0.95  # Share of the time above which a second session is not worth its graph.


def open_session(first: tf.compat.v1.Session, directory: str, tags: Sequence[str]) -> tf.compat.v1.Session:
    """Opens a session of one thread for a version that `first` has loaded; both hold the same weights afterwards."""
    graph = tf.Graph()
    one = config_pb2.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    session = tf.compat.v1.Session(graph=graph, config=one)
    with graph.as_default():
        loader = loader_impl.SavedModelLoader(directory)
        loader.load_graph(graph, tags)
        handles = [op.outputs[0] for op in graph.get_operations() if op.type == "VarHandleOp"]
        types = [tf.as_dtype(handle.op.get_attr("dtype")) for handle in handles]
    with first.graph.as_default():
        named = zip(handles, types, strict=True)
        reads = [tf.raw_ops.ReadVariableOp(resource=first.graph.get_tensor_by_name(h.name), dtype=t) for h, t in named]
    values = first.run(reads)
    values = [_aligned(values.pop(0)) for _ in handles]  # One copy at a time.
    for one_of_both in (first, session):
        _assign(one_of_both, [handle.name for handle in handles], types, values)
    with graph.as_default():
        loader.run_init_ops(session, tags)
    return session


def _aligned(array: np.ndarray) -> np.ndarray:
    """Returns a copy that begins at a multiple of `_ALIGNMENT`."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _assign(
    session: tf.compat.v1.Session, names: Sequence[str], types: Sequence[tf.DType], values: Sequence[np.ndarray]
) -> None:
    with session.graph.as_default():
        fed = [tf.compat.v1.placeholder(dtype, value.shape) for dtype, value in zip(types, values, strict=True)]
        handles = [session.graph.get_tensor_by_name(name) for name in names]
        pairs = zip(handles, fed, strict=True)
        assigned = [tf.raw_ops.AssignVariableOp(resource=handle, value=value) for handle, value in pairs]
    session.run(assigned, dict(zip(fed, values, strict=True)))


def longest_worth(example: Mapping[str, str], ways: Sequence[Callable]) -> int:
    """Measures up to how many bytes of text one thread is faster.

    Args:
        example: input name -> a text as clients send it.
        ways: two functions that run a signature on an array of shape (1,) for each input, the second in one thread.

    Returns:
        One of `_LENGTHS`, or 0.
    """
    longest = 0
    for length in _LENGTHS:
        texts = [_of_length(text, length // len(example)) for text in example.values()]
        arrays = [np.array([text], object) for text in texts]
        seconds = [[_timed(way, arrays) for way in ways] for _ in range(_WARM_UP + _TRIALS)][_WARM_UP:]
        if statistics.median(one / all_ for all_, one in seconds) > _WORTH:
            break
        longest = length
    return longest


def _of_length(text: str, length: int) -> bytes:
    """Repeats a text up to so many bytes of UTF-8, or a few less."""
    encoded = f"{text} ".encode()
    return (encoded * (length // len(encoded) + 1))[:length].decode(errors="ignore").encode()


def _timed(run: Callable, arrays: Sequence[np.ndarray]) -> float:
    start = time.perf_counter()
    run(*arrays)
    return time.perf_counter() - start
