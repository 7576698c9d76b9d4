"""bert-serve as a process of its own, and requests to it over HTTP."""

import contextlib
import http.client
import os
import re
import tempfile
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def serving(config: str, *options: str) -> Iterator[int]:
    """Serves models while the block runs.

    Args:
        config: TensorFlow Serving's ModelServerConfig, as text.
        options: further flags.

    Yields:
        the port of REST.

    Raises:
        RuntimeError: the server does not start.
    """
    from toy_server import run_command

    with tempfile.TemporaryDirectory() as scratch:
        path = os.path.join(scratch, "models.config")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        flags = ["--allow_version_labels_for_unavailable_models", "--rest_api_port=0", "--port=-1", *options]
        command = ["-m", "export.local_server", f"--model_config_file={path}", *flags]
        with run_command(*command, seconds=600, is_forked=False) as process:
            for line in process.stdout:
                if match := re.match(r"Page: http://[^/]*:(\d+)/", line):
                    yield int(match[1])
                    return
            raise RuntimeError(f"bert-serve ended: {process.stderr.read()[-2000:]}")


def ask(
    port: int, method: str, path: str, body: str = "", headers: Mapping[str, str] = {}
) -> tuple[http.client.HTTPResponse, str]:
    """Sends a request; returns the response and its body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body.encode() or None, headers)
        response = connection.getresponse()
        return response, response.read().decode()
    finally:
        connection.close()
