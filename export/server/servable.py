"""A loaded version of a model, which runs its signatures on arrays, in batches with --enable_batching.

Signatures run through a `Session`, as in TensorFlow Serving: it loads every SavedModel, those of TensorFlow 1 too, and
lets the graph decide which shapes it takes. A call of a session's callable costs 20 us, one of a signature of
`tf.saved_model.load` 400 us.

Needs tensorflow and tensorflow_text, but none of the project's model code.
"""

import contextlib
import copy
import functools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2
from tensorflow.python.saved_model import loader_impl

from export.base_path import DESCRIPTION_FILE, TEXTS_FILE
from export.server import monitoring
from export.server.admission import Turns
from export.server.batching import Arrays, Batcher, count_bytes
from export.server.monitoring import Metrics
from export.server.runtime import encoders
from export.server.runtime.short_texts import ShortTexts
from export.server.server_settings import ServerSettings
from export.server.serving_error import CODE_NAMES, ServingError, TimeLeft, invalid, unlimited
from export.signatures import COUNT_TOKENS, SERVING_DEFAULT
from keras_bert.errors import InputError, first_line
from keras_bert.files import is_file, read_object
from tasks.settings import available_cores

_MAX_DESCRIPTION_BYTES = 1 << 20
# The time that a slice should take, estimated from the last run of its signature.
_SLICE_SECONDS = 1.0
# Limits on the first slice of a request (a single row if the signature has not run before), on every slice, and on the
# growth from one slice to the next: a text of blanks runs fast, and says nothing about the time of other texts.
_FIRST_ROWS, _MOST_ROWS = 32, 128
_FIRST_BYTES, _GROWTH = 1 << 15, 4
_BYTES_PER_ROW = 64  # The cost of a row in addition to its values.


class Signature(NamedTuple):
    """Names, types and declared shapes of a signature's inputs and outputs, and the defaults of optional inputs."""

    inputs: dict[str, tf.TensorSpec]
    outputs: dict[str, tf.TensorSpec]
    defaults: dict[str, np.ndarray] = {}

    @property
    def is_batchable(self) -> bool:
        """True if dimension 0 of all inputs and outputs is a batch of any size, so that requests can be joined."""
        specs = [*self.inputs.values(), *self.outputs.values()]
        return bool(self.inputs) and all(spec.shape.rank and spec.shape[0] is None for spec in specs)

    def wrong_shapes(self, arrays: Arrays) -> list[str]:
        """Returns a sentence for each input whose shape differs from the declared one."""
        return [
            f"Input {name!r}: expected shape {spec.shape}. Received: {arrays[name].shape}."
            for name, spec in self.inputs.items()
            if not spec.shape.is_compatible_with(arrays[name].shape)
        ]


