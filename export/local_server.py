"""`bert-serve`: TensorFlow Serving's gRPC and REST API for exported models, on this machine, without docker.

    bert-serve --model_name=my_model --model_base_path=/path/to/my_model
    bert-serve --model_config_file=models.config --enable_batching --host=0.0.0.0
    bert-serve --model_base_path=gs://bucket/my_model --rest_api_port=8080 --port=-1 --host=0.0.0.0
    curl -d '{"instances": ["a sentence"]}' http://127.0.0.1:8501/v1/models/my_model:predict

http://127.0.0.1:8501/ is a page to try the models on. Flags have TensorFlow Serving's names where it has them. A new
version that appears under the base path is loaded, warmed up, and then takes the place of the old one without a gap.
The command serves until SIGTERM or Ctrl-C, then answers requests in progress for at most 10 seconds. A second Ctrl-C
does not wait for them. Ctrl-C while the models load ends the command at once.
"""

import contextlib
import dataclasses
import gc
import os
import resource
import signal
import sys
import time

from export import base_path
from export.server import config_files
from export.server.runtime import memory
from export.server.server_settings import ServerSettings
from keras_bert.errors import InputError
from tasks import flags

_OWN_FILES = 128  # Open files of the server itself: libraries, pipes, models that load.


def serve(settings: ServerSettings) -> None:
    """Serves models until SIGTERM or Ctrl-C.

    Prints a line for each model to standard output as soon as requests are answered.

    Raises:
        InputError: there is no version to serve or it is damaged, a settings file is wrong, or an address cannot be
            bound.
    """
    # Before anything imports TensorFlow, as the URL of a model or a settings file does.
    memory.limit_arenas()
    settings = dataclasses.replace(settings, max_connections=_allow_files(settings.max_connections))
    # gRPC's core writes to standard error itself, for example about a taken port or bytes that are not HTTP/2.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's products are small here, and its threads would spin.
    if settings.runtime == "onnxruntime":  # No encoder needs oneDNN, which would keep memory for each input shape.
        os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"
    if settings.runtime != "tensorflow":  # oneDNN's own allocator would keep the memory of weights that are freed.
        os.environ.setdefault("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", "1")
    models = _models(settings)
    for model in config_files.in_precision(models, settings.precision):
        config_files.aspired_versions(model)  # A wrong base path is refused before TensorFlow is imported.
    batching = _batching_parameters(settings)
    config_files.read_keys(settings.api_key)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host

    # Imported late: this imports TensorFlow, and --help should not wait for that.
    from export.server.assembly import running_server
    from export.server.servable import begin_quietly

    begin_quietly(settings)
    # Freezing what the imports created shortens the garbage collection after a version ends, which delays requests.
    gc.collect()
    gc.freeze()
    try:
        with running_server(models, settings, batching) as server, contextlib.suppress(KeyboardInterrupt):
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            lines = [
                f"Serving {name} (version {version}) at {base_path.model_url(host, server.rest.server_port, name)}"
                for name, version in server.served()
            ]
            lines.append(f"Page: http://{host}:{server.rest.server_port}/")
            if server.grpc and server.grpc.port is not None:
                lines.append(f"gRPC: {host}:{server.grpc.port}")
            if settings.grpc_socket_path:
                lines.append(f"gRPC: unix:{settings.grpc_socket_path}")
            print("\n".join(lines), flush=True)
            while True:  # A signal that arrives just before a sleep does not shorten it.
                time.sleep(1)
    except KeyboardInterrupt:  # A normal exit would wait for graphs that run, or abort in those of ONNX Runtime.
        print(f"{flags.command_name()}: interrupted.", file=sys.stderr, flush=True)
        os._exit(130)
    if server.rest.admission.in_progress or server.manager.is_loading:
        os._exit(0)  # A normal exit would wait for the threads of abandoned requests and loads, however long they run.


def _allow_files(number: int) -> int:
    """Lets the process open enough files for a number of connections, and returns how many the system allows.

    Beyond the limit of open files, usually 1,024, a server can neither accept nor refuse a connection, nor look for
    versions.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return number
    most = min(limit for limit in (soft + number, hard) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    allowed = min(number, max(1, most - _OWN_FILES))
    if allowed < number:
        print(
            f"{flags.command_name()}: at most {allowed} REST connections instead of --max_connections={number}, since "
            f"the system allows only {hard} open files (ulimit -Hn).",
            file=sys.stderr,
        )
    return allowed


def _batching_parameters(settings: ServerSettings) -> config_files.BatchingParameters | None:
    path = settings.batching_parameters_file
    if settings.enable_batching:
        return config_files.read_batching_parameters(path) if path else config_files.BatchingParameters()
    if path or settings.enable_per_model_batching_parameters:
        raise InputError("Batching parameters need --enable_batching.")
    return None


def _models(settings: ServerSettings) -> list[config_files.ModelSettings]:
    if settings.model_config_file is not None:  # As in TensorFlow Serving, it overrides the flags of a single model.
        return config_files.read_model_config(settings.model_config_file)
    if settings.model_base_path is None:
        raise InputError("Expected --model_base_path or --model_config_file.")
    base_path.check_model_name(settings.model_name, "Choose another --model_name.")
    return [config_files.ModelSettings(settings.model_name, settings.model_base_path)]


console_main = flags.console_main(serve, ServerSettings)

if __name__ == "__main__":
    console_main()
