"""`bert-serve`: TensorFlow Serving's gRPC and REST API for exported models, on this machine, without docker.

    bert-serve --model_name=my_model --model_base_path=/path/to/my_model
    curl -d '{"instances": ["a sentence"]}' http://127.0.0.1:8501/v1/models/my_model:predict

http://127.0.0.1:8501/ is a page to try the models on. Flags are TensorFlow Serving's where it has them. A new version
that appears under the base path is loaded, warmed up and then served in the place of the old one, without a gap. Serves
until SIGTERM or Ctrl-C; requests in progress are answered first, for 10 seconds at most. A second Ctrl-C does not wait
for them, and one while the models load ends the command at once.
"""

import contextlib
import gc
import os
import signal
from collections.abc import Iterator

from absl import flags

from export import base_path
from export.server.batching_parameters import BatchingParameters, read_batching_parameters
from export.server.model_config import ModelSettings, aspired_versions, read_model_config
from export.server.server_settings import Settings
from keras_bert.errors import InputError
from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("model_base_path", None, "Directory with the numbered versions that bert-export wrote.")
flags.DEFINE_string("model_name", None, "The model's name in requests. Default: the base path's last component.")
flags.DEFINE_string(
    "model_config_file", None, "TensorFlow Serving's ModelServerConfig as text: several models, versions, labels."
)
flags.DEFINE_float(
    "model_config_file_poll_wait_seconds", 0.0, "How often to look for changes in it; 0: never.", lower_bound=0.0
)
flags.DEFINE_float(
    "file_system_poll_wait_seconds", 1.0, "How often to look for new versions; 0: never.", lower_bound=0.0
)
flags.DEFINE_string("host", "127.0.0.1", "Address to listen on. The default is reachable from this machine only.")
flags.DEFINE_integer(
    "rest_api_port", 8501, "Port of REST and the page; 0 takes a free one.", lower_bound=0, upper_bound=65535
)
flags.DEFINE_integer("port", 8500, "Port of gRPC; 0 takes a free one, -1: no gRPC.", lower_bound=-1, upper_bound=65535)
flags.DEFINE_integer(
    "rest_api_timeout_in_ms", 30_000, "Time for a REST request to arrive, and for its answer.", lower_bound=1
)
flags.DEFINE_bool("enable_model_warmup", True, "Replay the warm-up requests that a version brings along.")
flags.DEFINE_bool("enable_batching", False, "Join requests that wait at the same time into batches.")
flags.DEFINE_string(
    "batching_parameters_file", None, "TensorFlow Serving's batching parameters as text; needs --enable_batching."
)
flags.DEFINE_bool(
    "enable_per_model_batching_parameters",
    False,
    "Take each version's own batching_params.pbtxt instead; versions without one are not batched.",
)
flags.DEFINE_bool("allow_reload_config", False, "Let gRPC clients change which directories are served.")
flags.DEFINE_integer("max_request_megabytes", 16, "Longer requests are refused.", lower_bound=1)
flags.DEFINE_integer("max_concurrent_requests", 256, "Further ones are refused until one is answered.", lower_bound=1)
flags.DEFINE_integer("max_connections", 1024, "Further REST connections are refused.", lower_bound=1)


def serve(models: list[ModelSettings], settings: Settings) -> None:
    """Serves models until the process is told to end.

    Prints a line for each model to standard output as soon as requests are answered.

    Raises:
        InputError: there is no version to serve or it is damaged, a file of settings is wrong, or an address cannot be
            bound.
    """
    for model in models:
        aspired_versions(model)  # refused before TensorFlow is imported
    batching = _batching_parameters(settings)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host

    # gRPC's core writes lines of its own to standard error, of a port that is taken, of bytes that are no HTTP/2.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # Imported here: they bring TensorFlow, and --help shall not wait for that.
    from export.server.assembly import running_server

    # What the imports left behind stays: the collection that frees an ended version need not look through it, and
    # requests are held up for less.
    gc.collect()
    gc.freeze()
    with running_server(models, settings, batching) as server, _end_signals() as told:
        lines = [
            f"Serving {status.name} (version {status.version}) at "
            f"{base_path.model_url(host, server.rest.server_port, status.name)}"
            for status in server.served()
        ]
        lines.append(f"Page: http://{host}:{server.rest.server_port}/")
        lines += [f"gRPC: {host}:{server.grpc.port}"] if server.grpc else []
        print("\n".join(lines), flush=True)
        os.read(told, 1)
    if server.admission.in_progress:
        os._exit(0)  # given up: a normal exit would wait for their threads, however long the graph still runs


def _batching_parameters(settings: Settings) -> BatchingParameters | None:
    if not settings.enable_batching:
        if settings.batching_parameters_file or settings.enable_per_model_batching_parameters:
            raise InputError("Batching parameters need --enable_batching.")
        return None
    if settings.batching_parameters_file:
        return read_batching_parameters(settings.batching_parameters_file)
    return BatchingParameters()


@contextlib.contextmanager
def _end_signals() -> Iterator[int]:
    """Within the block SIGTERM and Ctrl-C only make a byte readable at the file descriptor that it gives.

    A pipe, because a handler runs between any two instructions of the main thread, also of one that holds a lock: it
    must not take one itself, as `threading.Event.set` does.
    """
    readable, writable = os.pipe()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: os.write(writable, b"\0")) for number in numbers]
    try:
        yield readable
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        os.close(readable)
        os.close(writable)


def _models() -> list[ModelSettings]:
    if (FLAGS.model_config_file is None) == (FLAGS.model_base_path is None):
        raise InputError("Expected exactly one of --model_base_path and --model_config_file.")
    if FLAGS.model_config_file is not None:
        if FLAGS.model_name is not None:
            raise InputError("--model_name goes with --model_base_path; --model_config_file has the names.")
        return read_model_config(FLAGS.model_config_file)
    name = FLAGS.model_name or os.path.basename(os.path.abspath(FLAGS.model_base_path))
    base_path.check_model_name(name, "Choose another --model_name.")
    return [ModelSettings(name, FLAGS.model_base_path)]


def main(argv: list[str]) -> None:
    """The command: flags in, `serve` called."""
    del argv
    serve(_models(), Settings(**{name: FLAGS[name].value for name in Settings._fields}))


def console_main() -> None:
    """The console script."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
