"""Answers a single text in fewer threads than a batch, where that is faster.

Waking threads for an op takes longer than its work on a few rows, and a graph has some sixty of such ops. So there are
more sessions, each of whose ops runs in one thread:

- `HALVES`: the encoder runs in two chains of ops, one for each half of the tokens, which meet once in each layer
  (`ServedBackbone.encode_in_halves`).
- `PACKED`: the same, and oneDNN keeps the kernels packed. That saves a third of a product of 10 rows and a sixth of one
  of 30; one of 64 takes 1.2 times as long. It packs them alike for 7 to 80 rows, so each half gets 8 rows at least.
- `ONE`: all in one thread, for a short text beside others, which have the other threads.

All share the weights: TensorFlow takes an array with its own alignment as it is, without a copy. `PACKED` holds the
encoder's kernels a second time.

A thread keeps to a core, as ONNX Runtime's do by default. Without that, a thread that is woken often gets the core of
the one that woke it and waits there, while another core is idle. With it, a text of 128 tokens takes 0.85 of the time
in all threads, and 0.6 in halves, which are no faster without it (2 cores of an Intel Xeon, encoder alone).

Sessions have pools of their own only under TF_OVERRIDE_GLOBAL_THREADPOOL=1, which bert-serve sets.
"""

import contextlib
import math
import os
import platform
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
from tensorflow.python.util import _pywrap_util_port

# How a request runs: the session. In `ALL`, each op has all threads.
ALL, HALVES, PACKED, ONE = "all", "halves", "packed", "one"

_ALIGNMENT = 64  # Of TensorFlow's allocator (EIGEN_MAX_ALIGN_BYTES), and at least of any array that it takes as it is.
# Bytes of text that are tried, in this order. A token of English takes four to five.
_LENGTHS = (64, 128, 256, 512, 1024)
_WARM_UP, _TRIALS = 1, 5
# Seconds without a request after which threads sleep and the weights leave the caches, so that it matters how many
# bytes of them are read: `PACKED` pays only then. In a closed loop it answered 180 requests a second, `HALVES` 220.
PAUSE = 0.02
# Share of the time in all threads above which another session is not worth its graph, for a text alone; and above which
# one thread is too slow for a text beside others, as where cores are many and clients few.
_WORTH, _WORTH_BESIDE = 0.95, 1.3
_ROUNDING = 2.0**-4  # Share of the largest number by which others may be off, as for an export in bfloat16.

# Names in exported graphs: see `export/served_backbone.py`.
_LEAST_ROWS = "least_rows"
_WHOLE, _IN_HALVES, _HALF = (re.compile(rf"__inference_{it}_\d+") for it in ("_encode", "_encode_in_halves", "half"))
_PACKED_ROWS = 8  # oneDNN packs kernels in another way for fewer than seven.
_PACKED_PRODUCT = "_MklNativeFusedMatMul"  # What the optimizer makes of a product with a bias when oneDNN is on.
# The ops of gelu, exact and by tanh -> what the optimizer calls it in that op.
_GELUS = {"AddV2 Erf Mul Mul Mul": b"GeluExact", "AddV2 AddV2 Mul Mul Mul Mul Pow Tanh": b"GeluApproximate"}


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
    opened = {}
    for name, prepare in ((HALVES, _halve), (PACKED, _pack), (ONE, None)):
        config = config_pb2.ConfigProto(intra_op_parallelism_threads=1)
        if prepare:
            config.use_per_session_threads, config.inter_op_parallelism_threads = True, len(_cores())
        loader, graph = loader_impl.SavedModelLoader(directory), tf.Graph()
        if prepare and not prepare(loader.get_meta_graph_def_from_tags(tags)):
            continue
        with graph.as_default():
            opened[name] = open_session(graph, config)
            loader.load_graph(graph, tags)
    _share_weights([first, *opened.values()])
    for session in opened.values():
        with session.graph.as_default():
            loader_impl.SavedModelLoader(directory).run_init_ops(session, tags)
    return opened


def _share_weights(sessions: Sequence[tf.compat.v1.Session]) -> None:
    """Gives all sessions the same arrays, with the values of the first."""
    handles = [op.outputs[0] for op in sessions[1].graph.get_operations() if op.type == "VarHandleOp"]
    types = [tf.as_dtype(handle.op.get_attr("dtype")) for handle in handles]
    names = [handle.name for handle in handles]
    with sessions[0].graph.as_default():
        named = zip(names, types, strict=True)
        reads = [tf.raw_ops.ReadVariableOp(resource=sessions[0].graph.get_tensor_by_name(n), dtype=t) for n, t in named]
    values = sessions[0].run(reads)
    values = [_aligned(values.pop(0)) for _ in names]  # One copy at a time.
    for session in sessions:
        with session.graph.as_default():
            fed = [tf.compat.v1.placeholder(dtype, value.shape) for dtype, value in zip(types, values, strict=True)]
            pairs = zip(map(session.graph.get_tensor_by_name, names), fed, strict=True)
            assigned = [tf.raw_ops.AssignVariableOp(resource=handle, value=value) for handle, value in pairs]
        session.run(assigned, dict(zip(fed, values, strict=True)))


