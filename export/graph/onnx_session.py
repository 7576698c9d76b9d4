"""An encoder in ONNX Runtime."""

import functools
import os
from collections.abc import Collection, Mapping

import numpy as np
import onnxruntime
from onnx import TensorProto

from export.graph.onnx_encoder import EncoderGraph, Read

# So many tokens keep an operator's numbers in a core's cache. At once, a batch of 32 x 128 takes 1.3 times as long, and
# one of unequal lengths more, since texts of about the same length need less padding (docs/benchmarks.md).
_TOKENS_OF_A_THREAD = 512
# The optimizer recognizes patterns by the values of small constants, which therefore stay inside the model.
_MOST_BYTES_INSIDE = 1024


@functools.cache
def _share_arena() -> None:
    """Makes one arena for all encoders of the process, which doubles as it grows.

    Activations of any size fit into regions that doubled. With regions of the requested sizes, 6,000 batches of random
    sizes took 105 MB in place of 65. Separate arenas of seven small models took 1,900 (docs/benchmarks.md, Memory).
    """
    arena = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(arena, onnxruntime.OrtArenaCfg({}))


class OnnxEncoder:
    """An encoder in ONNX Runtime, which packs its kernels once, on construction, and computes slices of a batch.

    Args:
        description: the result of `ServedBackbone.describe`.
        read: maps the name of a weight in the description to a float32 array.
        num_threads: threads of one operation; 0: one per core.
        int8: the products of `onnx_encoder.dense_products` to compute with integers.
    """

    def __init__(self, description: Mapping, read: Read, num_threads: int = 0, int8: Collection[str] = ()):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        # After a pause, Linux may wake a thread on its caller's core, and leave another idle: a phrase then takes three
        # times as long. Fewer threads than cores stay free, since several servers may share the machine.
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        if num_threads == len(cores) > 1:
            processors = ";".join(str(core + 1) for core in cores[1:])  # ONNX Runtime counts from 1.
            options.add_session_config_entry("session.intra_op_thread_affinities", processors)
        # Threads spin for the next operator during a run. After it they would take cores that other requests need.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # A masked token's probability underflows. Softmax and the product with V then took 9 times as long.
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
        _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.enable_mem_pattern = False  # It would keep a plan for each input shape, and saves no time here.
        graph = EncoderGraph(description, lambda name: read(description["weights"][name]), unpadded=True, int8=int8)
        outputs = graph.encode("token_ids", "segment_ids", graph.node("Cast", "padding_mask", to=TensorProto.BOOL))
        inputs = dict.fromkeys(("token_ids", "segment_ids", "padding_mask"), ("batch", "sequence"))
        # In the model, weights would be copied four times until the session has them, and its Python object would keep
        # the model: 1.6 GB more at the peak and 0.4 GB later for base (docs/benchmarks.md, Memory).
        outside = {name: array for name, array in graph.weights.items() if array.nbytes > _MOST_BYTES_INSIDE}
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in outside.values()]
        options.add_external_initializers(list(outside), values)
        model = graph.model("encoder", inputs, {name: (value, None) for name, value in outputs.items()}, outside)
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._slice_tokens = _TOKENS_OF_A_THREAD * (num_threads or os.cpu_count() or 1)

    def __call__(
        self, token_ids: np.ndarray, segment_ids: np.ndarray, padding_mask: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns `pooled_output` (B, H), and `sequence_output` (B, S, H), or (B, 1, H) with `first_token_only`.

        Args:
            token_ids, segment_ids, padding_mask: int32, shape (B, S).
        """
        inputs = {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}
        if padding_mask.sum() <= self._slice_tokens:
            return tuple(self._run(inputs))
        counts = padding_mask.sum(axis=1)
        order = np.argsort(counts, kind="stable")
        starts = np.flatnonzero(np.diff(np.cumsum(counts[order]) // self._slice_tokens)) + 1
        slices = np.split(order, starts)
        computed = [self._run({name: array[rows] for name, array in inputs.items()}) for rows in slices]
        back = np.argsort(order)
        return tuple(np.concatenate(arrays)[back] for arrays in zip(*computed, strict=True))

    def _run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return self._session.run(["pooled_output", "sequence_output"], inputs)
