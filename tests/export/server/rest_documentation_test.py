"""The requests of TensorFlow Serving's REST page, by `curl` where it shows `curl`, with the answers that it shows."""

import json
import shutil
import subprocess

import half_plus
import pytest
import toy_server

NAME = "saved_model_half_plus_three"


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory):
    base_path = str(tmp_path_factory.mktemp("models") / NAME)
    half_plus.save(base_path, 123)
    with toy_server.running(base_path, name=NAME) as running:
        yield running


def post(server, verb, body, where=""):
    return toy_server.ask(server, "POST", f"/v1/models/{NAME}{where}:{verb}", body)


# === The page's commands ===


@pytest.fixture(name="curl")
def _curl(server):
    if not shutil.which("curl"):
        pytest.skip("curl is not installed.")

    def run(*arguments):
        url = f"http://localhost:{server.rest.server_port}/v1/models/{arguments[-1]}"
        done = subprocess.run(["curl", "-sS", *arguments[:-1], url], capture_output=True, text=True, check=True)
        return done.stdout

    return run


def test_the_status_of_a_model(curl):
    assert json.loads(curl(NAME)) == {
        "model_version_status": [
            {"version": "123", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }


def test_predict(curl):
    answer = curl("-d", '{"instances": [1.0,2.0,5.0]}', "-X", "POST", f"{NAME}:predict")
    assert json.loads(answer) == {"predictions": [3.5, 4.0, 5.5]}


def test_regress(curl):
    body = '{"signature_name": "tensorflow/serving/regress", "examples": [{"x": 1.0}, {"x": 2.0}]}'
    assert json.loads(curl("-d", body, "-X", "POST", f"{NAME}:regress")) == {"results": [3.5, 4.0]}


def test_a_model_that_is_not_there(curl):
    head, _, body = curl("-i", "-d", '{"instances": [1.0,5.0]}', "-X", "POST", "half:predict").partition("\n\n")
    lines = head.splitlines()
    assert lines[0] == "HTTP/1.1 404 Not Found"
    assert "Content-Type: application/json" in lines
    assert json.loads(body) == {"error": "Servable not found for request: Latest(half)"}


# === The page's forms ===


def test_rows_and_columns_of_several_inputs(server):
    rows = [
        {"tag": "foo", "signal": [1, 2, 3, 4, 5], "sensor": [[1, 2], [3, 4]]},
        {"tag": "bar", "signal": [3, 4, 1, 2, 5], "sensor": [[4, 5], [6, 8]]},
    ]
    columns = {
        "tag": ["foo", "bar"],
        "signal": [[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]],
        "sensor": [[[1, 2], [3, 4]], [[4, 5], [6, 8]]],
    }
    predictions = [{"tag": "FOO", "sum": 25}, {"tag": "BAR", "sum": 38}]
    assert post(server, "predict", {"signature_name": "several", "instances": rows}) == (
        200,
        {"predictions": predictions},
    )
    outputs = {"tag": ["FOO", "BAR"], "sum": [25, 38]}
    assert post(server, "predict", {"signature_name": "several", "inputs": columns}) == (200, {"outputs": outputs})


def test_binary_features(server):
    body = {
        "signature_name": "classify_objects",
        "examples": [
            {"image": {"b64": "aW1hZ2UgYnl0ZXM="}, "caption": "seaside"},
            {"image": {"b64": "YXdlc29tZSBpbWFnZSBieXRlcw=="}, "caption": "mountains"},
        ],
    }
    assert post(server, "classify", body) == (
        200,
        {
            "results": [
                [["image bytes", 11.0], ["seaside", 7.0]],
                [["awesome image bytes", 19.0], ["mountains", 9.0]],
            ]
        },
    )


def test_classes_without_labels_have_empty_ones(server):
    body = {"signature_name": "classify_x_to_y", "examples": [{"x": 1.0}, {"x": 2.0}]}
    assert post(server, "classify", body) == (200, {"results": [[["", 3.5]], [["", 4.0]]]})


def test_numbers_that_are_none(server):
    status, answer = post(server, "predict", b'{"instances": [NaN, Infinity, -Infinity, 1e2]}')
    assert (status, answer["predictions"][1:]) == (200, [float("inf"), float("-inf"), 53.0])


@pytest.mark.parametrize("where", ["", "/versions/123", "/versions/0123"])
def test_a_version_may_be_named(server, where):
    assert post(server, "predict", {"instances": [1.0]}, where) == (200, {"predictions": [3.5]})
    assert toy_server.ask(server, "GET", f"/v1/models/{NAME}{where}")[0] == 200
    status, answer = toy_server.ask(server, "GET", f"/v1/models/{NAME}{where}/metadata")
    assert (status, answer["model_spec"]) == (200, {"name": NAME, "signature_name": "", "version": "123"})
    inputs = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]
    assert inputs["x"]["dtype"] == "DT_FLOAT"


# === Errors ===


@pytest.mark.parametrize(
    ("verb", "body", "message"),
    [
        (
            "predict",
            {"instances": [1.0], "signature_name": "no"},
            'Serving signature name: "no" not found in signature',
        ),
        ("predict", {"instances": ["text"]}, "expected a number"),
        ("predict", {"inputs": {"z": [1.0]}}, "Missing ['x'] in 'inputs'"),
        ("predict", {"instances": [{"z": 1.0}]}, "expected exactly the keys ['x']"),
        ("predict", {"instances": []}, "No values in the 'instances' list"),
        ("predict", {"instances": [1.0], "inputs": [1.0]}, "exactly one of the keys"),
        ("classify", {"examples": [{"x": 1.0}]}, "Expected a classification signature"),
        ("classify", {"signature_name": "classify_x_to_y", "examples": []}, "'examples'"),
        ("classify", {"signature_name": "classify_x_to_y", "examples": [{"x": "a"}]}, "x"),
        ("classify", {"signature_name": "no", "examples": [{"x": 1.0}]}, "not found in signature def"),
        ("regress", {"examples": [{"x": 1.0}]}, "Expected a regression signature"),
        ("regress", {"signature_name": "tensorflow/serving/regress", "examples": [{}]}, "x"),
        ("regress", {"signature_name": "tensorflow/serving/regress"}, "'examples'"),
        ("regress", {"signature_name": "classify_x_to_y", "examples": [{"x": 1.0}]}, "Expected a regression signature"),
    ],
)
def test_wrong_requests(server, verb, body, message):
    status, answer = post(server, verb, body)
    assert status == 400
    assert list(answer) == ["error"] and message in answer["error"]


def test_a_version_that_is_not_there(server):
    for verb in ("predict", "classify", "regress"):
        status, answer = post(server, verb, {"instances": [1.0]}, "/versions/9")
        assert status == 404
        assert answer["error"] == f"Servable not found for request: Specific({NAME}, 9)"
    assert toy_server.ask(server, "GET", f"/v1/models/{NAME}/versions/9")[0] == 404
    assert toy_server.ask(server, "GET", f"/v1/models/{NAME}/versions/9/metadata")[0] == 404