class ServedModel:
    """One loaded version of a model.

    Args:
        directory: a version directory (holds `saved_model.pb`).
        name: the model's name in URLs.
        version: the version's number.
        settings: the server's settings: tags of the graph to load, threads, and the encoders' runtime. With `runtime`
            "auto", this is ONNX Runtime if it can compute them.
        turns: shared by all models of a server; None: this model has its own.

    Attributes:
        signature_defs: mapping of name to `SignatureDef`.
        signatures: the signatures that can be run, by name.
        description: content of `assets.extra/model.json`, which bert-export wrote; None for other models.

    Raises:
        InputError: the directory cannot be loaded: a file is missing or damaged; or ONNX Runtime cannot compute the
            encoder, and `runtime` is "onnxruntime" or `precision` is "int8".
    """

    def __init__(self, directory: str, name: str, version: int, settings: ServerSettings, turns: Turns | None = None):
        self.directory = directory
        self.name = name
        self.version = version
        self.description, self._short_texts = None, None
        with contextlib.suppress(InputError):  # Anything but a JSON object of reasonable size counts as none.
            self.description = read_object(os.path.join(directory, DESCRIPTION_FILE), _MAX_DESCRIPTION_BYTES)
        config = _session_config(settings)
        # Ops that wait for one another run faster in the calling thread than in a thread pool. A search compares blocks
        # of passages in parallel; of models that `bert-export` did not write, nothing is known.
        is_chain = (self.description or {}).get("task", "search") != "search"
        self._in_caller = is_chain and not config.inter_op_parallelism_threads
        graph, tags = tf.Graph(), settings.saved_model_tags
        self._session = tf.compat.v1.Session(graph=graph, config=config)
        try:
            with graph.as_default():
                loader = loader_impl.SavedModelLoader(directory)
                self._encode = self._use_onnxruntime(loader.get_meta_graph_def_from_tags(tags), settings)
                meta_graph = loader.load(self._session, tags)
                if self._encode:
                    self._empty(encoders.unread_variables(meta_graph))
                if self._encode and is_file(os.path.join(directory, TEXTS_FILE)):
                    outputs = sorted(meta_graph.signature_def[SERVING_DEFAULT].outputs)
                    with contextlib.suppress(NotImplementedError):
                        self._short_texts = ShortTexts(directory, self._encode, outputs)
        # The loader has no error of its own for a damaged directory; truncated files and flipped bytes raise these.
        except (OSError, ValueError, LookupError, RuntimeError, DecodeError, tf.errors.OpError) as error:
            self.close()
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{directory}: cannot be loaded as a SavedModel ({first_line(error)}). Was it copied whole? Copy or "
                "export it again."
            ) from error
        # A message inside another would keep the whole other one in memory.
        self.signature_defs = {name: copy.deepcopy(own) for name, own in sorted(meta_graph.signature_def.items())}
        self.signatures = {
            name: _signature(definition)
            for name, definition in self.signature_defs.items()
            if _is_runnable(name, definition)
        }
        self._callables: dict[str, Callable] = {}
        self._lock = threading.Lock()  # Guards them.
        self._turns = turns or Turns()
        # Signature -> bytes of inputs per second in its last run; inf for the first run, which optimizes the graph.
        self._rates: dict[str, float] = {}
        self._paddings = _paddings(self.description, self.signatures)

    def _use_onnxruntime(
        self, meta_graph: meta_graph_pb2.MetaGraphDef, settings: ServerSettings
    ) -> Callable[..., tuple[np.ndarray, np.ndarray]] | None:
        """Makes ONNX Runtime compute the encoders of a graph before it is loaded; returns the first, if it does."""
        if settings.runtime == "tensorflow" or settings.precision == "bfloat16":
            return None
        int8, threads = settings.precision == "int8", _session_config(settings).intra_op_parallelism_threads
        try:
            return encoders.replace(meta_graph, self.directory, num_threads=threads, int8=int8)
        except InputError as error:
            if int8:
                raise
            if settings.runtime == "onnxruntime":
                raise InputError(f"{error} Export the model again, or leave out --runtime=onnxruntime.") from error
            if self.description is not None:  # Only models that bert-export wrote can be expected to work.
                logging.getLogger(__name__).warning("TensorFlow computes the encoder. %s", error)
            return None

    def _empty(self, variables: list[str]) -> None:
        """Frees the memory of variables that nothing reads."""
        nothing = tf.compat.v1.placeholder(tf.float32, None)  # A shape would be compared with that of the variable.
        handles = [self._session.graph.get_tensor_by_name(f"{name}:0") for name in variables]
        assigned = [tf.raw_ops.AssignVariableOp(resource=handle, value=nothing) for handle in handles]
        self._session.run(assigned, {nothing: np.zeros(0, np.float32)})

    def run(
        self, signature_name: str, arrays: Arrays, time_left: TimeLeft = unlimited, is_batch: bool = False
    ) -> Arrays:
        """Runs a signature on arrays of its types.

        If the model's description says how to join answers, many rows run in slices of about a second, and the
        deadline is checked between them. Each run waits for its turn.

        Args:
            time_left: see `serving_error.TimeLeft`.
            is_batch: bool, whether these are the short rows of several requests, whose runs never wait for long ones.

        Raises:
            ServingError: the graph refuses the values, such as a token id outside the vocabulary, or it failed, or the
                deadline passed before a run.
        """
        run_in_turn = functools.partial(self._run_in_turn, signature_name, time_left=time_left, is_batch=is_batch)
        counts = {len(array) if array.ndim else 0 for array in arrays.values()}
        if signature_name not in self._paddings or len(counts) != 1 or max(counts) <= 1:
            return run_in_turn(arrays, count_bytes(arrays) + _BYTES_PER_ROW)
        sizes = np.cumsum(sum(_bytes_of_rows(array) for array in arrays.values()) + _BYTES_PER_ROW)
        is_known = self._rates.get(signature_name, math.inf) < math.inf
        slices, start, done, most_bytes, most_rows = [], 0, 0, _FIRST_BYTES, _FIRST_ROWS if is_known else 1
        while start < len(sizes):
            most_bytes = min(most_bytes, self._rates.get(signature_name, math.inf) * _SLICE_SECONDS)
            limit = int(np.searchsorted(sizes, done + most_bytes, side="right"))
            limit = min(max(limit, start + 1), start + most_rows)
            rows, size = {name: array[start:limit] for name, array in arrays.items()}, int(sizes[limit - 1]) - done
            slices.append(run_in_turn(rows, size))
            start, done, most_bytes, most_rows = limit, done + size, _GROWTH * size, _MOST_ROWS
        return _joined(slices, self._paddings[signature_name])

    def _run_in_turn(
        self, signature_name: str, arrays: Arrays, num_bytes: int, *, time_left: TimeLeft, is_batch: bool
    ) -> Arrays:
        asked = time.monotonic()
        with self._turns.turn(0 if is_batch else num_bytes, time_left):
            start = time.monotonic()
            monitoring.spend(monitoring.QUEUE, start - asked)
            run = self._run if self._encode else functools.partial(self._turns.run, self._run)
            outputs = run(signature_name, arrays)
            is_first = signature_name not in self._rates
            self._rates[signature_name] = math.inf if is_first else num_bytes / max(time.monotonic() - start, 1e-6)
        return outputs

    def own_columns(self, signature_name: str, outputs: Arrays) -> Arrays:
        """Cuts the outputs of some rows of a batch to the length that they have without the other rows."""
        padding = self._paddings.get(signature_name)
        if not padding:
            return outputs
        longest = int(outputs[padding["count"]].max(initial=1))
        return {name: array[:, :longest] if name in padding["values"] else array for name, array in outputs.items()}

    def _run(self, signature_name: str, arrays: Arrays) -> Arrays:
        signature = self.signatures[signature_name]
        try:
            values = self._short_texts and self._short_texts(signature_name, arrays)
            if not values or signature_name not in self._rates:  # The first run optimizes the graph for other texts.
                values = self._callable(signature_name)(*(arrays[name] for name in signature.inputs))
        except (tf.errors.OpError, RuntimeError) as error:
            raise _refusal(error, signature, arrays) from error
        # A scalar comes as a Python or NumPy value.
        return {
            name: value if isinstance(value, np.ndarray) else np.asarray(value, spec.dtype.as_numpy_dtype)
            for (name, spec), value in zip(signature.outputs.items(), values, strict=True)
        }

    def _callable(self, signature_name: str) -> Callable:
        """Returns the function that runs a signature; making it, at the first call, optimizes the graph."""
        with self._lock:
            if signature_name not in self._callables:
                definition, signature = self.signature_defs[signature_name], self.signatures[signature_name]
                options = config_pb2.CallableOptions(
                    feed=[definition.inputs[name].name for name in signature.inputs],
                    fetch=[definition.outputs[name].name for name in signature.outputs],
                )
                if self._in_caller:
                    options.run_options.inter_op_thread_pool = -1
                self._callables[signature_name] = self._session._make_callable_from_options(options)
            return self._callables[signature_name]

    def close(self) -> None:
        """Frees the resources of the session."""
        self._callables = {}
        self._session.close()


