"""Answers a single text in fewer threads than a batch, where that is faster.

Waking threads for an op takes longer than its work on a few rows, and a graph has some sixty of such ops. So there are
two more sessions, each of whose ops runs in one thread:

- `HALVES`: each product of a layer is two, of half of the heads or inner units, which run at the same time. So each
  thread reads half of the kernels (`ServedBackbone.encode_in_halves`).
- `ONE`: all in one thread, for a text beside others, which have the other threads.

All share the weights: TensorFlow takes an array with its own alignment as it is, without a copy. `HALVES` holds those
kernels a second time whose halves are not in one piece: 58% of the encoder's.

A thread keeps to a core, as ONNX Runtime's do by default. Without that, a thread that is woken often gets the core of
the one that woke it and waits there, while another core is idle. Then halves are no faster (docs/benchmarks.md).

Sessions have pools of their own only under TF_OVERRIDE_GLOBAL_THREADPOOL=1, which bert-serve sets.
"""

import contextlib
import functools
import math
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2, node_def_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.saved_model import loader_impl

from export import encoders

# How a request runs: the session. In `ALL`, each op has all threads.
ALL, HALVES, ONE = "all", "halves", "one"

_ALIGNMENT = 64  # Of TensorFlow's allocator (EIGEN_MAX_ALIGN_BYTES), and at least of any array that it takes as it is.
# Bytes of text that are tried, in this order. A token of English takes four to five.
_LENGTHS = (64, 128, 256, 512, 1024)
_WARM_UP, _TRIALS, _TURNS = 1, 3, 2
_PAUSE = 0.02  # Seconds before a trial, as between the requests of a client: threads sleep, weights leave the caches.
_WORTH = 0.95  # Share of the time of `ALL` above which another session is not worth its graph.
_ROUNDING = 2.0**-4  # Share of the largest number by which others may be off, as for an export in bfloat16.

# Functions of exported graphs: see `export/served_backbone.py`.
_WHOLE, _IN_HALVES = (re.compile(rf"__inference_{name}_\d+") for name in ("_encode", "_encode_in_halves"))
_KEPT = "kept_weights"  # The op that `_keep_weights` adds, and what it reads.


# === Sessions ===


def open_session(graph: tf.Graph, config: config_pb2.ConfigProto | None = None) -> tf.compat.v1.Session:
    """Opens a session whose threads keep to a core each, if it has one for each core."""
    before = _other_threads()
    session = tf.compat.v1.Session(graph=graph, config=config)
    new = sorted(_other_threads() - before)
    cores = _cores()
    if hasattr(os, "sched_setaffinity") and len(new) >= len(cores):
        for number, thread in enumerate(new):
            with contextlib.suppress(OSError):  # It has ended.
                os.sched_setaffinity(thread, {cores[number % len(cores)]})
    return session


def _cores() -> list[int]:
    """Returns the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _other_threads() -> set[int]:
    """Returns the native ids of this process's threads that Python has not started."""
    tasks = "/proc/self/task"
    running = {int(name) for name in os.listdir(tasks)} if os.path.isdir(tasks) else set()
    return running - {thread.native_id for thread in threading.enumerate()}


def open_more(first: tf.compat.v1.Session, directory: str, tags: Sequence[str]) -> dict[str, tf.compat.v1.Session]:
    """Opens the other sessions that a version can have, which share the weights of the `first`."""
    weights, opened = _weights(first), {}
    _assign(first, weights)
    for name in (HALVES, ONE):
        config = config_pb2.ConfigProto(intra_op_parallelism_threads=1)
        loader, graph, kept = loader_impl.SavedModelLoader(directory), tf.Graph(), []
        if name == HALVES:
            config.use_per_session_threads, config.inter_op_parallelism_threads = True, len(_cores())
            kept = _halve(loader.get_meta_graph_def_from_tags(tags), weights)
            if not kept:
                continue
        with graph.as_default():
            opened[name] = open_session(graph, config)
            loader.load_graph(graph, tags)
            _assign(opened[name], weights)
            _stage(opened[name], kept)
            loader.run_init_ops(opened[name], tags)
    return opened


def _weights(session: tf.compat.v1.Session) -> dict[str, np.ndarray]:
    """Returns copies of a session's variables, by the names of their handles."""
    with session.graph.as_default():
        handles = {op.name: op.outputs[0] for op in session.graph.get_operations() if op.type == "VarHandleOp"}
        types = {name: tf.as_dtype(handle.op.get_attr("dtype")) for name, handle in handles.items()}
        reads = [tf.raw_ops.ReadVariableOp(resource=handles[name], dtype=types[name]) for name in handles]
    values = session.run(reads)
    return {name: _aligned(values.pop(0)) for name in handles}  # One copy at a time.


