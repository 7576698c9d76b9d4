"""Runs the signatures of an exported directory in another process.

The command line is `PROGRAM ... DIRECTORY REQUESTS ANSWERS [MORE ...]`. Both files are a serialized `GraphDef`, which
TensorFlow reads and writes in Python and in C++. It has a node for each request: `op` is the signature, `attr` holds
the tensors by name. Answers are in the order of the requests.
"""

import os
import pathlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from keras_bert.files import absolute, file_states

# Seconds until a program is given up. A program that runs an export gets another for each MB that it has to read.
_TIMEOUT_S = 600


class ProcessError(RuntimeError):
    """A program could not be run or failed; the message quotes the end of its output."""


def ask(
    program: Sequence[str],
    directory: str,
    requests: Sequence,
    more: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, np.ndarray]]:
    """Runs a program on requests.

    Args:
        program: the beginning of the command line.
        directory: contains `saved_model.pb`.
        requests: the requests, in order: each has a `signature` and `inputs` by name, as `verify.Probe` does.
        more: the end of the command line.
        environment: the program's whole environment; None: an empty one.

    Returns:
        The answer to each request: output name -> array.

    Raises:
        ProcessError: the program failed.
    """
    with tempfile.TemporaryDirectory(prefix="keras-bert-zoo-") as folder:
        files = [os.path.join(folder, name) for name in ("requests", "answers")]
        write_requests(files[0], requests)
        size = sum(size for size, _ in file_states(directory).values())
        run([*program, absolute(directory), *files, *more], environment or {}, _TIMEOUT_S + size // 10**6)
        return read_answers(files[1])


def write_requests(path: str, requests: Sequence) -> None:
    """Writes requests to a file for a program."""
    graph = graph_pb2.GraphDef()
    for request in requests:
        node = graph.node.add(op=request.signature)
        for name, array in request.inputs.items():
            node.attr[name].tensor.CopyFrom(tf.make_tensor_proto(array))
    pathlib.Path(path).write_bytes(graph.SerializeToString())


def read_answers(path: str) -> list[dict[str, np.ndarray]]:
    """Reads a program's answer to each request: output name -> array."""
    answers = graph_pb2.GraphDef.FromString(pathlib.Path(path).read_bytes())
    return [{name: tf.make_ndarray(value.tensor) for name, value in node.attr.items()} for node in answers.node]


def run(command: Sequence[str], environment: Mapping[str, str] | None = None, seconds: int = _TIMEOUT_S) -> str:
    """Runs a command for so many seconds at most, and returns its standard output.

    If `environment` is None, the command has this process's.

    Raises:
        ProcessError: the command cannot be run, failed, or did not end in time.
    """
    name = os.path.basename(command[0])
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            cwd=os.path.sep,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProcessError(f"{name} did not end within {seconds} seconds; end other programs of this machine") from None
    except OSError as error:
        raise ProcessError(f"{command[0]}: cannot be run ({error.strerror})") from error
    if process.returncode != 0:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("ask_saved_model: ") or ": error: " in line]
        raise ProcessError(f"{name} ended with status {process.returncode}: " + " | ".join(told[:3] or lines[-3:]))
    return process.stdout
