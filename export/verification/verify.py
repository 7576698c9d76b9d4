"""Verifies that an exported directory answers as the model did, without this project.

A version is published only after it has passed `verify`: the graph contains nothing that TensorFlow Serving is known to
refuse, the weights are stored once, and a fresh process gives the Keras model's answers. On request, so does a C++
program with the loader that `tensorflow_model_server` uses (`cc_check`). The server itself is not run; the checks cover
what its loader demands.
"""

import concurrent.futures
import math
import os
import pathlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_text
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from export.verification import cc_check, child, runner
from keras_bert.files import file_states, open_file

# Allowed difference between two float32 answers, times `rounding_scale`.
TOLERANCE = 1e-5
# When to run the C++ program as well; "auto" means if it can be compiled.
WITH_CC = ("auto", "on", "off")
# Vocabulary and normalizer are integers and strings. Epsilons, masks and other small floats take some hundred bytes.
_MAX_CONSTANT_BYTES = 100_000

# The tensorflow-text ops that a graph may use. tf.text 2.12.1, which TensorFlow Serving 2.18 and 2.19 link, has them,
# but not `TFText>RoundRobinTrim`, on which the trimmers and packers of tensorflow-text are built. Neither op depends on
# the server's ICU for what a character is: the map of code points is in the graph.
TEXT_OPS = frozenset({"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"})
# These call back into the Python process that wrote the graph.
_PYTHON_OPS = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
# The variables of this process's environment that the fresh process needs.
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "SYSTEMROOT", "TF_ENABLE_ONEDNN_OPTS")


class VerificationError(RuntimeError):
    """An exported directory failed the verification; the message lists every finding."""


class Probe(NamedTuple):
    """A request with its right answer.

    Attributes:
        signature: name of the signature.
        inputs: input name -> array of the batch.
        outputs: output name -> the right array.
        undecided: bool, shape (B,): rows whose strings and integers depend on rounding and are not compared, and
            whose float32 numbers may have another order; None for none.
        scale: least magnitude by which the differences of an array are measured, see `rounding_scale`; larger if the
            outputs are differences of large numbers, whose rounding errors they have.
        tolerance: allowed difference, times the scale.
    """

    signature: str
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    undecided: np.ndarray | None = None
    scale: float = 1.0
    tolerance: float = TOLERANCE


class Report(NamedTuple):
    """The findings of `verify`.

    Attributes:
        signatures: names of the signatures.
        num_probes: requests answered in the fresh process.
        largest_difference: between an answer of that process and the right one.
        num_op_kinds: number of different ops in the graph.
        weight_bytes: size of the weights as stored.
        directory_bytes: size of all files.
        cc_difference: between an answer of the C++ program and the right one; None: it was not run.
        cc_not_run: the reason why it was not run.
        tolerance: the allowed difference.
    """

    signatures: list[str]
    num_probes: int
    largest_difference: float
    num_op_kinds: int
    weight_bytes: int
    directory_bytes: int
    cc_difference: float | None = None
    cc_not_run: str = "not asked for"
    tolerance: float = TOLERANCE

    def lines(self) -> list[str]:
        """Returns the report as text."""
        cc = f"not run ({self.cc_not_run})"
        if self.cc_difference is not None:
            cc = f"the same requests, largest difference {self.cc_difference:.1e}"
        return [
            f"signatures: {', '.join(self.signatures)}",
            f"answers in a fresh process: {self.num_probes} requests, largest difference from the Keras model's "
            f"{self.largest_difference:.1e} (allowed {self.tolerance:.0e})",
            f"answers of a C++ program (LoadSavedModel, no Python, empty environment): {cc}",
            f"graph: {self.num_op_kinds} kinds of ops, all from the exporting release of TensorFlow or from "
            "tensorflow-text, as TensorFlow Serving 2.18 and later link them; none needs XLA",
            f"size: {self.directory_bytes / 1e6:.1f} MB; weights, stored once: {self.weight_bytes / 1e6:.1f} MB",
        ]


def verify(directory: str, probes: Sequence[Probe], weight_bytes: int, with_cc: str = "off") -> Report:
    """Checks an exported directory.

    Args:
        directory: contains `saved_model.pb`.
        probes: requests with the Keras model's answers.
        weight_bytes: size of the model's weights, each counted once.
        with_cc: one of `WITH_CC`.

    Raises:
        VerificationError: there are findings; the message lists them.
        InputError: `with_cc` is "on", and there is no compiler.
    """
    meta_graph = read_meta_graph(directory)
    findings = [
        *graph_findings(meta_graph),
        *_size_findings(directory, meta_graph, weight_bytes),
    ]
    if findings:  # There is no need to run a graph that cannot be served.
        raise VerificationError(_message(directory, findings))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # Both processes take seconds to load TensorFlow.
        cc_result = pool.submit(_verify_with_cc, directory, probes, with_cc)
        difference = _compare(directory, "", probes, fresh_answers(directory, probes))
        cc_fields = cc_result.result()
    return Report(
        signatures=sorted({probe.signature for probe in probes}),
        num_probes=len(probes),
        largest_difference=difference,
        num_op_kinds=len({node.op for node in _all_nodes(meta_graph)}),
        weight_bytes=weight_bytes,
        directory_bytes=directory_bytes(directory),
        tolerance=max((probe.tolerance for probe in probes), default=TOLERANCE),
        **cc_fields,
    )