def _assign(session: tf.compat.v1.Session, weights: Mapping[str, np.ndarray]) -> None:
    """Lets the variables of a session hold these arrays."""
    with session.graph.as_default():
        fed = {name: tf.compat.v1.placeholder(value.dtype, value.shape) for name, value in weights.items()}
        handles = {name: session.graph.get_tensor_by_name(f"{name}:0") for name in fed}
        assigned = [tf.raw_ops.AssignVariableOp(resource=handles[name], value=fed[name]) for name in fed]
    session.run(assigned, {fed[name]: weights[name] for name in fed})


def _stage(session: tf.compat.v1.Session, arrays: Sequence[np.ndarray]) -> None:
    """Lets the op of `_keep_weights` find these arrays."""
    if arrays:
        with session.graph.as_default():
            fed = [tf.compat.v1.placeholder(array.dtype, array.shape) for array in arrays]
            staged = tf.raw_ops.Stage(values=fed, shared_name=_KEPT)
        session.run(staged, dict(zip(fed, arrays, strict=True)))


def _aligned(array: np.ndarray) -> np.ndarray:
    """Returns a copy that begins at a multiple of `_ALIGNMENT`."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


# === Graphs ===


def _halve(meta_graph: meta_graph_pb2.MetaGraphDef, weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Lets a graph that is about to be loaded compute its encoder in halves.

    Args:
        meta_graph: is changed, if it has one encoder that can.
        weights: its variables, by the names of their handles.

    Returns:
        Arrays for `_stage`; none if the graph is as it was.
    """
    functions = {function.signature.name: function for function in meta_graph.graph_def.library.function}
    whole, halves = ([name for name in functions if its.fullmatch(name)] for its in (_WHOLE, _IN_HALVES))
    if len(whole) != 1 or len(halves) != 1:
        return []
    inner = [node for function in functions.values() for node in function.node_def]
    for node in [*meta_graph.graph_def.node, *inner]:
        if "f" in node.attr and node.attr["f"].func.name == whole[0]:
            node.attr["f"].func.name = halves[0]
    kept = _keep_weights(functions[halves[0]], _handles(meta_graph, functions[halves[0]]), weights)
    encoders.drop_unread_arguments(meta_graph)
    return kept


def _handles(meta_graph: meta_graph_pb2.MetaGraphDef, function: function_pb2.FunctionDef) -> dict[str, str]:
    """Returns, for each argument of a function, what the graph's signatures give it: variables by their handles."""
    library = meta_graph.graph_def.library.function
    for caller, nodes in [(None, meta_graph.graph_def.node), *((its, its.node_def) for its in library)]:
        for name, values in (call for node in nodes for call in encoders.calls(node)):
            if name == function.signature.name:
                given = _handles(meta_graph, caller) if caller else {}
                pairs = zip(function.signature.input_arg, values, strict=False)  # Control inputs follow.
                return {argument.name: given.get(value, value) for argument, value in pairs}
    return {}