def _session_config(settings: ServerSettings) -> config_pb2.ConfigProto:
    """Returns the numbers of threads of a session; 0 lets each runtime choose, by the machine's cores."""
    both, cores = settings.tensorflow_session_parallelism, available_cores()
    cores = cores if cores < (os.cpu_count() or 1) else 0
    return config_pb2.ConfigProto(
        intra_op_parallelism_threads=settings.tensorflow_intra_op_parallelism or both or cores,
        inter_op_parallelism_threads=settings.tensorflow_inter_op_parallelism or both,
    )


def _bytes_of_rows(array: np.ndarray) -> np.ndarray:
    """Returns the bytes of each row's values: int64, shape (B,); a scalar counts as a row."""
    array = np.atleast_1d(array)
    rows = array.reshape(len(array), math.prod(array.shape[1:]))
    if array.dtype != object:
        return np.full(len(rows), rows.shape[1] * array.itemsize)
    return np.array([sum(map(len, row)) for row in rows], np.int64)


def begin_quietly(settings: ServerSettings) -> None:
    """Runs a first session with standard error closed, so that the command prints only its own lines.

    Once per process, at every log level, TensorFlow writes there that its session runs without MLIR.

    Args:
        settings: the server's settings. All sessions share threads, whose number the first session sets.
    """
    try:
        kept = os.dup(2)
    except OSError:  # Standard error is closed already.
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with tf.Graph().as_default(), tf.compat.v1.Session(config=_session_config(settings)) as session:
            session.run(tf.constant(0))
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _is_runnable(name: str, signature: meta_graph_pb2.SignatureDef) -> bool:
    """Returns whether requests may name a signature: it is not one of the loader's own, and has only dense tensors."""
    tensors = [*signature.inputs.values(), *signature.outputs.values()]
    return not name.startswith("__saved_model_") and all(info.WhichOneof("encoding") == "name" for info in tensors)


def _signature(signature: meta_graph_pb2.SignatureDef) -> Signature:
    inputs, outputs = (
        {name: tf.TensorSpec(tf.TensorShape(info.tensor_shape), tf.as_dtype(info.dtype), name) for name, info in infos}
        for infos in (sorted(signature.inputs.items()), sorted(signature.outputs.items()))
    )
    defaults = {name: tf.make_ndarray(tensor) for name, tensor in signature.defaults.items()}
    return Signature(inputs, outputs, defaults)


