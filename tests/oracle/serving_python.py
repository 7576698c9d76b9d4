"""TensorFlow Serving's tests of its command: bert-serve takes the place of tensorflow_model_server."""

import importlib.util
import os
import shlex
import subprocess
import sys
import tempfile

from oracle import Case, junit_cases
from repository import ROOT

NAME = "tensorflow_model_server_test.py"
FOLDER = "serving"
_TFLITE = "bert-serve serves SavedModels alone, and says so instead of leaving --prefer_tflite_model out."
EXPLAINED = {
    "TensorflowModelServerTest.testPredictOnTfLite": _TFLITE,
    "TensorflowModelServerTest.testPredictWithSignatureDefOnTfLite": _TFLITE,
    "TensorflowModelServerTest.test_profiler_service_with_valid_trace_request": (
        "TensorFlow's profiler offers its service on a port of its own only, not on that of another gRPC server."
    ),
}

# The suite takes `os` from a module of TensorFlow that no longer imports it.
_LAUNCHER = """
import os, runpy, sys
from tensorflow.python.platform import flags
flags.os = os
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(folder: str) -> list[Case]:
    """Runs the suite's file as its own main program."""
    suite = os.path.join(folder, "tensorflow_serving")
    with tempfile.TemporaryDirectory() as scratch:
        _lay_out(suite, os.path.join(scratch, "sources", "tf_serving", "tensorflow_serving"))
        # The installed package has the compiled protocol buffers, the suite its helpers.
        packages = [importlib.util.find_spec("tensorflow_serving").submodule_search_locations[0], suite]
        package = os.path.join(scratch, "packages", "tensorflow_serving")
        os.makedirs(package)
        with open(os.path.join(package, "__init__.py"), "w", encoding="utf-8") as file:
            file.write(f"__path__ = {packages!r}\n")
        environment = os.environ | {
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.path.dirname(package),
            "TF_USE_LEGACY_KERAS": "1",  # It expects Keras 2's names of a model's inputs.
            "TEST_SRCDIR": os.path.join(scratch, "sources"),
        }
        report = os.path.join(scratch, "report.xml")
        path = os.path.join(suite, "model_servers", "tensorflow_model_server_test.py")
        command = [
            sys.executable,
            "-c",
            _LAUNCHER,
            path,
            f"--xml_output_file={report}",
            f"--test_tmpdir={scratch}/results",
        ]
        with open(os.path.join(scratch, "log"), "w+", encoding="utf-8", errors="replace") as log:
            subprocess.run(command, cwd=scratch, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=3600)
            log.seek(0)
            if not os.path.exists(report):
                raise RuntimeError(f"The suite ended early: {log.read()[-2000:]}")
        return [case for case in junit_cases(report) if not case.name.endswith(".test_session")]


def _lay_out(suite: str, place: str) -> None:
    """Links what the suite looks for, as Bazel would, and puts the command there that it starts."""
    servers = os.path.join(place, "model_servers")
    os.makedirs(servers)
    for name in os.listdir(suite):
        if name != "model_servers":
            os.symlink(os.path.join(suite, name), os.path.join(place, name))
    command = os.path.join(servers, "tensorflow_model_server")
    with open(command, "w", encoding="utf-8") as file:
        serve = shlex.join([sys.executable, "-m", "export.local_server"])
        file.write(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {serve} "$@"\n')
    os.chmod(command, 0o700)