def _verify_with_cc(directory: str, probes: Sequence[Probe], with_cc: str) -> dict:
    """Returns the report's `cc_difference` or `cc_not_run`, unless they are the defaults."""
    if with_cc not in WITH_CC:
        raise ValueError(f"`with_cc` must be one of {', '.join(WITH_CC)}. Received: with_cc={with_cc!r}")
    if with_cc == "off":
        return {}
    compiler = cc_check.require_compiler() if with_cc == "on" else cc_check.find_compiler()
    if compiler is None:
        return {"cc_not_run": "no g++ with which to compile it"}
    program = None
    try:
        program = cc_check.build_program(compiler)
        answers = cc_answers(program, directory, probes)
    except runner.ProcessError as error:
        if program is None and with_cc == "auto":
            return {"cc_not_run": f"it cannot be compiled: {error}"}
        raise VerificationError(_message(directory, [str(error)])) from error
    return {"cc_difference": _compare(directory, "C++ program, ", probes, answers), "cc_not_run": ""}


def _message(directory: str, findings: list[str]) -> str:
    return f"{directory}: verification failed, nothing was published: " + "; ".join(findings)


# === The graph ===


def read_meta_graph(directory: str) -> meta_graph_pb2.MetaGraphDef:
    """Reads a version's graph, functions and signatures."""
    with open_file(os.path.join(directory, "saved_model.pb")) as file:
        return saved_model_pb2.SavedModel.FromString(file.read()).meta_graphs[0]


def _all_nodes(meta_graph: meta_graph_pb2.MetaGraphDef) -> Iterable:
    yield from meta_graph.graph_def.node
    for function in meta_graph.graph_def.library.function:
        yield from function.node_def


def graph_findings(meta_graph: meta_graph_pb2.MetaGraphDef) -> list[str]:
    """Lists what TensorFlow Serving cannot run in a graph; one such op blocks every signature of the model.

    The ops of the installed TensorFlow and `TEXT_OPS` are allowed, which is right for a server of the same release or a
    later one. An older server may lack an op of TensorFlow that passes here.
    """
    functions = meta_graph.graph_def.library.function
    known = {function.signature.name for function in functions} | TEXT_OPS
    findings = []
    for op in sorted({node.op for node in _all_nodes(meta_graph)}):
        if op in _PYTHON_OPS:
            findings.append(f"the op {op} calls back into Python")
        elif op not in known and not hasattr(tf.raw_ops, op):
            findings.append(f"the op {op} is neither TensorFlow's nor one of {', '.join(sorted(TEXT_OPS))}")
    jitted = [function.signature.name for function in functions if function.attr["_XlaMustCompile"].b]
    jitted += [node.name for node in _all_nodes(meta_graph) if node.attr["_XlaMustCompile"].b]
    if jitted:
        findings.append(f"{jitted[0]} must be compiled by XLA (jit_compile=True), which the server has off by default")
    return findings


# === Sizes ===


def _size_findings(directory: str, meta_graph: meta_graph_pb2.MetaGraphDef, weight_bytes: int) -> Iterator[str]:
    stored = stored_weight_bytes(directory)
    if stored != weight_bytes:
        yield f"{stored} bytes of weights are stored, {weight_bytes} expected (each weight once)"
    constants = [
        node.attr["value"].tensor.ByteSize()
        for node in _all_nodes(meta_graph)
        if node.op == "Const" and tf.as_dtype(node.attr["dtype"].type).is_floating
    ]
    if sum(constants) > _MAX_CONSTANT_BYTES:
        yield f"the graph holds {sum(constants)} bytes of floating-point constants: weights once more"


def stored_weight_bytes(directory: str) -> int:
    """Returns the size of all numbers in a SavedModel's checkpoint, in bytes."""
    reader = tf.train.load_checkpoint(os.path.join(directory, "variables", "variables"))
    types = reader.get_variable_to_dtype_map()
    shapes = reader.get_variable_to_shape_map()
    return sum(
        math.prod(shape) * types[name].size
        for name, shape in shapes.items()
        if types[name] != tf.string and name.split("/")[0] != "save_counter"
    )