def _paddings(description: dict | None, signatures: Mapping[str, Signature]) -> dict[str, dict]:
    """Returns `padding` of each described signature (`Head.description`) whose outputs the graph has."""
    described = (description or {}).get("signatures")
    paddings = {}
    for name, signature in signatures.items() if isinstance(described, dict) else ():
        padding = described[name].get("padding") if isinstance(described.get(name), dict) else None
        if padding == {} or (
            isinstance(padding, dict) and {padding.get("count"), *padding.get("values", ())} <= set(signature.outputs)
        ):
            paddings[name] = padding
    return paddings


def _joined(slices: list[Arrays], padding: dict) -> Arrays:
    """Joins the outputs of slices along the rows; shorter columns get their padding."""
    joined = {}
    for name in slices[0]:
        arrays = [outputs[name] for outputs in slices]
        if name in padding.get("values", ()):
            longest, value = max(array.shape[1] for array in arrays), padding["values"][name]
            value = value.encode() if isinstance(value, str) else value
            widths = [((0, 0), (0, longest - array.shape[1])) + ((0, 0),) * (array.ndim - 2) for array in arrays]
            arrays = [np.pad(array, width, constant_values=value) for array, width in zip(arrays, widths, strict=True)]
        joined[name] = np.concatenate(arrays)
    return joined


def _refusal(error: Exception, signature: Signature, arrays: Arrays) -> ServingError:
    """Returns the graph's error, or an error about shapes that differ from the declared ones, the client's fault."""
    wrong = signature.wrong_shapes(arrays)
    counts = {name: len(array) for name, array in arrays.items() if array.ndim}
    if signature.is_batchable and len(set(counts.values())) > 1:
        wrong.append(f"Expected as many rows in each input. Received: {counts}")
    if wrong:  # The message of the op that fails first says nothing about them.
        return invalid(" ".join(wrong))
    return ServingError(CODE_NAMES.get(getattr(error, "error_code", None), "UNKNOWN"), _reason(str(error)))


def _reason(message: str) -> str:
    """Finds the cause in a message that also names graph nodes and the exporter's stack."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    before_nodes = [line for line, following in zip(lines, lines[1:], strict=False) if following.startswith("[[{{node")]
    return (before_nodes + lines + ["The graph failed."])[0]


class Servable:
    """A version that answers requests, several at a time.

    Args:
        model: the loaded version.
        metrics: counts run times.
        batcher: runs requests in batches; None: each runs by itself.
        max_rows: largest number of rows of a request.
    """

    def __init__(self, model: ServedModel, metrics: Metrics, batcher: Batcher | None, max_rows: int):
        self.model = model
        self.name = model.name
        self.version = model.version
        self.loaded_at = time.time()
        self.metrics = metrics
        self._batcher = batcher
        self._max_rows = max_rows

    def close(self) -> None:
        """Frees the model and its metrics."""
        self.model.close()
        self.metrics.forget(self.model.directory)

    def check_rows(self, rows: int) -> None:
        """Raises ServingError (INVALID_ARGUMENT) if a request has too many rows."""
        if rows > self._max_rows:
            raise invalid(f"The request has {rows} rows; the limit is {self._max_rows} (--max_request_rows).")

    def signature(self, name: str, api: str = "Predict") -> Signature:
        """Returns a signature of the model.

        Raises:
            ServingError: (FAILED_PRECONDITION for the `api` Predict, INVALID_ARGUMENT for others) the model has no such
                signature.
        """
        if name not in self.model.signatures:
            raise ServingError(
                "FAILED_PRECONDITION" if api == "Predict" else "INVALID_ARGUMENT",
                f'Serving signature name: "{name[:200]}" not found in signature def. '
                f"Expected one of {sorted(self.model.signatures)}.",
            )
        return self.model.signatures[name]

    def run(self, signature_name: str, arrays: Arrays, time_left: TimeLeft, api: str) -> Arrays:
        """Runs a signature on arrays that fit it, in a batch if possible.

        Args:
            time_left: see `serving_error.TimeLeft`.
            api: `Predict`, `Classify` or `Regress`, for the metrics.

        Raises:
            ServingError: the graph refuses the values or fails, the deadline passed, or too many requests wait.
        """
        start = time.perf_counter()
        with monitoring.collected() as waits:
            if self._batcher and self.signature(signature_name).is_batchable:
                outputs = self._batcher.run(signature_name, arrays, time_left)
            else:
                outputs = self.model.run(signature_name, arrays, time_left)
        seconds, queued = time.perf_counter() - start, waits.get(monitoring.QUEUE, 0.0)
        monitoring.spend(monitoring.QUEUE, queued)
        phase = monitoring.TOKENIZATION if signature_name == COUNT_TOKENS else monitoring.INFERENCE
        monitoring.spend(phase, seconds - queued)
        self.metrics.runtime_latency.labels(self.name, api, "TF1").observe(1e6 * seconds)
        return outputs
