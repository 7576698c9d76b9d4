"""Commands and client programs for one exported model, as text to copy. Imports no TensorFlow."""

import json
import os
import shlex
from collections.abc import Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined

from export import base_path
from keras_bert.files import absolute, is_remote
from tasks.report import card

# TensorFlow Serving's release on the TensorFlow version that writes the graph.
SERVING_IMAGE = "tensorflow/serving:2.20.0"
REST_PORT = 8501
GRPC_PORT = 8500
_HOST = "127.0.0.1"
_LINE_LENGTH = 100


def model_name(export_dir: str) -> str:
    """Returns the name that the model is served under: the last part of its base path."""
    return os.path.basename(absolute(export_dir))


# === Serving ===


def serve_command(export_dir: str) -> str:
    """Returns the command that serves the model on this machine, without docker."""
    base = shlex.quote(absolute(export_dir))
    return f"bert-serve --model_name={shlex.quote(model_name(export_dir))} --model_base_path={base}"


def docker_command(export_dir: str) -> str:
    """Returns the command that serves the model with TensorFlow Serving's image, batched by its own parameters."""
    name, path = model_name(export_dir), absolute(export_dir)
    if is_remote(path):
        place = f"-e MODEL_BASE_PATH={shlex.quote(os.path.dirname(path))}"  # The server reads the bucket itself.
    else:
        place = "--mount " + shlex.quote(f"type=bind,source={path},target=/models/{name}")
    return (
        f"docker run --rm -p {GRPC_PORT}:{GRPC_PORT} -p {REST_PORT}:{REST_PORT} \\\n"
        f"    -e TF_ENABLE_ONEDNN_OPTS=1 -e MODEL_NAME={shlex.quote(name)} \\\n"
        f"    {place} \\\n"
        f"    {SERVING_IMAGE} --enable_batching --enable_per_model_batching_parameters"
    )


# === Asking ===


def curl_command(export_dir: str, description: Mapping) -> str:
    """Returns the command that sends the example of the model's description over REST."""
    body = json.dumps({"instances": description["example"]["instances"]}, ensure_ascii=False)
    return f"curl -d {shlex.quote(body)} \\\n    {shlex.quote(_predict_url(export_dir))}"


def _predict_url(export_dir: str) -> str:
    return base_path.model_url(_HOST, REST_PORT, model_name(export_dir)) + ":predict"


def rest_client(export_dir: str, description: Mapping) -> str:
    """Returns a Python program that sends the example over REST, with only the standard library."""
    return _render("rest_client.py.j2", url=_predict_url(export_dir), instances=description["example"]["instances"])


def grpc_client(export_dir: str, description: Mapping) -> str:
    """Returns a Python program that sends the example over gRPC, with `tensorflow-serving-api`."""
    names = list(description["signatures"]["serving_default"]["inputs"])
    rows = [row if isinstance(row, dict) else {names[0]: row} for row in description["example"]["instances"]]
    columns = {name: [row[name] for row in rows] for name in names}
    name, address = model_name(export_dir), f"{_HOST}:{GRPC_PORT}"
    return _render("grpc_client.py.j2", name=name, address=address, columns=columns)


# === Templates ===


def readme(export_dir: str, description: Mapping, **values) -> str:
    """Returns instructions for serving and querying this model, in Markdown.

    Args:
        export_dir: base path of the model.
        description: see `Head.description`.
        **values: the template's other variables: `version`, the one that was written last; `encoder`, its `BertConfig`;
            `training`, the body of the training's card; `int8`, lines on the cost of 8-bit products.
    """
    commands = {make.__name__: make(export_dir) for make in (serve_command, docker_command)}
    clients = {make.__name__: make(export_dir, description) for make in (curl_command, rest_client, grpc_client)}
    values |= {"name": model_name(export_dir), "description": description, "batching_file": base_path.PER_MODEL_FILE}
    return _render("README.md.j2", rest_port=REST_PORT, grpc_port=GRPC_PORT, **values, **commands, **clients)


def _render(template: str, **values) -> str:
    return _ENVIRONMENT.get_template(template).render(values)


def _literal(value, indent: str = "") -> str:
    """Returns the Python source of a value; a long list gets a line for each item."""
    if isinstance(value, str) or len(repr(value)) + len(indent) <= _LINE_LENGTH:
        return repr(value)
    items = "".join(f"{indent}    {item!r},\n" for item in value)
    return f"[\n{items}{indent}]"


_ENVIRONMENT = Environment(
    loader=PackageLoader("export"), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
)
_ENVIRONMENT.filters |= {"python": _literal, "plain": card.plain, "code": card.code}
_ENVIRONMENT.filters["cell"] = lambda text: text.replace("|", "\\|").replace("\n", " ")