def directory_bytes(directory: str) -> int:
    """Returns the size of all files of a version, in bytes."""
    return sum(size for size, _ in file_states(directory).values())


# === Answers elsewhere ===


def cc_answers(program: str, directory: str, probes: Sequence[Probe]) -> list[dict[str, np.ndarray]]:
    """Runs the probes on an exported directory with the C++ program of `cc_check`.

    Raises:
        ProcessError: the program failed.
    """
    return runner.ask([program], directory, probes, cc_check.op_libraries())


def fresh_answers(directory: str, probes: Sequence[Probe]) -> list[dict[str, np.ndarray]]:
    """Runs the probes on an exported directory in a process that cannot import the project, on the CPU.

    Raises:
        VerificationError: the process ended with an error; the message quotes its last lines.
    """
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    environment |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = [sys.executable, "-I", child.__file__]
    try:
        return runner.ask(program, directory, probes, library_folders(), environment)
    except runner.ProcessError as error:
        raise VerificationError(_message(directory, [f"the fresh process failed: {error}"])) from error


def library_folders() -> list[str]:
    """Returns this process's import path without the project's folder, for a process that ignores PYTHONPATH.

    The project's folder is included only if TensorFlow is installed in it.
    """
    project = str(pathlib.Path(__file__).absolute().parents[2])
    needed = {os.path.dirname(os.path.dirname(module.__file__)) for module in (tf, tensorflow_text)}
    return [folder for folder in sys.path if folder in needed or (os.path.isabs(folder) and folder != project)]


# === Comparing ===


def rounding_scale(numbers: np.ndarray, least: float = 1.0) -> float:
    """Returns the scale of an array's rounding errors: its largest magnitude, but at least `least`.

    A logit near zero is a sum of terms as large as those of the largest logits, and has rounding errors as large.
    """
    return float(np.max(np.abs(numbers), initial=least))


def _compare(directory: str, who: str, probes: Sequence[Probe], answers: Sequence[Mapping]) -> float:
    """Returns the largest difference of all numbers, relative to their `rounding_scale`.

    Raises:
        VerificationError: an answer is wrong; the message says that `who` gave it.
    """
    largest, findings = 0.0, []
    for number, (probe, answer) in enumerate(zip(probes, answers, strict=True)):
        where = f"{who}probe {number} ({probe.signature})"
        if set(answer) != set(probe.outputs):
            findings.append(f"{where} gives {sorted(answer)}, expected {sorted(probe.outputs)}")
            continue
        for name, expected in probe.outputs.items():
            difference, why = _difference(probe, np.asarray(expected), answer[name])
            if why:
                findings.append(f"{where}, {name}: {why}")
            largest = max(largest, difference)
    if findings:
        raise VerificationError(_message(directory, findings))
    return largest


def _difference(probe: Probe, expected: np.ndarray, answer: np.ndarray) -> tuple[float, str]:
    """Returns an array's distance from the right one, and a description of what is wrong with it, or ""."""
    is_text, undecided = expected.dtype.kind in "OSU", probe.undecided
    if not is_text and expected.dtype != answer.dtype:
        return 0.0, f"is {answer.dtype}, expected {expected.dtype}"
    if expected.shape != answer.shape:
        return 0.0, f"has the shape {answer.shape}, expected {expected.shape}"
    if expected.dtype.kind == "f":
        # In bfloat16 all rows are undecided, but numbers are compared place by place.
        if undecided is not None and expected.ndim > 1 and probe.tolerance == TOLERANCE:
            expected, answer = (_in_order(numbers, undecided) for numbers in (expected, answer))
        # A masked logit is a large constant, equal in both, and says nothing about the scale of the others.
        scale = rounding_scale(expected[expected != answer], probe.scale)
        difference = float(np.max(np.abs(expected - answer), initial=0.0)) / (scale or 1.0)
        # Written so that NaN is a finding.
        is_right = difference <= probe.tolerance
        return difference, "" if is_right else f"differs by {difference:.2e}, allowed {probe.tolerance:.0e}"
    if undecided is not None:
        expected, answer = expected[~undecided], answer[~undecided]
    wrong = expected != answer
    if not wrong.any():
        return 0.0, ""
    num_rows = wrong.reshape(len(wrong), -1).any(axis=1).sum()
    right, received = (array[wrong][0] for array in (expected, answer))
    first = f"the first where {received!r:.80} stands for {right!r:.80}"
    return 0.0, f"{num_rows} of {len(wrong)} rows differ, {first}"


def _in_order(numbers: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns numbers, sorted within the rows that `rows` marks."""
    return np.where(rows.reshape(-1, *[1] * (numbers.ndim - 1)), np.sort(numbers, axis=-1), numbers)
