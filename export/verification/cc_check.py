"""Builds the C++ program that runs a SavedModel through TensorFlow's own loader, without Python.

The program, `cc/ask_saved_model.cc`, is compiled with g++ against the headers and libraries of the installed
TensorFlow. That takes seconds, once for each version of TensorFlow; the program is kept in the user's cache directory.
It runs with an empty environment, as after `env -i`.
"""

import hashlib
import os
import shutil
import sys

import tensorflow as tf
import tensorflow_text

from export.verification import runner
from keras_bert.errors import InputError
from keras_bert.files import atomic_path

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cc", "ask_saved_model.cc")
_LIBRARIES = ("libtensorflow_cc.so.2", "libtensorflow_framework.so.2")


def find_compiler() -> str | None:
    """Returns the path of g++, or None if it is missing or TensorFlow has no libraries to link with (only on Linux)."""
    has_libraries = all(os.path.exists(os.path.join(tf.sysconfig.get_lib(), name)) for name in _LIBRARIES)
    return shutil.which("g++") if sys.platform == "linux" and has_libraries else None


def require_compiler() -> str:
    """Returns the path of g++.

    Raises:
        InputError: `find_compiler` finds none.
    """
    compiler = find_compiler()
    if compiler is None:
        raise InputError("The C++ check needs Linux and g++ on the PATH. Install it, or give --with_cc=auto.")
    return compiler


def build_program(compiler: str) -> str:
    """Compiles the program, unless it is in the cache.

    Args:
        compiler: path of g++.

    Returns:
        Path of the program. Its name contains a hash of the source, the compiler's version, its flags and libraries.

    Raises:
        ProcessError: the program does not compile, or the cache cannot be written.
    """
    folder = tf.sysconfig.get_lib()
    libraries = [os.path.join(folder, name) for name in _LIBRARIES]
    # -O1: the program only moves bytes. -w: the warnings are those of TensorFlow's headers. --no-as-needed: the session
    # and the ops register themselves when libtensorflow_cc is loaded, though the program calls nothing of it by name.
    flags = ["-O1", "-w", *tf.sysconfig.get_compile_flags()]
    command = [compiler, *flags, SOURCE, "-Wl,--no-as-needed", *libraries, f"-Wl,-rpath,{folder}"]
    version = runner.run([compiler, "--version"])
    with open(SOURCE, "rb") as file:
        source = file.read()
    # Not where the source lies: a copy of it is the same program.
    given = [version, tf.__version__, *(part for part in command if part != SOURCE)]
    inputs = [source, *(part.encode() for part in given)]
    digest = hashlib.sha256(b"\0".join(inputs)).hexdigest()[:16]
    program = os.path.join(cache_directory(), f"ask_saved_model-{digest}")
    if not os.path.exists(program):
        try:
            with atomic_path(program) as temporary:
                runner.run([*command, "-o", temporary])
        except InputError as error:
            raise runner.ProcessError(f"{error} XDG_CACHE_HOME names it.") from error
    return program


def cache_directory() -> str:
    """Returns the directory of compiled programs: `$XDG_CACHE_HOME/keras-bert-zoo`, by default below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(os.path.abspath(base), "keras-bert-zoo")


def op_libraries() -> list[str]:
    """Returns the shared objects of tensorflow-text that hold the tokenizer's ops."""
    folder = os.path.join(os.path.dirname(tensorflow_text.__file__), "python", "ops")
    return [os.path.join(folder, name) for name in ("_fast_bert_normalizer.so", "_fast_wordpiece_tokenizer.so")]
