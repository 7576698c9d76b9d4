"""The description of the REST API: it admits what the server takes and answers, and refuses what it refuses."""

import pytest
import toy_server
from toy_server import fits


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with toy_server.running(toy_server.saved(tmp_path_factory.mktemp("models"))) as running:
        yield running


@pytest.fixture(scope="module")
def document(server):
    status, document = toy_server.ask(server, "GET", "/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    return document


def test_each_model_has_its_paths(document):
    assert {path: [*methods] for path, methods in document["paths"].items()} == {
        "/health": ["get"],
        "/v1/models": ["get"],
        "/v1/models/toy": ["get"],
        "/v1/models/toy/metadata": ["get"],
        "/v1/models/toy:predict": ["post"],
        "/v1/models/toy:classify": ["post"],
    }


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("predict", {"instances": ["ab", ""]}),
        ("predict", {"instances": [{"text": "ab"}]}),
        ("predict", {"instances": [{"b64": "YWI="}], "signature_name": "echo"}),
        ("predict", {"inputs": ["ab", "xyz"]}),
        ("predict", {"inputs": {"text": [{"b64": "YWI="}]}, "signature_name": "echo"}),
        ("predict", {"instances": [{"b64": "//4="}], "signature_name": "echo"}),
        ("predict", {"inputs": ["a", "b"], "signature_name": "total"}),
        ("predict", {"inputs": {}, "signature_name": "constant"}),
        ("predict", {"instances": [{"numbers": [1, 2], "factor": 0.1}], "signature_name": "scale"}),
        ("predict", {"inputs": {"numbers": [[1, 2]], "factor": [1]}, "signature_name": "scale"}),
        ("predict", {"instances": ["a"], "inputs": ["a"]}),
        ("predict", {"instances": []}),
        ("predict", {"instances": [1]}),
        ("predict", {"instances": [{"texts": "a"}]}),
        ("predict", {"instances": ["a"], "signature_name": "total"}),
        ("predict", {"instances": ["a"], "signature_name": "nope"}),
        ("predict", {"instances": [{"numbers": [1, 2**31], "factor": 1}], "signature_name": "scale"}),
        ("classify", {"signature_name": "classify", "context": {"weight": 2.5}, "examples": [{"text": ["abc"]}]}),
        ("classify", {"signature_name": "classify", "examples": []}),
        ("classify", {"examples": [{"text": "abc"}]}),
    ],
    ids=str,
)
def test_the_schemas_are_those_of_the_server(server, document, verb, body):
    path = f"/v1/models/toy:{verb}"
    described = document["paths"][path]["post"]
    status, answer = toy_server.ask(server, "POST", path, body)
    assert fits(document, described["requestBody"], body) == (status == 200)
    assert fits(document, described["responses"]["200" if status == 200 else "default"], answer)


def test_what_is_asked_without_a_body(server, document):
    for path in ("/v1/models/toy", "/v1/models/toy/metadata"):
        described = document["paths"][path]["get"]["responses"]
        assert fits(document, described["200"], toy_server.ask(server, "GET", path)[1])
        assert fits(document, described["default"], toy_server.ask(server, "GET", "/v1/models/nope")[1])
