"""Commands and programs that serve and ask one exported model, as text for people to copy. No TensorFlow here."""

import json
import os
import shlex
from collections.abc import Mapping

from export import base_path

# TensorFlow Serving's release on the TensorFlow version that writes the graph.
SERVING_IMAGE = "tensorflow/serving:2.20.0"
REST_PORT = 8501
GRPC_PORT = 8500
_HOST = "127.0.0.1"
_LINE_LENGTH = 100


def model_name(export_dir: str) -> str:
    """The name under which the model is served: the last part of its base path."""
    return os.path.basename(os.path.abspath(export_dir))


# === Serving ===


def serve_command(export_dir: str) -> str:
    """Serves the model on this machine, without docker."""
    base = shlex.quote(os.path.abspath(export_dir))
    return f"bert-serve --model_name={shlex.quote(model_name(export_dir))} --model_base_path={base}"


def docker_command(export_dir: str) -> str:
    """Serves the model by TensorFlow Serving's image; batching by the version's own batching_params.pbtxt."""
    name = model_name(export_dir)
    mount = shlex.quote(f"type=bind,source={os.path.abspath(export_dir)},target=/models/{name}")
    return (
        f"docker run --rm -p {GRPC_PORT}:{GRPC_PORT} -p {REST_PORT}:{REST_PORT} \\\n"
        f"    -e TF_ENABLE_ONEDNN_OPTS=1 -e MODEL_NAME={shlex.quote(name)} \\\n"
        f"    --mount {mount} \\\n"
        f"    {SERVING_IMAGE} --enable_batching --enable_per_model_batching_parameters"
    )


# === Asking ===


def curl_command(export_dir: str, description: Mapping) -> str:
    """Asks the example of the model's description over REST."""
    body = json.dumps({"instances": description["example"]["instances"]}, ensure_ascii=False)
    url = base_path.model_url(_HOST, REST_PORT, model_name(export_dir)) + ":predict"
    return f"curl -d {shlex.quote(body)} \\\n    {shlex.quote(url)}"


def rest_client(export_dir: str, description: Mapping) -> str:
    """A Python program that asks the example over REST, with the standard library alone."""
    url = base_path.model_url(_HOST, REST_PORT, model_name(export_dir)) + ":predict"
    return f"""import json
import urllib.request

URL = {url!r}


def ask(instances):
    body = json.dumps({{"instances": instances}}).encode()
    request = urllib.request.Request(URL, body, {{"Content-Type": "application/json"}})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)["predictions"]


for answer in ask({_literal(description["example"]["instances"], "    ")}):
    print(answer)
"""


def grpc_client(export_dir: str, description: Mapping) -> str:
    """A Python program that asks the example over gRPC, with `tensorflow-serving-api`."""
    lines = [
        f"request.inputs[{name!r}].CopyFrom(tf.make_tensor_proto({_literal(column, '')}))"
        for name, column in _columns(description).items()
    ]
    return f"""import grpc
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

channel = grpc.insecure_channel("{_HOST}:{GRPC_PORT}")
stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
request = predict_pb2.PredictRequest()
request.model_spec.name = {model_name(export_dir)!r}
{chr(10).join(lines)}
response = stub.Predict(request, timeout=30)
for name, tensor in response.outputs.items():
    print(name, tf.make_ndarray(tensor).tolist())
"""


def _columns(description: Mapping) -> dict[str, list]:
    """The example's rows as columns: input name -> values."""
    names = list(description["signatures"]["serving_default"]["inputs"])
    rows = description["example"]["instances"]
    rows = [row if isinstance(row, dict) else {names[0]: row} for row in rows]
    return {name: [row[name] for row in rows] for name in names}


def _literal(value, indent: str) -> str:
    """Python source of a list: on one line where it is short, else an item a line."""
    if len(repr(value)) + len(indent) <= _LINE_LENGTH:
        return repr(value)
    items = "".join(f"{indent}    {item!r},\n" for item in value)
    return f"[\n{items}{indent}]"