def _aligned(array: np.ndarray) -> np.ndarray:
    """Returns a copy that begins at a multiple of `_ALIGNMENT`."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


# === Graphs ===


def _halve(meta_graph: meta_graph_pb2.MetaGraphDef) -> bool:
    """Lets a graph that is about to be loaded compute its encoder in halves; returns whether it has one that can."""
    functions = [function.signature.name for function in meta_graph.graph_def.library.function]
    whole, in_halves = ([name for name in functions if its.fullmatch(name)] for its in (_WHOLE, _IN_HALVES))
    if len(whole) != 1 or len(in_halves) != 1:
        return False
    inner = [node for function in meta_graph.graph_def.library.function for node in function.node_def]
    for node in [*meta_graph.graph_def.node, *inner]:
        if "f" in node.attr and node.attr["f"].func.name == whole[0]:
            node.attr["f"].func.name = in_halves[0]
    return True


def _pack(meta_graph: meta_graph_pb2.MetaGraphDef) -> bool:
    """Does the same, and lets oneDNN keep the encoder's kernels packed; returns whether it can."""
    if not _pywrap_util_port.IsMklEnabled() or not _has_its_types(meta_graph) or not _halve(meta_graph):
        return False
    for function in meta_graph.graph_def.library.function:
        is_encoder = _IN_HALVES.fullmatch(function.signature.name)
        for node in function.node_def:
            if is_encoder and node.name == _LEAST_ROWS:
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(_PACKED_ROWS, tf.int32))
        if is_encoder or _HALF.fullmatch(function.signature.name):
            _pack_products(function)
    return True


def _has_its_types(meta_graph: meta_graph_pb2.MetaGraphDef) -> bool:
    """Tells whether oneDNN has products of a graph's types on this processor; otherwise they would end the process."""
    functions = meta_graph.graph_def.library.function
    types = {node.attr["T"].type for function in functions for node in function.node_def if node.op == "MatMul"}
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False  # Not tried.
    return tf.bfloat16.as_datatype_enum not in types or _has_avx512()


def _has_avx512() -> bool:
    """Tells whether the processor has AVX-512, without which oneDNN has no bfloat16 on x86."""
    found = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    return any(name == "X86_V4" or name.startswith("AVX512") for name in found)  # NumPy from 2.4 on, and before.


def _pack_products(function: function_pb2.FunctionDef) -> None:
    """Lets oneDNN keep the kernels packed that a function multiplies by.

    The optimizer makes one op of a product, its bias and gelu. The same op is written here, in a function, where
    TensorFlow allows its internal ops, to set what the optimizer sets for constants alone: `is_filter_const`.
    """
    nodes = {node.name: node for node in function.node_def}
    replaced, renamed, packed = set(), {}, []
    for bias in [node for node in function.node_def if node.op == "BiasAdd"]:
        product, (gelu, its_nodes) = nodes[bias.input[0].partition(":")[0]], _gelu(bias, nodes)
        new = node_def_pb2.NodeDef(name=f"{bias.name}/packed", op=_PACKED_PRODUCT)
        new.input.extend([*product.input, bias.input[1]])
        new.attr["T"].type = product.attr["T"].type
        new.attr["num_args"].i = 1
        new.attr["fused_ops"].list.s.extend([b"BiasAdd", gelu] if gelu else [b"BiasAdd"])
        new.attr["is_filter_const"].b = True
        new.attr["_kernel"].s = b"MklNameChangeOp"
        packed.append(new)
        replaced |= {product.name, bias.name, *its_nodes}
        renamed[f"{its_nodes[-1]}:z:0" if gelu else f"{bias.name}:output:0"] = f"{new.name}:product:0"
    for node in packed:
        function.node_def.add().CopyFrom(node)
    kept = [node_def_pb2.NodeDef.FromString(n.SerializeToString()) for n in function.node_def if n.name not in replaced]
    for node in kept:
        node.input[:] = [renamed.get(value, value) for value in node.input]
    function.node_def.clear()
    function.node_def.extend(kept)
    for name, value in function.ret.items():
        function.ret[name] = renamed.get(value, value)


def _gelu(bias: node_def_pb2.NodeDef, nodes: Mapping[str, node_def_pb2.NodeDef]) -> tuple[bytes, list[str]]:
    """Returns the optimizer's name of the gelu that follows a bias, and its nodes; none if nothing of the kind does."""
    found = [bias.name]
    for node in nodes.values():
        sources = {value.partition(":")[0] for value in node.input if not value.startswith("^")}
        others = sources - {*found}
        if others < sources and all(name in nodes and nodes[name].op == "Const" for name in others):
            found.append(node.name)
    ops = " ".join(sorted(nodes[name].op for name in found[1:]))
    return (_GELUS[ops], found[1:]) if ops in _GELUS else (b"", [])


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
        # Not by turns, which would keep the weights in the cache for those that read the same.
        times = {name: [_timed(way, arrays) for _ in range(_WARM_UP + _TRIALS)] for name, way in ways.items()}
        seconds = {name: statistics.median(its[_WARM_UP:]) for name, its in times.items()}
        measured[length] = {name: its / seconds[ALL] for name, its in seconds.items()}
        if min(measured[length].values()) > _WORTH:
            break  # Nor is it worth it for longer texts.
    return measured


def fastest(measured: Mapping[int, Mapping[str, float]], without: Sequence[str] = ()) -> dict[int, str]:
    """Returns bytes -> the fastest session for texts of at most so many, `ALL` if none is clearly faster."""
    best = {length: min(set(shares) - {*without}, key=shares.get) for length, shares in measured.items()}
    return {length: name if measured[length][name] <= _WORTH else ALL for length, name in best.items()}


def fastest_beside_others(measured: Mapping[int, Mapping[str, float]]) -> dict[int, str]:
    """Returns bytes -> `ONE`, which takes the least time of the processor, or `ALL` where it is much faster alone."""
    return {length: ONE if shares.get(ONE, math.inf) <= _WORTH_BESIDE else ALL for length, shares in measured.items()}


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
    time.sleep(PAUSE)
    start = time.perf_counter()
    run(*arrays)
    return time.perf_counter() - start
