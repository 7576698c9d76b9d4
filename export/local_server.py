"""`bert-serve`: TensorFlow Serving's REST API for an exported model, on this machine, without docker.

    bert-serve --model_name=my_model --model_base_path=/path/to/my_model
    curl -d '{"instances": ["a sentence"]}' http://127.0.0.1:8501/v1/models/my_model:predict

Serves the highest version under the base path until SIGTERM or Ctrl-C; requests in progress are answered first, for
10 seconds at most. A second Ctrl-C does not wait for them, and one while the model loads ends the command at once.
"""

import contextlib
import os
import signal
from collections.abc import Iterator

from absl import flags

from export import base_path
from tasks import flags as task_flags

FLAGS = flags.FLAGS

flags.DEFINE_string("model_base_path", None, "Directory with the numbered versions that bert-export wrote.")
flags.DEFINE_string("model_name", None, "The model's name in the URL. Default: the base path's last component.")
flags.DEFINE_string("host", "127.0.0.1", "Address to listen on. The default is reachable from this machine only.")
flags.DEFINE_integer("rest_api_port", 8501, "Port to listen on; 0 takes a free one.", lower_bound=0, upper_bound=65535)
flags.DEFINE_integer("max_request_megabytes", 16, "Longer requests are refused (status 413).", lower_bound=1)
flags.mark_flag_as_required("model_base_path")


def serve(
    model_base_path: str,
    *,
    model_name: str | None = None,
    host: str = "127.0.0.1",
    rest_api_port: int = 8501,
    max_request_megabytes: int = 16,
) -> None:
    """Serves the highest version under `model_base_path` until the process is told to end.

    Prints one line to standard output as soon as requests are answered.

    Raises:
        InputError: there is no version to serve or it is damaged, the name does not go into a URL, or the address
            cannot be bound.
    """
    name = model_name or os.path.basename(os.path.abspath(model_base_path))
    base_path.check_model_name(name, "Choose another --model_name.")
    version, directory = base_path.newest_version(model_base_path)

    # Imported here: they bring TensorFlow, and --help shall not wait for that.
    from export import rest_server
    from export.served_model import ServedModel

    model = ServedModel(directory, name, version)
    server = rest_server.open_server(model, host, rest_api_port, max_request_megabytes * 2**20)
    with rest_server.running(server), _end_signals() as told:
        address = base_path.model_url(host, server.server_port, name)
        print(f"Serving {name} (version {version}) at {address}", flush=True)
        os.read(told, 1)


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


def main(argv: list[str]) -> None:
    """The command: flags in, `serve` called."""
    del argv
    serve(
        FLAGS.model_base_path,
        model_name=FLAGS.model_name,
        host=FLAGS.host,
        rest_api_port=FLAGS.rest_api_port,
        max_request_megabytes=FLAGS.max_request_megabytes,
    )


def console_main() -> None:
    """The console script."""
    task_flags.run(main)


if __name__ == "__main__":
    console_main()