def _keep_weights(
    function: function_pb2.FunctionDef, handles: Mapping[str, str], weights: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Lets one op give a function all its weights, as the function uses them; returns them in the op's order.

    To read a variable and divide it takes up to five ops, which for all of them is more than half a millisecond. It
    also takes a copy, unless its parts are in one piece each.
    """
    nodes = {node.name: node for node in function.node_def}

    @functools.cache
    def value(output: str) -> np.ndarray | None:
        """Returns an output that depends on weights alone, if it does."""
        name, _, number = output.partition(":")
        node = nodes.get(name)
        if node is None or node.op not in ("ReadVariableOp", "Reshape", "Transpose", "Unpack"):
            return None
        if node.op == "ReadVariableOp":
            return weights[handles[node.input[0]]]
        whole = value(node.input[0])
        if whole is None or node.op == "Unpack":
            return whole if whole is None else whole[int(number.rpartition(":")[2])]
        setting = tf.make_ndarray(nodes[node.input[1].partition(":")[0]].attr["value"].tensor)
        return whole.reshape(setting) if node.op == "Reshape" else whole.transpose(setting)

    known = {name for name in nodes if value(f"{name}:0") is not None}
    kept, left = {}, []
    for node in (node for name, node in nodes.items() if name not in known):
        for output in node.input:
            if value(output) is not None:
                kept.setdefault(output, len(kept))
        renamed = (f"{_KEPT}:values:{kept[name]}" if name in kept else name for name in node.input)
        left.append(node_def_pb2.NodeDef.FromString(node.SerializeToString()))
        left[-1].input[:] = [name for name in renamed if name.removeprefix("^") not in known]
    arrays = [value(output) for output in kept]
    index = node_def_pb2.NodeDef(name=f"{_KEPT}/index", op="Const")
    index.attr["dtype"].type = tf.int32.as_datatype_enum
    index.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, tf.int32))
    peek = node_def_pb2.NodeDef(name=_KEPT, op="StagePeek", input=[f"{index.name}:output:0"])
    peek.attr["dtypes"].list.type.extend(tf.as_dtype(array.dtype).as_datatype_enum for array in arrays)
    peek.attr["shared_name"].s = _KEPT.encode()
    function.node_def.clear()
    function.node_def.extend([*left, index, peek])
    for name in [name for name, node in function.control_ret.items() if node in known]:
        del function.control_ret[name]
        function.signature.control_output.remove(name)
    are_ready = (array.flags.c_contiguous and array.ctypes.data % _ALIGNMENT == 0 for array in arrays)
    return [array if is_ready else _aligned(array) for array, is_ready in zip(arrays, are_ready, strict=True)]


# === The choice ===


def measure(example: Mapping[str, str], ways: Mapping[str, Callable]) -> dict[int, dict[str, float]]:
    """Measures how long the sessions take for a single text.

    Args:
        example: input name -> a text as clients send it.
        ways: `ALL` and the other sessions -> function that runs a signature on an array of shape (1,) for each input.

    Returns:
        Bytes of the text -> session -> time relative to `ALL`, for sessions that answer as it does.
    """
    measured = {}
    for length in _LENGTHS:
        texts = [_of_length(text, length // len(example)) for text in example.values()]
        arrays = [np.array([text], object) for text in texts]
        right = ways[ALL](*arrays)
        ways = {name: way for name, way in ways.items() if _agree(way(*arrays), right)}
        # Several trials a turn, or the weights would stay in the cache for those that read the same. Two turns, since
        # something else may run for a moment.
        seconds = dict.fromkeys(ways, math.inf)
        for name in list(ways) * _TURNS:
            times = [_timed(ways[name], arrays) for _ in range(_WARM_UP + _TRIALS)]
            seconds[name] = min(seconds[name], statistics.median(times[_WARM_UP:]))
        measured[length] = {name: its / seconds[ALL] for name, its in seconds.items()}
        if min(measured[length].values()) > _WORTH:
            break  # Nor is it worth it for longer texts.
    return measured


class Choices:
    """The fastest session for each request.

    Args:
        measured: what `measure` returned.
        num_cores: the machine's.
    """

    def __init__(self, measured: Mapping[int, Mapping[str, float]] = {}, num_cores: int | None = None):
        self._measured = dict(measured)
        self._num_cores = num_cores or len(_cores())

    def session(self, size: int, num_running: int) -> str:
        """Returns the session for a text.

        Args:
            size: of the text, in bytes.
            num_running: requests in progress, this one included.
        """
        times = next((its for length, its in self._measured.items() if size <= length), {ALL: 1.0})
        if num_running == 1:
            best = min(times, key=times.get)
            return best if times[best] <= _WORTH else ALL
        # So many run at once, each in a thread, in the time in which all threads would run one after another.
        num_at_once = min(num_running, self._num_cores)
        return ONE if times.get(ONE, math.inf) <= _WORTH * num_at_once else ALL

    @property
    def used(self) -> set[str]:
        """The sessions that some request gets."""
        numbers = (1, self._num_cores)
        return {ALL} | {self.session(length, number) for length in self._measured for number in numbers}


def _agree(answer: Sequence, right: Sequence) -> bool:
    """Tells whether the numbers of an answer are the right ones, but for rounding."""
    pairs = [(np.asarray(one), np.asarray(other)) for one, other in zip(answer, right, strict=True)]
    return all(
        one.shape == other.shape and np.abs(one - other).max(initial=0.0) <= _ROUNDING * np.abs(other).max(initial=0.0)
        for one, other in pairs
        if other.dtype.kind == "f"
    )


def _of_length(text: str, length: int) -> bytes:
    """Repeats a text up to so many bytes of UTF-8, or a few less."""
    encoded = f"{text} ".encode()
    return (encoded * (length // len(encoded) + 1))[:length].decode(errors="ignore").encode()


def _timed(run: Callable, arrays: Sequence[np.ndarray]) -> float:
    time.sleep(_PAUSE)
    start = time.perf_counter()
    run(*arrays)
    return time.perf_counter() - start
