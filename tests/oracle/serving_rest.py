"""TensorFlow Serving's tests of its REST handlers over HTTP, and of the reading of its paths."""

import functools
import json
import os
import types

from cpp_tests import Status, Variable, compare_json, plain, run_tests
from oracle import Case
from served import ask, serving
from stub_model import StubModel

NAME = "http_rest_api_tests"
FOLDER = "serving"
EXPLAINED = {
    f"{prefix}HttpRestApiHandlerTest.UnsupportedApiCalls 3": "There, at /v1/models, bert-serve lists the models."
    for prefix in ("", "TFRT")
}

# The model of both handlers' tests.
_CONFIG = """
model_config_list {{
  config {{
    name: "saved_model_half_plus_two_2_versions"
    base_path: {directory}
    model_platform: "tensorflow"
    model_version_policy {{ specific {{ versions: 123 }} }}
    version_labels {{ key: "Version_Label" value: 123 }}
  }}
}}
"""


def run(folder: str) -> list[Case]:
    """Runs the tests of the three files."""
    servers = os.path.join(folder, "tensorflow_serving", "model_servers")
    model = "tensorflow_serving/servables/tensorflow/testdata/saved_model_half_plus_two_2_versions"
    names = {
        "CompareJson": compare_json,
        "GetJsonErrorMsg": lambda answer: json.loads(plain(answer))["error"],
        "UnorderedElementsAreArray": lambda wanted: (
            lambda headers: str([header for header in wanted if header not in headers] or "")
        ),
        "handler_": types.SimpleNamespace(kPathRegex=None),
        "tensorflow": types.SimpleNamespace(
            ReadFileToString=functools.partial(_read, folder), Env=types.SimpleNamespace(Default=lambda: None)
        ),
    }
    cases = []
    with serving(_CONFIG.format(directory=json.dumps(os.path.join(folder, model)))) as port:
        calls = {
            "handler_.ProcessRequest": functools.partial(_request, port),
            "RE2.FullMatch": lambda path, _: ask(port, "GET", path)[0].status != 404,
        }
        for file in ("http_rest_api_handler_test.cc", "tfrt_http_rest_api_handler_test.cc"):
            cases += run_tests(os.path.join(servers, file), names, {"HeaderList": list}, calls)
    path = os.path.join(servers, "http_rest_api_util_test.cc")
    return cases + run_tests(path, {}, {}, {"ParseModelInfo": _parse_model_info})


def _request(port: int, method, path, body, headers: list, _name, _method, output: Variable) -> Status:
    response, text = ask(port, method, plain(path), plain(body))
    headers[:] = [list(header) for header in response.getheaders()]
    output.set(text)
    if response.status == 200:
        return Status()
    codes = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND"}
    return Status(codes.get(response.status, str(response.status)), json.loads(text)["error"])


def _read(folder: str, _, name, contents: Variable) -> Status:
    with open(os.path.join(folder, plain(name)), encoding="utf-8") as file:
        contents.set(file.read())
    return Status()


def _parse_model_info(
    method,
    path,
    name: Variable,
    version: Variable,
    label: Variable,
    verb: Variable,
    subresource: Variable,
    is_parsed: Variable,
) -> Status:
    """Asks a model that remembers what it was asked; a path that is not understood gets "Malformed request"."""
    model = StubModel({}, {})
    status, _ = model.respond(method, plain(path), "{}" if method == "POST" else "")
    is_parsed.set(not status.text.startswith("Malformed request"))
    asked = {"name": "", "version": None, "label": None, "method": "", "subresource": ""} | model.asked
    for variable, key in ((name, "name"), (version, "version"), (label, "label"), (verb, "method")):
        variable.set(asked[key])
    subresource.set(asked["subresource"] if method == "GET" else "")
    return status if is_parsed.value() and "name" not in model.asked else Status()
