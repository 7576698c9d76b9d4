"""Answers from a SavedModel through a C++ program on TensorFlow's own loader: no Python in that process.

The program, `export/cc/ask_saved_model.cc`, is compiled with g++ against the headers and libraries of the installed
TensorFlow, once for each of its versions (seconds), and kept in the user's cache directory. It runs with an empty
environment, as `env -i` would start it.
"""

import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

import tensorflow as tf
import tensorflow_text

from keras_bert.errors import InputError
from keras_bert.files import atomic_path

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cc", "ask_saved_model.cc")
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")
_OP_LIBRARIES = ("_fast_bert_normalizer.so", "_fast_wordpiece_tokenizer.so")
_TIMEOUT_S = 600

# A request: (signature, input name -> serialized TensorProto).
Request = tuple[str, Mapping[str, bytes]]


class CcCheckError(RuntimeError):
    """The program could not be compiled, or it failed; the message quotes the last lines of what it said."""


# === The program ===


def find_compiler() -> str | None:
    """Path of g++, where it is present and there is a TensorFlow to link with: on Linux; else None."""
    has_libraries = all(os.path.exists(os.path.join(tf.sysconfig.get_lib(), name)) for name in _LIBRARIES)
    return shutil.which("g++") if sys.platform == "linux" and has_libraries else None


def build_program(compiler: str) -> str:
    """Compiles the program unless the cache has it.

    Args:
        compiler: path of g++.

    Returns:
        Path of the program. Its name holds a hash of its source, the compiler's version, flags and libraries.

    Raises:
        CcCheckError: it does not compile, or the cache cannot be written.
    """
    command = _compile_command(compiler)
    version = _output_of([compiler, "--version"])
    with open(SOURCE, "rb") as file:
        parts = [file.read(), version.encode(), tf.__version__.encode(), *(part.encode() for part in command)]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    program = os.path.join(cache_directory(), f"ask_saved_model-{digest}")
    if not os.path.exists(program):
        try:
            with atomic_path(program) as temporary:
                _output_of([*command, "-o", temporary])
        except InputError as error:
            raise CcCheckError(f"{error} XDG_CACHE_HOME names it.") from error
    return program


def cache_directory() -> str:
    """Where compiled programs are kept: `$XDG_CACHE_HOME/keras-bert-zoo`, by default below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "keras-bert-zoo")


def _compile_command(compiler: str) -> list[str]:
    folder = tf.sysconfig.get_lib()
    libraries = [os.path.join(folder, name) for name in _LIBRARIES]
    # -O1: the program only moves bytes. -w: the warnings are of TensorFlow's headers. --no-as-needed: the session and
    # the ops register themselves as libtensorflow_cc is loaded; the program calls nothing of it by name.
    flags = ["-O1", "-w", *tf.sysconfig.get_compile_flags()]
    return [compiler, *flags, SOURCE, "-Wl,--no-as-needed", *libraries, f"-Wl,-rpath,{folder}"]


def op_libraries() -> list[str]:
    """The shared objects of tensorflow-text that hold the tokenizer's ops."""
    folder = os.path.join(os.path.dirname(tensorflow_text.__file__), "python", "ops")
    return [os.path.join(folder, name) for name in _OP_LIBRARIES]


# === Asking ===


def ask(program: str, directory: str, requests: Sequence[Request]) -> list[dict[str, bytes]]:
    """Runs the program on requests.

    Args:
        program: of `build_program`.
        directory: holds `saved_model.pb`.
        requests: signature and inputs of each.

    Returns:
        The answer to each request: output name -> serialized TensorProto.

    Raises:
        CcCheckError: the program failed.
    """
    with tempfile.TemporaryDirectory(prefix="keras-bert-zoo-") as folder:
        request_file, answer_file = os.path.join(folder, "requests"), os.path.join(folder, "answers")
        with open(request_file, "wb") as file:
            file.write(encode_requests(requests))
        _output_of([program, os.path.abspath(directory), request_file, answer_file, *op_libraries()], environment={})
        with open(answer_file, "rb") as file:
            return decode_answers(file.read())


def encode_requests(requests: Sequence[Request]) -> bytes:
    """The file of requests, as the program's source describes it."""
    pieces = [struct.pack("<I", len(requests))]
    for signature, inputs in requests:
        pieces += [_text(signature.encode()), struct.pack("<I", len(inputs))]
        for name, tensor in inputs.items():
            pieces += [_text(name.encode()), _text(tensor)]
    return b"".join(pieces)


def _text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def decode_answers(content: bytes) -> list[dict[str, bytes]]:
    """Reads the file of answers."""
    position = 0

    def number(code: str) -> int:
        nonlocal position
        (value,) = struct.unpack_from(code, content, position)
        position += struct.calcsize(code)
        return value

    def text() -> bytes:
        nonlocal position
        size = number("<Q")
        position += size
        return content[position - size : position]

    return [{text().decode(): text() for _ in range(number("<I"))} for _ in range(number("<I"))]


def _output_of(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    name = os.path.basename(command[0])
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise CcCheckError(f"{name} did not end within {_TIMEOUT_S} seconds") from None
    except OSError as error:
        raise CcCheckError(f"{command[0]}: cannot be run ({error.strerror})") from error
    if process.returncode != 0:
        lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
        told = [line for line in lines if line.startswith("ask_saved_model: ") or ": error: " in line]
        raise CcCheckError(f"{name} ended with status {process.returncode}: " + " | ".join(told[:3] or lines[-3:]))
    return process.stdout


def require_compiler() -> str:
    """As `find_compiler`, for whoever insists.

    Raises:
        InputError: there is none.
    """
    compiler = find_compiler()
    if compiler is None:
        raise InputError("The C++ check needs Linux and g++ on the PATH. Install it, or give --with_cc=auto.")
    return compiler
